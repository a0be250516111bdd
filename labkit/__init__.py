"""Five techniques for training neural networks with MindSpore, as importable step cells.

``labkit.start`` comes first in every program. The names below are loaded when first used, so that
``start`` can still set what MindSpore reads at its own import.
"""

import importlib

_NAMES = {
    "labkit.accumulation": ("AccumulatedStep",),
    "labkit.algorithms.adasum": ("AdasumStep",),
    "labkit.algorithms.plain": ("PlainStep", "PlainUpdate"),
    "labkit.algorithms.subspace": ("SubspaceStep",),
    "labkit.algorithms.thor": ("LevenbergMarquardt", "ThorStep", "ThorUpdate", "TraceRule"),
    "labkit.algorithms.thor.mindspore_model": ("ConvertModelUtils",),
    "labkit.algorithms.thor.mindspore_optimizer": ("thor",),
    "labkit.boost": ("boost_step",),
    "labkit.compat": (
        "GradientAccumulation",
        "TrainClear",
        "TrainForwardBackward",
        "TrainOptim",
        "_clear_grad_sum",
        "_clear_op",
        "_cumulative_grad",
        "_sum_op",
    ),
    "labkit.errors": ("InputError", "WorkerFailed", "WorkersTimedOut"),
    "labkit.evaluation": ("evaluate",),
    "labkit.launching": ("launch",),
    "labkit.losses": ("CrossEntropySmooth", "LossNet", "TokenLossNet"),
    "labkit.nets.lenet": ("LeNet5",),
    "labkit.nets.resnet": ("ResNet", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152"),
    "labkit.parameter_groups": ("decay_groups",),
    "labkit.precision": ("DynamicLossScale",),
    "labkit.presets": ("choose",),
    "labkit.reports.live": ("attach",),
    "labkit.run": ("Run",),
    "labkit.runtime": ("start",),
    "labkit.training": ("EndOfEpoch", "fit"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(name for name in _HOME if not name.startswith("_"))


def __getattr__(name):
    if name == "__version__":
        return importlib.import_module("labkit.labs").version()
    if name not in _HOME:
        raise AttributeError(f"module 'labkit' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__():
    return [*__all__, "__version__"]
