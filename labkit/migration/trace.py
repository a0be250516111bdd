"""What one training step computes, stage by stage, under PyTorch's names.

    preprocessing   the batch as it enters the network
    weights         parameters and running statistics before the step
    forward         the output of every cell, in the order of the calls
    loss            the mean loss of the batch
    gradients       of every trainable parameter
    update          w_after - w_before of every trainable parameter
    statistics      BatchNorm's running statistics after the step

Stages are in the order in which a fault spreads: the first one that differs is where to look.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from labkit.errors import InputError
from labkit.migration.names import Pair, pairs
from labkit.runtime import pynative
from labkit.steps.state import running_statistics, set_state

STAGES = ("preprocessing", "weights", "forward", "loss", "gradients", "update", "statistics")

Arrays = dict[str, np.ndarray]
_FLOATS = (ms.float16, ms.float32, ms.float64)


@dataclass(frozen=True)
class Trace:
    """One step of one framework."""

    origin: str  # framework, version and precision
    stages: dict[str, dict[str, object]]  # stage -> name -> array (or ``fixtures.Digest``)


class _OneStep(nn.Cell):
    """One plain training step that also returns its gradients."""

    def __init__(self, network: nn.Cell, loss_fn: nn.Cell, optimizer: nn.Optimizer) -> None:
        super().__init__(auto_prefix=False)
        self.network, self.loss_fn, self.optimizer = network, loss_fn, optimizer
        self.value_and_grad = ops.value_and_grad(self._loss, None, optimizer.parameters)

    def _loss(self, images: ms.Tensor, labels: ms.Tensor) -> ms.Tensor:
        return self.loss_fn(self.network(images), labels)

    def construct(self, images: ms.Tensor, labels: ms.Tensor) -> tuple[ms.Tensor, tuple]:
        loss, gradients = self.value_and_grad(images, labels)
        return ops.depend(loss, self.optimizer(gradients)), gradients


def trace(
    network: nn.Cell,
    loss_fn: nn.Cell,
    optimizer: nn.Optimizer,
    images: np.ndarray,
    labels: np.ndarray,
) -> Trace:
    """Take one training step with a MindSpore network and return what it computed.

    The outputs of the cells are recorded first, in PyNative mode, and BatchNorm's statistics
    restored. The step is then taken in the current mode: graph mode, or without compiling inside
    ``labkit.runtime.pynative()`` (on CPU the results agree to two roundings of float32). A cell
    that draws random numbers (Dropout) draws in both passes, and other numbers than PyTorch's.

    Args:
        network: images, or tokens -> logits; the step changes its parameters, as training does.
        loss_fn: (logits, labels) -> mean loss.
        optimizer: an optimizer over ``network.trainable_params()``.
        images, labels: (B, ...) float32, or int32 (tokens); and int32, (B,) or (B, ...).

    Raises:
        InputError: if the optimizer's parameters are not exactly the network's trainable ones.
    """
    if {id(p) for p in optimizer.parameters} != {id(p) for p in network.trainable_params()}:
        raise InputError("optimizer: expected exactly the parameters network.trainable_params()")
    kind = ms.int32 if images.dtype.kind == "i" else ms.float32
    batch = ms.Tensor(images, kind), ms.Tensor(labels, ms.int32)
    names = pairs(network)
    floats = [p for p in network.get_parameters() if p.dtype in _FLOATS]
    before = _by_torch_name(floats, floats, names)
    network.set_train()
    forward = _forward(network, batch[0])
    loss, gradients = _OneStep(network, loss_fn, optimizer).set_train()(*batch)
    gradients = _by_torch_name(optimizer.parameters, gradients, names)
    after = _by_torch_name(floats, floats, names)
    stages = _stages((images, labels), before, forward, loss.asnumpy(), gradients, after)
    return Trace(f"MindSpore {ms.__version__}, float32", stages)


def torch_trace(
    module: Any, loss_fn: Callable, optimizer: Any, images: np.ndarray, labels: np.ndarray
) -> Trace:
    """Take the step of ``trace`` with a PyTorch module, in its type, and an optimizer over it."""
    import torch

    def values() -> Arrays:
        tensors = module.state_dict().items()
        return {name: t.numpy().copy() for name, t in tensors if t.is_floating_point()}

    kind = next(module.parameters()).dtype
    own = torch.long if images.dtype.kind == "i" else kind
    batch = torch.as_tensor(images).to(own), torch.as_tensor(labels).long()
    before = values()
    module.train()
    with _recorded(module.named_modules(), lambda x: x.detach().numpy()) as forward:
        loss = loss_fn(module(batch[0]), batch[1])
    optimizer.zero_grad()
    loss.backward()
    gradients = {
        name: (torch.zeros_like(p) if p.grad is None else p.grad).numpy().copy()
        # A parameter that two modules share appears under both names, as in the state dict.
        for name, p in module.named_parameters(remove_duplicate=False)
        if p.requires_grad
    }
    optimizer.step()
    mean = loss.detach().numpy()
    stages = _stages((images, labels), before, forward, mean, gradients, values())
    return Trace(f"PyTorch {torch.__version__}, {str(kind).removeprefix('torch.')}", stages)


def _stages(
    batch: tuple, before: Arrays, forward: Arrays, loss: object, gradients: Arrays, after: Arrays
) -> dict[str, dict]:
    """Return the stages of a step, from the weights and statistics before and after it."""
    return {
        "preprocessing": dict(zip(("images", "labels"), map(np.asarray, batch), strict=True)),
        "weights": before,
        "forward": forward,
        "loss": {"loss": loss},
        "gradients": gradients,
        "update": {name: after[name] - before[name] for name in gradients},
        "statistics": {name: x for name, x in after.items() if ".running_" in f".{name}"},
    }


def _by_torch_name(parameters: Sequence, tensors: Sequence, names: list[Pair]) -> Arrays:
    """Return one tensor of each parameter, its gradient or itself, under PyTorch's names."""
    values = {p.name: tensor.asnumpy() for p, tensor in zip(parameters, tensors, strict=True)}
    known = (pair for pair in names if pair.mindspore in values)
    return {p.torch: values[p.mindspore].reshape(p.torch_shape).copy() for p in known}


def _forward(network: nn.Cell, images: ms.Tensor) -> Arrays:
    """Return the output of every cell in the order of the calls; statistics stay unchanged."""
    cells = list(network.cells_and_names())
    kept = [(statistic, statistic.asnumpy().copy()) for statistic in running_statistics(network)]
    try:
        with pynative(), _recorded(cells, ms.Tensor.asnumpy) as outputs:
            network(images)
    finally:
        for statistic, value in kept:
            set_state(statistic, value)
    return outputs


@contextmanager
def _recorded(parts: Iterable[tuple[str, Any]], as_array: Callable) -> Iterator[Arrays]:
    """Keep a copy of each tensor that a named part returns; a second call's is ``name#2``."""
    outputs: Arrays = {}

    def keep(name: str, part: object, inputs: tuple, output: object) -> None:
        if hasattr(output, "shape"):  # one tensor
            calls = sum(key.partition("#")[0] == name for key in outputs)
            # A copy: the next cell may work in place, as torchvision's ReLUs do.
            outputs[f"{name}#{calls + 1}" if calls else name] = as_array(output).copy()

    handles = [part.register_forward_hook(partial(keep, name)) for name, part in parts if name]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()
