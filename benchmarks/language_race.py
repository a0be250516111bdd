"""A small GPT on Shakespeare, trained with each technique on the same budget of characters.

    python benchmarks/language_race.py [--all]    as race.py says; --all takes an hour

Everything is chosen on Macbeth with a seed of its own, from three settings of each method; winners
train with three other seeds and are judged by The Tempest as well. 300 updates of 16 windows of 64
characters, or 75 of 64 windows. Rates: warm-up over a sixth of the updates, then a cosine to a
tenth; AdamW has beta2 0.99 and decays the matrices by 0.1. "identity" is THOR with each inverse
replaced by its mean eigenvalue times the identity, the control of what its directions gain.
Seconds are CPU seconds of this process, without compiling, which is apart, and judging.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import race
from mindspore import Tensor, nn
from side_by_side import in_child

import labkit
from labkit.algorithms.subspace.basis import Basis
from labkit.data import shakespeare
from labkit.data.prepare import prepare
from labkit.labs.compare import parameter_values
from labkit.nets.gpt import GPT
from labkit.optimizers import AdamW, Both, Muon
from labkit.reference.lenet import cross_entropy
from labkit.steps.losses import TokenLossNet
from labkit.steps.parameter_groups import decay_groups
from labkit.steps.schedules import cosine
from labkit.steps.state import set_state
from labkit.training.evaluation import swapped

LENGTH, ROWS, UPDATES, DECAY, TUNING_SEED = 64, 16, 300, 0.1, 100
# Windows of an update and how many micro-batches or workers they come in; else 16 in one.
SHAPES = dict.fromkeys(("AdamW, accumulated", "mean of 4", "Adasum of 4"), (64, 4))
SHAPES["Adasum of 8"] = (64, 8)
# Subspace: updates of stage one, snapshots of its second half, components, updates of stage two.
STAGE_ONE, SNAPSHOTS, COMPONENTS, STAGE_TWO, SEARCHED = 200, 20, 16, 25, (64, 4)
EMA, LAST = 0.98, 100  # decay of the moving average; updates of the plain average


def _rates(*rates, **more):
    return [{"rate": rate} | more for rate in rates]


PLAN = {
    "grid": {
        "AdamW": _rates(0.01, 0.02, 0.04),
        "AdamW, no clipping": _rates(0.005, 0.01, 0.02),
        "Muon": _rates(0.01, 0.02, 0.04),
        "constant rate": _rates(0.0025, 0.005, 0.01),
        "AdamW, accumulated": _rates(0.0025, 0.005, 0.01),
        "mean of 4": _rates(0.00125, 0.0025, 0.005),
        "Adasum of 4": _rates(0.00125, 0.0025, 0.005),
        "Adasum of 8": "Adasum of 4",  # at its winner
        "subspace": [{"alpha": alpha} for alpha in (0.01, 0.1, 1.0)],
        "THOR": _rates(0.005, 0.01, 0.02, damping=0.3),
        "THOR, identity": _rates(0.005, 0.01, 0.02, damping=0.3),
    },
    "seeds": (1, 2, 3),
    "images": {"judged": 512},  # windows of a play
}
_OWN = ("rate", "damping", "alpha")


def texts(plan, data):
    """Start MindSpore; return a function: part of the race -> the plays."""
    labkit.start(device="CPU")
    plays = shakespeare.load(data or prepare("shakespeare"))
    return lambda part: plays


def planned(plan, rows):
    """Yield each method's tuning, then its winner with every seed."""
    for method, grid in plan["grid"].items():
        for setting in () if isinstance(grid, str) else grid:
            if method == "subspace":  # continues a training at the constant rate
                setting = {"rate": decided(plan, rows)["tuned"]["constant rate"]["rate"]} | setting
            yield _training(plan, "tune", {"method": method} | setting, TUNING_SEED, UPDATES)
        winner = {"method": method} | decided(plan, rows)["tuned"][method]
        for seed in plan["seeds"]:
            yield _training(plan, "race", winner, seed, 50 if total(winner) > 75 else 25)


def _training(plan, stage, setting, seed, every):
    row = {"stage": stage} | {name: setting.get(name) for name in ("method", *_OWN)}
    limits = {"every": every} | plan["images"]
    return race.Training(row | {"seed": seed}, stage, setting, seed, limits)


def decided(plan, rows):
    """Return ``tuned``: method -> its setting with the least loss on Macbeth."""
    tuned, tune = {}, (row for row in rows if row["stage"] == "tune")
    for (method,), group in race.grouped(tune, "method").items():
        best = min(group, key=lambda row: row["ema_loss"] or row["last_loss"] or np.inf)
        tuned[method] = {name: best[name] for name in _OWN if best[name] is not None}
    others = {method: of for method, of in plan["grid"].items() if isinstance(of, str)}
    return {"tuned": tuned | {method: tuned[of] for method, of in others.items() if of in tuned}}


def end(plan, row, outcome):
    """Return a row's fields for the end of its training."""
    last = (outcome["curve"] or [{}])[-1]
    fields = {"updates": last.get("update"), "last_loss": last.get("loss")}
    fields |= {f"{name}_loss": last.get(name) for name in ("ema", "average")}
    own = ("tempest", "tempest_ema", "tempest_average", "seconds", "compile_seconds", "failure")
    return fields | {name: outcome.get(name) or None for name in own}


def total(setting: dict) -> int:
    """Return how many updates a training makes."""
    own = UPDATES * ROWS // SHAPES.get(setting["method"], (ROWS, 1))[0]
    return STAGE_ONE + STAGE_TWO if setting["method"] == "subspace" else own


def make_step(setting: dict, network: nn.Cell) -> nn.Cell:
    """Return the step of a setting."""
    method, rate, loss_net = setting["method"], setting["rate"], TokenLossNet(network)
    updates = UPDATES * ROWS // SHAPES.get(method, (ROWS, 1))[0]
    rates = cosine(rate, DECAY * rate, updates, 1, updates // 6)
    if method in ("constant rate", "subspace"):
        rates = np.minimum(1, np.arange(1, updates + 1) / (updates // 6)).astype(np.float32) * rate
    adamw = AdamW(decay_groups(network, DECAY), Tensor(rates), beta2=0.99)
    if method == "Muon":
        return labkit.PlainStep(loss_net, muon(network, Tensor(rates)))
    if method.startswith("THOR"):
        options = {"frequency": 10, "factor_decay": 0.9, "split": None}
        step = labkit.ThorStep(loss_net, adamw, setting["damping"], **options)
        return without_directions(step) if "identity" in method else step
    if method[-1].isdigit():
        reduction, _, workers = method.lower().split()
        words = {"workers": int(workers), "reduction": reduction, "on": "gradients"}
        return labkit.AdasumStep(loss_net, adamw, **words)
    if method in SHAPES:
        return labkit.AccumulatedStep(loss_net, adamw, SHAPES[method][1], clip_norm=1.0)
    clip = None if method == "AdamW, no clipping" else 1.0
    return labkit.PlainStep(loss_net, adamw, clip_norm=clip)


def muon(network: nn.Cell, rates: Tensor) -> nn.Optimizer:
    """Return Muon for the matrices of the blocks and AdamW for the rest, at the same rates."""
    weights, (matrices, vectors, _) = network.trainable_params(), decay_groups(network, DECAY)
    inner = [w for w in matrices["params"] if w.name.startswith("blocks")]
    parts = {w.name: 3 for w in inner if "qkv" in w.name}
    matrices["params"] = [w for w in matrices["params"] if not w.name.startswith("blocks")]
    own = Muon(inner, rates, weight_decay=DECAY, parts=parts)
    return Both(weights, own, AdamW([matrices, vectors], rates, beta2=0.99))


def without_directions(step: nn.Cell) -> nn.Cell:
    """Replace each inverse of THOR by its mean eigenvalue times the identity, at every refresh."""
    make = step.update.inverses.make

    def made(due, damping):
        retries = make(due, damping)
        for layer in (step.update.layers[number] for number in due):
            for inverse in (layer.a_inverse, layer.g_inverse):
                identity = np.eye(inverse.shape[-1])
                means = np.einsum("bii->b", inverse.asnumpy()) / len(identity)
                set_state(inverse, means[:, None, None] * identity)
        return retries

    step.update.inverses.make = made
    return step


def second_stage(network: nn.Cell, snapshots: list, alpha: float) -> nn.Cell:
    """Return the subspace step over the principal components of weights (snapshots, M)."""
    rows = np.stack(snapshots).astype(np.float64)
    _, sizes, directions = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
    variances, parameters = sizes**2 / (len(rows) - 1), network.trainable_params()
    basis = Basis(directions[:COMPONENTS], parameters, variances[:COMPONENTS], variances.sum())
    words = {"micro_steps": SEARCHED[1], "alpha": alpha, "clip_norm": 1.0}
    return labkit.SubspaceStep(TokenLossNet(network), nn.SGD(parameters, 1.0), basis, **words)


def updates(setting: dict, network: nn.Cell, batch: Callable) -> Iterator[tuple[float, float]]:
    """Make the updates of a training; yield the mean loss and the CPU seconds of each."""
    step, shape = make_step(setting, network), SHAPES.get(setting["method"], (ROWS, 1))
    two_stages, snapshots = setting["method"] == "subspace", []
    for number in range(1, total(setting) + 1):
        if two_stages and number == STAGE_ONE + 1:
            step, shape = second_stage(network, snapshots, setting["alpha"]), SEARCHED
        parts, begin = batch(number, *shape), time.process_time()
        losses = [float(step(*map(Tensor, part)).asnumpy()) for part in parts]
        yield float(np.mean(losses)), time.process_time() - begin
        late = STAGE_ONE / 2 < number <= STAGE_ONE
        if two_stages and late and not number % (STAGE_ONE // 2 // SNAPSHOTS):
            weights = parameter_values(network).values()
            snapshots.append(np.concatenate([weight.ravel() for weight in weights]))


def train(setting: dict, plays: shakespeare.Plays, seed: int, *, every: int, judged: int) -> dict:
    """Train once and return the outcome, ready for JSON."""
    method, network = setting["method"], GPT(len(plays.alphabet), seed=seed)
    macbeth, tempest = (
        shakespeare.even_windows(text, judged, LENGTH) for text in (plays.validation, plays.test)
    )

    def batch(number, windows, count):
        pair = shakespeare.random_windows(plays.train, windows, LENGTH, seed, number)
        return list(zip(*(np.split(part, count) for part in pair), strict=True))

    averages, curve, losses, spent, failure = {}, [], [], [], ""
    for number, (loss, seconds) in enumerate(updates(setting, network, batch), start=1):
        losses.append(loss)
        spent.append(seconds)
        if method == "constant rate":
            average(averages, parameter_values(network), number)
        if not np.isfinite(loss):
            failure = "the loss is not finite"
            break
        if number % every == 0 or number == total(setting):
            point = {"update": number, "loss": judge(network, *macbeth)}
            point |= of_averages(network, averages, macbeth, "")
            curve.append(point | {"training_loss": float(np.mean(losses))})
            losses = []
    compiling = 0.0  # the first two updates of a step compile: they count as its third
    for start in (0, STAGE_ONE) if method == "subspace" else (0,):
        if len(spent) > start + 2:
            compiling += sum(spent[start : start + 2]) - 2 * spent[start + 2]
            spent[start : start + 2] = 2 * [spent[start + 2]]
    curve = [point | {"seconds": round(sum(spent[: point["update"]]), 2)} for point in curve]
    outcome = {"curve": curve, "failure": failure, "seconds": sum(spent)}
    if not failure and every < UPDATES:
        outcome["tempest"] = judge(network, *tempest)
        outcome |= of_averages(network, averages, tempest, "tempest_")
    return outcome | {"compile_seconds": compiling}


def judge(network: nn.Cell, tokens: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean nats per character."""
    network.set_train(False)
    starts = range(0, len(tokens), 64)
    logits = np.concatenate([network(Tensor(tokens[i : i + 64])).asnumpy() for i in starts])
    network.set_train(True)
    return cross_entropy(logits.astype(np.float64).reshape(labels.size, -1), labels.ravel())[0]


def average(averages: dict, weights: dict, number: int) -> None:
    """Add the weights after update ``number`` to the moving average and to the last updates'."""
    for name, made in (("ema", number), ("average", number - UPDATES + LAST)):
        share = max(1 / made, (1 - EMA) * (name == "ema")) if made > 0 else 0.0
        old = averages.get(name, weights)
        if made > 0:
            averages[name] = {n: (1 - share) * old[n] + share * w for n, w in weights.items()}


def of_averages(network: nn.Cell, averages: dict, batch: tuple, prefix: str) -> dict:
    losses = {f"{prefix}{name}": None for name in ("ema", "average")}
    for name, values in averages.items():
        with swapped(network, values):
            losses[f"{prefix}{name}"] = judge(network, *batch)
    return losses


def finish(stored, images) -> None:
    """Add to the head ``measured``: method -> MB and seconds, of processes one after the other.

    On one core: on two, MindSpore's threads wait for each other busily, a third of the CPU time.
    """
    tuned, cores = stored.head["tuned"], os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    stored.head["measured"] = {
        m: in_child(__file__, json.dumps({"method": m} | tuned[m])) for m in tuned
    }
    os.sched_setaffinity(0, cores)


def measured(setting: dict) -> dict:
    """Train a little in this process; return its peak (MB), and the CPU seconds of compiling and,
    by the mean of twenty updates of each stage, of a whole training."""
    global UPDATES, STAGE_ONE, SNAPSHOTS, COMPONENTS, STAGE_TWO
    whole = (STAGE_ONE, STAGE_TWO) if setting["method"] == "subspace" else (total(setting),)
    UPDATES = 22 * SHAPES.get(setting["method"], (ROWS, 1))[0] // ROWS
    STAGE_ONE, SNAPSHOTS, COMPONENTS, STAGE_TWO = 22, 11, 10, 22
    done = train(setting, texts({}, None)(""), TUNING_SEED, every=UPDATES, judged=64)
    ends = [0.0, *(point["seconds"] for point in done["curve"])]
    stages = zip(whole, np.diff(ends if len(whole) > 1 else [0.0, done["seconds"]]), strict=True)
    # Not ru_maxrss, which begins with the peak of the process that has started this one.
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text("ascii"))
    return {
        "memory": round(1.024e-3 * int(peak[1])),
        "seconds": sum(updates * spent / 22 for updates, spent in stages),
        "compile_seconds": done["compile_seconds"],
    }


RACE = race.Race(
    "language_race", PLAN, planned, train, end, decided, finish, images=texts, no_curves="tune"
)

if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1].startswith("{"):
        print(json.dumps(measured(json.loads(sys.argv[1]))))
    else:
        RACE.main(__doc__)
