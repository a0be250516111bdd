"""One whole training step, stage by stage, under PyTorch's names: labs 02 and 06.

    preprocessing   the batch as it enters the network
    weights         parameters and running statistics before the step
    forward         the output of every cell, in the order of the calls
    loss            the mean loss of the batch
    gradients       of every trainable parameter
    update          w_after - w_before of every trainable parameter
    statistics      BatchNorm's running statistics after the step

Stages are in the order in which a fault spreads. It is compared with PyTorch's recorded step, whose
weights keep the inputs of ReLUs away from zero; for any other network ``labkit.migration.compare``
compares each place alone.
"""

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from labkit.migration.judge import Row, judged
from labkit.migration.names import pairs
from labkit.migration.places import as_tensor
from labkit.migration.trace import Arrays, Trace, Value
from labkit.runtime import pynative
from labkit.steps.state import running_statistics, set_state

STAGES = ("preprocessing", "weights", "forward", "loss", "gradients", "update", "statistics")


class OneStep(nn.Cell):
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


def take(
    network: nn.Cell,
    loss_fn: nn.Cell,
    optimizer: nn.Optimizer,
    images: np.ndarray,
    labels: np.ndarray,
) -> Trace:
    """Take one training step, in the current mode, and return what it computed.

    The outputs of the cells are recorded first, in PyNative mode.
    """
    names, batch = pairs(network), (as_tensor(images), as_tensor(labels))

    def by_name(tensors: dict) -> Arrays:
        known = (pair for pair in names if pair.mindspore in tensors)
        arrays = ((pair, tensors[pair.mindspore].asnumpy()) for pair in known)
        return {pair.torch: array.reshape(pair.torch_shape).copy() for pair, array in arrays}

    own = {p.name: p for p in network.get_parameters() if p.dtype == ms.float32}
    before, forward = by_name(own), _forward(network.set_train(), batch[0])
    loss, gradients = OneStep(network, loss_fn, optimizer).set_train()(*batch)
    trained = [parameter.name for parameter in optimizer.parameters]
    gradients, after = by_name(dict(zip(trained, gradients, strict=True))), by_name(own)
    stages = {
        "preprocessing": {"images": np.asarray(images), "labels": np.asarray(labels)},
        "weights": before,
        "forward": forward,
        "loss": {"loss": loss.asnumpy()},
        "gradients": gradients,
        "update": {name: after[name] - before[name] for name in gradients},
        "statistics": {name: x for name, x in after.items() if ".running_" in f".{name}"},
    }
    values = {stage: {n: Value(x) for n, x in part.items()} for stage, part in stages.items()}
    return Trace(f"MindSpore {ms.__version__}, float32", values)


def compare(actual: Trace, reference: Trace) -> list[Row]:
    """Return a ``Row`` for each tensor of each stage that both sides have.

    Each tensor may be as far from PyTorch's float64 as ``labkit.migration.compare`` allows.
    """
    return [
        judged(stage, name, "", actual.stages[stage][name].value, value)
        for stage in STAGES
        for name, value in reference.stages.get(stage, {}).items()
        if name in actual.stages[stage]
    ]


def _forward(network: nn.Cell, images: ms.Tensor) -> Arrays:
    """Return the output of every cell in the order of the calls; statistics stay unchanged."""
    outputs: Arrays = {}
    handles = []

    def keep(name: str, output: object) -> None:
        if isinstance(output, ms.Tensor):
            calls = sum(key.partition("#")[0] == name for key in outputs)
            outputs[f"{name}#{calls + 1}" if calls else name] = output.asnumpy().copy()

    for path, cell in network.cells_and_names():
        if path:
            hook = lambda cell, given, output, path=path: keep(path, output)  # noqa: E731
            handles.append(cell.register_forward_hook(hook))
    kept = [(statistic, statistic.asnumpy().copy()) for statistic in running_statistics(network)]
    with pynative():
        network(images)
    for handle in handles:
        handle.remove()
    for statistic, value in kept:
        set_state(statistic, value)
    return outputs
