"""PyTorch's half of the comparison; needs PyTorch, and no MindSpore.

Each module is also computed alone, in float32 and float64, from what it got in the step: its
arguments, and the gradient of its outputs. What lies between modules, functions in ``forward``, is
computed alone too: in a pass whose modules all return what they returned in the step.
"""

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labkit.errors import InputError
from labkit.migration.trace import (
    Arrays,
    Call,
    Trace,
    Value,
    called,
    has_shape,
    numbered,
    replaced,
    tensors,
)
from labkit.migration.updates import torch_updates

KINDS = (torch.float32, torch.float64)
STEPS = 5


def torch_trace(
    module: nn.Module, loss: Callable, optimizer: Any, batch: Any, *, updates: int = 12
) -> Trace:
    """Return what PyTorch computes in a training step on ``batch``, and around it.

    Args:
        module: its parameters, statistics and modes are afterwards what they were.
        loss: ``loss(outputs, *targets)`` -> scalar, with what the module returns.
        optimizer: over parameters of the module; or a pair of it and its scheduler, whose
            ``step()`` follows each update. Its state is afterwards what it was.
        batch: ``(inputs, *targets)``, arrays; inputs may be a tuple, or a mapping by argument.
            Integers reach PyTorch as int64.
        updates: how many the optimizer makes alone; up to ``STEPS`` are made on the batch.
    """
    batch = replaced(batch, has_shape, map(np.asarray, tensors(batch, has_shape)))
    if not all(a.size and (a == a).all() for a in tensors(batch, has_shape)):
        raise InputError("batch: expected arrays of numbers, got an empty one, or NaN")
    trace, low = _steps(module, loss, optimizer, batch, min(updates, STEPS))
    trace.calls["training"] = _alone(module, batch, low.seen, training=True)
    trace.stages["loss alone"] = _loss_alone(loss, low.seen[""], batch)
    judged = [_judged(module, batch, kind) for kind in KINDS]
    outputs = zip(*(seen[""].outputs for seen in judged), strict=True)
    trace.stages["evaluation"] = {
        f"output {number}": _value(*map(_array, pair)) for number, pair in enumerate(outputs, 1)
    }
    trace.calls["evaluation"] = _alone(module, batch, judged[0], training=False)
    # A parameter that two modules share under both names, as in the state dict.
    named = module.named_parameters(remove_duplicate=False)
    trained = {name: p for name, p in named if p.requires_grad}
    trace.updates = torch_updates(trained, optimizer, updates)
    return trace


def torch_step(module: nn.Module, loss: Callable, optimizer: Any, batch: Any) -> Trace:
    """Return a whole training step alone: the stages of ``torch_trace``, without the places."""
    return _steps(module, loss, optimizer, batch, 1)[0]


def _steps(
    module: nn.Module, loss: Callable, optimizer: Any, batch: Any, steps: int
) -> tuple[Trace, "_Steps"]:
    trace = Trace(f"PyTorch {torch.__version__}, float32 and float64", {}, batch)
    low, high = (_trained(module, loss, optimizer, batch, kind, steps) for kind in KINDS)
    for stage, values in high.stages.items():
        pairs = ((name, low.stages[stage][name], value) for name, value in values.items())
        trace.stages[stage] = {name: _value(*pair) for name, *pair in pairs}
    trace.losses = [_value(*pair) for pair in zip(low.losses, high.losses, strict=True)]
    # Of one number the difference may happen to be 0: what those of the outputs may change it by.
    ours, theirs = low.seen[""], high.seen[""]
    parts = zip(ours.outputs, theirs.outputs, theirs.gradients, strict=True)
    spread = sum(float(((a - b) * g).abs().sum()) for a, b, g in parts if g is not None)
    trace.losses[0] = trace.losses[0]._replace(noise=max(trace.losses[0].noise, spread))
    return trace, low


@dataclass
class _Seen:
    """One call of a module, as it was."""

    part: nn.Module
    arguments: Any  # (args, kwargs)
    returned: Any = None
    outputs: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor | None] = field(default_factory=list)


@dataclass
class _Steps:
    """What a training in one type computed."""

    seen: dict[str, _Seen]
    losses: list[np.ndarray] = field(default_factory=list)
    stages: dict[str, Arrays] = field(default_factory=dict)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().numpy().copy()


def _value(low: np.ndarray, high: np.ndarray) -> Value:
    # Infinities, as a mask before softmax has, are equal and have no difference.
    off = np.subtract(low, high, np.zeros(high.shape), where=low != high, dtype=np.float64)
    return Value(high, float(np.abs(off).max(initial=0.0)))


def _cast(tensor: Tensor, kind: torch.dtype) -> Tensor:
    """Return a copy of the numbers, floating-point ones as ``kind``."""
    tensor = tensor.detach().clone()
    return tensor.to(kind) if tensor.is_floating_point() else tensor


def _batch(batch: Any, kind: torch.dtype) -> tuple[Any, Any]:
    """Return inputs and targets as tensors."""

    def tensor(array: Any) -> Tensor:
        made = torch.from_numpy(np.array(array))
        return made.long() if made.dtype == torch.int32 else _cast(made, kind)

    inputs, *targets = replaced(batch, has_shape, map(tensor, tensors(batch, has_shape)))
    return inputs, targets


@contextmanager
def _as(module: nn.Module, kind: torch.dtype, training: bool, seed: int = 0) -> Iterator[None]:
    """Convert the module for the block, in place: its optimizer has its parameters."""
    before = {name: value.clone() for name, value in module.state_dict().items()}
    modes = {part: part.training for part in module.modules()}
    first = next(module.parameters()).dtype
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module.to(kind).train(training)
            yield
    finally:
        module.to(first).load_state_dict(before)
        for part, mode in modes.items():
            part.training = mode
        module.zero_grad()


def _trained(
    module: nn.Module, loss: Callable, optimizer: Any, batch: Any, kind: torch.dtype, steps: int
) -> _Steps:
    """Return the calls and stages of the first step, and the losses of all."""
    parts = optimizer if isinstance(optimizer, tuple) else (optimizer,)
    states = [copy.deepcopy(part.state_dict()) for part in parts]
    made = _Steps({})
    with _as(module, kind, training=True):
        _restore(parts, states)  # in this type
        before, (inputs, targets) = _weights(module), _batch(batch, kind)
        for step in range(steps):
            with nullcontext() if step else _seen(module, made.seen):
                value = loss(called(module, inputs), *targets)
                module.zero_grad()
                value.backward()
            made.losses.append(_array(value))
            gradients = {} if step else _gradients(module)
            for part in parts:
                part.step()
            if step == 0:
                made.stages = _stages(before, made, gradients, _weights(module))
    _restore(parts, states)
    return made


def _restore(parts: Any, states: list) -> None:
    for part, state in zip(parts, states, strict=True):
        part.load_state_dict(copy.deepcopy(state))


def _stages(before: Arrays, made: _Steps, gradients: Arrays, after: Arrays) -> dict[str, Arrays]:
    outputs = {name: call.outputs for name, call in made.seen.items() if name}
    return {
        "weights": before,
        "forward": {name: _array(parts[0]) for name, parts in outputs.items() if parts},
        "loss": {"loss": made.losses[0]},
        "gradients": gradients,
        "update": {name: after[name] - before[name] for name in gradients},
        "statistics": {name: x for name, x in after.items() if ".running_" in f".{name}"},
    }


def _weights(module: nn.Module) -> Arrays:
    return {n: _array(x) for n, x in module.state_dict().items() if x.is_floating_point()}


def _gradients(module: nn.Module) -> Arrays:
    # A parameter that two modules share appears under both names, as in the state dict.
    named = module.named_parameters(remove_duplicate=False)
    return {
        name: _array(torch.zeros_like(p) if p.grad is None else p.grad)
        for name, p in named
        if p.requires_grad
    }


def _judged(module: nn.Module, batch: Any, kind: torch.dtype) -> dict[str, _Seen]:
    """Return the calls in evaluation."""
    seen: dict[str, _Seen] = {}
    with _as(module, kind, training=False), torch.no_grad(), _seen(module, seen):
        called(module, _batch(batch, kind)[0])
    return seen


@contextmanager
def _seen(
    module: nn.Module, seen: dict[str, _Seen], given: Mapping[str, _Seen] | None = None
) -> Iterator[None]:
    """Note every call; modules that are ``given`` return the outputs that they had there."""
    open_calls: list[str] = []

    def before(name: str, part: nn.Module, args: tuple, kwargs: dict) -> None:
        calls = sum(known.partition("#")[0] == name for known in seen)
        open_calls.append(f"{name}#{calls + 1}" if calls else name)
        copies = (t.detach().clone() for t in tensors((args, kwargs), _is_tensor))
        seen[open_calls[-1]] = _Seen(part, replaced((args, kwargs), _is_tensor, copies))

    def after(part: nn.Module, args: tuple, kwargs: dict, output: Any) -> Any:
        name = open_calls.pop()
        call, own = seen[name], tensors(output, _is_tensor)
        # Copies: the next module may work in place.
        call.outputs, call.returned = [t.detach().clone() for t in own], output
        call.gradients = [None] * len(own)
        for number, tensor in enumerate(own):
            if tensor.requires_grad:
                tensor.register_hook(partial(call.gradients.__setitem__, number))
        if given is None or name not in given or len(given[name].outputs) != len(own):
            return None
        known = (_cast(t, o.dtype) for t, o in zip(given[name].outputs, own, strict=True))
        return replaced(output, _is_tensor, known)

    handles = []
    for name, part in module.named_modules():
        handles.append(part.register_forward_pre_hook(partial(before, name), with_kwargs=True))
        handles.append(part.register_forward_hook(after, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _alone(module: nn.Module, batch: Any, seen: dict[str, _Seen], *, training: bool) -> list[Call]:
    """Return each call with what its module computes alone, and what reaches it."""
    between: list[dict[str, _Seen]] = [{}, {}]
    # In another seed's float32: where it differs, a function between the modules is random.
    for kind, seed, calls in zip(KINDS[::-1], (0, 1), between, strict=True):
        with _as(module, kind, training, seed), torch.no_grad(), _seen(module, calls, seen):
            called(module, _batch(batch, kind)[0])
    made = []
    for name, call in seen.items():
        leaf = not list(call.part.children())
        made.append(Call(name, type(call.part).__name__, _settings(call.part), leaf))
        made[-1].outputs = list(map(_array, call.outputs))
        made[-1].gradients = [None if g is None else _array(g) for g in call.gradients]
        _take_between(made[-1], call, *(calls.get(name) for calls in between))
        if leaf:
            _take_alone(made[-1], call, training)
    return made


def _take_between(made: Call, call: _Seen, high: _Seen | None, again: _Seen | None) -> None:
    """Set what reaches the call, and what a module makes of the outputs of its own modules."""
    entries = tensors(call.arguments, _is_tensor)
    if high is None or again is None:
        made.random = "before"
        return
    low, other = (tensors(x.arguments, _is_tensor) for x in (high, again))
    made.entry = [_value(*map(_array, pair)) for pair in zip(entries, low, strict=True)]
    made.exit = [
        _value(*map(_array, pair)) for pair in zip(call.outputs, high.outputs, strict=True)
    ]
    pairs = [*zip(entries, other, strict=True)]
    if not made.leaf:
        pairs += zip(call.outputs, again.outputs, strict=True)
    if not all(torch.equal(*pair) for pair in pairs):
        made.random = "before"


def _take_alone(made: Call, call: _Seen, training: bool) -> None:
    """Set what a module without modules computes from its arguments and its outputs' gradients."""
    made.arguments = _as_arrays(call.arguments)
    low, high = (_computed(call, kind, training, seed=0) for kind in KINDS)
    again = _computed(call, KINDS[0], training, seed=1)
    # A sum that should be 0, as the mean that a BatchNorm gets from a convolution behind another
    # one, is rounding alone, and not the same in two float32: what a last digit of each input
    # changes is the measure of it.
    nudged = _computed(call, KINDS[1], training, seed=0, nudge=2.0**-23)
    for name, value in high.items():
        noise = max(_value(other[name], value).noise for other in (low, nudged))
        made.alone[name] = Value(value, noise)
    if any(name.startswith("output") and (low[name] != again[name]).any() for name in low):
        made.random = "alone"


def _computed(
    call: _Seen, kind: torch.dtype, training: bool, seed: int, nudge: float = 0.0
) -> Arrays:
    """Return what a module computes, by name; ``nudge`` is a relative change of what it gets."""
    part = copy.deepcopy(call.part).to(kind).train(training)
    signs = torch.Generator().manual_seed(1)

    def nudged(tensor: Tensor) -> Tensor:
        tensor = _cast(tensor, kind)
        if nudge and tensor.is_floating_point():
            random = torch.rand(tensor.shape, generator=signs, dtype=kind)
            tensor *= 1 + nudge * (2 * random - 1)
        return tensor

    inputs = list(map(nudged, tensors(call.arguments, _is_tensor)))
    floats = [t.requires_grad_() for t in inputs if t.is_floating_point()]
    # Copies again: a module that works in place must not do so on a leaf.
    args, kwargs = replaced(call.arguments, _is_tensor, (t.clone() for t in inputs))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        outputs = tensors(part(*args, **kwargs), _is_tensor)
    made = {numbered("output", i): _array(t) for i, t in enumerate(outputs)}
    pairs = [(o, g) for o, g in zip(outputs, call.gradients, strict=True) if g is not None]
    named = {f"gradient of {name}": p for name, p in part.named_parameters() if p.requires_grad}
    named |= {numbered("input gradient", i): t for i, t in enumerate(floats)}
    if training and pairs and named:
        results, gradients = zip(*((o, nudged(g)) for o, g in pairs), strict=True)
        grads = torch.autograd.grad(results, list(named.values()), gradients, allow_unused=True)
        made |= {n: _array(g) for n, g in zip(named, grads, strict=True) if g is not None}
    if training:
        made |= {n: _array(b) for n, b in part.named_buffers() if n.startswith("running_")}
    return made


def _loss_alone(loss: Callable, root: _Seen, batch: Any) -> dict[str, Value]:
    """Return the loss of the outputs that the module had, and its gradients by them."""
    made: list[Arrays] = []
    for kind in KINDS:
        outputs = [_cast(t, kind) for t in root.outputs]
        named = {numbered("gradient of output", i): t for i, t in enumerate(outputs)}
        named = {name: t.requires_grad_() for name, t in named.items() if t.is_floating_point()}
        value = loss(replaced(root.returned, _is_tensor, iter(outputs)), *_batch(batch, kind)[1])
        grads = torch.autograd.grad(value, list(named.values()), allow_unused=True)
        used = {n: _array(g) for n, g in zip(named, grads, strict=True) if g is not None}
        made.append({"loss": _array(value)} | used)
    low, high = made
    return {name: _value(low[name], high[name]) for name in high}


def _as_arrays(arguments: Any) -> Any:
    """Return the arguments with arrays, or None if a file could not hold them."""
    given = replaced(arguments, _is_tensor, map(_array, tensors(arguments, _is_tensor)))
    return given if _is_plain(given) else None


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, np.ndarray | bool | int | float | str)


def _settings(part: nn.Module) -> dict[str, Any]:
    own = {name: value for name, value in vars(part).items() if not name.startswith("_")}
    own |= {"bias": part._parameters.get("bias") is not None}
    return {
        n: json.loads(json.dumps(v)) for n, v in own.items() if n != "training" and _is_plain(v)
    }
