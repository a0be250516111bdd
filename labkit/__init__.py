"""Five techniques for training neural networks with MindSpore, as importable step cells.

``labkit.start`` comes first in every program. The names below are loaded when first used, so that
``start`` can still set what MindSpore reads at its own import.
"""

import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for editors and type checkers; below, __getattr__ reads these lines
    from labkit.algorithms.adasum import AdasumStep as AdasumStep
    from labkit.algorithms.adasum import AdasumUpdate as AdasumUpdate
    from labkit.algorithms.subspace import SubspaceStep as SubspaceStep
    from labkit.algorithms.subspace import SubspaceUpdate as SubspaceUpdate
    from labkit.algorithms.thor import ThorStep as ThorStep
    from labkit.algorithms.thor import ThorUpdate as ThorUpdate
    from labkit.algorithms.thor import TraceRule as TraceRule
    from labkit.algorithms.thor.update import ThorOptions as ThorOptions
    from labkit.errors import InputError as InputError
    from labkit.errors import WorkerFailed as WorkerFailed
    from labkit.errors import WorkersTimedOut as WorkersTimedOut
    from labkit.labs.lab import open_lab as open_lab
    from labkit.labs.presets import choose as choose
    from labkit.labs.run import Run as Run
    from labkit.nets.lenet import LeNet5 as LeNet5
    from labkit.nets.resnet import ResNet as ResNet
    from labkit.nets.resnet import resnet18 as resnet18
    from labkit.nets.resnet import resnet34 as resnet34
    from labkit.nets.resnet import resnet50 as resnet50
    from labkit.nets.resnet import resnet101 as resnet101
    from labkit.nets.resnet import resnet152 as resnet152
    from labkit.optimizers import AdamW as AdamW
    from labkit.optimizers import Both as Both
    from labkit.optimizers import Muon as Muon
    from labkit.ranks.launch import launch as launch
    from labkit.runtime import start as start
    from labkit.steps.accumulation import AccumulatedStep as AccumulatedStep
    from labkit.steps.gradients import GradientStage as GradientStage
    from labkit.steps.losses import CrossEntropySmooth as CrossEntropySmooth
    from labkit.steps.losses import LossNet as LossNet
    from labkit.steps.losses import TokenLossNet as TokenLossNet
    from labkit.steps.options import DynamicLossScale as DynamicLossScale
    from labkit.steps.options import GradientOptions as GradientOptions
    from labkit.steps.parameter_groups import decay_groups as decay_groups
    from labkit.steps.step import PlainStep as PlainStep
    from labkit.steps.step import Step as Step
    from labkit.steps.update import UpdateStage as UpdateStage
    from labkit.training.evaluation import evaluate as evaluate
    from labkit.training.evaluation import swapped as swapped
    from labkit.training.fit import EndOfEpoch as EndOfEpoch
    from labkit.training.fit import fit as fit
    from labkit.upstream.accumulation import GradientAccumulation as GradientAccumulation
    from labkit.upstream.accumulation import TrainClear as TrainClear
    from labkit.upstream.accumulation import TrainForwardBackward as TrainForwardBackward
    from labkit.upstream.accumulation import TrainOptim as TrainOptim
    from labkit.upstream.accumulation import _clear_grad_sum as _clear_grad_sum
    from labkit.upstream.accumulation import _clear_op as _clear_op
    from labkit.upstream.accumulation import _cumulative_grad as _cumulative_grad
    from labkit.upstream.accumulation import _sum_op as _sum_op
    from labkit.upstream.boost import boost_step as boost_step
    from labkit.upstream.thor import ConvertModelUtils as ConvertModelUtils
    from labkit.upstream.thor import thor as thor

    __version__: str

# Name -> module, from the block above, which no program runs.
_LINE = re.compile(r"^    from (\S+) import (\w+) as \2$", re.M)
_HOME = {name: module for module, name in _LINE.findall(Path(__file__).read_text("utf-8"))}

__all__ = sorted(name for name in _HOME if not name.startswith("_"))


def __getattr__(name: str) -> object:
    if name == "__version__":
        return importlib.import_module("labkit.base.project").version()
    if name not in _HOME:
        raise AttributeError(f"module 'labkit' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
