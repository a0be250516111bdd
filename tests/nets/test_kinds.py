"""Kinds of layers: all that MindSpore has of each, and nothing else."""

import pytest
from mindspore import mint, nn

from labkit.nets.kinds import CONVOLUTIONS, CONVOLUTIONS_2D, DENSE, NORMS

# nn.BatchNorm3d holds a BatchNorm2d; nn.Norm is a vector's norm.
NO_NORMS = {"BatchNorm3d", "Norm", "ClipByNorm"}


@pytest.mark.parametrize("module", [nn, mint.nn], ids=["nn", "mint.nn"])
def test_every_layer_of_mindspore_is_of_the_kind_its_name_says(module):
    layers = {
        name: layer
        for name, layer in vars(module).items()
        if isinstance(layer, type) and issubclass(layer, nn.Cell) and not name.startswith("_")
    }
    assert len(layers) > 50
    for name, layer in layers.items():
        exception = module is nn and name in NO_NORMS
        assert issubclass(layer, NORMS) == ("Norm" in name and not exception), name
        plain = name in ("Conv1d", "Conv2d", "Conv3d")
        assert issubclass(layer, CONVOLUTIONS) == plain, name
        assert issubclass(layer, CONVOLUTIONS_2D) == (name == "Conv2d"), name
        assert issubclass(layer, DENSE) == (name in ("Dense", "Linear")), name


def test_a_three_dimensional_batch_norm_is_found_by_what_it_holds():
    cells = [cell for _, cell in nn.BatchNorm3d(4).cells_and_names()]
    assert [isinstance(cell, NORMS) for cell in cells] == [False, True]
