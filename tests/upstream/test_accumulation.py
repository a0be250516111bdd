"""The tutorial's names: against the tutorial's own code, and against ``AccumulatedStep``.

``Tutorial*`` below is the code of the MindSpore tutorial "Applying a Gradient Accumulation
Algorithm" (r1.0, Apache-2.0), cells 4 to 8, retyped as an independent reference.
"""

import re
import warnings

import mindspore as ms
import numpy as np
import pytest
from mindspore import DatasetHelper, ParameterTuple, nn, ops, save_checkpoint
from mindspore.nn import Cell

import labkit
from labkit import GradientAccumulation, TrainClear, TrainForwardBackward, TrainOptim
from labkit.errors import InputError
from labkit.nets.lenet import LeNet5
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import LossNet
from labkit.steps.step import PlainStep
from labkit.training.fit import fit
from labkit.upstream import accumulation
from tests.support.step_cells import assert_bit_equal, assert_close, momentum, snapshot
from tests.support.trainings import dataset, loss_fn, network

pytestmark = pytest.mark.usefixtures("runtime")

_sum_op = ops.MultitypeFuncGraph("grad_sum_op")
_clear_op = ops.MultitypeFuncGraph("clear_op")


@_sum_op.register("Tensor", "Tensor")
def _cumulative_grad(grad_sum, grad):
    return ops.AssignAdd()(grad_sum, grad)


@_clear_op.register("Tensor", "Tensor")
def _clear_grad_sum(grad_sum, zero):
    return ops.depend(True, ops.assign(grad_sum, zero))


class TutorialForwardBackward(Cell):
    def __init__(self, network, optimizer, grad_sum, sens=1.0):
        super().__init__(auto_prefix=False)
        self.network = network
        self.network.set_grad()
        self.network.add_flags(defer_inline=True)
        self.weights = ParameterTuple(network.trainable_params())
        self.optimizer, self.grad_sum = optimizer, grad_sum
        self.grad = ops.GradOperation(get_by_list=True, sens_param=True)
        self.sens = sens
        self.hyper_map = ops.HyperMap()

    def construct(self, *inputs):
        loss = self.network(*inputs)
        sens = ops.Fill()(ops.DType()(loss), ops.Shape()(loss), self.sens)
        grads = self.grad(self.network, self.weights)(*inputs, sens)
        return ops.depend(loss, self.hyper_map(ops.partial(_sum_op), self.grad_sum, grads))


class TutorialOptim(Cell):
    def __init__(self, optimizer, grad_sum):
        super().__init__(auto_prefix=False)
        self.optimizer, self.grad_sum = optimizer, grad_sum

    def construct(self):
        return self.optimizer(self.grad_sum)


class TutorialClear(Cell):
    def __init__(self, grad_sum, zeros):
        super().__init__(auto_prefix=False)
        self.grad_sum, self.zeros = grad_sum, zeros
        self.hyper_map = ops.HyperMap()

    def construct(self):
        return self.hyper_map(ops.partial(_clear_op), self.grad_sum, self.zeros)


class TutorialGradientAccumulation:
    def __init__(self, network, loss_fn, optimizer):
        network = nn.WithLossCell(network, loss_fn)
        cells = composed(THEIRS, network, optimizer)
        self._train_forward_backward, self._train_optim, self._train_clear = cells

    def train_process(self, epoch, train_dataset, mini_steps=None, path=None):
        dataset_helper = DatasetHelper(train_dataset, dataset_sink_mode=False, epoch_num=epoch)
        for i in range(epoch):
            step = 0
            for k, next_element in enumerate(dataset_helper):
                loss = self._train_forward_backward(*next_element)
                if (k + 1) % mini_steps == 0:
                    step += 1
                    print("epoch:", i + 1, "step:", step, "loss is ", loss)
                    self._train_optim()
                    self._train_clear()
            train_dataset.reset()
        save_checkpoint(self._train_forward_backward, str(path))


OURS = (TrainForwardBackward, TrainOptim, TrainClear)
THEIRS = (TutorialForwardBackward, TutorialOptim, TutorialClear)


def composed(kinds, network, optimizer, *sens, **named):
    """Return the three cells, composed as in the tutorial."""
    forward_backward, optim, clear = kinds
    grad_sum = optimizer.parameters.clone(prefix="grad_sum", init="zeros")
    zeros = optimizer.parameters.clone(prefix="zeros", init="zeros")
    first = forward_backward(network, optimizer, grad_sum, *sens, **named).set_train()
    second = optim(optimizer, grad_sum, **named).set_train()
    return first, second, clear(grad_sum, zeros).set_train()


def data(**options):
    """Return 44 rows in 11 micro-batches of 4; 4 does not divide 11."""
    return dataset(rows=44, **options)


def exact(net, loss, optimizer):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return GradientAccumulation(net, loss, optimizer, reduction="sum", tail="carry")


# name -> (calls of train_process: epochs and mini_steps; rows of a micro-batch)
CALLS = {
    "an odd tail": ([(2, 4)], 8),
    "one update an epoch": ([(2, 11)], 4),
    "a second call with another number": ([(1, 4), (2, 3)], 4),
}


@pytest.mark.parametrize("case", CALLS)
def test_sum_and_carry_are_the_tutorial(case, tmp_path, capsys):
    """Parameters, lines and a checkpoint with the leftover sum agree, without a warning."""
    calls, batch = CALLS[case]
    made = []
    for name, make in (("theirs", TutorialGradientAccumulation), ("ours", exact)):
        net = network()
        model = make(net, loss_fn(), momentum(net))
        path = tmp_path / f"{name}.ckpt"
        for epochs, mini_steps in calls:
            model.train_process(epochs, data(batch=batch, drop=False), mini_steps, path=path)
        made.append((snapshot(net), capsys.readouterr().out, ms.load_checkpoint(str(path))))
    (theirs, lines, saved), (ours, *others) = made
    assert_close(ours, theirs, rtol=0, atol=1e-6)
    assert others[0] == lines
    assert lines.count("\n") == sum(e * (-(-44 // batch) // k) for e, k in calls)
    started = snapshot(network())
    assert max(np.abs(ours[name] - started[name]).max() for name in started) > 1e-3
    assert {"grad_sum.1.weight", "1.weight", "moments.1.weight"} <= saved.keys()
    own = {name: others[1][name].asnumpy() for name in saved}
    assert_close(own, {n: v.asnumpy() for n, v in saved.items()}, rtol=0, atol=1e-6)
    left = np.abs(own["grad_sum.1.weight"]).max()
    assert left == 0 if calls == [(2, 11)] else left > 1e-3


def test_by_default_it_is_the_accumulated_step(tmp_path, capsys):
    """Its Parameters are the same; each update prints a tutorial line with its mean loss."""
    net, other = network(), network()
    with pytest.warns(UserWarning, match="averages.*reduction='sum', tail='carry'") as notices:
        model = GradientAccumulation(net, loss_fn(), momentum(net))
    assert len(notices) == 1 and notices[0].filename == __file__
    model.train_process(2, data(), 4, path=tmp_path / "x.ckpt")
    lines = capsys.readouterr().out.splitlines()
    step = AccumulatedStep(LossNet(other, loss_fn()), momentum(other), 4)
    losses = fit(step, data(), 2, progress=None).column("loss")
    assert_bit_equal(snapshot(net), snapshot(other))
    form = r"epoch: (\d) step: (\d) loss is  (\d\.\d{4,9})"
    fields = [re.fullmatch(form, line).groups() for line in lines]
    # The third update of each epoch is the flushed tail.
    assert [each[:2] for each in fields] == [(epoch, step) for epoch in "12" for step in "123"]
    assert [float(each[2]) for each in fields] == pytest.approx(losses, rel=1e-6)


def test_what_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    net = network()
    model, before = exact(net, loss_fn(), momentum(net)), snapshot(net)
    with pytest.raises(InputError, match="cannot write to"):
        model.train_process(1, data(), 4, path=tmp_path / "file" / "x.ckpt")
    with pytest.raises(InputError, match="mini_steps: expected an integer >= 1, got None"):
        model.train_process(1, data())
    assert_bit_equal(snapshot(net), before)
    for word, right in (("reduction", "sum"), ("tail", "flush")):
        with pytest.raises(InputError, match=f"{word}: .*'{right}s'. Did you mean '{right}'"):
            GradientAccumulation(net, loss_fn(), momentum(net), **{word: f"{right}s"})
    optimizer = momentum(net)
    grad_sum = optimizer.parameters.clone(prefix="grad_sum", init="zeros")
    for other in ("summ", None):
        with pytest.raises(InputError, match="reduction: expected one of 'mean', 'sum', got"):
            TrainOptim(optimizer, grad_sum, reduction=other)
    with pytest.raises(InputError, match="loss_scale"):
        TrainForwardBackward(LossNet(net, loss_fn()), optimizer, grad_sum, sens=-1.0)
    TrainForwardBackward(LossNet(net, loss_fn()), optimizer, grad_sum, reduction="sum")
    with pytest.raises(InputError, match="reduction: expected 'sum', .* got 'mean'"):
        TrainOptim(optimizer, grad_sum)


def trained(kinds, sens, **named):
    """Return Parameters, losses and sums of two epochs of 11 micro-batches, four an update."""
    net = network()
    loss_net = nn.WithLossCell(net, loss_fn())
    first, second, third = composed(kinds, loss_net, momentum(net, 0.05 / sens), sens, **named)
    losses = []
    for _ in range(2):
        for number, batch in enumerate(data().create_tuple_iterator(num_epochs=1)):
            losses.append(float(first(*batch).asnumpy()))
            if (number + 1) % 4 == 0:
                second()
                third()
    return snapshot(net), losses, [buffer.asnumpy().copy() for buffer in first.grad_sum]


@pytest.mark.parametrize("sens", [1.0, 1024.0])
def test_the_three_cells_with_sum_are_the_tutorials(sens):
    """The tutorial leaves ``sens`` in the gradients, and so does ``sum``."""
    ours, theirs = trained(OURS, sens, reduction="sum"), trained(THEIRS, sens)
    assert_close(ours[0], theirs[0], rtol=0, atol=1e-6)
    assert ours[1] == pytest.approx(theirs[1], abs=1e-6)
    for own, expected in zip(ours[2], theirs[2], strict=True):
        assert np.abs(expected).max() > 1e-3 * sens  # three micro-batches are left in it
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-6 * sens)


def test_the_three_cells_divide_by_what_was_gathered():
    """Seven micro-batches are one batch of 28, ``sens`` divided out; an empty sum is 0."""
    net, other = network(), network()
    first, second, _ = composed(OURS, LossNet(net, loss_fn()), momentum(net), 1024.0)
    second()
    assert_bit_equal(snapshot(net), snapshot(other))
    batches = list(data().create_tuple_iterator(num_epochs=1))[:7]
    for batch in batches:
        first(*batch)
    second()
    step = PlainStep(LossNet(other, loss_fn()), momentum(other))
    step(*(ops.concat([batch[i] for batch in batches]) for i in range(2)))
    assert_close(snapshot(net), snapshot(other), rtol=1e-5, atol=1e-6)


def test_the_checkpoint_has_the_tutorials_name_and_loads_into_a_bare_lenet(tmp_path, monkeypatch):
    draw = np.random.default_rng(0)
    images = draw.normal(size=(12, 1, 32, 32)).astype(np.float32)
    labels, net, bare = draw.integers(0, 10, 12).astype(np.int32), LeNet5(), LeNet5()
    monkeypatch.chdir(tmp_path)
    batches = ms.dataset.NumpySlicesDataset((images, labels)).batch(4)
    exact(net, loss_fn(), momentum(net)).train_process(1, batches, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["gradient_accumulation.ckpt"]
    values = ms.load_checkpoint("gradient_accumulation.ckpt")
    assert ms.load_param_into_net(bare, values)[0] == []
    assert_bit_equal(snapshot(bare), snapshot(net))
    sums = {name for name in values if name.startswith("grad_sum.")}
    assert sums == {f"grad_sum.{parameter.name}" for parameter in bare.trainable_params()}


def test_every_name_of_the_tutorial_is_there():
    assert all(getattr(labkit, own.__name__) is own for own in (*OURS, GradientAccumulation))
    for name in ("_sum_op", "_clear_op", "_cumulative_grad", "_clear_grad_sum"):
        assert getattr(labkit, name) is getattr(accumulation, name)
