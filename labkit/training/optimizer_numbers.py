"""The numbers of an optimizer: what a resumed training must share with the interrupted one.

Rates, momentum and whatever else is a Parameter come with a checkpoint; weight decay, betas and all
that is a plain number or Tensor are compiled into the step, and no checkpoint holds them. So they
are noted beside it as the training began, and compared by name.
"""

import hashlib
from numbers import Real
from typing import Any

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn

from labkit.training.fingerprints import UNKNOWN, fingerprint

_FEW = 64  # elements of a Tensor that is a constant rather than data
# What nn.Optimizer keeps besides its user's numbers: for itself, doubly, or of this rank.
_NOT_NUMBERS = frozenset(
    """param_rank optim_filter param_length use_parallel enable_tuple_broaden lens
    skip_auto_parallel_compile global_step_increase_tensor reciprocal_scale need_scale
    exec_weight_decay dynamic_weight_decay dynamic_lr is_group is_group_lr dynamic_decay_flags
    is_group_params_ordered group_weight_decay group_lr group_params group_grad_centralization
    init_params init_learning_rate init_args decay_flags weight_decay_flag use_fused_opt
    use_fused_ada_factor device_ascend parameters params _target _parameters
    _func_graph_flags""".split()
)


def constants(optimizer) -> dict[str, Any]:
    """Return the class and every number of an optimizer that is no Parameter, by name.

    Of the optimizer and of what it holds: schedules of rate and decay. A value is a number, a list
    of them, or numbers by the name of their Parameter where groups have their own.
    """
    found = {"class": type(optimizer).__name__}
    names = [parameter.name for parameter in optimizer.parameters]
    for name, value, cell in _attributes(optimizer):
        if (numbers := _numbers(value)) is not None:
            if isinstance(cell, nn.Optimizer) and _is_for_each(numbers, names):
                numbers = dict(zip(names, numbers, strict=True))
            found[name] = numbers
    for place, cell in optimizer.cells_and_names():
        if place and not type(cell).__name__.startswith("_"):
            found.setdefault(f"class of {place}", type(cell).__name__)
    return found


def texts(optimizer) -> dict[str, str]:
    """Return a text for each value that computes and is no small number, by name.

    Arrays, and all that a class that is not MindSpore's holds: texts, functions, further objects;
    see ``fingerprint``.
    """
    return {
        name: fingerprint(value)
        for name, value, cell in _attributes(optimizer)
        if value is not None
        and not isinstance(value, Parameter | ParameterTuple | nn.Cell)
        and (not _is_mindspores(cell) or isinstance(value, Tensor | np.ndarray))
        and _numbers(value) is None
    }


def functions(step) -> dict[str, str]:
    """Return a text for each function of the number of updates that a step is given, by name.

    micro_steps and, of THOR, damping and how often factors and inverses are made anew.
    """
    micro_steps = getattr(step, "micro_steps", None)
    given = {"micro_steps": micro_steps if callable(micro_steps) else None}
    for name, of_stage in (
        ("damping", "schedule"),
        ("frequency", "frequency"),
        ("factor_frequency", "factor_frequency"),
    ):
        given[name] = getattr(getattr(step.update, of_stage, None), "function", None)
    return {name: fingerprint(value) for name, value in given.items() if value is not None}


def not_compared(then, step) -> list[str]:
    """Return the names of values of which nobody can tell whether they are the checkpoint's."""
    found = {"texts": texts(step.optimizer), "functions": functions(step)}
    return [
        name
        for kind, own in found.items()
        for name, text in own.items()
        if (then or {}).get(kind) is None or text.startswith(UNKNOWN)
    ]


def _attributes(optimizer):
    """Yield (name, value, cell) of what an optimizer and its cells hold for themselves."""
    for place, cell in optimizer.cells_and_names():
        for name, value in vars(cell).items():
            hidden = _is_mindspores(cell) and name.startswith("_")
            if not (hidden or name in _of_a_cell() or name in _NOT_NUMBERS):
                yield (f"{place}.{name}" if place else name), value, cell


def _is_mindspores(cell) -> bool:
    return type(cell).__module__.partition(".")[0] == "mindspore"


def own_parameters(optimizer) -> dict[str, Parameter]:
    """Return the Parameters that are numbers of the optimizer and not one for each weight.

    Rates, momentum, and what counts: updates, powers of beta.
    """
    weights = {id(parameter) for parameter in optimizer.parameters}
    found = {}
    for _, cell in optimizer.cells_and_names():
        for name, value in vars(cell).items():
            if isinstance(value, ParameterTuple) and name != "learning_rate":
                weights |= {id(parameter) for parameter in value}
        found |= {p.name: p for p in cell._params.values() if p is not None}
    rates = set(rate_names(optimizer))
    return {
        name: parameter
        for name, parameter in found.items()
        if id(parameter) not in weights and (parameter.size == 1 or name in rates)
    }


def rate_names(optimizer) -> list[str]:
    """Return the names of the Parameters that hold learning rates."""
    rates = getattr(optimizer, "learning_rate", None)
    if isinstance(rates, Parameter):
        return [rates.name]
    if isinstance(rates, ParameterTuple):
        return list(dict.fromkeys(rate.name for rate in rates))
    if isinstance(rates, nn.Cell):
        return [rate.name for rate in rates.get_parameters()]
    return []


def rates_of_parameters(optimizer) -> dict[str, str]:
    """Return the name of each Parameter's learning rate where groups have their own: the groups.

    It is that of a Parameter, or the place of a schedule.
    """
    found: dict[str, str] = {}
    for place, cell in optimizer.cells_and_names():
        if not (isinstance(cell, nn.Optimizer) and cell.is_group_lr):
            continue
        first: dict[int, int] = {}
        for index, (weight, rate) in enumerate(
            zip(cell.parameters, cell.learning_rate, strict=True)
        ):
            at = first.setdefault(id(rate), index)
            name = rate.name if isinstance(rate, Parameter) else f"learning_rate.{at}"
            found[weight.name] = f"{place}.{name}" if place else name
    return found


def noted(step) -> dict[str, Any]:
    """Return what a checkpoint notes of a step's numbers, as its training begins; for JSON.

    constants   as ``constants``
    parameters  name -> value of ``own_parameters``; None for an array of rates
    rates       as ``rates_of_parameters``
    texts       as ``texts``
    functions   as ``functions``
    damping     of THOR, where it is an array: its length, ends and SHA-256
    """
    parameters = {
        name: None if parameter.size > 1 else float(np.ravel(parameter.asnumpy())[0])
        for name, parameter in own_parameters(step.optimizer).items()
    }
    note = {"constants": constants(step.optimizer), "parameters": parameters}
    note["rates"] = rates_of_parameters(step.optimizer)
    note["texts"] = texts(step.optimizer)
    note["functions"] = functions(step)
    if (damping := _damping(step)) is not None:
        note["damping"] = {"length": len(damping), "sha256": _digest(damping)}
        note["damping"] |= {"first": float(damping[0]), "last": float(damping[-1])}
    return note


def damping_differs(then, step) -> tuple[str, str] | None:
    """Return THOR's array of damping (of this step, of the checkpoint) unless it goes on the same.

    then  what ``noted`` has noted of both, so that arrays can be compared
    """
    damping, before = _damping(step), then["damping"]
    if (
        len(damping) >= before["length"]
        and _digest(damping[: before["length"]]) == before["sha256"]
    ):
        return None
    theirs = f"{before['length']} values from {before['first']:g} to {before['last']:g}"
    return _shown(damping), theirs


def _damping(step):
    schedule = getattr(step.update, "schedule", None)
    values = getattr(schedule, "values", None)
    return None if values is None or schedule.constant else values.astype(np.float64)


def _digest(values) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()


def _of_a_cell() -> set[str]:
    if not _CELL:
        _CELL.update(vars(nn.Cell()))
    return _CELL


_CELL: set[str] = set()


def _numbers(value):
    """Return a number, or lists of numbers, as plain Python has them; None for all else."""
    if isinstance(value, Parameter):
        return None
    if isinstance(value, Tensor):
        value = value.asnumpy()
    if isinstance(value, np.ndarray | np.generic):
        if value.size > _FEW or value.dtype.kind not in "biuf":
            return None
        value = value.tolist()
    if isinstance(value, bool | int):
        return value
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, list | tuple) and value:
        numbers = [_numbers(item) for item in value]
        return None if any(number is None for number in numbers) else numbers
    return None


def differences(then, values, step) -> dict[str, tuple[Any, Any]]:
    """Return name -> (of this step, of the checkpoint) of the optimizer's numbers that differ.

    then    what ``noted`` has noted of the checkpoint's; None where it has not, and only arrays of
            rates can be compared
    values  of the checkpoint, by name

    An array of rates that begins with the other one is the same, as far as both go. A rate that
    moved in the training, by a callback, is no difference as long as both began with the same.
    """
    optimizer, found = step.optimizer, {}
    # What counts updates, in a step that has made some, says nothing of where it began.
    fresh = int(step.updates.asnumpy()) == 0
    if then is not None:
        own, theirs = constants(optimizer), then["constants"]
        if own["class"] != theirs["class"]:
            return {"the optimizer": (own["class"], theirs["class"])}
        # An older labkit has noted no texts, and no Parameters' rates.
        if "texts" in then:
            own, theirs = own | texts(optimizer), theirs | then["texts"]
        for name in dict.fromkeys((*own, *theirs)):
            mine, other = own.get(name), theirs.get(name)
            if isinstance(mine, dict) and _is_for_each(other, mine):
                other = dict(zip(mine, other, strict=True))  # noted without names, by their order
            if not _same(mine, other):
                found |= _named(name, mine, other)
        own, theirs = functions(step), then.get("functions", {})
        for name in own.keys() & theirs.keys():  # a number in one of them is a setting's difference
            if own[name] != theirs[name]:
                found[name] = (own[name], theirs[name])
        mine = rates_of_parameters(optimizer)
        if mine != (other := then.get("rates", mine)):
            found |= _named("the learning rate", mine, other)
    own, rates = own_parameters(optimizer), rate_names(optimizer)
    begun = (then or {}).get("parameters", {})
    for name in dict.fromkeys((*own, *begun)):
        mine = own[name].asnumpy() if name in own else None
        # A text in the place of an array is refused when it is loaded.
        other = values[name].asnumpy() if isinstance(values.get(name), Tensor) else None
        if mine is None or other is None or mine.shape != other.shape:
            if (name in rates or name in begun) and not _goes_on(mine, other):
                found[name] = (_shown(mine), _shown(other))
        elif mine.size > 1:
            if not _equal(mine, other):
                found[name] = (_shown(mine), _shown(other))
        elif name in begun and not _equal(mine, other):
            settled = _same(float(other.ravel()[0]), begun[name])
            if name in rates or name == "momentum":
                settled = not _same(float(mine.ravel()[0]), begun[name])
            elif not fresh:
                settled = False
            if settled:
                found[name] = (_shown(mine), _shown(other))
    if then and "damping" in then and _damping(step) is not None:
        if differs := damping_differs(then, step):
            found["damping"] = differs
    return found


def _same(mine, other) -> bool:
    """Return whether two values of a note are the same; NaN is NaN."""
    if isinstance(mine, dict) and isinstance(other, dict):
        return mine.keys() == other.keys() and all(_same(mine[n], other[n]) for n in mine)
    if isinstance(mine, list) and isinstance(other, list):
        return len(mine) == len(other) and all(map(_same, mine, other))
    return mine == other or (mine != mine and other != other)


def _equal(mine, other) -> bool:
    return np.array_equal(mine, other, equal_nan=True)


def keep_own(values: dict, then, optimizer, names) -> None:
    """Put this optimizer's own rates, and Parameters in ``names``, in the place of ``values``'."""
    own = own_parameters(optimizer)
    for name in dict.fromkeys((*rate_names(optimizer), *names)):
        known = name in own and getattr(values.get(name), "shape", None) == own[name].shape
        if name in own and not (known and name not in names):
            values[name] = Tensor(own[name].asnumpy())
        elif name not in own and name in (then or {}).get("parameters", {}):
            values.pop(name, None)


def begins_with(mine, other) -> bool:
    """Return whether the shorter of two sequences of numbers is the beginning of the other."""
    length = min(len(mine), len(other))
    return length > 0 and _equal(mine[:length], other[:length])


def _goes_on(mine, other) -> bool:
    both = mine is not None and other is not None
    return both and mine.ndim == other.ndim == 1 and begins_with(mine, other)


def _is_for_each(numbers, names) -> bool:
    return isinstance(numbers, list) and len(numbers) == len(names)


def _named(name, mine, other):
    """Return a difference, of the first Parameter that has it where they are by name."""
    if not (isinstance(mine, dict) and isinstance(other, dict)):
        return {name: (_shown(mine), _shown(other))}
    differ = [n for n in dict.fromkeys((*mine, *other)) if not _same(mine.get(n), other.get(n))]
    pair = (_shown(mine.get(differ[0])), _shown(other.get(differ[0])))
    more = f" and {len(differ) - 1} more" if len(differ) > 1 else ""
    return {f"{name} of {differ[0]}{more}": pair}


def _shown(value):
    """Return a number as itself, an array by its ends, and "none" for nothing."""
    if value is None:
        return "none"
    value = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, list) and any(isinstance(part, list) for part in value):
        return f"{len(value)} lists"
    if isinstance(value, list) and len(value) > 4:
        return f"{len(value)} values from {value[0]:g} to {value[-1]:g}"
    if isinstance(value, float) and float(np.float32(value)) == value:
        return str(np.float32(value))  # 0.1, and not 0.10000000149011612
    return value
