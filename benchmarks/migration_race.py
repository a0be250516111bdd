"""PyTorch against MindSpore: the network of lab 02 trained to the end in both, and their speeds.

    python benchmarks/migration_race.py            prints the stored race
    python benchmarks/migration_race.py --all      trains what is not yet done, and stores it
    python benchmarks/migration_race.py --quick    everything on few images, into runs/bench

Needs PyTorch. A ResNet-18 of half the width on 9000 colour digits of 64 pixels, three epochs, as in
section 12 of lab 02. Both frameworks begin with bitwise the same weights and see the same images in
the same order; each reads the JPEG files with its own pipeline. Label smoothing, momentum, weight
decay and rates are the same. After each epoch both are judged by the same 5000 images, and after
the last one each framework judges the other's weights, converted by labkit.migration. Three seeds
of weights and order: their spread is the yardstick. A last training in PyTorch, with the images of
each batch reversed, shows the effect of rounding alone.

Everything runs on one core, the last one this process may use; each training, judgement and timing
runs in a process of its own. Times are measured with batches in memory, after all trainings.

--all and --quick reuse finished trainings from runs/bench unless --anew is given. --all takes
about 25 minutes.
"""

import json
import math
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from race import Race, Training, batches, percents, score
from side_by_side import in_child, in_processes, interleaved_ms, medians, print_table, verdict

import labkit
from labkit import migration
from labkit.data import imagefolder, parity
from labkit.data.imagefiles import class_names
from labkit.data.prepare import prepare
from labkit.errors import InputError
from labkit.labs.presets import choose
from labkit.labs.results import Stored
from labkit.nets.initialisers import initialise
from labkit.nets.resnet import resnet
from labkit.steps.schedules import cosine

CLASSES = 10
_EVALUATION_BATCH = 500
FRAMEWORKS, AVX2 = ("PyTorch", "MindSpore"), "PyTorch, AVX2"
_LAB = choose("02_resnet50_migration", "lab")
_TRAINING = {
    name: _LAB[name]
    for name in (
        "depth", "width", "image_size", "epochs", "batch_size", "learning_rate", "warmup_epochs",
        "momentum", "weight_decay", "smoothing",
    )
}  # fmt: skip

PLANS = {
    "all": {
        "training": _TRAINING,
        # Five times the lab's validation images, for a more precise accuracy.
        "images": {"train": _LAB["train_images"], "val": 5 * _LAB["val_images"]},
        "seeds": [1, 2, 3],  # of the initial weights and of the order of the images
        "timed": {"processes": 3, "rounds": 5, "updates": 10},
    },
    # To check that the program runs: two minutes, mostly compilation; the results mean nothing.
    "quick": {
        "training": _TRAINING | {"width": 0.125, "image_size": 32, "epochs": 2, "batch_size": 16},
        "images": {"train": 60, "val": 40},
        "seeds": [1],
        "timed": {"processes": 1, "rounds": 1, "updates": 1},
    },
}
# Contestants of the timing and their environment variables; None removes one. On processors with
# AVX-512, labkit.start limits MindSpore's oneDNN to AVX2; the last contestant is PyTorch with the
# same limit.
_FREE = {"ONEDNN_MAX_CPU_ISA": None, "ATEN_CPU_CAPABILITY": None}
CONTESTANTS = {
    "PyTorch": ("PyTorch", _FREE),
    "MindSpore": ("MindSpore", _FREE),
    AVX2: ("PyTorch", {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}),
}
# Largest relative difference of the first loss: same weights and images, section 9's bound.
_FIRST_LOSS = 1e-5


def planned(plan, rows):
    """Return every training, in order."""
    given = [{"framework": framework, "order": "given"} for framework in FRAMEWORKS]
    race = [("race", setting, seed) for seed in plan["seeds"] for setting in given]
    control = ("control", {"framework": "PyTorch", "order": "backwards"}, plan["seeds"][0])
    return [Training(*each, "val", {"plan": plan}) for each in (*race, control)]


def prepared(plan, data):
    """Stay on one core; return a function that returns the folder of the images."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
    size = plan["training"]["image_size"]
    folder = str(data or prepare("color-digits", size=size, **plan["images"]))
    return lambda part: folder


def train(setting: dict, data: str, seed: int, *, plan: dict) -> dict:
    """Train in one framework, judge its weights in the other, and return the outcome."""
    (other,) = set(FRAMEWORKS) - {setting["framework"]}
    with tempfile.TemporaryDirectory() as folder:
        shared = {"plan": plan, "data": data, "weights": f"{folder}/weights.safetensors"}
        outcome = ask("train", **shared, **setting, seed=seed)
        answer = ask("judge", **shared, framework=other)
    pairs = zip(outcome.pop("predicted"), answer.pop("predicted"), strict=True)
    differ = sum(mine != theirs for mine, theirs in pairs)
    return outcome | {"other_accuracy": answer["accuracy"], "images_differ": differ}


def ask(task: str, environment: dict | None = None, **given) -> dict:
    """Return the result of a function of ``TASKS`` in a process of its own."""
    return in_child(__file__, json.dumps({"task": task, **given}), environment=environment)


def updates_of(plan: dict) -> tuple[int, int]:
    """Return the updates of an epoch, and of a training."""
    per_epoch = plan["images"]["train"] // plan["training"]["batch_size"]
    return per_epoch, per_epoch * plan["training"]["epochs"]


def initial(training: dict, seed: int):
    """Return the MindSpore network with weights drawn as torchvision draws them."""
    network = resnet(training["depth"], CLASSES, width=training["width"])
    initialise(network, "torchvision", seed)
    return network


class MindSpore:
    """Section 12 of lab 02: MindSpore's operators and optimizer, labkit's pipeline and step."""

    def __init__(self, training: dict, rates: np.ndarray, seed: int):
        from mindspore import Tensor, nn

        from labkit.steps.losses import CrossEntropySmooth, LossNet
        from labkit.steps.parameter_groups import decay_groups
        from labkit.steps.plain import PlainStep

        self._onednn = labkit.start("CPU", seed).onednn
        self._tensor, self._network = Tensor, initial(training, seed)
        loss_fn = CrossEntropySmooth(
            smooth_factor=training["smoothing"], num_classes=CLASSES, convention="pytorch"
        )
        groups = decay_groups(self._network, training["weight_decay"])
        optimizer = nn.Momentum(groups, Tensor(rates), training["momentum"])
        self._step = PlainStep(LossNet(self._network, loss_fn), optimizer)

    @property
    def kernels(self) -> str:
        """Instruction sets that MindSpore's oneDNN may use."""
        return self._onednn

    @staticmethod
    def read(folder: Path, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return images (N, 3, size, size) and labels (N,), in the order of the file names."""
        dataset = imagefolder.create_dataset(
            folder, _EVALUATION_BATCH, do_train=False, image_size=size, resize=None
        )
        parts = dataset.create_tuple_iterator(num_epochs=1, output_numpy=True)
        images, labels = zip(*parts, strict=True)
        return np.concatenate(images), np.concatenate(labels)

    def step(self, images: np.ndarray, labels: np.ndarray) -> float:
        """Make one update and return the loss before it."""
        return float(self._step(self._tensor(images), self._tensor(labels)).asnumpy())

    def mode(self, training: bool) -> None:
        """Make BatchNorm use the batch's statistics in training, else the running ones."""
        self._network.set_train(training)

    def logits(self, images: np.ndarray) -> np.ndarray:
        """Return the logits (B, classes)."""
        return self._network(self._tensor(images)).asnumpy()

    def state(self) -> dict:
        """Return the weights and statistics by their names in PyTorch."""
        return migration.state_dict(self._network)

    def load(self, state: dict) -> None:
        """Load weights and statistics as ``state`` returns them."""
        migration.load(self._network, state)


class PyTorch:
    """The original, trained as in PyTorch's tutorials: eager, SGD, images read by Pillow."""

    def __init__(self, training: dict, rates: np.ndarray, seed: int):
        import torch

        from tests.support import torch_resnet

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        self._torch, self._rates = torch, iter(rates.tolist())
        self._module = torch_resnet.resnet(training["depth"], CLASSES, width=training["width"])
        self.load(migration.state_dict(initial(training, seed)))
        self._loss_fn = torch.nn.CrossEntropyLoss(label_smoothing=training["smoothing"])
        weights = [p for p in self._module.parameters() if p.ndim > 1]
        others = [p for p in self._module.parameters() if p.ndim <= 1]
        groups = [
            {"params": weights, "weight_decay": training["weight_decay"]},
            {"params": others},
        ]
        self._optimizer = torch.optim.SGD(groups, lr=0.0, momentum=training["momentum"])

    @property
    def kernels(self) -> str:
        """Instruction set that PyTorch's own kernels use."""
        return self._torch.backends.cpu.get_cpu_capability()

    @staticmethod
    def read(folder: Path, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the same as ``MindSpore.read``, preprocessed as by torchvision."""
        images, labels = [], []
        for label, name in enumerate(class_names(folder)):
            for path in sorted((folder / name).iterdir()):
                images.append(parity.pillow_preprocess(path, size, None))
                labels.append(label)
        return np.stack(images), np.array(labels, np.int32)

    def step(self, images: np.ndarray, labels: np.ndarray) -> float:
        """Make one update and return the loss before it."""
        rate = next(self._rates)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        images, labels = (self._torch.from_numpy(part) for part in (images, labels))
        self._optimizer.zero_grad()
        loss = self._loss_fn(self._module(images), labels.long())
        loss.backward()
        self._optimizer.step()
        return loss.item()

    def mode(self, training: bool) -> None:
        """Make BatchNorm use the batch's statistics in training, else the running ones."""
        self._module.train(training)

    def logits(self, images: np.ndarray) -> np.ndarray:
        """Return the logits (B, classes)."""
        with self._torch.no_grad():
            return self._module(self._torch.from_numpy(images)).numpy()

    def state(self) -> dict:
        """Return the weights and statistics by their names in PyTorch."""
        return {name: value.numpy() for name, value in self._module.state_dict().items()}

    def load(self, state: dict) -> None:
        """Load weights and statistics as ``state`` returns them."""
        tensors = {name: self._torch.from_numpy(value) for name, value in state.items()}
        self._module.load_state_dict(tensors)


SIDES = {"PyTorch": PyTorch, "MindSpore": MindSpore}


def side_of(framework: str, plan: dict, seed: int, updates: int = 0):
    """Return a framework's side, with a schedule long enough for ``updates``."""
    per_epoch, total = updates_of(plan)
    training = plan["training"]
    rates = cosine(
        training["learning_rate"], 0.0, training["epochs"], per_epoch, training["warmup_epochs"]
    )
    return SIDES[framework](training, np.resize(rates, max(total, updates)), seed)


def judged(side, images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Return (predicted classes, accuracy, mean loss)."""
    side.mode(training=False)
    starts = range(0, len(labels), _EVALUATION_BATCH)
    logits = [side.logits(images[start : start + _EVALUATION_BATCH]) for start in starts]
    side.mode(training=True)
    logits = np.concatenate(logits)
    return logits.argmax(axis=1), *score(logits, labels)


def trained(plan: dict, data: str, framework: str, order: str, seed: int, weights: str) -> dict:
    """Train to the end, write the ``weights`` and return curve, seconds and predictions.

    Args:
        plan: one of ``PLANS``
        data: folder with train/ and val/
        framework: framework that trains
        order: order of the images in a batch, "given" or "backwards"
        seed: seed of initial weights and order
        weights: file to write, in PyTorch's form
    """
    side, size = side_of(framework, plan, seed), plan["training"]["image_size"]
    images, labels = side.read(Path(data, "train"), size)
    val = side.read(Path(data, "val"), size)
    per_epoch, total = updates_of(plan)
    curve, seconds = [], 0.0
    side.mode(training=True)
    stream = batches(np.arange(len(labels)), total, seed, plan["training"]["batch_size"])
    for update, rows in enumerate(stream, start=1):
        batch = [part[rows[::-1] if order == "backwards" else rows] for part in (images, labels)]
        begin = time.perf_counter()
        loss = side.step(*batch)
        seconds += time.perf_counter() - begin
        point = {"update": update, "accuracy": None, "loss": None}
        if update % per_epoch == 0:
            predicted, point["accuracy"], point["loss"] = judged(side, *val)
        # Nine digits distinguish all float32 numbers.
        curve.append(point | {"training_loss": float(f"{loss:.9g}")})
    migration.write_torch(weights, side.state())
    return {"curve": curve, "seconds": round(seconds, 1), "predicted": predicted.tolist()}


def judge(plan: dict, data: str, framework: str, weights: str) -> dict:
    """Return predictions and accuracy of weights that either framework has trained."""
    side = side_of(framework, plan, seed=0)
    side.load(migration.read_torch(weights))
    predicted, accuracy, _ = judged(
        side, *side.read(Path(data, "val"), plan["training"]["image_size"])
    )
    return {"predicted": predicted.tolist(), "accuracy": accuracy}


def timed(plan: dict, data: str, framework: str) -> dict:
    """Return ms per image in training and inference, and the kernels' instruction sets."""
    batch, timed = plan["training"]["batch_size"], plan["timed"]
    calls = (timed["rounds"] + 1) * timed["updates"]
    side = side_of(framework, plan, seed=1, updates=calls)
    images, labels = (
        part[:batch] for part in side.read(Path(data, "val"), plan["training"]["image_size"])
    )
    side.mode(training=True)
    ms = interleaved_ms(
        {"training": lambda: side.step(images, labels)}, timed["rounds"], timed["updates"]
    )
    side.mode(training=False)
    ms |= interleaved_ms(
        {"inference": lambda: side.logits(images)}, timed["rounds"], timed["updates"]
    )
    return {name: value / batch for name, value in ms.items()} | {"kernels": side.kernels}


def check(stored: Stored) -> None:
    """Raise ``InputError`` unless curves, exchanged weights, first losses and times are possible.

    If accuracies differ by n images, at least n answers differ.
    """
    plan = stored.head["plan"]
    (per_epoch, total), images = updates_of(plan), plan["images"]["val"]
    for number, row in enumerate(stored.rows, start=1):
        curve = stored.curves[number]
        updates = [point["update"] for point in curve]
        judged = [point["update"] for point in curve if point["accuracy"] is not None]
        if updates != list(range(1, total + 1)) or judged != updates[per_epoch - 1 :: per_epoch]:
            raise InputError(f"row {number}: expected {total} losses, judged every {per_epoch}")
        if not all(math.isfinite(point["training_loss"]) for point in curve):
            raise InputError(f"row {number}: a loss is not finite")
        apart = round(abs(row["other_accuracy"] - row["last_accuracy"]) * images)
        if not apart <= row["images_differ"] <= images:
            got = {name: row[name] for name in ("other_accuracy", "images_differ")}
            raise InputError(f"row {number}: expected at least {apart} images to differ, got {got}")
    for seed in plan["seeds"]:
        first = [stored.curves[r["run"]][0]["training_loss"] for r in stored.select(seed=seed)]
        if max(first) - min(first) > _FIRST_LOSS * min(first):
            raise InputError(f"seed {seed}: expected one loss before any update, got {first}")
    if set(stored.head["times"]) != set(CONTESTANTS):
        raise InputError(f"expected times of {[*CONTESTANTS]}, got {[*stored.head['times']]}")


def times(stored: Stored, plan: dict, images) -> None:
    """Add to the head: contestant -> ms per image in training and inference, medians of processes.

    ``runs`` has the times of each process, ``kernels`` the instruction sets that the contestant may
    use.
    """

    def in_turns():
        return {
            name: ask("time", environment, plan=plan, data=images("val"), framework=framework)
            for name, (framework, environment) in CONTESTANTS.items()
        }

    measured, by_name = in_processes(plan["timed"]["processes"], in_turns), {}
    for name in CONTESTANTS:
        kernels = [each[name].pop("kernels") for each in measured][0]
        runs = [{what: round(ms, 4) for what, ms in each[name].items()} for each in measured]
        by_name[name] = medians(runs) | {"kernels": kernels, "runs": runs}
    stored.head["times"] = by_name


def show(stored: Stored) -> None:
    """Print accuracies, their spread, the results of exchanged weights, and the times."""
    names = ("stage", "framework", "order", "seed", "last_accuracy", "other_accuracy",
             "images_differ", "seconds")  # fmt: skip
    print_table([*names], [[f"{row[name]}" for name in names] for row in stored.rows])
    print("\nvalidation accuracy in %, mean and by seed\n")
    given = {"order": "given"}
    ends = {n: stored.column("last_accuracy", framework=n, **given) for n in FRAMEWORKS}
    print_table(["", "mean", "by seed"], [[name, *percents(ends[name])] for name in ends])
    gap = abs(np.subtract(*(np.mean(each) for each in ends.values())))
    spread = min(np.ptp(each) for each in ends.values())
    print(
        f"\nthe means are {100 * gap:.2f} points apart; the seeds of one framework, at least "
        f"{100 * spread:.2f}: the same accuracy within the seeds' spread is {verdict(gap < spread)}"
    )
    for seed in stored.head["plan"]["seeds"]:
        theirs, ours = (_losses(stored, seed, name) for name in FRAMEWORKS)
        off = abs(ours - theirs) / theirs
        print(f"seed {seed}: losses of updates 1, 2, 5, 10 apart by", _at(off, 1, 2, 5, 10))
    print("\nms an image, one core\n")
    base = stored.head["times"]["PyTorch"]
    rows = []
    for name, ms in stored.head["times"].items():
        ratios = [ms[what] / base[what] for what in ("training", "inference")]
        rows.append([name, ms["kernels"], ms["training"], ratios[0], ms["inference"], ratios[1]])
    print_table(["", "kernels", "training", "/ PyTorch", "inference", "/ PyTorch"], rows)


def _losses(stored, seed, framework):
    (row,) = stored.select(seed=seed, framework=framework, order="given")
    return np.array([point["training_loss"] for point in stored.curves[row["run"]]])


def _at(values, *updates):
    return ", ".join(f"{values[u - 1]:.1e}" for u in updates if u <= len(values))


TASKS = {"train": trained, "judge": judge, "time": timed}
RACE = Race(
    "migration_race",
    PLANS,
    planned,
    train,
    lambda plan, row: updates_of(plan)[1],
    show,
    of_outcome=lambda outcome: {
        n: outcome[n] for n in ("other_accuracy", "images_differ", "seconds")
    },
    finish=times,
    check_more=check,
    images=prepared,
    packages=("torch",),
)

if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1].startswith("{"):
        given = json.loads(sys.argv[1])
        print(json.dumps(TASKS[given.pop("task")](**given)))
    else:
        RACE.main(__doc__)
