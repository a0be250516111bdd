"""What a resumed training must share with the interrupted one: one dict of plain JSON values."""

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn
from mindspore.dataset import Dataset
from mindspore.dataset.engine.datasets import MapDataset

from labkit.errors import InputError
from labkit.ranks import cluster
from labkit.steps.step import Step

Rates = dict[str, Tensor]  # and momentum, by the name of the Parameter
_RATES = ("learning_rate", "momentum")
_REPEATED = ("init_args", "init_params", "init_learning_rate", "group_lr")  # values as given


def settings_of(step: Step, dataset: Dataset, rates: Rates, updates: int) -> dict[str, Any]:
    """Return the settings of a training that began with ``rates``, after ``updates`` updates.

    A schedule over updates (an array of rates, THOR's damping, a function that gives the size of a
    group) is the SHA-256 of its values up to there: what it says about later updates may change.
    """
    arrays = {name: rate.asnumpy() for name, rate in rates.items()}
    settings = {
        **step.settings,
        **{name: _used(values, updates) for name, values in step.schedules().items()},
        "optimizer": _of_cell(step.optimizer),
        "rates": {n: _number(a) if a.size == 1 else _used(a, updates) for n, a in arrays.items()},
        "epoch_size": dataset.get_dataset_size(),
        "batch_size": dataset.get_batch_size(),
        "seed": ms.dataset.config.get_seed(),
        "workers": data_workers(dataset),
        "ranks": cluster.rank_and_size()[1],
    }
    return json.loads(json.dumps(settings, default=repr))


def refuse_other(own: dict[str, Any], saved: dict[str, Any]) -> None:
    """Raise ``InputError`` unless ``own`` settings are the ``saved`` ones, naming what differs."""
    found = [f"{n}: expected {a}, as in the checkpoint, got {b}" for n, a, b in _differ(saved, own)]
    if found:
        more = f"; {len(found) - 3} more differ" if len(found) > 3 else ""
        raise InputError(
            f"cannot resume: {'; '.join(found[:3])}{more}; resume='anyway' goes on with what is new"
        )


def own_rates(step: Step) -> Rates:
    """Return, by name, the Parameters that hold the optimizer's rates and momentum."""
    cells = [cell for _, cell in step.optimizer.cells_and_names()]
    held = [p for cell in cells for name in _RATES for p in _parameters(cell, name)]
    return {p.name: Tensor(p.asnumpy()) for p in held}


def data_workers(dataset: Dataset) -> list[int]:
    """Return the numbers of workers of a pipeline's sources and maps, from its end to its start.

    Each of them affects random augmentation: a map with one worker draws different numbers from the
    same map with two.
    """
    numbers = [workers for child in dataset.children for workers in data_workers(child)]
    if not dataset.children or isinstance(dataset, MapDataset):
        default = ms.dataset.config.get_num_parallel_workers()
        numbers.insert(0, dataset.num_parallel_workers or default)
    return numbers


def _of_cell(cell: nn.Cell) -> dict[str, Any]:
    """Return the class and the public numbers of an optimizer or of a schedule, by name."""
    values: dict[str, Any] = {"class": type(cell).__name__}
    if isinstance(cell, nn.Optimizer):
        values["weights"] = [parameter.name for parameter in cell.parameters]
    left_out = {*vars(nn.Cell()), *_REPEATED, *(name for name in _RATES if _parameters(cell, name))}
    for name, part in {**getattr(cell, "init_args", {}), **vars(cell), **cell._cells}.items():
        if not name.startswith("_") and name not in left_out:
            values[name] = _plain(part)
    return {name: value for name, value in values.items() if value is not None}


def _parameters(cell: nn.Cell, name: str) -> list[Parameter]:
    """Return the Parameters that an attribute is or holds."""
    value = getattr(cell, name, None)
    parts = value if isinstance(value, list | tuple) else [value]
    return [part for part in parts if isinstance(part, Parameter)]


def _plain(value: Any) -> Any:
    """Return a plain value as JSON has it, a large array as its SHA-256, and None for the rest."""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, nn.Cell):
        return _of_cell(value)
    if isinstance(value, Tensor | np.ndarray | np.generic):
        array = np.asarray(value.asnumpy() if isinstance(value, Tensor) else value)
        return _number(array) if array.size == 1 else _sha256(array)
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple) and not any(isinstance(part, Parameter) for part in value):
        return [_plain(part) for part in value]
    return None


def _number(array: np.ndarray) -> float:
    number = array.ravel()[0]
    return float(str(number)) if array.dtype.kind == "f" else number.item()  # 0.1 of float32


def _used(schedule: Callable | np.ndarray, updates: int) -> str:
    """Return the SHA-256 of the values that a schedule has for the first ``updates`` updates."""
    if callable(schedule):
        schedule = np.array([schedule(update) for update in range(updates)])
    return _sha256(np.asarray(schedule[:updates], np.float64))


def _sha256(array: np.ndarray) -> str:
    return f"{array.size} values, SHA-256 {hashlib.sha256(array.tobytes()).hexdigest()}"


def _differ(saved: Any, own: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, saved, own) of the values that differ; names of nested ones have dots."""
    if isinstance(saved, list) and isinstance(own, list) and len(saved) == len(own):
        saved, own = (dict(enumerate(values)) for values in (saved, own))
    if isinstance(saved, dict) and isinstance(own, dict):
        for key in dict.fromkeys((*saved, *own)):
            place = f"{name}.{key}" if name else str(key)
            yield from _differ(saved.get(key, "nothing"), own.get(key, "nothing"), place)
    elif saved != own:
        yield name, saved, own
