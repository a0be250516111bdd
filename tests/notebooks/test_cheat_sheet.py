"""docs/cheat_sheet.md: both columns run and compute the same, and the traps are there."""

import re

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, dataset, experimental, nn, ops
from mindspore.common.initializer import Normal

import labkit

X = np.linspace(-2, 3, 32, dtype=np.float32).reshape(4, 8)
IMAGE = np.linspace(-2, 3, 784, dtype=np.float32).reshape(1, 1, 28, 28)
Y = np.arange(4, dtype=np.int32)


class Rows:
    """Four rows with a label each, as both frameworks' loaders take them."""

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return X[index], Y[index]


def last_value(cell, names):
    """Run the pieces of code in a cell of the table; return the value of the last one."""
    value = None
    for piece in re.findall("`([^`]+)`", cell):
        try:
            value = eval(piece, names)
        except SyntaxError:
            exec(piece, names)
            value = None
    return value


def rows_of(page):
    """Return PyTorch's and MindSpore's cell of each row."""
    rows = re.findall(r"^\| (.*?) \| (.*?) \| .*\|$", page, re.MULTILINE)
    return [row for row in rows if "`" in row[0]]


def output(layer, image, x, indices, ones):
    """Return what a layer without random weights makes of its input, or says about itself."""
    name = type(layer).__name__
    if name == "Dropout":
        return round(float((layer(ones) == 0).sum()) / 1e5, 2)
    if name == "Embedding":
        return round(float(abs(layer(indices)).mean().item()), 1)
    made = layer(image if "2d" in name else x)
    return made.shape if name in ("Conv2d", "Linear", "Dense") else made


@pytest.fixture(scope="module")
def page(root):
    return (root / "docs" / "cheat_sheet.md").read_text("utf-8")


def test_both_columns_run_and_agree(page, eager, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    x, image, y = Tensor(X), Tensor(IMAGE), Tensor(Y)
    net, loss_fn = nn.Dense(8, 4), nn.CrossEntropyLoss()
    w = net.trainable_params()

    def forward(x, y):
        return loss_fn(net(x), y)

    here = globals() | {"x": x, "b": x + 0, "y": y, "net": net, "w": w, "forward": forward}
    here |= {"ds": dataset, "opt": nn.Momentum(w, 0.1, 0.9), "rows": Rows()}
    their_net = torch.nn.Linear(8, 4)
    tx, ty = torch.from_numpy(X.copy()), torch.from_numpy(Y).long()
    there = {"torch": torch, "nn": torch.nn, "optim": torch.optim, "x": tx, "b": tx + 0, "y": ty}
    there |= {"net": their_net, "w": list(their_net.parameters()), "rows": Rows()}
    there["forward"] = lambda x, y: torch.nn.functional.cross_entropy(their_net(x), y)
    there |= {"DataLoader": torch.utils.data.DataLoader, "opt": torch.optim.SGD(there["w"], 0.1)}
    compared, many = [], ops.arange(1000)
    for theirs, ours in rows_of(page):
        if "state_dict" in theirs:
            their_net.register_buffer("n", tx)
        expected, found = last_value(theirs, there), last_value(ours, here)
        if isinstance(expected, torch.nn.Module):
            ones = np.ones(100_000, np.float32)
            expected = output(
                expected, torch.from_numpy(IMAGE), tx, torch.arange(1000), torch.tensor(ones)
            )
            found = output(found.set_train(), image, x, many, Tensor(ones))
        if isinstance(expected, torch.Tensor) and found is not None:
            found, expected = found.asnumpy(), expected.detach().numpy()
        if isinstance(expected, np.ndarray | float | tuple) and found is not None:
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=ours)
            compared.append(ours)
    assert len(compared) >= 15, compared


def test_the_traps_that_lab_00_does_not_show(runtime):
    x, weight = Tensor(X), Parameter(Tensor([1.0]), name="w")
    with pytest.raises(TypeError, match="dim"):
        ops.cat((x, x), dim=1)
    with pytest.raises(ValueError, match="pad_mode"):
        nn.Conv2d(1, 2, 3, padding=1)(Tensor(IMAGE))
    with pytest.raises(TypeError, match="already exists"):
        nn.Momentum([weight], 0.1, 0.9).learning_rate = 0.01
    with pytest.raises(RuntimeError, match="HyperMap"):
        nn.Momentum([weight], 0.1, 0.9)([Tensor([1.0])])
    scheduled = nn.Momentum([weight], [0.1], 0.9)
    scheduled((Tensor([1.0]),))
    with pytest.raises(RuntimeError, match="Gather"):
        scheduled((Tensor([1.0]),))
    assert nn.AvgPool2d(2)(Tensor(IMAGE)).shape[-1] == 27
    lacking, unknown = ms.load_param_into_net(nn.Dense(1, 1), {"w": weight})
    assert (lacking, unknown) == (["weight", "bias"], ["w"])
    loaded = dataset.GeneratorDataset(Rows(), ["x", "y"])
    assert [int(y) for _, y in loaded.create_tuple_iterator()] != Y.tolist()


class Writes(nn.Cell):
    """Changes what it was given, through another name and through a slice."""

    def construct(self, a):
        b = a
        b += 1
        c = a[:1]
        c[0] = 9
        return a


def test_a_name_and_a_slice_are_another_thing_inside_construct(runtime):
    """The answer to exercise 1 of lab 00."""
    a = Tensor([1.0, 2.0])
    b = a
    b += 1
    c = a[:1]
    c[0] = 9
    assert a.asnumpy().tolist() == [9, 2]
    given = Tensor([1.0, 2.0])
    assert Writes()(given).asnumpy().tolist() == given.asnumpy().tolist() == [2, 3]


def loads(cell, value):
    ms.load_param_into_net(cell, {"bias": Parameter(value, name="bias")})


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (lambda cell, value: ops.assign(cell.bias, value), 5),
        (lambda cell, value: cell.bias.set_data(value), 0),
        (loads, 0),
    ],
    ids=["assign", "set_data", "load_param_into_net"],
)
def test_what_a_compiled_function_sees_of_a_changed_parameter(runtime, change, seen):
    cell = nn.Dense(1, 1, weight_init="zeros", bias_init="zeros")

    def answer(x):
        return cell(x).sum()

    compiled = ms.value_and_grad(answer, None, cell.trainable_params())
    one = Tensor([[1.0]])
    assert float(compiled(one)[0]) == 0
    change(cell, Tensor([5.0]))
    assert float(compiled(one)[0]) == seen
    assert float(cell(one)[0, 0]) == 5


def test_a_new_dropout_sleeps_on_and_a_function_keeps_its_mode(runtime):
    drop, many = nn.Dropout(p=0.5), ops.ones(1000)

    def mean(x):
        return drop(x).mean()

    drop(many)
    assert float(drop.set_train()(many).min()) == 1
    drop = nn.Dropout(p=0.5).set_train()
    compiled = ms.value_and_grad(mean)
    compiled(many)
    drop.set_train(False)
    assert float(drop(many).min()) == 1 and float(compiled(many)[1].min()) == 0


def test_weight_decay_spares_names(runtime):
    for name, left in (("gamma_head.weight", 1.0), ("my_beta.weight", 1.0), ("head.weight", 0.95)):
        weight = Parameter(Tensor([1.0]), name=name)
        nn.Momentum([weight], 0.1, 0.9, weight_decay=0.5)((Tensor([0.0]),))
        assert float(weight[0]) == pytest.approx(left)


def test_loss_and_adamw_are_where_the_page_says(eager):
    weights = [Parameter(Tensor([1.0, -2.0]), name=name) for name in ("first", "second")]
    for optimizer in (
        labkit.AdamW(weights[:1], 0.01),
        experimental.optim.AdamW(weights[1:], lr=0.01),
    ):
        for _ in range(3):
            optimizer((Tensor([0.5, 3.0]),))
    assert np.allclose(*(each.asnumpy() for each in weights), atol=1e-6)
    assert nn.SmoothL1Loss()(Tensor(X), Tensor(X)).shape == X.shape
    assert Normal(1.0).sigma == 1.0
