"""Recipes made small: settings that train within seconds, and a ResNet-18 of four convolutions."""

import contextlib
from functools import partial

import pytest
from mindspore import PYNATIVE_MODE, Tensor, nn, set_context

from labkit import runtime
from labkit.nets import resnet
from labkit.recipes import recipe, training
from labkit.steps.losses import LossNet
from labkit.training import checkpoint

_DATA = dict(image_size=32, batch_size=10, augment=False, num_parallel_workers=1)
_SHARED = dict(depth=18, class_num=12, initialiser="torchvision", **_DATA)
_KEPT = dict(save_checkpoint_epochs=1, keep_checkpoint_max=2)
_FLOAT32 = dict(precision="O0", epoch_size=2)
SETTINGS = {
    "resnet50": dict(epoch_size=3, warmup=1, lr=0.05, weight_decay=1e-3, class_num=None) | _KEPT,
    "accumulation": dict(class_num=None, epoch_size=2, micro_steps=2, learning_rate=0.02),
    "thor": dict(lr_init=0.02, lr_end_epoch=3, damping_init=0.3, frequency=2) | _FLOAT32,
    "adasum": dict(lr_max=0.02, warmup_epochs=1, node_size=1, workers=2, loss_scale=1.0) | _FLOAT32,
    "subspace-1": _FLOAT32
    | dict(epoch_size=3, total_epochs=4, warmup_epochs=1, lr_max=0.05)
    | dict(snapshots_per_epoch=2, snapshot_max=5, **_KEPT),
    "subspace-2": dict(n_components=3, trials=4) | _FLOAT32,
}
SETTINGS = {name: _SHARED | own for name, own in SETTINGS.items()}
NAMES = tuple(SETTINGS)
group_norm = partial(nn.GroupNorm, 2)  # it does not depend on the other images of a batch


def settings(name, out, **changed):
    """Return the settings of a recipe that writes into ``out/name``."""
    values = SETTINGS[name] | {"save_checkpoint_path": str(out / name)}
    if name == "subspace-2":
        values["stage_1"] = str(out / "subspace-1")
    return type(next(iter(recipe(name).named.values())))(**values | changed)


def arguments(name, out, data):
    """Return the arguments of a recipe's command with these settings."""
    given = ["train", name, "--data_path", str(data), "--device_target", "CPU"]
    for setting, value in vars(settings(name, out)).items():
        given += [f"--{setting}", str(value)]
    return given


def built(name, config, micro_batches):
    """Return the step of a recipe, on its network with initial weights."""
    net = LossNet(training.build_network(config), training.build_loss(config))
    return recipe(name).build_step(config, net, micro_batches)


def newest(folder):
    """Return the newest checkpoint in a run folder."""
    return max((folder / "checkpoint").iterdir())


def arrays(path):
    """Return the arrays in a checkpoint by name; its texts hold the training's position."""
    values = checkpoint.read(path)
    return {name: v.asnumpy() for name, v in values.items() if isinstance(v, Tensor)}


def rates_of(step):
    """Return the array of a step's learning rates."""
    return {p.name: p for p in step.get_parameters()}["learning_rate"].asnumpy()


def shrink(patch, norm=None):
    """Make ResNet-18 a network of four convolutions, with another normalisation if given.

    Every training of a recipe compiles its graphs again, which took a minute with THOR and the two
    or three convolutions of a residual block.
    """

    class Block(nn.Cell):
        """One 3x3 convolution and its normalisation."""

        def __init__(self, in_channel, out_channel, stride=1, *, differences=()):
            super().__init__()
            self.conv1 = resnet._conv(in_channel, out_channel, 3, stride, differences)
            self.bn1 = resnet._bn(out_channel)
            self.relu = nn.ReLU()

        def construct(self, x):
            return self.relu(self.bn1(self.conv1(x)))

    small = ([1, 1, 1, 1], (Block, [4, 4, 8, 8], [4, 8, 8, 16]))
    patch.setattr(resnet, "_DEPTHS", resnet._DEPTHS | {18: small})
    patch.setattr(resnet, "_bn", norm or resnet._bn)


def interpret(patch):
    """Let recipes train operator by operator, which compiles nothing."""
    start = runtime.start

    def started(*arguments, **options):
        made = start(*arguments, **options)
        set_context(mode=PYNATIVE_MODE)
        return made

    patch.setattr(runtime, "start", started)


@contextlib.contextmanager
def kept(spoil=lambda network: None):
    """Keep, in order, the networks that recipes build in this block; ``spoil`` may change each."""
    build, networks = training.build_network, []

    def build_and_keep(config):
        networks.append(build(config))
        spoil(networks[-1])
        return networks[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "build_network", build_and_keep)
        yield networks
