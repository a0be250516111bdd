"""The state of a step: named Parameters, and a record of the updates made."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.common.initializer import initializer
from mindspore.nn.layer.normalization import _BatchNorm

from labkit.base.arguments import wrong
from labkit.errors import InputError, warn
from labkit.steps.schedules import check_length

BATCH_NORMS = (
    *(_BatchNorm, mint.nn.BatchNorm1d, mint.nn.BatchNorm2d, mint.nn.BatchNorm3d),
    mint.nn.SyncBatchNorm,
)


@dataclass(frozen=True)
class LastUpdate:
    """The most recent update of a step.

    Attributes:
        loss: mean loss over the update's micro-batches, weighted as their gradients are.
        gradient_norm: global norm of the averaged gradient in float32, before clipping.
        learning_rate: one per parameter group, as the update used it, whatever was set since then
            (in sink mode, only if it has a schedule).
        images: number of rows over all ranks, counted by axis 0 of the labels.
    """

    number: int
    loss: float
    gradient_norm: float
    learning_rate: tuple[float, ...]
    images: int


class UpdateRecord(nn.Cell):
    """How many updates an optimizer has made, () int32, and the most recent one's numbers."""

    def __init__(self, optimizer: nn.Optimizer):
        super().__init__(auto_prefix=False)
        self.updates = state("updates", 0)
        self.last_loss = state("last_loss", 0.0)
        self.last_norm = state("last_norm", 0.0)
        self.last_images = state("last_images", 0)
        self.rated = rated(optimizer)
        # The index of the first parameter of each group with its own rate.
        groups = [id(rate) for rate in self.rated.learning_rate] if self.rated.is_group_lr else [0]
        self._group_starts = tuple(groups.index(group) for group in dict.fromkeys(groups))
        # Rates without a schedule, by the number of updates made before they were used.
        self._constant = () if self.rated.dynamic_lr else tuple(self._by_group())
        self._used: dict[int, tuple[float, ...]] = {}
        self.counts = False  # whether it was seen, after an update, if the optimizer counts it
        self._before = (0, 0)
        self.last_rates = state("last_rates", np.zeros(len(self._group_starts)))

    def note(self, loss: Tensor, norm: Tensor, images: Tensor) -> bool:
        """Record the loss (), gradient norm () and rows () of the update that is being made."""
        ops.assign(self.last_loss, loss)
        ops.assign(self.last_norm, norm)
        ops.assign(self.last_images, images)
        if self.rated.dynamic_lr:
            rates = self.rated.get_lr()
            if not self.rated.is_group_lr:
                rates = (rates,)
            ops.assign(self.last_rates, ops.stack([rates[i] for i in self._group_starts]))
        return True

    def see_rates(self) -> None:
        """Note rates without a schedule, and counts, before a graph may make an update."""
        if not self.counts:
            self._before = self.updates.asnumpy().item(), self.rated.global_step.asnumpy().item()
        if self._constant:
            number = int(self.updates.asnumpy())
            rates = tuple(map(float, map(Tensor.asnumpy, self._constant)))
            self._used = {number - 1: self._used.get(number - 1, rates), number: rates}

    def check_counting(self) -> None:
        """Warn, after the first update, of an optimizer that leaves ``global_step`` as it was."""
        updates, step = self._before
        self.counts = self.updates.asnumpy().item() > updates
        if self.counts and self.rated.global_step.asnumpy().item() == step:
            warn(
                f"{type(self.rated).__name__} leaves its global_step, and so any schedule, at "
                f"{step}; expected self.assignadd(self.global_step, "
                "self.global_step_increase_tensor) in its construct"
            )

    def last_update(self) -> LastUpdate:
        """Return the most recent update, read from the device."""
        number = integer_of(self.updates)
        if self.rated.dynamic_lr:
            rates = self.last_rates.asnumpy()
        else:  # without a call so far, and in sink mode: the present ones
            rates = self._used.get(number - 1) or [rate.asnumpy() for rate in self._constant]
        return LastUpdate(
            number=number,
            loss=float(self.last_loss.asnumpy()),
            gradient_norm=float(self.last_norm.asnumpy()),
            learning_rate=tuple(float(rate) for rate in rates),
            images=integer_of(self.last_images),
        )

    def check_rates(self, updates: int) -> None:
        """Raise ``InputError`` if an array of learning rates ends within ``updates`` more."""
        for number, rate in enumerate(self._by_group()):
            array = getattr(rate, "learning_rate", None)
            if isinstance(array, Parameter) and array.ndim == 1:
                name = "the learning rate" + (f" of group {number}" if number else "")
                total = int(self.rated.global_step.asnumpy()[0]) + updates
                check_length(array.asnumpy(), total, name)

    def _by_group(self) -> list:
        rates = self.rated.learning_rate
        return [rates[i] if self.rated.is_group_lr else rates for i in self._group_starts]


class Memory(dict[str, int]):
    """Bytes of Tensors by part, each in the first that has it; ``print`` shows a table."""

    def __init__(self, parts: Mapping[str, Iterable[Tensor]]):
        super().__init__()
        counted: set[int] = set()
        for part, tensors in parts.items():
            new = {id(each): each.size * each.itemsize for each in tensors}
            if size := sum(new[key] for key in new.keys() - counted):
                self[part] = size
            counted |= new.keys()

    def __str__(self) -> str:
        rows = [*self.items(), ("all", sum(self.values()))]
        return "\n".join(f"{part:<20} {size:>15,} bytes" for part, size in rows)


def check_optimizer(optimizer: object) -> None:
    """Refuse what is not an ``nn.Optimizer``, such as those of ``mint.optim``."""
    if not isinstance(optimizer, nn.Optimizer):
        name = f"{type(optimizer).__module__}.{type(optimizer).__name__}"
        hint = " labkit.AdamW equals torch.optim.AdamW" if ".optim." in name else ""
        raise wrong("optimizer", name.removeprefix("builtins."), "an nn.Optimizer", hint)


def check_weights(loss_net: nn.Cell, optimizer: nn.Optimizer) -> None:
    """Refuse an optimizer of frozen Parameters, or of others than those of ``loss_net``."""
    weights, known = optimizer.parameters, {id(weight) for weight in loss_net.get_parameters()}
    if frozen := [weight.name for weight in weights if not weight.requires_grad]:
        raise InputError(
            f"optimizer: expected trainable Parameters, got the frozen {', '.join(frozen[:3])}; "
            "make it of network.trainable_params() after freezing"
        )
    if others := [weight.name for weight in weights if id(weight) not in known]:
        raise InputError(
            f"optimizer: expected weights of loss_net, got {', '.join(others[:3])}, which "
            "loss_net.get_parameters() does not list: make it of the network's trainable_params()"
        )


def rated(optimizer: nn.Optimizer) -> nn.Optimizer:
    """Return the optimizer whose rates apply: nn.LARS has a rate of 0 that it does not use."""
    return optimizer.opt if isinstance(optimizer, nn.LARS) else optimizer


def optimizers_in(optimizer: nn.Optimizer) -> list[nn.Optimizer]:
    """Return an optimizer and those that it consists of: nn.LARS and ``Both`` hold others."""
    return [cell for _, cell in optimizer.cells_and_names() if isinstance(cell, nn.Optimizer)]


def state(name: str, value: int | float | np.ndarray) -> Parameter:
    """Return a named Parameter of a step's state: int32 for integers, float32 for floats."""
    dtype = ms.float32 if np.asarray(value).dtype.kind == "f" else ms.int32
    return Parameter(Tensor(value, dtype), name=f"step.{name}", requires_grad=False)


def set_state(parameter: Parameter, value: object) -> None:
    """Set a Parameter from outside a graph."""
    ops.assign(parameter, Tensor(value, parameter.dtype))


class _InPlace:
    """A Parameter whose memory stays where it is: see ``keep_in_place``."""

    def assign_value(self: Any, value: Tensor) -> Parameter:
        """Copy a value: what ``set_data``, ``load_param_into_net`` and others call in the end."""
        ops.assign(self, ops.reshape(value, self.shape))
        return self


@functools.cache
def _in_place(kind: type) -> type:
    return type(kind.__name__, (_InPlace, kind), {})


def parameters_in(value: Any) -> list[Parameter]:
    """Return the Parameters in a Parameter, a Cell, or a list or tuple of them."""
    if isinstance(value, Parameter):
        return [value]
    if isinstance(value, list | tuple):
        return [parameter for part in value for parameter in parameters_in(part)]
    return list(value.get_parameters()) if isinstance(value, nn.Cell) else []


def keep_in_place(cell: nn.Cell) -> None:
    """Make ``set_data`` and ``load_param_into_net`` copy into the memory that Parameters have.

    Hazard: they give it other memory, and a graph with two conditions in a row goes on with that
    of its first run (MindSpore 2.10 on CPU), after which not even ``ops.assign`` has an effect.
    """
    # get_parameters does not find those of Cells in a tuple, such as a decay for each group.
    for parameter in parameters_in([cell, list(vars(cell).values())]):
        if not isinstance(parameter, _InPlace):
            parameter.init_data().__class__ = _in_place(parameter.__class__)


def integer_of(parameter: Parameter) -> int:
    """Return the value of a scalar integer Parameter, read from the device."""
    return int(parameter.asnumpy())


def copied(parameter: Parameter, prefix: str) -> Parameter:
    """Return a Parameter with the values of ``parameter``, named ``prefix.NAME``."""
    copy = parameter.clone()
    copy.name = f"{prefix}.{parameter.name}"
    copy.requires_grad = False
    return copy


def zeros_like(parameter: Parameter, prefix: str, dtype: Any = None) -> Parameter:
    """Return a Parameter of zeros with the shape of ``parameter``, named ``prefix.NAME``."""
    zeros = initializer("zeros", parameter.shape, dtype or parameter.dtype)
    return Parameter(zeros, name=f"{prefix}.{parameter.name}", requires_grad=False)


def cast_like(gradient: Tensor, parameter: Parameter) -> Tensor:
    """Return the gradient cast to the Parameter's type."""
    return ops.cast(gradient, parameter.dtype)


def are_float32(parameters: Sequence[Parameter]) -> bool:
    """Return whether gradients need no cast, without which a plain step compiles 6 % sooner."""
    return all(parameter.dtype == ms.float32 for parameter in parameters)


def flat(tensor: Tensor) -> Tensor:
    """Return all elements of a tensor as one vector, float32."""
    return ops.reshape(ops.cast(tensor, ms.float32), (-1,))


def part_of(vector: Tensor, start: int, end: int, parameter: Parameter) -> Tensor:
    """Return the elements start .. end - 1, with the shape and type of a Parameter."""
    part = ops.slice(vector, (start,), (end - start,))
    return cast_like(ops.reshape(part, parameter.shape), parameter)


def at(tensors: tuple, place: int) -> Tensor:
    """Return the tensor at a place: for a ``HyperMap`` over places."""
    return tensors[place]


def bounds(sizes: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return (start, end) of each Parameter, given its size, in the vector of them all."""
    ends = np.cumsum(sizes).tolist()
    return tuple(zip([0, *ends[:-1]], ends, strict=True))


def trainable_batch_norms(network: nn.Cell) -> list[nn.Cell]:
    """Return the BatchNorm cells of ``network`` that use each micro-batch's own statistics."""
    cells = [cell for _, cell in network.cells_and_names() if isinstance(cell, BATCH_NORMS)]
    return [c for c in cells if getattr(c, "use_batch_statistics", None) is not False]


def running_statistics(network: nn.Cell) -> tuple[Parameter, ...]:
    """Return the running statistics of BatchNorm, which a forward pass changes."""
    owned = [p for c in trainable_batch_norms(network) for p in c.get_parameters(expand=False)]
    return tuple(parameter for parameter in owned if not parameter.requires_grad)
