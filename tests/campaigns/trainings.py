"""Readers of a training's folder: what ``fit(resume=...)`` reads of checkpoint and records."""

import functools
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.campaigns.mutate import EDGES, Tree, dumps, json_like, text_damaged
from tests.campaigns.reader import Reader, with_special
from tests.support.ckpt_bytes import crc, entry, text

ROOT = Path(__file__).resolve().parents[2]
POSITION = "labkit_position"
_KINDS = {"float32": b"Float32", "int32": b"Int32", "int64": b"Int64", "bool": b"Bool"}


def _parts():
    """Return a step, its data and the options of ``fit``: two updates per epoch, two rates."""
    import mindspore as ms
    from mindspore import nn
    from mindspore.dataset import NumpySlicesDataset

    from labkit import AccumulatedStep, LossNet
    from labkit.steps.gradients import DynamicLossScale

    ms.dataset.config.set_seed(1)
    ms.dataset.config.set_fast_recovery(False)
    network = nn.Dense(3, 2)
    rates = [0.1, 0.1, 0.05, 0.05]
    optimizer = nn.Momentum(network.trainable_params(), rates, 0.9)
    scale = DynamicLossScale(2.0**10, 2.0, 4)
    loss_net = LossNet(network, nn.CrossEntropyLoss())
    step = AccumulatedStep(loss_net, optimizer, 2, loss_scale=scale)
    rows = np.arange(24, dtype=np.float32).reshape(8, 3) / 24, np.arange(8, dtype=np.int32) % 2
    data = NumpySlicesDataset(rows, ["rows", "labels"], shuffle=False).batch(2)
    return step, data, {"epochs": 2, "progress": None, "folder": None}


def train(folder: Path) -> None:
    """Train in ``folder``, and save the arrays of the last checkpoint there by name."""
    from labkit import fit
    from labkit.training import checkpoint

    step, data, options = _parts()
    fit(step, data, **options | {"folder": folder})
    values = checkpoint.read(checkpoint.checkpoints(folder / "checkpoint")[-1])
    arrays = {n: v if isinstance(v, str) else v.asnumpy() for n, v in values.items()}
    np.savez(folder / "values.npz", **arrays)


@functools.cache
def _whole() -> tuple[dict, str]:
    """Return the values of a checkpoint at the end of a real training, and its records.

    The training has its own process: in the test's, no device could be chosen afterwards.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.campaigns.trainings", folder]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        with np.load(Path(folder) / "values.npz") as file:
            values = {name: file[name] for name in file.files}
        records = (Path(folder) / "records.csv").read_text()
    return values | {POSITION: str(values[POSITION])}, records


def encoded(values: dict) -> bytes:
    """Return a checkpoint of arrays and texts by name, as MindSpore writes it, with its CRC."""
    parts = []
    for name, value in values.items():
        if isinstance(value, str):
            parts.append(entry(name.encode(), b"str", (0,), text(value)))
        else:
            kind, dims = _KINDS[str(value.dtype)], value.shape or (0,)
            parts.append(entry(name.encode(), kind, dims, value.tobytes()))
    return crc(b"".join(parts))


def _odd_state(rule, values: dict) -> dict:
    """Change counters, the loss scale, a rate or a weight, or assign them to another rank."""
    names = sorted(name for name in values if name != POSITION)
    for name in rule.sample(names, rule.randrange(1, 4)):
        value = values[name]
        number = rule.choice((*EDGES, 0, 1, 2, 3, 7, -1, float("nan"), float("inf"), 1e-30))
        with np.errstate(all="ignore"):
            odd = np.full(value.shape, number % 2**31 if value.dtype.kind == "i" else number)
        if value.dtype.kind == "i" and not np.isfinite(odd).all():
            odd = np.full(value.shape, -5)
        odd = odd.astype(value.dtype)
        rank = rule.choice(("0", "1", "00", "9" * 30))
        values = values | {rule.choice((name, name, f"labkit_rank.{rank}.{name}")): odd}
    return values


def _make(rule: random.Random) -> Tree:
    values, records = _whole()
    table, act = records.encode(), rule.random()
    if act < 0.6:
        position = json_like(rule, json.loads(values[POSITION]))
        values = values | {POSITION: dumps(position).decode("utf-8", "surrogatepass")}
    elif act < 0.8:
        values = _odd_state(rule, values)
    if act > 0.7:
        table = text_damaged(rule, table)
    last = f"checkpoint/step-{8:09d}.ckpt"
    return with_special(rule, {last: encoded(values), "records.csv": table})


def _resume(word):
    def resume(folder: Path, _out: Path):
        from labkit.training import fit as training

        # Only the reading is judged: a training would take seconds to compile.
        training.train = lambda *_arguments: None
        step, data, options = _parts()
        return training.fit(step, data, resume=word, **options | {"folder": folder})

    return resume


READERS = {"resume": Reader(_make, (_resume("new settings"), _resume(True)), heavy=True)}


if __name__ == "__main__":
    train(Path(sys.argv[1]))
