"""Gradient accumulation: the tutorial's LeNet-5 on MNIST, or a ResNet on an image folder.

    labkit train accumulation --data_path MNIST_Data     (data_scripts/mnist.py makes it)
    labkit train accumulation --data_path FOLDER --depth 18
    labkit eval accumulation --data_path MNIST_Data --checkpoint_path FILE

Source: "Gradient Accumulation Algorithm" (MindSpore tutorial r1.0): LeNet-5 on MNIST, 4
micro-batches of 32 in an update, Momentum(0.01, 0.9), 3 epochs. Departures: the gradients are
averaged (source: --reduction sum), the last micro-batches of an epoch make an update of their own
(source: --tail carry), and the two Rescales are in the right order.
"""

from dataclasses import dataclass

from labkit.recipes.settings import TrainingConfig, setting
from labkit.recipes.training import Recipe, momentum
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import LossNet
from labkit.steps.options import REDUCTION, TAILS


@dataclass(frozen=True)
class AccumulationConfig(TrainingConfig):
    """The settings of gradient accumulation."""

    learning_rate: float = setting(0.01, "of nn.Momentum, the same throughout")
    momentum: float = setting(0.9, "of nn.Momentum", below=1)
    reduction: str = setting("mean", "of the gradients; sum: the source", words=REDUCTION)
    tail: str = setting("flush", "an epoch's last micro-batches; carry: the source", words=TAILS)
    depth: int | None = None
    batch_size: int = 32
    micro_steps: int = 4
    epoch_size: int = 3
    class_num: int | None = None
    weight_decay: float = 0.0
    label_smooth_factor: float = 0.0
    precision: str = "O0"
    loss_scale: float = 1.0
    save_checkpoint_path: str = "runs/accumulation"


def build_step(config: AccumulationConfig, net: LossNet, micro_batches: int) -> AccumulatedStep:
    """Return the step cell with its optimizer."""
    options = {"reduction": config.reduction, "tail": config.tail, **config.step_options()}
    optimizer = momentum(config, net, config.learning_rate)
    return AccumulatedStep(net, optimizer, config.micro_steps, **options)


RECIPE = Recipe(__doc__, {"tutorial": AccumulationConfig()}, build_step)
