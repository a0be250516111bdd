"""Rules and cells give every name its counterpart, both ways, and none is ignored."""

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from labkit.errors import InputError
from labkit.migration import Rule, applied, match, pairs

pytestmark = pytest.mark.usefixtures("runtime")


class Own(nn.Cell):
    """Parameters of given shapes by name."""

    def __init__(self, **shapes):
        super().__init__()
        for name, shape in shapes.items():
            setattr(self, name, Parameter(Tensor(np.zeros(shape, np.float32)), name=f"our_{name}"))


def numbered(**shapes):
    """Return arrays of distinct numbers by name."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
    return {
        n: np.arange(e - np.prod(s), e).reshape(s)
        for (n, s), e in zip(shapes.items(), ends, strict=True)
    }


def test_attributes_of_a_users_own_cell_keep_their_names():
    network = Own(scale=3)
    network.nothing, network.norm = None, nn.LayerNorm((3,))
    result = {pair.torch: pair.mindspore for pair in pairs(network)}
    assert result == {"scale": "our_scale", "norm.weight": "norm.gamma", "norm.bias": "norm.beta"}


ONE = Rule(r"^module\.", "")
RULES = [  # rules, PyTorch's name, what it becomes
    ([ONE], "module.module.a", "module.a"),
    ([ONE, Rule("^", "net.")], "module.a", "net.a"),
    ([Rule(r"\.(\d+)\.0\.", r".\1.")], "a.3.0.w", "a.3.w"),
    ([Rule("b", "a"), Rule("a", "c")], "a.b", "c.c"),
    ([Rule("position_ids|n_averaged", None)], "x.position_ids", None),
    ([Rule(r"qkv\.", ("q.", "k.", "v."))], "qkv.bias", ("q.bias", "k.bias", "v.bias")),
    ([Rule((r"q\.", r"k\."), "qk.")], "k.bias", "qk.bias"),
    ([Rule("other", "b")], "a", "a"),
]


@pytest.mark.parametrize(("rules", "name", "expected"), RULES)
def test_rules_apply_in_order_and_are_printed_as_written(rules, name, expected):
    assert applied(rules, name) == expected
    assert eval(repr(rules)) == rules


def test_a_rules_repr_is_what_one_writes():
    assert repr([ONE, Rule(("a", "b"), "c", True)]) == (
        '[Rule(r"^module\\.", ""), Rule((\'a\', \'b\'), "c", transpose=True)]'
    )


SPLIT = Rule("c_attn", ("q", "k"), transpose=True)
MOVES = [  # rules, PyTorch's shapes, ours, our values from PyTorch's
    ([], {"a": (2, 3, 1, 1)}, {"a": (2, 3)}, lambda t: {"a": t["a"].reshape(2, 3)}),
    ([], {"a": (3, 1, 1)}, {"a": (3,)}, lambda t: {"a": t["a"].reshape(3)}),
    ([], {"our_a": (3,)}, {"a": (3,)}, lambda t: {"a": t["our_a"]}),  # MindSpore's own name
    ([Rule("b", "a", True)], {"b": (3, 3)}, {"a": (3, 3)}, lambda t: {"a": t["b"].T}),
    ([SPLIT], {"c_attn": (3, 4)}, {"q": (2, 3), "k": (2, 3)},
     lambda t: {"q": t["c_attn"].T[:2], "k": t["c_attn"].T[2:]}),
    ([SPLIT], {"c_attn": (4,)}, {"q": 2, "k": 2},
     lambda t: {"q": t["c_attn"][:2], "k": t["c_attn"][2:]}),
    ([Rule(("^k", "^q"), "kq")], {"q": (2, 3), "k": (2, 3)}, {"kq": (4, 3)},
     lambda t: {"kq": np.concatenate([t["k"], t["q"]])}),
    ([Rule("^q", "p", True), Rule("^k", "n", True), Rule(("p", "n"), "pn")],
     {"q": (3, 2), "k": (3, 2)}, {"pn": (4, 3)},
     lambda t: {"pn": np.concatenate([t["q"].T, t["k"].T])}),
    ([Rule("b", None)], {"a": 2, "b": 7}, {"a": 2}, lambda t: {"a": t["a"]}),
]  # fmt: skip


@pytest.mark.parametrize(("rules", "theirs", "ours", "move"), MOVES)
def test_tensors_go_there_and_back(rules, theirs, ours, move):
    state = numbered(**theirs)
    result = match(Own(**ours), state, rules)
    assert not result.problems
    actual, expected = result.to_ours(state), move(state)
    assert actual.keys() == {f"our_{name}" for name in expected}
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[f"our_{name}"], value, strict=True)
    back = result.to_torch(actual)
    assert back.keys() == {name for name in theirs if applied(rules, name) is not None}
    for name, value in back.items():
        np.testing.assert_array_equal(value, state[name], strict=True)
    # Shapes alone match as well, and a part alone is not a tensor.
    shapes = {name: np.shape(value) for name, value in state.items()}
    assert match(Own(**ours), shapes, rules).links == result.links
    assert SPLIT not in rules or result.to_torch({"our_q": actual["our_q"]}) == {}


def test_paths_are_those_of_whole_tensors():
    network = Own(q=2, k=2, fc=(3, 2))
    result = match(network, {"qk": (4,), "head": (2, 3)}, [
        Rule("qk", ("q", "k")), Rule("head", "fc", transpose=True)
    ])  # fmt: skip
    assert result.paths == {"head": "fc"} and str(result) == "3 parameters match"


REFUSED = [
    ([Rule("x", "y")], {"a": 2}, 'Rule("x", "y") matches no name'),
    ([Rule("a|b", "c")], {"a": 2, "b": 2}, "a and b become c; expected one name"),
    ([Rule("b", "a")], {"a": 2, "b": 2}, "a and b become a"),
    ([Rule(("a", "b"), "c")], {"a": 2}, "a become c; expected each expression once"),
    ([Rule(("a", "b"), "c")], {"a": 2, "b": 3}, "expected 2 equal parts, got a (2,), b (3,)"),
    ([Rule("a", ("b", "c"))], {"a": 3}, "expected 2 equal parts, got a (3,)"),
    ([Rule("a", "fc", True)], {"a": (1, 2, 3)}, "expected a matrix, got a (1, 2, 3)"),
    ([Rule("a", ("b", "c")), Rule("c", "d", True)], {"a": 4}, "c is a part already, or joined"),
    ([Rule("a", r"\1")], {"a": 4}, "invalid group reference"),
    ([], {"fc": 4, "our_fc": 4}, "each parameter under one name"),
]


@pytest.mark.parametrize(("rules", "theirs", "message"), REFUSED)
def test_rules_that_do_not_fit_are_refused(rules, theirs, message):
    with pytest.raises(InputError) as error:
        match(Own(fc=4, b=2, c=2), numbered(**theirs), rules)
    assert message in str(error.value)


@pytest.mark.parametrize("rule", [("(", "a"), (("a", "b"), ("c", "d")), (("a", "b"), None)])
def test_no_rules(rule):
    with pytest.raises(InputError, match="Rule"):
        Rule(*rule)


def test_two_parameters_of_one_name_are_refused():
    network = nn.SequentialCell(nn.Dense(2, 2), nn.Dense(2, 2))
    network[1].weight.name = "0.weight"
    with pytest.raises(InputError, match="two parameters of the network are called 0.weight"):
        pairs(network)


def test_what_does_not_match_is_listed_or_left():
    network = nn.SequentialCell(nn.Dense(2, 3), nn.BatchNorm1d(3))
    state = {pair.torch: np.zeros(pair.torch_shape, np.float32) for pair in pairs(network)}
    state["1.num_batches_tracked"] = np.int64(3)
    assert str(match(network, state)) == "6 parameters match"
    state["1.wieght"] = state.pop("1.weight")
    state |= {"0.weight": np.zeros((2, 3)), "0.bias": np.zeros(4), "7.other": np.zeros(3)}
    lines = (
        "0.weight: shape (2, 3), expected (3, 2): transposed?",
        "0.bias: shape (4,), expected (3,)",
        "1.weight: no PyTorch tensor. Did you mean '1.wieght'?",
        "1.wieght: no parameter of the network",
        "7.other: no parameter of the network",
    )
    assert match(network, state).problems == lines
    result = match(network, state, leave=r"^0\.|^7")
    assert result.left == (*lines[:2], lines[4]) and result.problems == lines[2:4]
    assert match(network, state, leave="running_var").left == ("1.running_var: it fits",)
    with pytest.raises(InputError, match="leave='head' matches no name of the network or of the f"):
        match(network, state, leave="head")


def test_a_tied_parameter_needs_one_of_its_names():
    network = nn.SequentialCell(nn.Dense(2, 2, has_bias=False), nn.Dense(2, 2, has_bias=False))
    network[1].weight = network[0].weight
    for names in (("0.weight",), ("1.weight",), ("0.weight", "1.weight")):
        result = match(network, dict.fromkeys(names, (2, 2)))
        assert not result.problems and result.to_torch({"0.weight": np.eye(2)}).keys() == set(names)
