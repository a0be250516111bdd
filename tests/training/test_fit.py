"""``fit`` apart from the bits of a resume: what it writes, refuses, records; ``EndOfEpoch``."""

import contextlib
import re
import warnings
from dataclasses import replace
from functools import partial

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import (
    Callback,
    LambdaCallback,
    LearningRateScheduler,
    LossMonitor,
    Model,
    ModelCheckpoint,
    ReduceLROnPlateau,
    TimeMonitor,
)

from labkit.algorithms.thor import ThorStep
from labkit.base.files import locked
from labkit.errors import InputError
from labkit.reference.lenet import cross_entropy
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import LossNet
from labkit.steps.step import PlainStep
from labkit.training import checkpoint
from labkit.training.evaluation import evaluate
from labkit.training.fit import EndOfEpoch, fit
from labkit.training.records import read_records
from tests import twins
from tests.support.step_cells import (
    Unadapted,
    assert_bit_equal,
    exact,
    regression,
    restore,
    rows,
    snapshot,
)
from tests.support.tolerances import TOLERANCE
from tests.support.trainings import (
    EPOCHS,
    OF_THE_PROCESS,
    Training,
    comparable,
    dataset,
    images_and_labels,
    loss_fn,
    make_step,
    network,
    plain,
    quiet_fit,
    thor,
)

pytestmark = pytest.mark.usefixtures("runtime")


@pytest.fixture(scope="module")
def done(runtime, tmp_path_factory):
    """A finished training with all its checkpoints."""
    return Training(tmp_path_factory.mktemp("done"))


@pytest.fixture
def step(done):
    """The compiled step of ``done``, restored to its initial state."""
    restore(done.step, done.fresh)
    return done.step


@pytest.fixture
def begun(done, tmp_path):
    """The folder of that training after a kill: it had 13 of 33 micro-batches."""
    return done.interrupted(done.paths[12], tmp_path / "run")


def after_each(act):
    """Return the callback that calls a function of the context after each micro-batch."""
    return LambdaCallback(on_train_step_end=act)


def assert_ends_as(done, records, step):
    assert comparable(records.rows) == done.rows
    assert_bit_equal(snapshot(step), done.final)


def files_of(folder):
    """Return the bytes and the modification time of every file but the lock."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


class TestContinuing:
    def test_a_finished_training_is_left_alone(self, done, step, tmp_path):
        folder, called = done.interrupted(done.paths[-1], tmp_path / "run"), []
        options = {"folder": folder, "resume": True, "callbacks": [after_each(called.append)]}
        for epochs in (EPOCHS, 1):
            records = quiet_fit(step, dataset(), epochs, **options)
            assert not called
            assert_ends_as(done, records, step)

    def test_seconds_and_what_callbacks_count_go_on_from_those_before(self, done, step, begun):
        position, values = checkpoint.load(done.paths[12])
        restore(step, values)
        checkpoint.save(step, replace(position, seconds=1000.0), begun / "checkpoint")
        counts = []

        def count(run_context):
            arguments = run_context.original_args()
            counts.append((arguments.cur_epoch_num, arguments.cur_step_num))

        options = {"folder": begun, "resume": True, "callbacks": after_each(count)}
        seconds = quiet_fit(step, dataset(), **options).column("seconds")
        assert seconds == sorted(seconds) and seconds[2] < 100 and 1000 < seconds[3] < 1100
        assert counts == [(2, n) for n in range(14, 23)] + [(3, n) for n in range(23, 34)]

    def test_with_no_checkpoint_it_starts_anew_and_says_so(self, step, tmp_path, capsys):
        (tmp_path / "records.csv").write_text("epoch,update\n1,1\n")
        records = quiet_fit(step, dataset(), 1, folder=tmp_path, resume=True)
        assert "no checkpoint in" in capsys.readouterr().out
        assert read_records(tmp_path / "records.csv").rows == records.rows
        assert records.column("update") == [1, 2, 3]

    @pytest.mark.parametrize("length", [0, 5, 100, -1])
    def test_a_damaged_checkpoint_is_passed_over_and_said(self, done, step, begun, capsys, length):
        newest = begun / "checkpoint" / done.paths[20].name
        newest.write_bytes(done.paths[20].read_bytes()[:length])
        records = quiet_fit(step, dataset(), folder=begun, resume=True)
        out = capsys.readouterr().out
        assert f"{newest} is damaged" in out and "resumed after micro-batch 13" in out
        assert_ends_as(done, records, step)

    def test_rows_that_a_power_cut_took_are_named(self, step, begun, capsys):
        path = begun / "records.csv"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
        records = quiet_fit(step, dataset(), folder=begun, resume=True)
        assert f"{path} lacks rows 2 to 3" in capsys.readouterr().out
        assert records.column("update") == [1, *range(4, 10)]
        assert read_records(path).rows == records.rows

    @pytest.mark.parametrize("kill", [True, False])
    def test_what_ends_it_within_an_epoch_flushes_nothing(self, done, step, tmp_path, kill):
        def end(run_context):
            if run_context.original_args().cur_step_num == 14:
                if kill:
                    raise KeyboardInterrupt
                run_context.request_stop()

        options = {"folder": tmp_path, "checkpoint_every": 3}
        with contextlib.suppress(KeyboardInterrupt):  # a single callback is taken as Model takes it
            quiet_fit(step, dataset(), **options, callbacks=after_each(end))
        rows = read_records(tmp_path / "records.csv")
        assert rows.column("images") == [16, 16, 12]
        assert_ends_as(done, quiet_fit(step, dataset(), folder=tmp_path, resume=True), step)


class TestFurtherCalls:
    """Each call goes on where the step stands on that dataset; ``test_resume`` has every step."""

    def test_within_an_epoch_the_rest_of_it_counts_as_the_first(self, done, step):
        def stop(run_context):
            if run_context.original_args().cur_step_num == 14:
                raise KeyboardInterrupt

        data = dataset()
        with pytest.raises(KeyboardInterrupt):
            quiet_fit(step, data, callbacks=after_each(stop))
        records = quiet_fit(step, data, 2)
        assert records.column("epoch") == [2, 2, 2, 3, 3, 3]
        assert_bit_equal(snapshot(step), done.final)

    def test_with_a_folder_and_after_a_resume(self, done, step, begun, tmp_path, capsys):
        """``resume`` counts the epochs of the whole training, in the folder, and nothing else."""
        data = dataset()
        quiet_fit(step, data, 2, folder=begun, resume=True)
        fit(step, data, 1, folder=tmp_path / "last")
        assert "training 33/33 epoch 3 update 9" in capsys.readouterr().out
        assert_bit_equal(snapshot(step), done.final)
        rows = comparable(read_records(tmp_path / "last" / "records.csv").rows)
        assert rows == done.rows[6:]
        for folder, expected in (("last", done.rows[6:]), ("run", done.rows[:6])):
            records = quiet_fit(step, data, 2, folder=tmp_path / folder, resume=True)
            assert comparable(records.rows) == expected
        assert_ends_as(done, quiet_fit(step, data, folder=begun, resume=True), step)
        restore(step, done.fresh)
        assert_ends_as(done, quiet_fit(step, data, folder=tmp_path / "new", resume=True), step)

    def test_each_step_and_each_dataset_has_its_own_place(self, step):
        sets, twin, seen = [dataset(), dataset(rows=20)], make_step(), []
        iterators = [x.create_tuple_iterator(num_epochs=2, output_numpy=True) for x in sets]

        def see(run_context):
            seen.append(run_context.original_args().train_dataset_element[1].asnumpy().tolist())

        for epoch in (1, 2):
            for data, iterator in zip(sets, iterators, strict=True):
                expected = [labels.tolist() for _, labels in iterator]
                for one in (step, twin):
                    seen.clear()
                    records = quiet_fit(one, data, 1, callbacks=[after_each(see)])
                    assert set(records.column("epoch")) == {epoch} and seen == expected


class Look(Callback):
    """Pass over the training set at every stage, by hand, derived, and as callbacks know it."""

    def __init__(self, data):
        super().__init__()
        self.sets, self.seen = {"own": data, "derived": data.map(lambda x: x, "labels")}, {}

    def look(self, run_context):
        arguments = run_context.original_args()
        sets, passes = {**self.sets, "callback's": arguments.train_dataset}, []
        for data in sets.values():
            batches = data.create_tuple_iterator(num_epochs=1, output_numpy=True)
            passes.append([labels.tolist() for _, labels in batches])
        assert passes[0] == passes[1] == passes[2]
        self.seen[arguments.cur_step_num] = passes[0]
        self.measured = evaluate(network(), loss_fn(), self.sets["own"])

    on_train_begin = on_train_epoch_begin = on_train_epoch_end = on_train_end = look


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("resumed_at", [5, 11, 13])
def test_a_pass_over_the_training_set_sees_all_of_it(done, step, tmp_path, resumed_at, sink):
    data = dataset()
    whole = [b[1].tolist() for b in data.create_tuple_iterator(num_epochs=1, output_numpy=True)]
    folder, look = done.interrupted(done.paths[resumed_at - 1], tmp_path / "run"), Look(data)
    options = {"folder": folder, "resume": True, "dataset_sink_mode": sink, "callbacks": [look]}
    assert_ends_as(done, quiet_fit(step, data, **options), step)
    assert set(look.seen) == {resumed_at, 11, 22, 33} - ({11} if resumed_at > 11 else set())
    assert len(whole) == 11 and all(seen == whole for seen in look.seen.values())
    assert look.measured == evaluate(network(), loss_fn(), dataset())


class TestDropped:
    """Non-finite micro-batches are said while they happen and at the end, and counted."""

    def of_nan(self, first=0):
        images, labels = images_and_labels(46)
        images[first:] = np.nan
        data = NumpySlicesDataset((images.transpose(0, 3, 1, 2), labels), ["x", "y"], shuffle=False)
        return data.batch(4, drop_remainder=True)

    @pytest.mark.parametrize(
        ("make", "options"),
        [
            (plain, {}),
            (make_step, {}),
            (make_step, {"nonfinite": "drop_group"}),
            (thor, {"nan": "drop"}),
        ],
    )
    def test_all(self, make, options, capsys, tmp_path):
        step = make(**options)
        for epochs, sink in ((2, False), (4, step.one_graph)):
            run = {"folder": tmp_path, "resume": True, "dataset_sink_mode": sink}
            with pytest.warns(UserWarning, match="made no update: 22 of 22 micro-batches were no"):
                records = quiet_fit(step, self.of_nan(), epochs, **run)
            assert not records.rows and records.dropped == 11 * epochs
            lines = [line for line in capsys.readouterr().out.splitlines() if "finite" in line]
            assert lines == [
                "labkit: so far 1 of 1 micro-batches were not finite, and are dropped",
                "labkit: 22 of 22 micro-batches were not finite, and are dropped",
            ]

    def test_some_and_none(self, step, capsys, monkeypatch):
        monkeypatch.setenv("LABKIT_HEADLESS", "1")
        with warnings.catch_warnings(action="error"):
            assert fit(step, self.of_nan(first=20), 1).dropped == 6
            out = capsys.readouterr().out
            assert "so far 3 of 8 micro" in out and "\nlabkit: 6 of 11 micro-batches" in out
            assert re.search("training 11/11 epoch 1 update 2 loss [0-9.]+ dropped 6", out)
            assert fit(step, dataset(), 1).dropped == 6  # in all; none of them in this call
        assert "finite" not in capsys.readouterr().out

    def test_without_an_update_and_all_finite(self):
        with pytest.warns(
            UserWarning, match="made no update: no group of micro-batches is complete"
        ):
            quiet_fit(make_step(micro_steps=30, tail="drop"), dataset(), 1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [22, 33]),
        ({"checkpoint_epochs": 2, "keep": 9}, [22, 33]),
        ({"checkpoint_epochs": 5, "keep": 9}, [33]),
        ({"checkpoint_epochs": None, "keep": 9}, []),
        ({"checkpoint_epochs": None, "checkpoint_every": 10, "keep": 9}, [10, 20, 30]),
        ({"checkpoint_every": 5, "keep": 3}, [25, 30, 33]),
    ],
)
def test_which_checkpoints_are_written_and_kept(step, tmp_path, options, expected):
    quiet_fit(step, dataset(), folder=tmp_path, **options)
    paths = checkpoint.checkpoints(tmp_path / "checkpoint")
    assert [int(path.stem[-9:]) for path in paths] == expected


class TestRefused:
    """A training that would not continue as it began is refused; step and folder are unchanged."""

    def refused(self, folder, words, step, data, **options):
        before, files = snapshot(step), files_of(folder)
        with pytest.raises(InputError, match=words):
            quiet_fit(step, data, folder=folder, **options)
        assert_bit_equal(snapshot(step), before)
        assert files_of(folder) == files

    @pytest.mark.parametrize(
        ("of_step", "of_data", "words"),
        [
            ({"micro_steps": 2}, {}, "micro_steps: expected 4, .* got 2"),
            ({"tail": "carry"}, {}, "tail: expected .*flush.*carry"),
            ({"clip_norm": 1.0}, {}, "clip_norm: expected .*None.*, .* got .*1.0"),
            ({}, {"seed": 2}, "seed: expected 1, as in the checkpoint, got 2"),
            ({}, {"batch": 3}, "epoch_size: expected 11, as in the checkpoint, got 15"),
            ({}, {"batch": 3, "rows": 35}, "batch_size: expected 4, as in the checkpoint, got 3"),
            ({}, {"workers": 2}, "workers.1: expected 1, as in the checkpoint, got 2"),
        ],
    )
    def test_other_settings(self, done, begun, of_step, of_data, words):
        step = make_step(**of_step) if of_step else done.step
        self.refused(begun, words, step, dataset(**of_data), resume=True)

    def test_without_start(self, done, begun):
        ms.dataset.config.set_fast_recovery(True)
        try:
            self.refused(begun, "call labkit.start first", done.step, dataset(), resume=True)
        finally:
            ms.dataset.config.set_fast_recovery(False)

    def test_an_earlier_training_in_the_folder_and_a_second_one(self, done, begun, tmp_path):
        with locked(begun, "a test"):
            for resume in (True, False):
                words = "run is in use by another process"
                self.refused(begun, words, done.step, dataset(), resume=resume)
        for gone in ("checkpoint", "records.csv"):
            (begun / gone).rename(tmp_path / gone)
            self.refused(begun, "holds an earlier training; give resume=True", done.step, dataset())
            (tmp_path / gone).rename(begun / gone)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"epochs": 0}, "epochs: expected an integer >= 1, got 0"),
            ({"checkpoint_every": 2.5}, "checkpoint_every: expected"),
            ({"resume": "any way"}, "resume: expected True, False or 'anyway', got 'any way'"),
            ({"folder": 3}, "folder: expected a path or None, got 3"),
            ({"folder": None, "resume": True}, "folder: expected a path, for resume and check"),
            ({"folder": None, "checkpoint_every": 3}, "folder: expected a path, for resume and ch"),
            ({"dataset": lambda: dataset(rows=3)}, "dataset: expected at least one batch, got non"),
            ({"dataset": lambda: list(dataset())}, "dataset: expected a MindSpore dataset, got"),
            ({"callbacks": [Callback]}, "callbacks: expected a list of MindSpore callbacks, got"),
            ({"callbacks": None}, "callbacks: expected a list of MindSpore callbacks, got None"),
            ({"step": "a step"}, "step: expected a step cell.* got 'str'"),
        ],
    )
    def test_arguments(self, step, tmp_path, options, words):
        arguments = {"step": step, "dataset": dataset(), "epochs": 1, "folder": tmp_path / "run"}
        arguments |= {name: x() if callable(x) else x for name, x in options.items()}
        with pytest.raises(InputError, match=words):
            fit(progress=None, **arguments)
        assert not (tmp_path / "run").exists()


def test_sink_mode_is_models_and_needs_one_graph(done, step, monkeypatch):
    """On CPU MindSpore feeds the batches all the same."""
    records = quiet_fit(step, dataset(), dataset_sink_mode=True)
    assert_ends_as(done, records, step)
    monkeypatch.setattr(type(step), "one_graph", False, raising=False)
    with pytest.raises(InputError, match="dataset_sink_mode: AccumulatedStep is more than one gra"):
        quiet_fit(step, dataset(), dataset_sink_mode=True)


class TestRecords:
    def test_a_row_for_each_update_with_its_images_and_its_loss(self, done):
        records = read_records(done.folder / "records.csv")
        columns = ["epoch", "update", "images", "loss", "gradient_norm", "learning_rate"]
        assert list(records.rows[0]) == [*columns, *OF_THE_PROCESS]
        assert records.column("update") == list(range(1, 10))
        assert records.column("epoch") == [1, 1, 1, 2, 2, 2, 3, 3, 3]
        # 11 micro-batches of 4: two whole groups, and 3 flushed.
        assert records.column("images") == [16, 16, 12] * 3
        assert records.column("learning_rate") == [np.float32(0.02)] * 9
        seconds = records.column("seconds")
        assert seconds == sorted(seconds) and 0 < seconds[0] and seconds[-1] < 60
        # MindSpore alone takes 200 MB; a unit that is wrong by 1000 lies outside.
        assert all(100 < peak < 20_000 for peak in records.column("peak_memory_mb"))
        # The loss is the mean over the update's 16 rows, not the last micro-batch's.
        batches = list(dataset().create_tuple_iterator(num_epochs=1))[:4]
        images, labels = (np.concatenate([b[i].asnumpy() for b in batches]) for i in (0, 1))
        logits = network()(ms.Tensor(images)).asnumpy().astype(np.float64)
        expected, _ = cross_entropy(logits, labels)
        assert records.rows[0]["loss"] == pytest.approx(expected, rel=1e-6)

    def test_the_last_batch_and_a_group_larger_than_an_epoch(self, step):
        # 46 rows: eleven batches of 4 and one of 2.
        assert quiet_fit(step, dataset(drop=False), 2).column("images") == [16, 16, 14] * 2
        records = quiet_fit(make_step(micro_steps=100), dataset(), np.int64(2))
        assert records.column("images") == [44, 44] and records.column("epoch") == [1, 2]

    def test_each_group_of_parameters_has_its_rate_which_may_be_an_array(self):
        net = network()
        first, *others = net.trainable_params()
        groups = [{"params": [first], "lr": 0.5}, {"params": others, "lr": [0.25] * 11}]
        step = PlainStep(LossNet(net, loss_fn()), nn.SGD(groups, 0.5))
        row = quiet_fit(step, dataset(), 1).rows[0]
        assert (row["learning_rate"], row["learning_rate_1"]) == (0.5, 0.25)
        with pytest.raises(InputError, match="rate of group 1 has 11 values for 22 updates"):
            quiet_fit(step, dataset(), 1)


def test_progress_shows_the_name_and_the_last_update(step, capsys, monkeypatch):
    monkeypatch.setenv("LABKIT_HEADLESS", "1")
    fit(step, dataset(), 1, progress="lab 01")
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("lab 01 11/11 epoch ") and " loss " in line
    quiet_fit(step, dataset(), 1)
    shown = capsys.readouterr()
    assert shown.out == shown.err == ""


class TestBesideMindSpore:
    def test_stock_callbacks(self, done, step, tmp_path, capsys):
        saver = ModelCheckpoint(prefix="stock", directory=str(tmp_path / "stock"))
        stock = [LossMonitor(11), TimeMonitor(), saver]
        records = quiet_fit(step, dataset(), folder=tmp_path / "run", callbacks=stock)
        assert_ends_as(done, records, step)
        out = capsys.readouterr().out
        assert out.count("loss is") == EPOCHS and out.count("epoch time") == EPOCHS
        # MindSpore saves right after an epoch's last micro-batch; the tail is flushed before.
        saved = ms.load_checkpoint(str(tmp_path / "stock" / "stock-3_11.ckpt"))
        for name, value in done.final.items():
            np.testing.assert_array_equal(saved[name].asnumpy(), value, err_msg=name)

    def test_one_dataset_serves_several_trainings(self, done, step):
        """By ``fit``, and by ``Model``, where ``EndOfEpoch`` flushes the tail."""
        data = dataset()
        for _ in range(2):
            restore(step, done.fresh)
            quiet_fit(step, data)
            assert_bit_equal(snapshot(step), done.final)
            evaluate(network(), loss_fn(), data)
            for callbacks in ([EndOfEpoch(step)], []):
                restore(step, done.fresh)
                Model(step).train(EPOCHS, data, callbacks=callbacks, dataset_sink_mode=False)
                data.__dict__.pop("__model_hash__")
                if callbacks:
                    assert_bit_equal(snapshot(step), done.final)
            assert step.last_update.number == EPOCHS * 11 // 4 != len(done.rows)

    # Each halves the rate. "max": a falling loss is no improvement after the first epoch.
    PLATEAU = partial(ReduceLROnPlateau, "loss", 0.5, patience=1, mode="max")
    SCHEDULER = partial(LearningRateScheduler, lambda rate, done: rate / (1 + (done % 5 == 0)))

    @pytest.mark.parametrize("with_fit", [True, False])
    @pytest.mark.parametrize(
        ("make", "halvings"), [(PLATEAU, [8, 4, 4]), (SCHEDULER, [5, 5, 5, 1])]
    )
    def test_callbacks_that_change_the_rate(self, eager, make, halvings, with_fit):
        """Of the optimizer inside, if it is LARS: here without its operator, unknown on CPU."""
        net, loss_net = regression()
        weights, arrays = exact(net), rows(16)
        sgd = nn.SGD(net.trainable_params(), 0.2)
        step = PlainStep(loss_net, Unadapted(sgd) if with_fit else sgd)
        data = NumpySlicesDataset(arrays, shuffle=False).batch(4)
        rates = np.repeat([0.2, 0.1, 0.05, 0.025][: len(halvings)], halvings)
        if with_fit:
            used = quiet_fit(step, data, 4, callbacks=[make()]).column("learning_rate")
            assert used == pytest.approx(rates)
        else:
            Model(step).train(4, data, [EndOfEpoch(step), make()], dataset_sink_mode=False)
        for number, rate in enumerate(rates):
            part = [array[number % 4 * 4 :][:4] for array in arrays]
            _, gradients = twins.linear_regression(*weights, *part)
            weights = [w - rate * g for w, g in zip(weights, gradients, strict=True)]
        for own, expected in zip(exact(net), weights, strict=True):
            np.testing.assert_allclose(own, expected, **TOLERANCE["float32, many updates"])

    def test_a_rate_that_a_callback_sets_at_an_epoch_s_end_outlives_a_resume(self, tmp_path):
        def halve(run_context):
            rate = run_context.original_args().optimizer.learning_rate
            rate.set_data(rate * 0.5)

        weights = []
        for parts in ((4,), (2, 4)):
            for epochs in parts:
                net, loss_net = regression()
                step = PlainStep(loss_net, nn.SGD(net.trainable_params(), 0.2))
                options = {"folder": tmp_path / f"{len(parts)}", "resume": True}
                halving = LambdaCallback(on_train_epoch_end=halve)
                data = NumpySlicesDataset(rows(16), shuffle=False).batch(4)
                quiet_fit(step, data, epochs, callbacks=[halving], **options)
            weights.append(exact(net))
        for whole, resumed in zip(*weights, strict=True):
            np.testing.assert_array_equal(whole, resumed)

    @pytest.mark.parametrize("make", [PLATEAU, SCHEDULER])
    @pytest.mark.parametrize("several", [{"lr": 0.1}, {"lr": [0.1] * 9}, {}])
    def test_several_rates_are_refused_to_them(self, make, several):
        net, loss_net = regression()
        groups = [{"params": [net.weight]} | several, {"params": [net.bias]}]
        step = PlainStep(loss_net, nn.SGD(groups, 0.2 if several else [0.2, 0.1]))
        with pytest.raises(InputError, match="expected an optimizer with one constant rate, got"):
            quiet_fit(step, dataset(), 1, callbacks=[make()])


class TestLengthOfSchedules:
    """An array that ends before the training does is refused at the start, with both numbers."""

    # name -> (micro_steps, options, updates in two epochs of 11 micro-batches)
    UPDATES = {
        "plain": (None, {}, 22),
        "flush": (4, {}, 6),
        "drop": (4, {"tail": "drop"}, 4),
        "carry": (4, {"tail": "carry"}, 4),
        "all": (11, {}, 2),
        "more than there are": (30, {}, 2),
        "more than there are, dropped": (30, {"tail": "drop"}, 0),
        "schedule": (lambda updates: 2 + updates % 3, {}, 8),
        "falling": (lambda updates: 9 - 2 * min(updates, 4), {}, 7),
    }

    def build(self, micro_steps, rates, options):
        net = network()
        parts = LossNet(net, loss_fn()), nn.SGD(net.trainable_params(), rates)
        if micro_steps is None:
            return PlainStep(*parts)
        return AccumulatedStep(*parts, micro_steps, **options)

    @pytest.mark.parametrize("case", UPDATES)
    def test_counts_the_updates_that_fit_makes(self, case, tmp_path):
        micro_steps, options, expected = self.UPDATES[case]
        step = self.build(micro_steps, [0.01] * max(expected, 1), options)
        assert step.updates_ahead([11, 11]) == expected
        quiet_fit(step, dataset(), 2)
        assert step.last_update.number == expected
        if expected > 2:  # one rate too few is refused before anything is written
            step = self.build(micro_steps, [0.01] * (expected - 1), options)
            words = f"the learning rate has {expected - 1} values for {expected} updates; expected"
            with pytest.raises(InputError, match=words):
                quiet_fit(step, dataset(), 2, folder=tmp_path / "run")
            assert not (tmp_path / "run").exists()

    def test_of_a_resumed_training(self, tmp_path):
        """It resumes in the middle of a group and an epoch; a refused one leaves the files."""
        step = self.build(4, [0.01] * 6, {})
        fresh = snapshot(step)
        quiet_fit(step, dataset(), 1, folder=tmp_path, checkpoint_every=6)
        (tmp_path / "checkpoint" / "step-000000011.safetensors").unlink()
        files = files_of(tmp_path)
        restore(step, fresh)
        with pytest.raises(InputError, match="has 6 values for 9 updates"):
            quiet_fit(step, dataset(), 3, folder=tmp_path, resume=True)
        assert files_of(tmp_path) == files
        restore(step, fresh)
        quiet_fit(step, dataset(), 2, folder=tmp_path, resume=True)
        assert step.last_update.number == 6
        # Earlier updates count: the optimizer continues in its array.
        with pytest.raises(InputError, match="has 6 values for 9 updates"):
            quiet_fit(step, dataset(), 1)

    def test_of_dampings(self):
        """An array given to THOR as damping has a length; a number has no end."""
        for damping, updates in ((0.1, 10**6), ([0.1] * 10, 10)):
            net = network()
            sgd = nn.SGD(net.trainable_params(), 0.1)
            step = ThorStep(LossNet(net, loss_fn()), sgd, damping)
            step.check_length(updates)
        with pytest.raises(InputError, match="damping has 10 values for 11 updates; expected"):
            quiet_fit(step, dataset(), 1)
