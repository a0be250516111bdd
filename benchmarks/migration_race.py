"""PyTorch against MindSpore: a ResNet trained to the end in both, for lab 02, and their speeds.

    python benchmarks/migration_race.py [--all]    as race.py says; --all takes 25 minutes

Needs PyTorch. A ResNet-18 of half the width on 9000 colour digits of 64 pixels, three epochs.
Both frameworks begin with bitwise the same weights and see the same images in
the same order; each reads the JPEG files with its own pipeline. Label smoothing, momentum, weight
decay and rates are the same. After each epoch both are judged by the same 5000 images, and after
the last one each framework judges the other's weights, converted by labkit.migration. Three seeds
of weights and order: their spread is the yardstick. A last training in PyTorch, with the images of
each batch reversed, shows the effect of rounding alone.

Everything runs on one core, the last one this process may use, each training, judgement and timing
in a process of its own. Times are measured with batches in memory, after all trainings.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import race
from side_by_side import in_child, interleaved_ms, medians

import labkit
from labkit import migration
from labkit.data import imagefolder, parity
from labkit.data.imagefiles import class_names
from labkit.data.prepare import prepare
from labkit.nets.initialisers import initialise
from labkit.nets.resnet import resnet
from labkit.steps.schedules import cosine

CLASSES = 10
_EVALUATION_BATCH = 500
PLAN = {
    "training": {
        "depth": 18,
        "width": 0.5,
        "image_size": 64,
        "epochs": 3,
        "batch_size": 32,
        "learning_rate": 0.05,
        "warmup_epochs": 1,
        "momentum": 0.9,
        "weight_decay": 0.0001,
        "smoothing": 0.1,
    },
    "images": {"train": 9000, "val": 5000},
    "seeds": [1, 2, 3],  # of the initial weights and of the order of the images
    "timed": {"processes": 3, "rounds": 5, "updates": 10},
}
# Contestants of the timing and their environment variables; None removes one. On processors with
# AVX-512, labkit.start limits MindSpore's oneDNN to AVX2; the last contestant is PyTorch with the
# same limit.
_FREE = {"ONEDNN_MAX_CPU_ISA": None, "ATEN_CPU_CAPABILITY": None}
CONTESTANTS = {
    "PyTorch": ("PyTorch", _FREE),
    "MindSpore": ("MindSpore", _FREE),
    "PyTorch, AVX2": ("PyTorch", {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}),
}


def planned(plan, rows):
    """Return every training, in order."""
    trainings = [("race", name, "given", seed) for seed in plan["seeds"] for name in SIDES]
    trainings.append(("control", "PyTorch", "backwards", plan["seeds"][0]))
    return [
        race.training(stage, "val", {"framework": name, "order": order}, seed, {"plan": plan})
        for stage, name, order, seed in trainings
    ]


def prepared(plan, data):
    """Stay on one core; return a function that returns the folder of the images."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
    size = plan["training"]["image_size"]
    folder = str(data or prepare("color-digits", size=size, **plan["images"]))
    return lambda part: folder


def initial(settings: dict, seed: int):
    """Return the MindSpore network with weights drawn as torchvision draws them."""
    network = resnet(settings["depth"], CLASSES, width=settings["width"])
    initialise(network, "torchvision", seed)
    return network


class MindSpore:
    """MindSpore's operators and optimizer, labkit's pipeline and step.

    ``kernels`` are the instruction sets that its oneDNN may use; ``mode(True)`` makes BatchNorm use
    the batch's statistics, ``mode(False)`` the running ones; ``step`` makes an update and returns
    the loss before it; ``state`` and ``load`` have weights and statistics by their PyTorch names.
    """

    def __init__(self, settings: dict, rates: np.ndarray, seed: int):
        from mindspore import Tensor, nn

        from labkit.steps.losses import CrossEntropySmooth, LossNet
        from labkit.steps.parameter_groups import decay_groups
        from labkit.steps.step import PlainStep

        self.kernels = labkit.start("CPU", seed).onednn
        self._tensor, self._network = Tensor, initial(settings, seed)
        self.mode = self._network.set_train
        loss_fn = CrossEntropySmooth(
            smooth_factor=settings["smoothing"], num_classes=CLASSES, convention="pytorch"
        )
        groups = decay_groups(self._network, settings["weight_decay"])
        optimizer = nn.Momentum(groups, Tensor(rates), settings["momentum"])
        self._step = PlainStep(LossNet(self._network, loss_fn), optimizer)

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
        return float(self._step(self._tensor(images), self._tensor(labels)).asnumpy())

    def logits(self, images: np.ndarray) -> np.ndarray:
        return self._network(self._tensor(images)).asnumpy()

    def state(self) -> dict:
        return migration.state_dict(self._network)

    def load(self, state: dict) -> None:
        migration.load(self._network, state)


class PyTorch:
    """The original, trained as in PyTorch's tutorials: eager, SGD, images read by Pillow."""

    def __init__(self, settings: dict, rates: np.ndarray, seed: int):
        import torch

        from tests.support import torch_resnet

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        self.kernels = torch.backends.cpu.get_cpu_capability()
        self._torch, self._rates = torch, iter(rates.tolist())
        self._module = torch_resnet.resnet(settings["depth"], CLASSES, width=settings["width"])
        self.mode = self._module.train
        self.load(migration.state_dict(initial(settings, seed)))
        self._loss_fn = torch.nn.CrossEntropyLoss(label_smoothing=settings["smoothing"])
        weights = [p for p in self._module.parameters() if p.ndim > 1]
        others = [p for p in self._module.parameters() if p.ndim <= 1]
        groups = [{"params": weights, "weight_decay": settings["weight_decay"]}]
        groups.append({"params": others})
        self._optimizer = torch.optim.SGD(groups, lr=0.0, momentum=settings["momentum"])

    @staticmethod
    def read(folder: Path, size: int) -> tuple[np.ndarray, np.ndarray]:
        images, labels = [], []
        for label, name in enumerate(class_names(folder)):
            for path in sorted((folder / name).iterdir()):
                images.append(parity.pillow_preprocess(path, size, None))
                labels.append(label)
        return np.stack(images), np.array(labels, np.int32)

    def step(self, images: np.ndarray, labels: np.ndarray) -> float:
        rate = next(self._rates)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        images, labels = (self._torch.from_numpy(part) for part in (images, labels))
        self._optimizer.zero_grad()
        loss = self._loss_fn(self._module(images), labels.long())
        loss.backward()
        self._optimizer.step()
        return loss.item()

    def logits(self, images: np.ndarray) -> np.ndarray:
        with self._torch.no_grad():
            return self._module(self._torch.from_numpy(images)).numpy()

    def state(self) -> dict:
        return {name: value.numpy() for name, value in self._module.state_dict().items()}

    def load(self, state: dict) -> None:
        tensors = {name: self._torch.from_numpy(value) for name, value in state.items()}
        self._module.load_state_dict(tensors)


SIDES = {"PyTorch": PyTorch, "MindSpore": MindSpore}


def side_of(framework: str, plan: dict, seed: int, updates: int = 0):
    """Return a framework's side, with a schedule long enough for ``updates``."""
    settings = plan["training"]
    per_epoch = plan["images"]["train"] // settings["batch_size"]
    peak, epochs = settings["learning_rate"], settings["epochs"]
    rates = cosine(peak, 0.0, epochs, per_epoch, settings["warmup_epochs"])
    return SIDES[framework](settings, np.resize(rates, max(len(rates), updates)), seed)


def judged(side, images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Return (predicted classes, accuracy, mean loss)."""
    side.mode(False)
    starts = range(0, len(labels), _EVALUATION_BATCH)
    logits = [side.logits(images[start : start + _EVALUATION_BATCH]) for start in starts]
    side.mode(True)
    logits = np.concatenate(logits)
    return logits.argmax(axis=1), *race.score(logits, labels)


def train(setting: dict, data: str, seed: int, *, plan: dict) -> dict:
    """Train in one framework, judge its weights in the other, and return the outcome."""
    (other,) = SIDES.keys() - {setting["framework"]}
    with tempfile.TemporaryDirectory() as folder:
        given = {"plan": plan, "data": data, "weights": f"{folder}/weights.safetensors"}
        outcome = ask("trained", **given, **setting, seed=seed)
        answer = ask("exchanged", **given, framework=other)
    pairs = zip(outcome.pop("predicted"), answer.pop("predicted"), strict=True)
    return outcome | answer | {"images_differ": sum(mine != theirs for mine, theirs in pairs)}


def ask(task: str, environment: dict | None = None, **given) -> dict:
    """Return the result of a function of this program in a process of its own."""
    return in_child(__file__, task, json.dumps(given), environment=environment)


def trained(plan, data, framework, order, seed, weights) -> dict:
    """Train to the end, write the weights and return curve, seconds and predictions."""
    side, settings = side_of(framework, plan, seed), plan["training"]
    size, batch_size = settings["image_size"], settings["batch_size"]
    images, labels = side.read(Path(data, "train"), size)
    val = side.read(Path(data, "val"), size)
    per_epoch = len(labels) // batch_size
    curve, seconds = [], 0.0
    side.mode(True)
    stream = race.batches(np.arange(len(labels)), settings["epochs"] * per_epoch, seed, batch_size)
    for update, rows in enumerate(stream, start=1):
        rows = rows[::-1] if order == "backwards" else rows
        begin = time.perf_counter()
        loss = side.step(images[rows], labels[rows])
        seconds += time.perf_counter() - begin
        point = {"update": update, "accuracy": None, "loss": None}
        if update % per_epoch == 0:
            predicted, point["accuracy"], point["loss"] = judged(side, *val)
        # Nine digits distinguish all float32 numbers.
        curve.append(point | {"training_loss": float(f"{loss:.9g}")})
    migration.write_torch(weights, side.state())
    return {"curve": curve, "seconds": round(seconds, 1), "predicted": predicted.tolist()}


def exchanged(plan, data, framework, weights) -> dict:
    """Return predictions and accuracy of weights that the other framework has trained."""
    side, size = side_of(framework, plan, seed=0), plan["training"]["image_size"]
    side.load(migration.read_torch(weights))
    predicted, accuracy, _ = judged(side, *side.read(Path(data, "val"), size))
    return {"predicted": predicted.tolist(), "other_accuracy": accuracy}


def end(plan, row, outcome):
    """Return the other fields of a row."""
    fields = race.at_end(plan, row, outcome)
    del fields["failure"]
    return fields | {n: outcome[n] for n in ("other_accuracy", "images_differ", "seconds")}


def timed(plan: dict, data: str, framework: str) -> dict:
    """Return ms per image in training and inference, and the kernels' instruction sets."""
    batch, (_, rounds, updates) = plan["training"]["batch_size"], plan["timed"].values()
    side = side_of(framework, plan, seed=1, updates=(rounds + 1) * updates)
    read = side.read(Path(data, "val"), plan["training"]["image_size"])
    images, labels = (part[:batch] for part in read)
    side.mode(True)
    taken = interleaved_ms({"training": lambda: side.step(images, labels)}, rounds, updates)
    side.mode(False)
    taken |= interleaved_ms({"inference": lambda: side.logits(images)}, rounds, updates)
    return {name: ms / batch for name, ms in taken.items()} | {"kernels": side.kernels}


def finish(stored, images) -> None:
    """Add to the head: contestant -> ms per image in training and inference, medians of processes.

    ``runs`` has the times of each process, ``kernels`` the instruction sets that the contestant may
    use. The contestants take turns.
    """
    plan, runs, times = stored.head["plan"], [], {}
    for _ in range(plan["timed"]["processes"]):
        runs.append({})
        for name, (framework, environment) in CONTESTANTS.items():
            given = {"plan": plan, "data": images("val"), "framework": framework}
            runs[-1][name] = ask("timed", environment, **given)
    for name in CONTESTANTS:
        kernels = [each[name].pop("kernels") for each in runs][0]
        own = [{what: round(ms, 4) for what, ms in each[name].items()} for each in runs]
        times[name] = medians(own) | {"kernels": kernels, "runs": own}
    stored.head["times"] = times


RACE = race.Race("migration_race", PLAN, planned, train, end, finish=finish, images=prepared)

if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in ("trained", "exchanged", "timed"):
        print(json.dumps(globals()[sys.argv[1]](**json.loads(sys.argv[2]))))
    else:
        RACE.main(__doc__)
