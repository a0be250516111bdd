"""Names map both ways for every ResNet and for a user's own network, and none is ignored."""

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from labkit.errors import InputError
from labkit.migration import load, match, pairs, state_dict
from labkit.migration.names import renamed

pytestmark = pytest.mark.usefixtures("runtime")


class Shared(nn.Cell):
    """One cell in two places, and one Parameter in two cells: both are tied weights."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.first = nn.Dense(3, 3)
        self.second = self.first
        self.head = nn.Dense(3, 5, has_bias=False)
        self.head.weight = self.embedding.embedding_table

    def construct(self, x):
        return self.head(self.second(self.first(self.embedding(x))))


def test_tied_weights_have_both_names_as_in_pytorch():
    torch = pytest.importorskip("torch")
    module = torch.nn.Module()
    module.embedding = torch.nn.Embedding(5, 3)
    module.first = module.second = torch.nn.Linear(3, 3)
    module.head = torch.nn.Linear(3, 5, bias=False)
    module.head.weight = module.embedding.weight
    network, state = Shared(), {n: v.numpy() for n, v in module.state_dict().items()}
    assert {p.torch for p in pairs(network)} == set(state) and len(state) == 6
    assert not load(network, state).problems
    before = state_dict(network)
    assert all(np.array_equal(before[name], state[name]) for name in state)
    state["head.weight"] = state["head.weight"] + 1
    with pytest.raises(InputError, match="head.weight shares its parameter with another name"):
        load(network, state)
    assert all(np.array_equal(before[name], value) for name, value in state_dict(network).items())


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
