"""Names map both ways for every ResNet and for a user's own network, and none is ignored."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from labkit.errors import InputError
from labkit.migration import load, match, pairs, state_dict
from labkit.migration.names import renamed

pytestmark = pytest.mark.usefixtures("runtime")


def shapes(network, renames=None):
    """Return arrays of the right shape by PyTorch name."""
    return {p.torch: np.zeros(p.torch_shape, np.float32) for p in pairs(network, renames)}


# ---- a user's own network


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


def torch_shared(torch):
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(5, 3)
            self.first = torch.nn.Linear(3, 3)
            self.second = self.first
            self.head = torch.nn.Linear(3, 5, bias=False)
            self.head.weight = self.embedding.weight

    return Module()


def test_tied_weights_have_both_names_as_in_pytorch():
    torch = pytest.importorskip("torch")
    network = Shared()
    state = {n: v.numpy() for n, v in torch_shared(torch).state_dict().items()}
    assert {p.torch for p in pairs(network)} == set(state) and len(state) == 6
    assert load(network, state).complete
    back = state_dict(network)
    assert all(np.array_equal(back[name], state[name]) for name in state)
    state["head.weight"] = state["head.weight"] + 1
    before = state_dict(network)
    with pytest.raises(InputError, match="head.weight shares its parameter with another name"):
        load(network, state)
    assert all(np.array_equal(before[name], value) for name, value in state_dict(network).items())


def test_a_cell_that_holds_its_parent_does_not_go_round():
    class Child(nn.Cell):
        def __init__(self, parent):
            super().__init__()
            self.weight = Parameter(Tensor([1.0, 2.0], ms.float32))
            self.parent = parent

    parent = nn.Cell()
    parent.child = Child(parent)
    assert [p.torch for p in pairs(parent)] == ["child.weight"]


def test_two_parameters_of_one_name_are_refused():
    network = nn.SequentialCell(nn.Dense(2, 2), nn.Dense(2, 2))
    network[1].weight.name = network[0].weight.name
    with pytest.raises(InputError, match="two parameters of the network are called 0.weight"):
        pairs(network)


def test_attributes_of_a_users_own_cell_keep_their_names():
    class Own(nn.Cell):
        def __init__(self):
            super().__init__()
            self.scale = Parameter(Tensor(np.ones(3, np.float32)), name="s")
            self.nothing = None
            self.norm = nn.LayerNorm((3,))

    result = {p.torch: p.mindspore for p in pairs(Own())}
    assert result == {"scale": "s", "norm.weight": "norm.gamma", "norm.bias": "norm.beta"}


# ---- renames


@pytest.mark.parametrize(
    ("name", "renames", "expected"),
    [
        ("a.b.weight", {"a": "x"}, "x.b.weight"),
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


def test_renames_reach_parameters():
    network = nn.SequentialCell(nn.Dense(2, 3), nn.BatchNorm1d(3))
    renames = {"0": "fc", "1": "body.norm"}
    result = {p.torch: p.mindspore for p in pairs(network, renames)}
    assert (
        result["fc.weight"] == "0.weight" and result["body.norm.running_var"] == "1.moving_variance"
    )
    assert "body.norm.num_batches_tracked" in state_dict(network, renames)
    assert load(network, state_dict(network, renames), renames).complete


def test_renames_that_change_nothing_or_collide_are_refused():
    network = nn.SequentialCell(nn.Dense(2, 2), nn.Dense(2, 2))
    with pytest.raises(InputError, match="change no name of the network: fc, head"):
        pairs(network, {"head": "a", "0": "x", "fc": "b"})
    with pytest.raises(InputError, match="0.weight and 1.weight both become 1.weight"):
        pairs(network, {"0": "1"})


# ---- what does not match


@pytest.fixture
def pair_of_cells():
    return nn.SequentialCell(nn.Dense(2, 3), nn.BatchNorm1d(3))


def test_a_match_says_what_it_carries(pair_of_cells):
    state = shapes(pair_of_cells) | {"1.num_batches_tracked": np.int64(3)}
    result = match(pair_of_cells, state)
    assert result.complete and result.carried == ("1.num_batches_tracked",)
    assert str(result) == "6 parameters match, 1 counters are carried"


def test_every_name_without_counterpart_is_listed(pair_of_cells):
    state = shapes(pair_of_cells)
    state["0.wieght"] = state.pop("0.weight")
    state["7.other"] = np.zeros(3)
    # A counter is carried only with the BatchNorm it belongs to.
    state["0.num_batches_tracked"] = np.int64(1)
    result = match(pair_of_cells, state)
    assert not result.complete and len(result.pairs) == 5
    assert result.missing == ("0.weight",)
    assert result.unknown == ("0.wieght", "7.other", "0.num_batches_tracked")
    text = str(result)
    assert "no PyTorch tensor for: 0.weight Did you mean '0.wieght'?" in text
    assert "no parameter of the network for: 7.other" in text
    assert "no parameter of the network for: 0.num_batches_tracked" in text


def test_a_transposed_shape_is_said(pair_of_cells):
    state = shapes(pair_of_cells)
    state["0.weight"] = state["0.weight"].T
    result = match(pair_of_cells, state)
    assert "0.weight: shape (2, 3), expected (3, 2): transposed?" in str(result)
    state["0.weight"] = np.zeros((3, 4))
    assert "0.weight: shape (3, 4), expected (3, 2)\n" in f"{match(pair_of_cells, state)}\n"
