"""The comparison: any inputs, outputs and targets; what it changes, refuses, and cannot judge."""

import subprocess
import sys

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops

from labkit.errors import InputError
from labkit.migration import compare, load, save
from labkit.migration.compare import stage_table
from labkit.migration.judge import COARSE, FACTOR, FLOOR, Row, judged
from labkit.migration.trace import Value
from tests.support.step_cells import assert_bit_equal

torch = pytest.importorskip("torch")
from labkit.migration.torch_trace import torch_trace  # noqa: E402

T, F = torch.nn, torch.nn.functional
pytestmark = pytest.mark.usefixtures("runtime")
R = np.random.default_rng(0)
X, Z, TARGETS = (R.normal(size=(6, n)).astype(np.float32) for n in (5, 3, 4))
LABELS = np.arange(6) % 4


class Parts:
    def forward(self, x, z=None):
        return self.run(self, x, z)

    construct = forward


class Module(Parts, T.Module):
    def __init__(self, run, p=0.0):
        super().__init__()
        self.a, self.b, self.c = T.Linear(5, 8), T.Linear(3, 8), T.Linear(8, 4)
        self.norm, self.relu, self.drop = T.BatchNorm1d(8), T.ReLU(inplace=True), T.Dropout(p)
        self.run = run


class Network(Parts, nn.Cell):
    def __init__(self, run, p=0.0):
        super().__init__()
        self.a, self.b, self.c = nn.Dense(5, 8), nn.Dense(3, 8), nn.Dense(8, 4)
        self.norm, self.relu, self.drop = nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(p=p)
        self.run = run


def plain(s, x, z):
    return s.c(s.drop(s.relu(s.norm(s.relu(s.a(x))))))


def random(s, x, z):
    return s.c(ops.dropout(s.relu(s.norm(s.relu(s.a(x)))), 0.4, s.training))


def cross_entropy(x, y):
    return (ops if isinstance(x, ms.Tensor) else F).cross_entropy(x, y)


def squares(x, y):
    return ((x - y) ** 2).mean()


def compared(
    *batch, ours=plain, theirs=plain, loss=cross_entropy, own=None, p=0.0, of="", change=None
):
    torch.manual_seed(0)
    module, network = Module(theirs, p), Network(ours, p)
    load(network, {name: value.numpy() for name, value in module.state_dict().items()})
    _ = change and change(module, network)
    trained = [p for p in network.trainable_params() if p.name.startswith(of)]
    other = [p for n, p in module.named_parameters() if n.startswith(of) and p.requires_grad]
    optimizers = nn.SGD(trained, 0.1), torch.optim.SGD(other, 0.1)
    return compare(network, module, (own or loss, loss), optimizers, batch)


def of(key):
    return lambda outputs, labels: cross_entropy(outputs[key], labels)


def both(run, **more):
    return {"ours": run, "theirs": run} | more


def freeze(module, network):
    for parameter in (*module.a.parameters(), *network.a.get_parameters()):
        parameter.requires_grad = False


TWO = both(lambda s, x, z: s.c(s.relu(s.a(x) + s.b(z))))
FORMS = {
    "two inputs": ((X, Z), LABELS, TWO),
    "by name": ({"z": Z, "x": X}, LABELS, TWO),
    "tuple": (X, LABELS, both(lambda *a: (plain(*a), a[1]), loss=of(0))),
    "mapping": (X, LABELS, both(lambda *a: {"x": plain(*a)}, loss=of("x"))),
    "numbers": (X, TARGETS, {"loss": squares}),
    "float64": (X.astype(float), TARGETS.astype(float), {"loss": squares}),
    "soft labels": (X, np.full((6, 4), 0.25, np.float32), {}),
    "no targets": (X, {"loss": lambda x: (x**2).mean()}),
    "tensors": (torch.from_numpy(X), torch.from_numpy(LABELS), {}),
    "frozen": (X, LABELS, {"change": freeze}),
    "head": (X, LABELS, {"of": "c."}),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_any_inputs_outputs_and_targets_and_no_fault(form):
    *batch, options = FORMS[form]
    result = compared(*batch, **options)
    assert result.faults == {}, str(result)
    assert [row.stage for row in result.rows].count("run") == 5
    places = {row.place for row in result.rows if row.stage == "training"}
    assert {"a", "relu", "c", *(["b"] if options is TWO else ["norm", "relu#2", "drop"])} <= places


def cut(x, y):
    return squares(x, y.astype(ms.int32).astype(ms.float32))


SAID = {  # targets, options, faults, a part of what is said
    "cut": (TARGETS, {"loss": squares, "own": cut}, {("loss", "loss")}, "(loss): value off by"),
    "random": (LABELS, {"ours": random, "p": 0.4}, set(), "c (training): the network differs from"),
    "random alone": (LABELS, {"ours": random}, {("training", "c")}, "between relu#2 and here"),
    "raises": (LABELS, {"ours": lambda s, x, z: s.c(s.relu(s.a(x)).reshape(7, 5))},
        {("training", "relu")}, "the network raises after it: ValueError"),
    "half": (LABELS, {"change": lambda module, network: network.to_float(ms.float16)},
        None, "the network computes in float16: compare it before to_float"),
}  # fmt: skip


@pytest.mark.parametrize("name", SAID)
def test_what_is_said_of_other_networks(name):
    targets, options, faults, words = SAID[name]
    result = compared(X, targets, **options)
    assert faults in (None, set(result.faults)) and str(result).count(words) == 1, str(result)


@pytest.mark.parametrize("inputs", [X[:0], np.where(X > 0, np.nan, X)])
def test_an_empty_batch_and_nan_are_refused(inputs):
    with pytest.raises(InputError, match="batch: expected arrays of numbers, got an empty one, or"):
        compared(inputs, LABELS[: len(inputs)])


@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_afterwards_what_it_was(fails):
    module, network = Module(plain, 0.5), Network(plain, 0.5)
    theirs = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    cross_entropy(module(torch.from_numpy(X)), torch.from_numpy(LABELS)).backward()
    theirs.step()
    module.eval().drop.train()
    network.set_train(False).drop.set_train()
    parts = [*network.cells_and_names(), *module.named_modules()]

    def state():
        held = enumerate([*network.get_parameters(), *optimizer.get_parameters()])
        values = {f"{i} {p.name}": p.asnumpy().copy() for i, p in held}
        values |= {n: t.numpy().copy() for n, t in module.state_dict().items()}
        moments = theirs.state_dict()["state"].items()
        values |= {f"moment {i}": m["momentum_buffer"].numpy().copy() for i, m in moments}
        values["modes"] = np.array([part.training for _, part in parts])
        return values | {"random": torch.get_rng_state().numpy().copy()}

    before, losses = state(), ({}.__getitem__ if fails else cross_entropy, cross_entropy)
    try:
        compare(network, module, losses, (optimizer, theirs), (X, LABELS))
    except TypeError:
        assert fails
    assert_bit_equal(state(), before)
    assert ms.get_context("mode") == ms.GRAPH_MODE
    assert not any(vars(part).get(f"_forward_{n}") for _, part in parts for n in ("hook", "hooks"))


PROGRAM = """
import sys
if "theirs" not in globals():
    sys.modules["torch"] = None
    import labkit
    labkit.start("CPU", seed=1)
from mindspore import nn, ops
from labkit.migration import compare, load, read
theirs = globals().get("theirs") or read(sys.argv[1])
network = nn.SequentialCell(nn.Dense(5, 8), nn.GELU(), nn.Dropout(p=0.5), nn.Dense(8, 4))
load(network, {n: v.value.astype("float32") for n, v in theirs.stages["weights"].items()})
optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.8)
result = compare(network, theirs, ops.cross_entropy, optimizer)
rows = [[row.stage, row.place, row.tensor, row.passed] for row in result.rows]
print([list(result.faults), rows])
"""


def test_a_trace_in_a_file_makes_the_same_rows_without_pytorch(tmp_path, root, capsys):
    module = T.Sequential(T.Linear(5, 8), T.GELU(), T.Dropout(0.3), T.Linear(8, 4))
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    theirs = torch_trace(module, cross_entropy, optimizer, (X, LABELS))
    space = {"theirs": theirs}
    exec(PROGRAM, space)  # noqa: S102
    *_, expected = capsys.readouterr().out.splitlines()
    assert expected.startswith("[[('training', '1'), ('training', '2'), ('optimizer', ")
    command = [sys.executable, "-c", PROGRAM, str(save(tmp_path / "trace.npz", theirs))]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == expected
    network, optimizer = space["network"], space["optimizer"]
    with pytest.raises(InputError, match="batch: expected 2 arrays, as PyTorch got, got 1"):
        compare(network, theirs, cross_entropy, optimizer, (X,))


def test_a_tensor_is_allowed_what_pytorchs_rounding_is_and_a_floor():
    known, infinite = Value(np.array([1.0, -2.0]), noise=1e-6), Value(np.array([1.0, -np.inf]))
    for factor, passed in ((0.99, True), (1.01, False)):
        off = factor * (FACTOR * 1e-6 + FLOOR * 2)
        row = judged("s", "p", "t", known.value + np.array([off, 0.0]), known)
        assert row.passed == passed and row.difference == pytest.approx(off / 2)
        off = factor * (COARSE * 5**0.5 + FACTOR * 1e-6) / 2**0.5
        assert judged("s", "p", "t", known.value + off, known, coarse=True).passed == passed
    assert judged("s", "p", "t", infinite.value, infinite).passed
    for array, value, note in (
        (np.array([np.nan, -2.0]), known, "t holds NaN"),
        (np.array([-np.inf, 1.0]), infinite, "t is infinite elsewhere than PyTorch's"),
        (np.ones((3, 2)), Value(np.ones((2, 3))), "(3, 2), expected (2, 3): transposed?"),
    ):
        row = judged("s", "p", "t", array, value)
        assert row.difference == np.inf and row.note.endswith(note) and not row.passed
    rows = [Row("s", "a", "t", 2e-3, 1e-2), Row("s", "b", "u", 1e-3, 2e-3)]
    assert stage_table(rows).splitlines()[1].split() == "s 2 0 1.0e-03 2e-03 b: u".split()
    rows += [Row("s", "c", "v", 0.5, 0.1), Row("s", "d", "w", 0.9, 0.1)]
    assert stage_table(rows).splitlines()[1].split() == "s 4 2 5.0e-01 1e-01 c: v".split()
