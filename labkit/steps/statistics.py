"""BatchNorm's running statistics: what a forward pass changes."""

from collections.abc import Iterator
from contextlib import contextmanager

from mindspore import Parameter, mint, nn
from mindspore.nn.layer.normalization import _BatchNorm

from labkit.steps.state import set_state

BATCH_NORMS = (_BatchNorm, mint.nn.BatchNorm1d, mint.nn.BatchNorm2d, mint.nn.BatchNorm3d)


def trainable_batch_norms(network: nn.Cell) -> list[nn.Cell]:
    """Return the BatchNorm cells of ``network`` that use each micro-batch's own statistics."""
    cells = [cell for _, cell in network.cells_and_names() if isinstance(cell, BATCH_NORMS)]
    return [c for c in cells if getattr(c, "use_batch_statistics", None) is not False]


def running_statistics(network: nn.Cell) -> tuple[Parameter, ...]:
    """Return the running statistics of BatchNorm, which a forward pass changes."""
    owned = [p for c in trainable_batch_norms(network) for p in c.get_parameters(expand=False)]
    return tuple(parameter for parameter in owned if not parameter.requires_grad)


@contextmanager
def unchanged(network: nn.Cell) -> Iterator[None]:
    """Restore on exit what forward passes in the block have changed."""
    kept = [(p, p.asnumpy().copy()) for p in running_statistics(network)]
    try:
        yield
    finally:
        for parameter, value in kept:
            set_state(parameter, value)
