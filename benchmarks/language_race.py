"""A small GPT on Shakespeare, trained with each technique on the same budget of characters.

    python benchmarks/language_race.py [--all]    as race.py says; --all takes an hour

Everything is chosen on Macbeth, with a seed of its own, from equally many settings of each method;
the winners train with three other seeds and are judged by The Tempest as well. 300 updates of 16
windows of 64 characters, or 75 of 64 windows. Warm-up over a sixth of the updates, then a cosine to
a tenth of the rate; AdamW has beta2 0.99 and decays the matrices by 0.1. "identity" is THOR with
each factor replaced by its mean eigenvalue times the identity: the control of what its gain is.

Seconds are CPU seconds of this process, without compilation, which is apart, and judging.
"""

import time
from collections.abc import Iterator

import mindspore as ms
import numpy as np
import race
from mindspore import Tensor, nn, ops

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

LENGTH, ROWS, UPDATES, DECAY = 64, 16, 300, 0.1
# Windows of an update and how many micro-batches (or workers) they come in, where not 16 in one.
SHAPES = {
    "AdamW, accumulated": (64, 4),
    "mean of 4": (64, 4),
    "Adasum of 4": (64, 4),
    "Adasum of 8": (64, 8),
    "token mean": (16, 4),
    "mean of means": (16, 4),
}
# Subspace: updates of stage one, snapshots of its second half, components, updates of stage two.
STAGE_ONE, SNAPSHOTS, COMPONENTS, STAGE_TWO, SEARCHED = 200, 20, 16, 25, (64, 4)
EMA, LAST = 0.98, 100  # decay a update of the moving average; updates of the plain average


def _rates(*rates, **more):
    return [{"rate": rate} | more for rate in rates]


PLAN = {
    "grid": {
        "AdamW": _rates(0.01, 0.02, 0.04),
        "AdamW, no clipping": _rates(0.0025, 0.005, 0.01),
        "Muon": _rates(0.01, 0.02, 0.04),
        "constant rate": _rates(0.0025, 0.005, 0.01),
        "AdamW, accumulated": _rates(0.01, 0.02, 0.04),
        "mean of 4": _rates(0.01, 0.02, 0.04),
        "Adasum of 4": _rates(0.01, 0.02, 0.04),
        "Adasum of 8": _rates(0.01, 0.02, 0.04),
        "token mean": _rates(0.005, 0.01, 0.02),
        "mean of means": _rates(0.005, 0.01, 0.02),
        "subspace": [{"alpha": alpha} for alpha in (0.01, 0.1, 1.0)],
        "THOR": _rates(0.01, 0.02, 0.04, damping=0.3),
        "THOR, identity": _rates(0.01, 0.02, 0.04, damping=0.3),
    },
    "seeds": (1, 2, 3),
    "images": {"judged": 512},  # windows, or lines, of a play
}
TUNING_SEED = 100


def texts(plan, data):
    """Start MindSpore; return a function: part of the race -> the plays."""
    labkit.start(device="CPU")
    plays = shakespeare.load(data or prepare("shakespeare"))
    return lambda part: plays


def planned(plan, rows):
    """Yield each method's tuning, then its winner with every seed."""
    for method, grid in plan["grid"].items():
        for setting in grid:
            if method == "subspace":  # goes on from a training at the constant rate
                setting = {"rate": decided(plan, rows)["tuned"]["constant rate"]["rate"]} | setting
            yield _training(plan, "tune", {"method": method} | setting, TUNING_SEED, UPDATES)
        for seed in plan["seeds"]:
            winner = {"method": method} | decided(plan, rows)["tuned"][method]
            yield _training(plan, "race", winner, seed, 50 if ends_at(winner) > 75 else 25)


def _training(plan, stage, setting, seed, every):
    row = {"stage": stage} | {n: setting.get(n) for n in ("method", "rate", "damping", "alpha")}
    return race.Training(
        row | {"seed": seed}, stage, setting, seed, {"every": every} | plan["images"]
    )


def decided(plan, rows):
    """Return ``tuned``: method -> the setting with the least loss on Macbeth."""
    tuned = {}
    for (method,), group in race.grouped(
        [r for r in rows if r["stage"] == "tune"], "method"
    ).items():
        best = min(group, key=lambda row: row["ema_loss"] or row["last_loss"] or np.inf)
        tuned[method] = {n: best[n] for n in ("rate", "damping", "alpha") if best[n] is not None}
    return {"tuned": tuned}


def end(plan, row, outcome):
    """Return a row's fields for the end of its training."""
    last = (outcome["curve"] or [{}])[-1]
    fields = {"updates": last.get("update"), "last_loss": last.get("loss")}
    fields |= {f"{name}_loss": last.get(name) for name in ("ema", "average")}
    own = ("tempest", "tempest_ema", "tempest_average", "seconds", "compile_seconds", "failure")
    return fields | {name: outcome.get(name) or None for name in own}


def make_step(setting: dict, network: nn.Cell) -> nn.Cell:
    """Return the step of a setting."""
    method, rate = setting["method"], setting["rate"]
    updates = UPDATES * ROWS // SHAPES.get(method, (ROWS, 1))[0]
    rates = cosine(rate, DECAY * rate, updates, 1, updates // 6)
    if method in ("constant rate", "subspace"):
        rates = np.minimum(1, np.arange(1, updates + 1) / (updates // 6)).astype(np.float32) * rate
    rates, loss_net = Tensor(rates), TokenLossNet(network)
    if method == "Muon":
        return labkit.PlainStep(loss_net, _muon(network, rates))
    adamw = AdamW(decay_groups(network, DECAY), rates, beta2=0.99)
    if method.startswith("THOR"):
        options = {"frequency": 10, "factor_decay": 0.9, "split": None}
        step = labkit.ThorStep(loss_net, adamw, setting["damping"], **options)
        return _without_directions(step, method.partition(", ")[2])
    if " of " in method and method != "mean of means":
        reduction, _, workers = method.lower().split()
        options = {"workers": int(workers), "reduction": reduction, "on": "gradients"}
        return labkit.AdasumStep(loss_net, adamw, **options)
    if method in SHAPES:
        loss_net = MeanOfMeans(network) if method == "mean of means" else loss_net
        return labkit.AccumulatedStep(loss_net, adamw, SHAPES[method][1], clip_norm=1.0)
    return labkit.PlainStep(loss_net, adamw, clip_norm=None if "no" in method.split() else 1.0)


def _muon(network, rates):
    weights = network.trainable_params()
    inner = [w for w in weights if w.ndim == 2 and w.name.startswith("blocks")]
    rest = [w for w in weights if not any(w is other for other in inner)]
    parts = {w.name: 3 for w in inner if "qkv" in w.name}
    groups = [{"params": [w for w in rest if w.ndim > 1], "weight_decay": DECAY}]
    groups += [{"params": [w for w in rest if w.ndim == 1], "weight_decay": 0.0}]
    muon = Muon(inner, rates, weight_decay=DECAY, parts=parts)
    return Both(weights, muon, AdamW(groups, rates, beta2=0.99))


class MeanOfMeans(nn.Cell):
    """The error: each micro-batch's mean counts the same, however many tokens it is a mean over."""

    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network, self.of_tokens = network, TokenLossNet(network)

    def construct(self, tokens, labels):
        return self.of_tokens(tokens, labels)[0], ops.cast(1.0, ms.float32)


def _without_directions(step, kinds):
    """Replace inverses of THOR's factors by their mean eigenvalue times the identity."""
    made, update = step.update.inverses.make, step.update

    def make(due, damping):
        retries = made(due, damping)
        for layer in (update.layers[number] for number in due):
            for kind, of in (("A", layer.a_inverse), ("G", layer.g_inverse)):
                if kinds == "identity" or kinds == f"{kind} is identity":
                    blocks = of.asnumpy()
                    means = np.trace(blocks, axis1=1, axis2=2) / blocks.shape[-1]
                    set_state(of, means[:, None, None] * np.eye(blocks.shape[-1]))
        return retries

    update.inverses.make = make
    return step


def second_stage(network: nn.Cell, snapshots: list, alpha: float) -> nn.Cell:
    """Return the subspace step over the principal components of weights (snapshots, M)."""
    rows = np.stack(snapshots).astype(np.float64)
    _, sizes, directions = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
    variances = sizes**2 / (len(rows) - 1)
    parameters = network.trainable_params()
    basis = Basis(directions[:COMPONENTS], parameters, variances[:COMPONENTS], variances.sum())
    words = {"micro_steps": SEARCHED[1], "alpha": alpha, "clip_norm": 1.0}
    return labkit.SubspaceStep(TokenLossNet(network), nn.SGD(parameters, 1.0), basis, **words)


def updates(setting: dict, network: nn.Cell, batch) -> Iterator[tuple]:
    """Make the updates of a training; yield the mean loss and the CPU seconds of each."""
    method, snapshots = setting["method"], []
    step, (windows, count) = make_step(setting, network), SHAPES.get(method, (ROWS, 1))
    two = method == "subspace"
    for number in range(1, (STAGE_ONE if two else UPDATES * ROWS // windows) + 1):
        yield made(step, batch(number, windows, count))
        if two and number > STAGE_ONE / 2 and not number % (STAGE_ONE // 2 // SNAPSHOTS):
            weights = parameter_values(network).values()
            snapshots.append(np.concatenate([w.ravel() for w in weights]))
    if two:
        step = second_stage(network, snapshots, setting["alpha"])
        for number in range(STAGE_ONE + 1, STAGE_ONE + STAGE_TWO + 1):
            yield made(step, batch(number, *SEARCHED))


def made(step: nn.Cell, micro_batches: list) -> tuple[float, float]:
    """Make one update; return its mean loss and its CPU seconds."""
    begin = time.process_time()
    losses = [float(step(*map(Tensor, pair)).asnumpy()) for pair in micro_batches]
    return float(np.mean(losses)), time.process_time() - begin


def train(setting: dict, plays: shakespeare.Plays, seed: int, *, every: int, judged: int) -> dict:
    """Train once and return the outcome, ready for JSON."""
    network, random = GPT(len(plays.alphabet), seed=seed), np.random.default_rng(seed)
    judges = {"": plays.validation, "tempest": plays.test}
    judges = {n: shakespeare.even_windows(t, judged, LENGTH) for n, t in judges.items()}
    lines, of_judge = (lines_of(plays, t) for t in (plays.train, plays.validation))
    of_lines = setting["method"] in ("token mean", "mean of means")
    if of_lines:
        own = of_judge[:: len(of_judge) // judged][:judged]
        judges = {"": shakespeare.padded(own, LENGTH)}

    def batch(number, windows, count):
        if of_lines:
            return shakespeare.micro_batches(lines, count, windows // count, LENGTH, random)
        pair = shakespeare.random_windows(plays.train, windows, LENGTH, seed, number)
        return list(zip(*(np.split(part, count) for part in pair), strict=True))

    averages = Averages(network) if setting["method"] == "constant rate" else None
    errors = Errors(network, lines) if setting["method"] == "token mean" else None
    curve, losses, spent, failure = [], [], [], ""
    for number, (loss, seconds) in enumerate(updates(setting, network, batch), start=1):
        losses.append(loss)
        spent.append(seconds)
        if averages:
            averages.add(number)
        if not np.isfinite(loss):
            failure = "the loss is not finite"
            break
        if number % every == 0 or number == ends_at(setting):
            point = {"update": number, "loss": judge(network, *judges[""])}
            point |= averages.judged(judges[""]) if averages else dict.fromkeys(("ema", "average"))
            point |= errors() if errors else dict.fromkeys(("gradient_error", "loss_error"))
            curve.append(point | {"training_loss": float(np.mean(losses))})
            losses = []
    # The first two updates of a step compile: they count as its third.
    compiling = 0.0
    for start in (0, STAGE_ONE) if setting["method"] == "subspace" else (0,):
        if len(spent) > start + 2:
            compiling += sum(spent[start : start + 2]) - 2 * spent[start + 2]
            spent[start : start + 2] = 2 * [spent[start + 2]]
    curve = [point | {"seconds": round(sum(spent[: point["update"]]), 2)} for point in curve]
    outcome = {"curve": curve, "failure": failure, "seconds": sum(spent)}
    outcome["compile_seconds"] = compiling
    if not of_lines and not failure and every < UPDATES:
        outcome["tempest"] = judge(network, *judges["tempest"])
        if averages:
            found = averages.judged(judges["tempest"])
            outcome |= {f"tempest_{name}": value for name, value in found.items()}
    return outcome


def ends_at(setting: dict) -> int:
    if setting["method"] == "subspace":
        return STAGE_ONE + STAGE_TWO
    return UPDATES * ROWS // SHAPES.get(setting["method"], (ROWS, 1))[0]


def lines_of(plays: shakespeare.Plays, text: np.ndarray) -> list[np.ndarray]:
    return shakespeare.lines_of(text, plays.alphabet.index("\n"))


def judge(network: nn.Cell, tokens: np.ndarray, labels: np.ndarray) -> float:
    """Return the nats per character that counts."""
    network.set_train(False)
    starts = range(0, len(tokens), 64)
    logits = np.concatenate([network(Tensor(tokens[i : i + 64])).asnumpy() for i in starts])
    network.set_train(True)
    counts = labels >= 0
    return cross_entropy(logits[counts].astype(np.float64), labels[counts])[0]


class Averages:
    """A moving average of the weights, and their mean over the last updates."""

    def __init__(self, network):
        self.network, self.counts = network, {"ema": 0, "average": 0}
        self.means = {name: parameter_values(network) for name in self.counts}

    def add(self, number):
        values = parameter_values(self.network)
        for name in ("ema", "average") if number > UPDATES - LAST else ("ema",):
            self.counts[name] += 1
            share = max(1 / self.counts[name], (1 - EMA) * (name == "ema"))
            for key, mean in self.means[name].items():
                mean += share * (values[key] - mean)

    def judged(self, pair):
        own, losses = parameter_values(self.network), {}
        for name, means in self.means.items():
            put(self.network, means)
            losses[name] = judge(self.network, *pair) if self.counts[name] else None
        put(self.network, own)
        return losses


def put(network, values):
    for parameter in network.trainable_params():
        set_state(parameter, values[parameter.name])


class Errors:
    """How far the mean of means is from the token mean, relative, medians of eight updates."""

    def __init__(self, network, lines):
        self.lines, loss_net = lines, TokenLossNet(network)
        self.of = ms.value_and_grad(loss_net, None, network.trainable_params(), has_aux=True)

    def __call__(self):
        off = []
        for draw in range(8):
            random, found = np.random.default_rng(draw), []
            for pair in shakespeare.micro_batches(self.lines, 4, 4, LENGTH, random):
                (loss, count), gradients = self.of(*map(Tensor, pair))
                flat = np.concatenate([g.asnumpy().ravel() for g in gradients]).astype(np.float64)
                found.append((float(loss.asnumpy()), float(count.asnumpy()), flat))
            losses, counts, flat = map(np.array, zip(*found, strict=True))
            right, wrong = (np.average(flat, 0, weights) for weights in (counts, None))
            mean = np.average(losses, weights=counts)
            error = np.linalg.norm(wrong - right) / np.linalg.norm(right)
            off.append((error, abs(losses.mean() - mean) / mean))
        return dict(zip(("gradient_error", "loss_error"), np.median(off, 0).tolist(), strict=True))


RACE = race.Race(
    "language_race", PLAN, planned, train, end, decided, images=texts, no_curves="tune"
)

if __name__ == "__main__":
    RACE.main(__doc__)
