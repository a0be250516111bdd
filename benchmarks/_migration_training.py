"""One training of the race of PyTorch and MindSpore, in a process of its own.

    python benchmarks/_migration_training.py JSON

JSON is {"task": "train", "judge" or "time", ...}: a name in ``TASKS`` and its function's arguments.
The result is the last line of output. ``benchmarks/migration_race.py`` calls this program.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
from _migration_plan import updates_of
from _race import batches, score
from _side_by_side import interleaved_ms

import labkit
from labkit import migration
from labkit.data import imagefolder, parity
from labkit.data.imagefiles import class_names
from labkit.nets.initialisers import initialise
from labkit.nets.resnet import resnet
from labkit.steps.schedules import cosine

CLASSES = 10
_EVALUATION_BATCH = 500


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

        sys.path.append(str(Path(__file__).resolve().parents[1]))
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


def train(plan: dict, data: str, framework: str, order: str, seed: int, weights: str) -> dict:
    """Train to the end, write the ``weights`` and return curve, seconds and predictions.

    Args:
        plan: as in ``_migration_plan``
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


TASKS = {"train": train, "judge": judge, "time": timed}

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(TASKS[given.pop("task")](**given)))
