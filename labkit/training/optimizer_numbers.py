"""The numbers of an optimizer: what a resumed training must share with the interrupted one.

A checkpoint holds rates, momentum and all else that is a Parameter. Weight decay, betas and all
other plain numbers and Tensors are compiled into the step, and are not among its values. So they
are noted beside it when the training begins, and compared by name (``number_differences``).
"""

import functools
import hashlib
from collections.abc import Iterable, Iterator
from numbers import Real
from typing import Any

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn

from labkit.steps.step import Step
from labkit.training.fingerprints import fingerprint, is_mindspores

_FEW = 64  # elements of a Tensor that is a constant rather than data
# Attributes of nn.Optimizer that are not its user's numbers: internal, duplicate, or of this rank.
_NOT_NUMBERS = frozenset(
    """param_rank optim_filter param_length use_parallel enable_tuple_broaden lens
    skip_auto_parallel_compile global_step_increase_tensor reciprocal_scale need_scale
    exec_weight_decay dynamic_weight_decay dynamic_lr is_group is_group_lr dynamic_decay_flags
    is_group_params_ordered group_weight_decay group_lr group_params group_grad_centralization
    init_params init_learning_rate init_args decay_flags weight_decay_flag use_fused_opt
    use_fused_ada_factor device_ascend parameters params _target _parameters
    _func_graph_flags""".split()
)


def noted(step: Step) -> dict[str, Any]:
    """Return what a checkpoint notes of a step's numbers when its training begins, for JSON.

    Returns:
        ``constants``, ``rates``, ``texts`` and ``functions`` as the functions of these names return
        them; ``parameters``: name -> value of ``own_parameters`` (None for an array of rates);
        ``damping``: if THOR's is an array, its length, ends and SHA-256.
    """
    optimizer = step.optimizer
    note = {
        "constants": constants(optimizer),
        "parameters": {
            name: None if parameter.size > 1 else first_number(parameter.asnumpy())
            for name, parameter in own_parameters(optimizer).items()
        },
        "rates": rates(optimizer),
        "texts": texts(optimizer),
        "functions": functions(step),
    }
    if (damping := damping_array(step)) is not None:
        note["damping"] = {
            "length": len(damping),
            "sha256": damping_digest(damping),
            "first": float(damping[0]),
            "last": float(damping[-1]),
        }
    return note


def constants(optimizer: nn.Optimizer) -> dict[str, Any]:
    """Return the class of an optimizer and all its numbers that are not Parameters, by name.

    These are its own numbers and those of the schedules of rate and decay that it holds. A value is
    a number, a list of numbers, or numbers by Parameter name if groups have their own.
    """
    values: dict[str, Any] = {"class": type(optimizer).__name__}
    names = [parameter.name for parameter in optimizer.parameters]
    for name, value, cell in _attributes(optimizer):
        if (numbers := _plain_numbers(value)) is not None:
            if isinstance(cell, nn.Optimizer) and is_a_number_each(numbers, names):
                numbers = dict(zip(names, numbers, strict=True))
            values[name] = numbers
    for place, cell in optimizer.cells_and_names():
        if place and not type(cell).__name__.startswith("_"):
            values.setdefault(f"class of {place}", type(cell).__name__)
    return values


def texts(optimizer: nn.Optimizer) -> dict[str, str]:
    """Return name -> ``fingerprint`` of each value that computes and is not a small number.

    These are arrays, and whatever a class outside MindSpore holds: texts, functions, other objects.
    """
    return {
        name: fingerprint(value)
        for name, value, cell in _attributes(optimizer)
        if value is not None
        and not isinstance(value, Parameter | ParameterTuple | nn.Cell)
        and (not is_mindspores(type(cell)) or isinstance(value, Tensor | np.ndarray))
        and _plain_numbers(value) is None
    }


def functions(step: Step) -> dict[str, str]:
    """Return name -> ``fingerprint`` of a step's functions of the number of updates."""
    schedules = step.schedules().items()
    return {name: fingerprint(function) for name, function in schedules if callable(function)}


def own_parameters(optimizer: nn.Optimizer) -> dict[str, Parameter]:
    """Return the Parameters that are numbers of the optimizer, not one for each weight.

    These are rates, momentum and counters: updates, powers of beta.
    """
    weights = {id(parameter) for parameter in optimizer.parameters}
    parameters: dict[str, Parameter] = {}
    for _, cell in optimizer.cells_and_names():
        for name, value in vars(cell).items():
            if isinstance(value, ParameterTuple) and name != "learning_rate":
                weights |= {id(parameter) for parameter in value}
        parameters |= {p.name: p for p in cell._params.values() if p is not None}
    of_rates = set(rate_names(optimizer))
    return {
        name: parameter
        for name, parameter in parameters.items()
        if id(parameter) not in weights and (parameter.size == 1 or name in of_rates)
    }


def rate_names(optimizer: nn.Optimizer) -> list[str]:
    """Return the names of the Parameters that hold learning rates."""
    held = getattr(optimizer, "learning_rate", None)
    if isinstance(held, Parameter):
        return [held.name]
    if isinstance(held, nn.Cell):
        held = held.get_parameters()
    elif not isinstance(held, ParameterTuple):
        return []
    return list(dict.fromkeys(rate.name for rate in held))


def rates(optimizer: nn.Optimizer) -> dict[str, str]:
    """Return weight -> name of its learning rate if groups have their own, which shows the groups.

    The name is that of a Parameter, or the place of a schedule.
    """
    names: dict[str, str] = {}
    for place, cell in optimizer.cells_and_names():
        if not (isinstance(cell, nn.Optimizer) and cell.is_group_lr):
            continue
        first: dict[int, int] = {}
        for index, (weight, rate) in enumerate(
            zip(cell.parameters, cell.learning_rate, strict=True)
        ):
            at = first.setdefault(id(rate), index)
            name = rate.name if isinstance(rate, Parameter) else f"learning_rate.{at}"
            names[weight.name] = f"{place}.{name}" if place else name
    return names


def keep_own(
    values: dict, then: dict[str, Any] | None, optimizer: nn.Optimizer, names: Iterable[str]
) -> None:
    """Put an optimizer's own rates, and its Parameters in ``names``, into a checkpoint's values."""
    own = own_parameters(optimizer)
    names = list(names)
    for name in dict.fromkeys((*rate_names(optimizer), *names)):
        fits = name in own and getattr(values.get(name), "shape", None) == own[name].shape
        if name in own and (name in names or not fits):
            values[name] = Tensor(own[name].asnumpy())
        elif name not in own and name in (then or {}).get("parameters", {}):
            values.pop(name, None)


def damping_array(step: Step) -> np.ndarray | None:
    """Return an update stage's array of damping, (updates,) float64; None if it has none."""
    values = step.schedules().get("damping")
    return values.astype(np.float64) if isinstance(values, np.ndarray) else None


def damping_digest(values: np.ndarray) -> str:
    """Return the SHA-256 of an array of damping."""
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()


def first_number(values: np.ndarray) -> float:
    """Return the first number of an array of any shape."""
    return float(np.ravel(values)[0])


def is_a_number_each(numbers: object, names: Iterable[str]) -> bool:
    """Return whether ``numbers`` is a list with a number for each of ``names``."""
    return isinstance(numbers, list) and len(numbers) == len(list(names))


def _attributes(optimizer: nn.Optimizer) -> Iterator[tuple[str, Any, nn.Cell]]:
    """Yield (name, value, cell) for the attributes of an optimizer and of its cells."""
    for place, cell in optimizer.cells_and_names():
        for name, value in vars(cell).items():
            hidden = is_mindspores(type(cell)) and name.startswith("_")
            if not (hidden or name in _of_every_cell() or name in _NOT_NUMBERS):
                yield (f"{place}.{name}" if place else name), value, cell


@functools.cache
def _of_every_cell() -> frozenset[str]:
    return frozenset(vars(nn.Cell()))


def _plain_numbers(value: Any) -> Any:
    """Return a number, or lists of numbers, as plain Python values; None for anything else."""
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
        numbers = [_plain_numbers(item) for item in value]
        return None if any(number is None for number in numbers) else numbers
    return None
