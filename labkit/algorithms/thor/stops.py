"""Checks that stop a training and name the layer: factors or a loss that are not finite."""

import math
from collections.abc import Iterable

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor

from labkit.algorithms.thor.curvature import LayerCurvature
from labkit.algorithms.thor.geometry import refuse_layers
from labkit.steps.gradients import GradientStage
from labkit.steps.nonfinite import first_nonfinite
from labkit.steps.state import integer_of


def check_factors(layers: Iterable[LayerCurvature], measured: np.ndarray, update: int) -> None:
    """Check that the factors of an update are finite and that every layer was called.

    Args:
        layers: curvature of each layer.
        measured: T, tr A (x) G and whether they are finite, (layers, 3).
        update: the update, 0, 1, ...

    Raises:
        FloatingPointError: if the factors of a layer are not finite.
        InputError: if layers were not called.
    """
    uncalled = {}
    for layer, (positions, _, finite) in zip(layers, measured, strict=True):
        if not finite:
            raise FloatingPointError(
                f"the factors of layer {layer.layer_name!r} are not finite at update "
                f"{update + 1}; the averages and the weights are as before it"
            )
        if not positions > 0:
            uncalled[layer.layer_name] = "was not called, though its weight may be used"
    refuse_layers(uncalled)


def check_loss_value(
    stage: GradientStage, loss: Tensor, batch: tuple, updates: Parameter, damping: Parameter
) -> None:
    """Raise ``FloatingPointError`` if a loss is not finite, naming the layer that caused it.

    All ranks stop: a rank that continued would wait for the others forever.

    Args:
        stage: gradient stage of the step, whose loss net is examined.
        loss: loss of ``batch``, ().
        batch: inputs, and labels last.
        updates: number of updates so far, ().
        damping: damping of the last refresh, ().
    """
    finite = math.isfinite(float(loss.asnumpy()))
    everywhere = finite
    if stage.all_reduce is not None:  # several ranks
        lost = stage.all_reduce(Tensor([not finite], ms.float32))
        everywhere = not lost.asnumpy().any()
    if everywhere:
        return
    update = integer_of(updates) + 1
    if finite:
        raise FloatingPointError(
            f"the loss is not finite on another rank at update {update}; what that rank raises "
            "says where"
        )
    where = first_nonfinite(stage.loss_net, batch)
    raise FloatingPointError(
        f"the loss is {float(loss.asnumpy())} at update {update}: {where}. Smaller learning "
        f"rate or more damping (now {float(damping.asnumpy()):.3g})?"
    )
