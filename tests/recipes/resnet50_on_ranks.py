"""What each rank runs in test_resnet50_on_ranks.py: ``msrun ... resnet50_on_ranks.py DATA OUT``.

Writes OUT/rank<n>.json and OUT/rank<n>.npz: what each training said and its parameters.
"""

import json
import sys
from pathlib import Path

import numpy as np

SETTINGS = {
    "depth": 18,
    "image_size": 32,
    "batch_size": 10,
    "epoch_size": 3,
    "warmup": 1,
    "lr": 0.05,
    "weight_decay": 1e-3,
    "initialiser": "torchvision",
    "augment": False,
    "num_parallel_workers": 1,
    "save_checkpoint_epochs": 1,
}
LAYERS = ([1, 1, 1, 1], [4, 4, 8, 8], [4, 8, 8, 16])


def shrink(norm=None):
    """Make ResNet-18 a network of four small stages, with another normalisation if given.

    A stage is one convolution: every training of a recipe compiles its graphs anew, and with the
    two or three of a residual block, and THOR, that took a minute.
    """
    from labkit.nets import resnet

    nums, *channels = LAYERS
    resnet._DEPTHS[18] = (nums, (_one_convolution(resnet), *channels))
    if norm is not None:
        resnet._bn = resnet._bn_last = norm


def _one_convolution(resnet):
    """Return a block of one 3x3 convolution and its normalisation."""
    from mindspore import nn

    class Block(nn.Cell):
        def __init__(self, in_channel, out_channel, stride=1, *, differences=()):
            super().__init__()
            self.conv1 = resnet._conv3x3(in_channel, out_channel, stride, differences)
            self.bn1 = resnet._bn(out_channel)
            self.relu = nn.ReLU()

        def construct(self, x):
            return self.relu(self.bn1(self.conv1(x)))

    return Block


def group_norm(channels):
    """A normalisation that does not look at the other images of a batch."""
    from mindspore import nn

    return nn.GroupNorm(2, channels)


def settings(folder, **changed):
    from labkit.recipes.resnet50_config import Config

    return Config(**SETTINGS | {"save_checkpoint_path": str(folder)} | changed)


def refused(call):
    """The message of the InputError that ``call`` raises."""
    from labkit.errors import InputError

    try:
        call()
    except InputError as error:
        return str(error)
    return None


class Kept:
    """The networks that ``train`` builds, in order."""

    def __init__(self):
        from labkit.recipes import resnet50

        self.networks, build = [], resnet50.build_network
        resnet50.build_network = lambda config: self.networks.append(build(config)) or self.last

    @property
    def last(self):
        return self.networks[-1]

    def parameters(self, name):
        return {f"{name}/{p.name}": p.asnumpy().copy() for p in self.last.get_parameters()}


def spoiled(kept, rank, config, data, options):
    """Train where the second rank has one weight that is another."""
    from mindspore import Tensor, ops

    from labkit.recipes import resnet50

    build = resnet50.build_network

    def build_network(config):
        network = build(config)
        weight = network.conv1.weight
        values = weight.asnumpy().copy()
        values.flat[0] += rank
        ops.assign(weight, Tensor(values))
        return network

    resnet50.build_network = build_network
    try:
        resnet50.train(config, data, **options)
    finally:
        resnet50.build_network = build


def main(data, out):
    from labkit.ranks import cluster
    from labkit.recipes import resnet50

    shrink()
    kept, found, arrays = Kept(), {}, {}
    options = dict(device="CPU", distribute=True, device_num=2)

    first = resnet50.train(settings(out / "run"), data, **options)
    arrays |= kept.parameters("whole")
    rank, found["ranks"] = cluster.rank_and_size()
    found["evaluation"] = first.evaluation
    found["rows"] = [row["loss"] for row in first.records.rows]
    found["again"] = refused(lambda: resnet50.train(settings(out / "run"), data, **options))
    if rank == 0:
        max((out / "run" / "checkpoint").iterdir()).unlink()
    cluster.gather([0.0])
    resnet50.train(settings(out / "run"), data, resume=True, **options)
    arrays |= kept.parameters("resumed")

    found["disagree"] = refused(lambda: cluster.agree(same=1, number=rank))
    other = settings(out / "none", lr=0.05 + rank)
    found["config"] = refused(lambda: resnet50.train(other, data, **options))
    found["weights"] = refused(lambda: spoiled(kept, rank, settings(out / "none"), data, options))
    found["gathered"] = cluster.gather([1 / 3 + rank, -1e300, -0.0]).tolist()
    shrink(group_norm)
    resnet50.train(settings(out / "groups", micro_steps=1), data, **options)
    arrays |= kept.parameters("groups")
    resnet50.train(settings(out / "micro", batch_size=5, micro_steps=2), data, **options)
    arrays |= kept.parameters("micro")
    np.savez(out / f"rank{rank}.npz", **arrays)
    (out / f"rank{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
