"""Wrong words for options: mypy checks this file, and reports an ``ignore`` that is not needed."""

from mindspore import nn

import labkit
from labkit import AccumulatedStep, AdasumStep, CrossEntropySmooth, PlainStep, SubspaceStep
from labkit.algorithms.subspace.basis import Basis
from labkit.algorithms.thor.update import ThorOptions


def wrong(net: nn.Cell, optimizer: nn.Optimizer, basis: Basis) -> None:
    """Give each option a wrong word."""
    AccumulatedStep(net, optimizer, tail="flus")  # type: ignore[arg-type]
    AccumulatedStep(net, optimizer, nonfinite="drop")  # type: ignore[arg-type]
    AccumulatedStep(net, optimizer, micro_step=4)  # type: ignore[call-arg]
    PlainStep(net, optimizer, precision="O1")  # type: ignore[arg-type]
    PlainStep(net, optimizer, reduction="max")  # type: ignore[arg-type]
    AdasumStep(net, optimizer, on="weights")  # type: ignore[arg-type]
    AdasumStep(net, optimizer, reduction="max")  # type: ignore[arg-type]
    AdasumStep(net, optimizer, tail="carry", nonfinite="drop")  # type: ignore[arg-type]
    SubspaceStep(net, optimizer, basis, method="newton")  # type: ignore[arg-type]
    ThorOptions(0.3, nan="go")  # type: ignore[arg-type]
    CrossEntropySmooth(convention="torch")  # type: ignore[arg-type]
    labkit.start("TPU")  # type: ignore[arg-type]
    labkit.choose("01_gradient_accumulation", "quick")  # type: ignore[arg-type]


def right(net: nn.Cell, optimizer: nn.Optimizer, basis: Basis) -> None:
    """Give right ones."""
    AccumulatedStep(net, optimizer, 4, tail="carry", nonfinite="propagate", reduction="sum")
    AdasumStep(net, optimizer, on="gradients", reduction="mean", tail="drop", precision="O3")
    SubspaceStep(net, optimizer, basis, method="sgd", failure="rollback", clip_norm=1.0)
