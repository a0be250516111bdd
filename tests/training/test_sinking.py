"""MindSpore's dataset sink mode, on CPU with its queue replaced (``tests/support/sinking.py``)."""

from functools import cache
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import Callback, LossMonitor, Model, ModelCheckpoint

from labkit.algorithms.grad_freeze import GradFreezeUpdate, freeze_schedule
from labkit.errors import InputError
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import LossNet
from labkit.steps.options import DynamicLossScale
from labkit.steps.plain import PlainStep
from labkit.steps.update import UpdateStage
from labkit.training.fit import EndOfEpoch
from tests.support import modules
from tests.support.resuming import EPOCHS, quiet_fit
from tests.support.sinking import Queues
from tests.support.step_cells import STEPS, assert_bit_equal, restore, snapshot
from tests.support.trainings import (
    CLASSES,
    comparable,
    dataset,
    images_and_labels,
    loss_fn,
    network,
)

pytestmark = [
    pytest.mark.usefixtures("runtime"),
    pytest.mark.filterwarnings("ignore:the network holds a trainable BatchNorm"),
]

SIZE = 11  # batches in an epoch


@pytest.fixture
def queues(monkeypatch):
    return Queues(monkeypatch)


@cache
def technique():
    """``Lookahead`` of examples/own_technique.py."""
    path = Path(__file__).parents[2] / "examples" / "own_technique.py"
    return modules.load(path, "own_technique_sunk").Lookahead


def parts(norm=False, loss=None):
    """Return (loss net, optimizer), with a rate for each update."""
    net = network(norm=norm)
    rates = np.linspace(0.05, 0.01, 44).astype(np.float32)
    return LossNet(net, loss or loss_fn()), nn.Momentum(net.trainable_params(), rates, 0.9)


def plain(norm=False, **options):
    return PlainStep(*parts(norm), **options)


def accumulated(norm=False, **options):
    return AccumulatedStep(*parts(norm), 4, **options)


def frozen():
    loss_net, optimizer = parts(norm=True)
    schedule = freeze_schedule(loss_net, param_groups=2, total_steps=50)
    return PlainStep(loss_net, optimizer, update=GradFreezeUpdate(optimizer, schedule))


def lookahead():
    loss_net, optimizer = parts()
    return AccumulatedStep(loss_net, optimizer, 2, update=technique()(optimizer))


# Tests below cover a plain step with BatchNorm, and accumulation with a flushed tail.
QUALIFY = {
    "plain": plain,
    "float16": lambda: plain(norm=True, precision="O2", loss_scale=DynamicLossScale(2**20)),
    "clipped": lambda: plain(clip_norm=0.1, nonfinite="propagate"),
    "drop": lambda: accumulated(norm=True, tail="drop"),
    "carry": lambda: accumulated(tail="carry"),
    "freezing": frozen,
    "an update stage of one's own": lookahead,
    "workers averaged": lambda: STEPS["adasum"](*parts(), reduction="mean"),
}


def fed(step, data, epochs=EPOCHS):
    """Return (records, Parameters) of a training batch by batch; restore the step afterwards."""
    fresh = snapshot(step)
    records, final = quiet_fit(step, data, epochs), snapshot(step)
    restore(step, fresh)
    return records, final


def last_of_each_epoch(rows):
    return list({row["epoch"]: row for row in comparable(rows)}.values())


class Steps(Callback):
    """Records the number of steps at the end of each step."""

    def __init__(self):
        super().__init__()
        self.counts = []

    def on_train_step_end(self, run_context):
        self.counts.append(run_context.original_args().cur_step_num)


class TestSameNumbers:
    @pytest.mark.parametrize("name", QUALIFY)
    def test_a_sunk_training_has_the_bits_of_one_that_is_fed(self, name, monkeypatch):
        """It has one call and one record per epoch: the record of the epoch's last update."""
        step = QUALIFY[name]()
        fresh, data, steps = snapshot(step), dataset(), Steps()
        records, final = fed(step, data)
        with monkeypatch.context() as patch:
            queues = Queues(patch)
            sunk = quiet_fit(step, data, dataset_sink_mode=True, callbacks=[steps])
        assert_bit_equal(snapshot(step), final)
        assert any((final[name] != fresh[name]).any() for name in final)
        assert comparable(sunk.rows) == last_of_each_epoch(records.rows) and len(sunk) == EPOCHS
        assert queues.taken == [4] * SIZE * EPOCHS
        assert steps.counts == [SIZE * epoch for epoch in range(1, EPOCHS + 1)]
        restore(step, fresh)  # and neither step nor data set is left in sink mode
        assert comparable(quiet_fit(step, data).rows) == comparable(records.rows)

    def test_a_data_set_serves_another_step_after_it(self, queues):
        data, first, second = dataset(), plain(), accumulated()
        for step in (first, second, first):
            quiet_fit(step, data, 1, dataset_sink_mode=True)
        assert [step.last_update.number for step in (first, second)] == [2 * SIZE, 3]

    def test_a_batch_that_is_not_finite_leaves_no_trace_and_is_said(self, monkeypatch, capsys):
        step = plain(norm=True)
        _, final = fed(step, dataset(spoiled_row=3))
        assert final["step.dropped"] == EPOCHS
        assert "not finite" not in capsys.readouterr().out
        Queues(monkeypatch)
        quiet_fit(step, dataset(spoiled_row=3), dataset_sink_mode=True)
        assert_bit_equal(snapshot(step), final)
        said = f"labkit: 1 of {SIZE} micro-batches that were sunk were not finite"
        assert capsys.readouterr().out.count(said) == EPOCHS

    def test_resumed_with_and_without(self, tmp_path, monkeypatch):
        step = accumulated(norm=True)
        fresh = snapshot(step)
        whole, final = fed(step, dataset())
        Queues(monkeypatch)
        for sinks in ((True, False), (False, True)):
            folder = tmp_path / str(sinks[0])
            restore(step, fresh)
            for epochs, sink in zip((1, EPOCHS), sinks, strict=True):
                options = {"folder": folder, "resume": True, "dataset_sink_mode": sink}
                records = quiet_fit(step, dataset(), epochs, **options)
            assert_bit_equal(snapshot(step), final)
            rows = comparable(whole.rows)
            before = last_of_each_epoch(rows[:3]) if sinks[0] else rows[:3]
            after = last_of_each_epoch(rows[3:]) if sinks[1] else rows[3:]
            assert comparable(records.rows) == before + after

    def test_weights_over_elements_keep_their_unit(self, tmp_path, monkeypatch):
        """The unit is the first batch's, which a resumed training reads from its checkpoint."""

        def step():
            net = nn.Dense(3, 2, weight_init="ones", bias_init="zeros")
            optimizer = nn.SGD(net.trainable_params(), 0.1)
            return AccumulatedStep(LossNet(net, nn.MSELoss()), optimizer, 2)

        random = np.random.default_rng(0)
        arrays = [random.normal(size=(12, size)).astype(np.float32) for size in (3, 2)]
        data = NumpySlicesDataset(tuple(arrays), shuffle=False).batch(4)
        expected = step()
        quiet_fit(expected, data, 2)
        Queues(monkeypatch)
        for epochs in (1, 2):
            sunk = step()
            options = {"folder": tmp_path, "resume": True, "dataset_sink_mode": True}
            quiet_fit(sunk, data, epochs, **options)
        assert_bit_equal(snapshot(sunk), snapshot(expected))
        assert sunk.settings == expected.settings


class TestModes:
    """``Model`` sets all Cells to training mode before each sink, bypassing ``step.set_train``."""

    def test_what_is_held_in_evaluation_mode_stays_in_it(self, monkeypatch):
        step = plain(norm=True)
        bn = step.gradient.loss_net.network[2]
        fresh = snapshot(step)
        _, trained = fed(step, dataset())
        bn.set_train(False)
        _, final = fed(step, dataset())
        assert (final["2.moving_mean"] == fresh["2.moving_mean"]).all()
        assert (final["1.weight"] != trained["1.weight"]).any()
        Queues(monkeypatch)
        quiet_fit(step, dataset(), dataset_sink_mode=True)
        assert_bit_equal(snapshot(step), final)
        assert not bn.training

    def test_it_may_be_held_from_some_epoch_on(self, monkeypatch):
        class Hold(Callback):
            def __init__(self, bn):
                super().__init__()
                self.bn = bn

            def on_train_epoch_end(self, run_context):
                self.bn.set_train(run_context.original_args().cur_epoch_num == 2)

        results = []
        for sinks in (False, True):
            step = plain(norm=True)
            hold = Hold(step.gradient.loss_net.network[2])
            if sinks:
                Queues(monkeypatch)
            quiet_fit(step, dataset(), 4, dataset_sink_mode=sinks, callbacks=[hold])
            results.append(snapshot(step))
        assert_bit_equal(*results)

    def test_a_cell_around_the_step_says_its_mode_too(self):
        class Around(nn.Cell):
            def __init__(self, step):
                super().__init__(auto_prefix=False)
                self.step = step

        step = plain(norm=True)
        bn = step.gradient.loss_net.network[2]
        bn.set_train(False)
        Around(step).set_train()
        assert step.training and not bn.training and step.gradient.loss_net.network[1].training
        Around(step).set_train(False)
        assert not step.training


def labelled(place, label, batch=4):
    """Return two data sets: row ``place`` has the given label in one, and a NaN in the other."""
    images, labels = images_and_labels(5 * batch)
    images = images.reshape(-1, 1, 4, 4) / 60 - 2
    spoiled, wrong = images.copy(), labels.copy()
    spoiled[place], wrong[place] = np.nan, label
    ms.dataset.config.set_seed(1)
    return [
        NumpySlicesDataset(arrays, shuffle=False).batch(batch)
        for arrays in ((images, wrong), (spoiled, labels))
    ]


# Losses of MindSpore, none of which reports a label of no class, and such labels.
LOSSES = {
    "SoftmaxCrossEntropyWithLogits": (loss_fn, CLASSES),
    "CrossEntropyLoss": (nn.CrossEntropyLoss, -1),
    "cross_entropy": (lambda: ops.cross_entropy, 2**31 - 1),
}


class TestLabels:
    def test_the_first_batch_is_looked_at(self, queues, tmp_path):
        data, _ = labelled(2, -1)
        step = plain()
        fresh = snapshot(step)
        with pytest.raises(InputError, match="label -1 at 2 is not of a class"):
            quiet_fit(step, data, dataset_sink_mode=True, folder=tmp_path / "run")
        assert queues.taken == [] and list((tmp_path / "run").rglob("*.c*")) == []
        assert_bit_equal(snapshot(step), fresh)

    @pytest.mark.parametrize("name", LOSSES)
    def test_a_later_label_of_no_class_drops_its_batch(self, name, monkeypatch, capsys):
        loss, label = LOSSES[name]
        step = AccumulatedStep(*parts(loss=loss()), 2)
        wrong, spoiled = labelled(9, label)
        _, final = fed(step, spoiled, 2)
        Queues(monkeypatch)
        quiet_fit(step, wrong, 2, dataset_sink_mode=True)
        assert_bit_equal(snapshot(step), final)
        assert final["step.dropped"] == 2
        said = "1 of 5 micro-batches that were sunk were not finite and left no trace; a label"
        assert capsys.readouterr().out.count(said) == 2

    def test_where_nothing_is_checked_it_is_everywhere(self, queues):
        step = PlainStep(*parts(), nonfinite="propagate")
        quiet_fit(step, labelled(9, CLASSES)[0], 1, dataset_sink_mode=True)
        assert np.isnan(step.gradient.loss_net.network[1].weight.asnumpy()).all()

    def test_an_ignored_label_is_none(self, monkeypatch):
        step = AccumulatedStep(*parts(loss=nn.CrossEntropyLoss()), 2)
        data, _ = labelled(9, -100)
        _, final = fed(step, data, 2)
        Queues(monkeypatch)
        quiet_fit(step, data, 2, dataset_sink_mode=True)
        assert_bit_equal(snapshot(step), final)
        assert final["step.dropped"] == 0

    def test_fed_again_labels_are_looked_at_again(self, queues):
        step, (data, _) = plain(), labelled(9, CLASSES)
        quiet_fit(step, data, 1, dataset_sink_mode=True)
        with pytest.raises(InputError, match=f"label {CLASSES} at 1 is not of a class"):
            quiet_fit(step, data, 1)


def scheduled():
    return AccumulatedStep(*parts(), lambda updates: 2)


class ActsBetween(UpdateStage):
    def between(self, step, batch, loss):
        pass


def own_between():
    loss_net, optimizer = parts()
    return PlainStep(loss_net, optimizer, update=ActsBetween(optimizer))


class OwnLoss(nn.Cell):
    def construct(self, logits, labels):
        return ops.mean(ops.square(logits[:, 0] - labels))


REFUSED = {
    "thor": "ThorUpdate: THOR has a graph that gathers factors and one that does not",
    "accumulated thor": "AccumulatedStep with ThorUpdate: THOR has a graph",
    "adasum": "AdasumUpdate: Adasum has a second graph",
    "subspace": "SubspaceUpdate: an update in the subspace is several graphs",
    "micro_steps": "PlainUpdate: micro_steps is a function, which the host asks",
    "one's own": "ActsBetween: ActsBetween acts on the host between graphs, in between",
}
OWN = {"micro_steps": scheduled, "one's own": own_between}


def refused_step(name):
    return OWN[name]() if name in OWN else STEPS[name](*parts())


class TestRefused:
    """Refused on any device: a training that was tried on CPU is not refused on another device."""

    @pytest.mark.parametrize("name", REFUSED)
    def test_a_step_that_is_not_one_graph(self, name, tmp_path, capsys):
        step, words = refused_step(name), REFUSED[name]
        fresh = snapshot(step)
        with pytest.raises(InputError, match="dataset_sink_mode: expected False .*" + words):
            quiet_fit(step, dataset(), dataset_sink_mode=True, folder=tmp_path / "run")
        assert_bit_equal(snapshot(step), fresh)
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize("name", REFUSED)
    def test_in_a_training_by_model(self, name, queues):
        """With ``EndOfEpoch`` it is refused at the start, else when the graph is compiled."""
        step, words = refused_step(name), REFUSED[name]
        fresh = snapshot(step)
        for callbacks in ([EndOfEpoch(step)], []):
            with pytest.raises(InputError, match=words.partition(": ")[2]):
                Model(step).train(1, dataset(), callbacks=callbacks, dataset_sink_mode=True)
        assert_bit_equal(snapshot(step), fresh)
        assert queues.taken == []

    def test_other_arguments(self, tmp_path):
        step, options = plain(), {"dataset_sink_mode": True, "folder": tmp_path / "run"}
        with pytest.raises(InputError, match="dataset_sink_mode: expected True or False, got 1"):
            quiet_fit(step, dataset(), dataset_sink_mode=1)
        with pytest.raises(InputError, match="checkpoint_every: expected None with dataset_sink"):
            quiet_fit(step, dataset(), checkpoint_every=5, **options)
        with pytest.raises(InputError, match="got a last one of 2 rows where the others have 4"):
            quiet_fit(step, dataset(drop=False), **options)
        behind = dataset(drop=False).map(lambda images: images, ["images"])
        with pytest.raises(InputError, match="got a last one of 2 rows where the others have 4"):
            quiet_fit(step, behind, **options)
        assert not (tmp_path / "run").exists()

    def test_a_checkpoint_within_an_epoch(self, tmp_path):
        step = plain()
        quiet_fit(step, dataset(), 1, folder=tmp_path, checkpoint_every=5)
        (tmp_path / "checkpoint" / f"step-{SIZE:09d}.ckpt").unlink()
        before = snapshot(step)
        files = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
        with pytest.raises(InputError, match="whole epochs, and the checkpoint is after 10 of an"):
            quiet_fit(step, dataset(), resume=True, dataset_sink_mode=True, folder=tmp_path)
        assert_bit_equal(snapshot(step), before)
        assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == files

    def test_losses_whose_labels_only_the_host_can_check(self, queues):
        net = network()
        optimizer = nn.SGD(net.trainable_params(), 0.1)
        step = PlainStep(nn.WithLossCell(net, loss_fn()), optimizer)
        with pytest.raises(InputError, match="loss of a WithLossCell .*; expected a LossNet"):
            quiet_fit(step, dataset(), 1, dataset_sink_mode=True)
        step = AccumulatedStep(LossNet(net, OwnLoss()), optimizer, 2)
        with pytest.raises(InputError, match="not a known one, may ignore some: .*normalise="):
            quiet_fit(step, dataset(), 1, dataset_sink_mode=True)
        step = AccumulatedStep(LossNet(net, OwnLoss()), optimizer, 2, normalise="samples")
        quiet_fit(step, dataset(), 1, dataset_sink_mode=True)
        assert queues.taken == [4] * SIZE

    def test_pynative_mode(self, eager):
        with pytest.raises(InputError, match="there is no graph in PyNative mode"):
            quiet_fit(plain(), dataset(), 1, dataset_sink_mode=True)

    def test_a_call_in_another_graph(self):
        """The call would leave out what the step does on the host, and does not do so silently."""

        class Twice(nn.Cell):
            def __init__(self, step):
                super().__init__(auto_prefix=False)
                self.step = step

            def construct(self, *batch):
                return self.step(*batch) + self.step(*batch)

        step, batch = plain(), next(dataset().create_tuple_iterator(num_epochs=1))
        fresh = snapshot(step)
        with pytest.raises(InputError, match="this PlainStep with PlainUpdate is called in anoth"):
            Twice(step)(*batch)
        step(*batch)
        with pytest.raises(InputError, match="is called in another graph"):
            Twice(step)(*batch)
        step.sink(*batch)
        restore(step, fresh)
        Twice(step)(*batch)
        assert step.last_update.number == 2


class TestByModel:
    def test_a_training_is_that_of_fit(self, monkeypatch, tmp_path, capsys):
        step = accumulated()
        _, final = fed(step, dataset())
        Queues(monkeypatch)
        saver = ModelCheckpoint(prefix="stock", directory=str(tmp_path))
        callbacks = [EndOfEpoch(step), LossMonitor(SIZE), saver]
        Model(step).train(EPOCHS, dataset(), callbacks=callbacks, dataset_sink_mode=True)
        assert_bit_equal(snapshot(step), final)
        assert capsys.readouterr().out.count("loss is") == EPOCHS
        saved = ms.load_checkpoint(str(tmp_path / f"stock-3_{SIZE}.ckpt"))
        for name, value in final.items():
            np.testing.assert_array_equal(saved[name].asnumpy(), value, err_msg=name)

    @pytest.mark.parametrize(
        ("make", "size", "sinks", "updates"),
        [(plain, 5, 4, 20), (plain, 24, 1, 24), (accumulated, 5, 4, 6)],
    )
    def test_sinks_of_other_sizes(self, queues, make, size, sinks, updates):
        """MindSpore calls each sink an epoch; after a real epoch, of 10, a group is closed."""
        step, data, steps = make(), dataset(rows=40), Steps()
        callbacks = [EndOfEpoch(step), steps]
        options = {"dataset_sink_mode": True, "sink_size": size}
        Model(step).train(sinks, data, callbacks=callbacks, **options)
        assert steps.counts == [size * n for n in range(1, sinks + 1)]
        assert step.last_update.number == updates

    @pytest.mark.parametrize("size", [4, 22])
    def test_a_group_that_an_epoch_would_end_within_a_sink(self, queues, size):
        step = accumulated()
        words = f"sink_size: expected a divisor of 11, .* AccumulatedStep closes .*, got {size}"
        with pytest.raises(InputError, match=words):
            Model(step).train(
                2,
                dataset(),
                callbacks=[EndOfEpoch(step)],
                dataset_sink_mode=True,
                sink_size=size,
            )

    def test_a_start_within_a_sink(self, queues):
        """MindSpore only warns, and trains on batches that were trained on before."""
        step, data = plain(), dataset()
        data.set_init_step(5)
        options = {"callbacks": [EndOfEpoch(step)], "dataset_sink_mode": True}
        with pytest.raises(InputError, match="start at batch 5, within a sink of 11"):
            Model(step).train(1, data, **options)

    def test_without_the_callback_it_says_what_is_missing(self, queues):
        step = plain()
        with pytest.raises(InputError, match=r"EndOfEpoch\(step\) as the first callback"):
            Model(step).train(1, dataset(), dataset_sink_mode=True)


def test_on_cpu_the_batches_are_fed_and_a_line_says_so(tmp_path, capsys):
    """MindSpore itself does not report it."""
    step = accumulated()
    whole, final = fed(step, dataset())
    assert "dataset_sink_mode" not in capsys.readouterr().out
    records = quiet_fit(step, dataset(), dataset_sink_mode=True, folder=tmp_path)
    assert comparable(records.rows) == comparable(whole.rows)
    assert_bit_equal(snapshot(step), final)
    said = (
        "labkit: dataset_sink_mode: MindSpore sinks no data set on CPU; the training runs batch by "
        "batch, with the same numbers\n"
    )
    assert capsys.readouterr().out.count(said) == 1
