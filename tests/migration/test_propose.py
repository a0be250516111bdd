"""Rules proposed by the order of cells: right where parameters in order would be wrong."""

import numpy as np
import pytest
from mindspore import nn

from labkit.migration import Rule, load, match, propose, state_dict

pytestmark = pytest.mark.usefixtures("runtime")


def network():
    """Two convolutions with BatchNorms, whose four tensors have one shape, and a head."""
    blocks = [nn.SequentialCell(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)) for _ in range(2)]
    cell = nn.SequentialCell(*blocks)
    cell.insert_child_to_cell("classifier", nn.Conv2d(4, 2, 1, has_bias=True))
    return cell


def state():
    """PyTorch's tensors, its BatchNorms in its own order and after other names."""
    draw, shapes = np.random.default_rng(0), {}
    for k in (1, 2):
        shapes[f"layer.{k}.conv.weight"] = (4, 4, 3, 3)
        for name in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"layer.{k}.norm.{name}"] = (4,)
        shapes[f"layer.{k}.norm.num_batches_tracked"] = ()
    shapes |= {"fc.weight": (2, 4), "fc.bias": (2,), "extra.scale": (9,)}
    return {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def test_cells_are_paired_in_order_and_their_tensors_by_name():
    cell, theirs = network(), state()
    rules = propose(cell, theirs)
    assert match(cell, theirs, rules).problems == ("extra.scale: no parameter of the network",)
    load(cell, theirs, [*rules, Rule("extra", None)])
    for k, (_, norm) in enumerate(list(cell)[:2], 1):
        for ours, name in (("gamma", "weight"), ("moving_variance", "running_var")):
            actual = getattr(norm, ours).asnumpy()
            np.testing.assert_array_equal(actual, theirs[f"layer.{k}.norm.{name}"])
    assert state_dict(cell, rules, theirs).keys() == theirs.keys() - {"extra.scale"}


def test_a_prefix_is_one_rule_whatever_else_has_it():
    theirs = {f"module.{name}": value for name, value in state_dict(network()).items()}
    assert propose(network(), theirs | {"module.extra": np.ones(9)}) == [Rule(r"^module\.", "")]


def test_what_fits_needs_no_rules():
    shapes = {name: value.shape for name, value in state_dict(network()).items()}
    assert propose(network(), shapes) == []
