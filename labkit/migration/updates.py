"""Both optimizers alone: the same weights and the same made-up gradients, for a dozen updates.

After each update every weight is compared with that of PyTorch's optimizer in float64. It may be
off by 16 times what PyTorch in float32 is off by (the tensor's largest), plus the floor: one
float32 spacing of the tensor's largest weight for each update made, and 1e-5 of the way that the
weight has gone (1 - 0.999 in float32 is off by 1.3e-5, and so Adam's step by 6e-6).
"""

import copy
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Parameter, nn
from mindspore.experimental import optim

from labkit.base.arguments import wrong
from labkit.errors import InputError
from labkit.migration.names import Match
from labkit.steps.state import parameters_in, set_state

Arrays = dict[str, np.ndarray]
_FACTOR, _FLOOR = 16.0, 1e-5
# What optimizers of MindSpore compute otherwise than PyTorch's of the same name.
_EARLY_EPS = "adds eps before the bias correction"
_KNOWN = {
    nn.Adam: f"nn.Adam {_EARLY_EPS}",
    optim.Adam: f"experimental.optim.Adam {_EARLY_EPS}",
    nn.AdamWeightDecay: "nn.AdamWeightDecay has no bias correction, and eps=1e-06 by default",
}


class Update(NamedTuple):
    """One update of PyTorch's optimizer, by PyTorch name."""

    settings: dict[str, dict]  # that it was made with: lr, weight_decay, ...
    after: Arrays  # the weights after it, float64
    rounding: dict[str, float]  # the largest |float32 - float64| of these


@dataclass(frozen=True)
class Updates:
    """PyTorch's updates, made or read one at a time whenever ``run`` is iterated over."""

    kind: str  # the optimizer's class
    seed: int
    start: Arrays  # the weights that it trains, before the first update
    draws: dict[str, str]  # name -> name that its gradients are drawn by: tied weights share one
    run: Callable[[], Iterator[Update]]

    def gradients(self, number: int) -> Arrays:
        """Return the gradients of update ``number``, of both signs and sizes from 1e-4 to 1."""
        gradients = {}
        for name, weight in self.start.items():
            draw = np.random.default_rng([self.seed, number, zlib.crc32(self.draws[name].encode())])
            x = draw.uniform(-1.0, 1.0, weight.shape).astype(np.float32)
            gradients[name] = np.copysign(np.float32(10) ** (4 * np.abs(x) - 4), x)
        return gradients


def torch_updates(
    parameters: Mapping[str, Any], optimizer: Any, steps: int = 12, seed: int = 0
) -> Updates:
    """Return what PyTorch's optimizer does with made-up gradients; it runs on copies.

    The copies are made when the updates are compared or saved: do so before training goes on.

    Args:
        parameters: PyTorch name -> parameter, such as ``dict(module.named_parameters())``.
        optimizer: the optimizer, or (optimizer, scheduler), whose ``step()`` follows each update.
        steps: number of updates.
        seed: of the gradients.

    Raises:
        InputError: if the optimizer has a parameter that ``parameters`` does not name.
    """
    optimizer, scheduler = optimizer if isinstance(optimizer, tuple) else (optimizer, None)
    held = {id(p): p.requires_grad for group in optimizer.param_groups for p in group["params"]}
    if unnamed := len(held.keys() - {id(p) for p in parameters.values()}):
        raise InputError(f"parameters: {unnamed} of the optimizer's are not among them")
    trained = {name: p for name, p in parameters.items() if held.get(id(p))}
    first: dict[int, str] = {}
    draws = {name: first.setdefault(id(p), name) for name, p in trained.items()}
    start = {name: p.detach().cpu().float().numpy().copy() for name, p in trained.items()}

    def run() -> Iterator[Update]:
        import torch

        kinds = (torch.float32, torch.float64)
        twins = [_twin(trained, optimizer, scheduler, kind) for kind in kinds]
        for number in range(1, steps + 1):
            groups = [(_plain(group), group["params"]) for group in twins[0][1].param_groups]
            by_id = {id(p): plain for plain, parameters in groups for p in parameters}
            settings = {name: by_id[id(p)] for name, p in twins[0][0].items()}
            for (own, its_optimizer, its_scheduler), kind in zip(twins, kinds, strict=True):
                for name, gradient in updates.gradients(number).items():
                    own[name].grad = torch.as_tensor(gradient).to(own[name].device, kind)
                its_optimizer.step()
                if its_scheduler:
                    with warnings.catch_warnings():  # of the wrapper of step() that a copy lacks
                        warnings.simplefilter("ignore")
                        its_scheduler.step()
            float32, float64 = ({n: p.detach().cpu() for n, p in own.items()} for own, *_ in twins)
            off = {n: float((float32[n] - float64[n]).abs().max()) for n in start}
            yield Update(settings, {n: p.numpy().copy() for n, p in float64.items()}, off)

    return (updates := Updates(type(optimizer).__name__, seed, start, draws, run))


def _twin(parameters: dict, optimizer: Any, scheduler: Any, kind: Any) -> tuple:
    """Return copies of the three that belong together, parameters and state cast to ``kind``."""
    memo: dict = {}
    own = copy.deepcopy(parameters, memo)
    # Optimizer.__getstate__ leaves out hooks and a subclass's attributes; the wrapper of step()
    # that a scheduler makes would call the original.
    twin = memo[id(optimizer)] = object.__new__(type(optimizer))
    attributes = {key: value for key, value in vars(optimizer).items() if key != "step"}
    vars(twin).update(copy.deepcopy(attributes, memo))
    for parameter in own.values():
        parameter.data = parameter.data.to(kind)
    twin.load_state_dict(twin.state_dict())  # casts the state to the parameters' type
    return own, twin, copy.deepcopy(scheduler, memo)


def _plain(group: dict) -> dict:
    """Return the numbers among an optimizer's settings, as JSON has them."""
    values = {k: float(v) if hasattr(v, "item") else v for k, v in group.items()}
    values = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
    return {k: v for k, v in values.items() if k != "params" and isinstance(v, int | float | list)}


@dataclass(frozen=True)
class UpdateRow:
    """One parameter and the first update after which it is not PyTorch's."""

    name: str  # in PyTorch
    update: int | None  # from 1; 0: only one side trains it; None: all are equal
    difference: float  # at that update, else the largest: in units of the tensor's largest change
    allowed: float  # in the same units; 0 of one that differs
    note: str = ""


def compare_updates(optimizer: Any, match: Match, updates: Updates) -> list[UpdateRow]:
    """Run our optimizer from PyTorch's weights; return a row for each parameter, faults first.

    Weights, states and rates are restored afterwards. It runs in the current mode; PyNative mode
    (``labkit.runtime.pynative``) compiles nothing, but ``mint.optim`` then changes no weight on CPU
    (MindSpore 2.10: ``add_`` has no effect on a Parameter).

    Args:
        optimizer: of ``nn``, ``mint.optim`` or ``mindspore.experimental.optim``, over float32; or
            (optimizer, scheduler), whose ``step()`` follows each update.
        match: of the network with PyTorch's parameters.
        updates: of ``torch_updates``.
    """
    optimizer, scheduler = optimizer if isinstance(optimizer, tuple) else (optimizer, None)
    ours = {parameter.name: parameter for parameter in optimizer.parameters}
    if odd := [p for p in ours.values() if p.dtype != ms.float32]:
        raise wrong(odd[0].name, odd[0].dtype, "float32")
    nothing = {n: np.broadcast_to(np.float32(0), shape) for n, shape in match.shapes.items()}

    def ordered(state: Arrays) -> list[ms.Tensor]:
        arrays = match.to_ours(nothing | state)
        return [ms.Tensor(arrays.get(n, np.zeros(p.shape, np.float32))) for n, p in ours.items()]

    def values() -> Arrays:
        return match.to_torch({name: parameter.asnumpy() for name, parameter in ours.items()})

    start, own = updates.start, values()
    places = {name: _Place(name, weight) for name, weight in start.items() if name in own}
    with _restored(optimizer, scheduler):
        for parameter, value in zip(ours.values(), ordered(start), strict=True):
            set_state(parameter, value)
        for number, update in enumerate(updates.run(), 1):
            drawn = updates.gradients(number)
            optimizer(tuple(ordered(drawn)))
            if scheduler:
                scheduler.step()
            own = values()
            for name, place in places.items():
                place.see(update, own[name])
    unmatched = ours.keys() - match.to_ours(nothing).keys()
    drawn_by = {updates.draws[name] for name in places}  # also of tied weights with two names
    words = "PyTorch's optimizer trains it, ours does not"
    notes = {n: words for n in start.keys() - own if updates.draws[n] not in drawn_by}
    for name in (own.keys() - start) | unmatched:
        notes[name] = "our optimizer trains it, PyTorch's does not"
    rows = [UpdateRow(name, 0, np.inf, 0.0, notes[name]) for name in sorted(notes)]
    exempt = match.to_torch({p.name: p.asnumpy() for p in _exempt(optimizer)})
    rows += [
        place.row(updates.kind, _known(optimizer, updates.kind, place.settings, name in exempt))
        for name, place in places.items()
    ]
    return sorted(rows, key=lambda row: np.inf if row.update is None else row.update)


@contextmanager
def _restored(optimizer: Any, scheduler: Any) -> Iterator[None]:
    groups = [list(group.values()) for group in getattr(optimizer, "param_groups", [])]
    own = vars(scheduler) if scheduler else {}
    held = parameters_in([optimizer, list(vars(optimizer).values()), groups, list(own.values())])
    kept, plain = {id(p): (p, p.asnumpy().copy()) for p in held}, dict(own)
    try:
        yield
    finally:
        own.update(plain)
        for parameter, value in kept.values():
            set_state(parameter, value)


class _Place:
    """What has been seen of one parameter."""

    def __init__(self, name: str, start: np.ndarray):
        self.name, self.count, self.red, self.size, self.allowed = name, 0, 0, 0.0, 0.0
        self.settings: dict = {}  # of PyTorch at the first update that differs
        self.before, self.gone = start.astype(np.float64), np.zeros_like(start)

    def see(self, update: Update, own: np.ndarray) -> None:
        """Judge one update."""
        if self.red:
            return
        self.count, self.settings = self.count + 1, update.settings[self.name]
        after, rounding = update.after[self.name], update.rounding[self.name]
        change, off = np.abs(after - self.before), np.abs(own - after)
        self.gone += change.astype(np.float32)
        spacing = float(np.spacing(np.float32(np.abs(after).max())))
        allowed = _FACTOR * rounding + self.count * spacing + _FLOOR * self.gone
        self.red = self.count * (not (off <= allowed).all())
        unit = float(change.max()) or 1.0  # at a rate of 0 nothing changes
        size = float(off.max()) / unit
        self.before, self.size = after, size if self.red else max(size, self.size)
        self.allowed = max(float(allowed.max()) / unit, self.allowed)

    def row(self, kind: str, known: str) -> UpdateRow:
        """Return the row; of one that differs with PyTorch's settings and what is ``known``."""
        if not self.red:
            return UpdateRow(self.name, None, self.size, self.allowed)
        set_ = ((k, f"{v:g}" if isinstance(v, float) else v) for k, v in self.settings.items() if v)
        has = ", ".join(f"{key}={value}" for key, value in set_)
        note = "; ".join(filter(None, (f"PyTorch: {kind}({has})", known)))
        return UpdateRow(self.name, self.red, self.size, 0.0, note)


def _exempt(optimizer: Any) -> list[Parameter]:
    """Return the parameters that an optimizer of mindspore.nn, given no groups, does not decay."""
    if not type(optimizer).__module__.startswith("mindspore.nn.") or optimizer.is_group:
        return []
    flags = zip(optimizer.parameters, optimizer.decay_flags, strict=True)
    return [p for p, decays in flags if optimizer.exec_weight_decay and not decays]


def _known(optimizer: Any, kind: str, settings: dict, exempt: bool) -> str:
    """Return what is known of our optimizer, and what to write instead; "" of most."""
    decay, why = settings.get("weight_decay"), _KNOWN.get(type(optimizer), "")
    if why and kind in ("Adam", "AdamW"):
        rate, (b1, b2) = settings.get("initial_lr", settings["lr"]), settings["betas"]
        eps = settings["eps"]
        write = f"labkit.AdamW(parameters, {rate}, {b1}, {b2}, {eps}, {decay})"
        if kind == "Adam" and decay:  # added to the gradient
            write = f"mint.optim.Adam(parameters, {rate}, ({b1}, {b2}), {eps}, {decay})"
        return f"{why}: write {write}"
    if exempt and decay:
        own = f"nn.{type(optimizer).__name__}"
        group = f"{own}([{{'params': parameters, 'weight_decay': {decay}}}], ...)"
        return f"{own} without groups does not decay what is called beta or gamma: write {group}"
    return why
