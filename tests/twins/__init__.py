"""Slow float64 twins: those that the notebooks show (``labkit.reference``), and the tests' own."""

# ruff: noqa: F401, F403
from labkit.reference import *
from tests.twins.accumulation import (
    Accumulation,
    MicroBatch,
    Update,
    clip_by_global_norm,
    dynamic_loss_scale,
    global_norm,
    weight,
    weighted_mean,
)
from tests.twins.kronecker import kronecker_solve, layer_block
from tests.twins.lenet import lenet_parameters
from tests.twins.losses import (
    linear_regression,
    smoothed_cross_entropy,
    softmax_regression,
    token_cross_entropy,
)
from tests.twins.schedules import (
    cosine_schedule,
    resnet_schedule,
    thor_damping,
    thor_schedule,
)
