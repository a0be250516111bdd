"""Names map both ways for every ResNet and for a user's own network, and none is ignored."""

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from labkit.errors import InputError
from labkit.migration import match, pairs
from labkit.migration.names import renamed

pytestmark = pytest.mark.usefixtures("runtime")


def test_attributes_of_a_users_own_cell_keep_their_names():
    class Own(nn.Cell):
        def __init__(self):
            super().__init__()
            self.scale = Parameter(Tensor(np.ones(3, np.float32)), name="s")
            self.nothing = None
            self.norm = nn.LayerNorm((3,))

    result = {p.torch: p.mindspore for p in pairs(Own())}
    assert result == {"scale": "s", "norm.weight": "norm.gamma", "norm.bias": "norm.beta"}


@pytest.mark.parametrize(
    ("name", "renames", "expected"),
    [
        ("a.b.weight", {"b": "x.y"}, "a.x.y.weight"),
        ("layer.0.0.weight", {"0": "1"}, "layer.1.1.weight"),
        ("a.b.weight", {"a": "b", "b": "a"}, "b.a.weight"),
        ("a.b.c", {"a": "x", "a.b": "y"}, "y.c"),
        ("net.a.c", {"net": ""}, "a.c"),
        ("fcx.weight", {"fc": "head"}, "fcx.weight"),
        ("x.fc", {"fc": "head"}, "x.head"),
        ("a.b", {"b.a": "c"}, "a.b"),
    ],
)
def test_renames_are_whole_words_in_one_pass(name, renames, expected):
    assert renamed(name, renames)[0] == expected


@pytest.mark.parametrize(
    ("name", "renames", "message"),
    [
        ("1.weight", {"head": "a", "fc": "b"}, "change no name of the network: fc, head"),
        ("1.weight", {"0": "1"}, "0.weight and 1.weight both become 1.weight"),
        ("0.weight", {}, "two parameters of the network are called 0.weight"),
    ],
)
def test_names_that_are_not_one_to_one_are_refused(name, renames, message):
    network = nn.SequentialCell(nn.Dense(2, 2), nn.Dense(2, 2))
    network[1].weight.name = name
    with pytest.raises(InputError, match=message):
        pairs(network, renames)


def test_what_matches_is_carried_and_what_does_not_is_listed():
    network = nn.SequentialCell(nn.Dense(2, 3), nn.BatchNorm1d(3))
    state = {p.torch: np.zeros(p.torch_shape, np.float32) for p in pairs(network)}
    state["1.num_batches_tracked"] = np.int64(3)
    result = match(network, state)
    assert not result.problems and result.carried == ("1.num_batches_tracked",)
    assert str(result) == "6 parameters match, 1 counters are carried"
    state["1.wieght"] = state.pop("1.weight")
    state["0.bias"] = np.zeros((3, 1))
    state["0.weight"] = state["0.weight"].T
    # A counter is carried only with the BatchNorm it belongs to.
    state |= {"7.other": np.zeros(3), "0.num_batches_tracked": np.int64(1)}
    result = match(network, state)
    assert len(result.pairs) == 3
    assert result.problems == (
        "0.weight: shape (2, 3), expected (3, 2): transposed?",
        "0.bias: shape (3, 1), expected (3,)",
        "no PyTorch tensor for: 1.weight Did you mean '1.wieght'?",
        "no parameter of the network for: 1.wieght",
        "no parameter of the network for: 7.other",
        "no parameter of the network for: 0.num_batches_tracked",
    )
