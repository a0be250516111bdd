"""``fit`` and ``evaluate``: exact resume, what is written, refusals, evaluation, end of epoch."""

import json
import os
import shutil
import socket

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from mindspore.train import Callback, LossMonitor, Model, ModelCheckpoint, RunContext, TimeMonitor
from mindspore.train.callback import _InternalCallbackParam

from labkit.algorithms.thor import ThorStep
from labkit.base.locks import locked
from labkit.errors import InputError
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.gradients import DynamicLossScale, set_state
from labkit.steps.losses import LossNet
from labkit.steps.plain import PlainStep
from labkit.training import checkpoint
from labkit.training.evaluation import MeanLoss, evaluate
from labkit.training.fit import EndOfEpoch, _Training, data_workers, fit
from labkit.training.records import Records, read_records
from tests.support.step_cells import assert_bit_equal, restore, snapshot
from tests.support.trainings import (
    OF_THE_PROCESS,
    comparable,
    dataset,
    images_and_labels,
    loss_fn,
    make_step,
    network,
)

pytestmark = pytest.mark.usefixtures("runtime")

EPOCHS = 3
COLUMNS = ["epoch", "update", "images", "loss", "gradient_norm", "learning_rate", *OF_THE_PROCESS]


def quiet_fit(step, data, epochs=EPOCHS, **options):
    return fit(step, data, epochs, progress=None, **options)


def position_of(path):
    """What a checkpoint says of its position."""
    return json.loads(str(checkpoint.read(path)["labkit_position"]))


class Training:
    """An uninterrupted training with a checkpoint after every micro-batch."""

    def __init__(self, folder, make=make_step, data=dataset):
        self.folder, self.make, self.data = folder, make, data
        self.step = make()
        self.fresh = snapshot(self.step)
        records = quiet_fit(self.step, data(), folder=folder, checkpoint_every=1, keep=1000)
        self.rows = comparable(records.rows)
        self.final = snapshot(self.step)
        self.paths = checkpoint.checkpoints(folder / "checkpoint")

    def interrupted(self, path, folder):
        """Put into ``folder`` what a kill right after the checkpoint ``path`` leaves."""
        (folder / "checkpoint").mkdir(parents=True)
        shutil.copy(path, folder / "checkpoint")
        lines = (self.folder / "records.csv").read_text().splitlines(keepends=True)
        count = position_of(path)["records"]
        # Two rows of later updates, the last one cut short: written, and then no checkpoint was.
        kept, later = lines[: count + 1], lines[count + 1 : count + 3] or ["3,99,1"]
        (folder / "records.csv").write_text("".join(kept + later)[:-5])
        return folder

    def resumed(self, path, folder, step=None):
        """Resume from ``path``; return the records and all Parameters at the end."""
        step = self.make() if step is None else step
        self.interrupted(path, folder)
        records = quiet_fit(step, self.data(), folder=folder, resume=True)
        return comparable(records.rows), snapshot(step)


SCENARIOS = {
    # 11 micro-batches an epoch in groups of 4: the last group holds 3.
    "flush": ({}, {}),
    "carry": ({"tail": "carry"}, {}),
    "drop": ({"tail": "drop"}, {}),
    "schedule": ({"micro_steps": lambda updates: 2 + updates % 3}, {}),
    "smaller_last_batch": ({}, {"drop": False}),
    "augmentation": ({}, {"augment": True}),
    "augmentation_by_two_workers": ({}, {"augment": True, "workers": 2}),
    "dynamic_loss_scale_and_nan": (
        {"loss_scale": DynamicLossScale(2.0**10, 2.0, 3), "nonfinite": "drop_group"},
        {"spoiled_row": 5},
    ),
}


@pytest.fixture(params=SCENARIOS, scope="module")
def uninterrupted(request, runtime, tmp_path_factory):
    """An uninterrupted training of each scenario."""
    options, data = SCENARIOS[request.param]
    return Training(
        tmp_path_factory.mktemp(request.param),
        lambda: make_step(**options),
        lambda: dataset(**data),
    )


class TestResume:
    """A training resumed from any checkpoint ends as the uninterrupted one, to the last bit."""

    def test_from_any_checkpoint(self, uninterrupted, tmp_path):
        size = uninterrupted.data().get_dataset_size()
        assert len(uninterrupted.paths) == EPOCHS * size
        # The same compiled step throughout: it ends a training in one state and takes up another.
        step = uninterrupted.step
        for path in uninterrupted.paths[:: 3 if size % 3 else 4]:
            rows, final = uninterrupted.resumed(path, tmp_path / path.stem, step)
            assert_bit_equal(final, uninterrupted.final)
            assert rows == uninterrupted.rows
            assert comparable(read_records(tmp_path / path.stem / "records.csv").rows) == rows

    def test_in_a_step_built_anew(self, uninterrupted, tmp_path):
        size = uninterrupted.data().get_dataset_size()
        rows, final = uninterrupted.resumed(uninterrupted.paths[size + 5], tmp_path / "run")
        assert_bit_equal(final, uninterrupted.final)
        assert rows == uninterrupted.rows

    def test_at_the_borders_of_epochs(self, uninterrupted, tmp_path):
        size = uninterrupted.data().get_dataset_size()
        for done in (size - 1, size, size + 1, EPOCHS * size - 1):
            path = uninterrupted.paths[done - 1]
            assert position_of(path)["micro_batches"] == done
            rows, final = uninterrupted.resumed(path, tmp_path / str(done), uninterrupted.step)
            assert_bit_equal(final, uninterrupted.final)
            assert rows == uninterrupted.rows


@pytest.fixture(scope="module")
def whole(runtime, tmp_path_factory):
    """A training in which every Parameter of the state moves: schedules of rate and group size,
    dynamic loss scale, a row that is not finite."""

    def make():
        net = network()
        return AccumulatedStep(
            LossNet(net, loss_fn()),
            nn.Adam(net.trainable_params(), nn.ExponentialDecayLR(0.02, 0.5, 2)),
            lambda updates: 4 + updates % 3,
            loss_scale=DynamicLossScale(2.0**10, 2.0, 4),
            nonfinite="drop_group",
        )

    return Training(tmp_path_factory.mktemp("whole"), make, lambda: dataset(spoiled_row=5))


@pytest.fixture(scope="module")
def in_a_group(whole):
    """Two checkpoints in the middle of an epoch and of a group. In the first the group has a
    non-finite micro-batch, and only that counts for it; in the second it has none."""
    found = {}
    for path in whole.paths:
        values = {n: v for n, v in checkpoint.read(path).items() if n.startswith("step.")}
        state = {name: float(np.ravel(value.asnumpy())[0]) for name, value in values.items()}
        if position_of(path)["micro_batches"] % 11 and state["step.updates"] > 1:
            if state["step.weight_sum"] and state["step.dropped"]:
                found.setdefault(bool(state["step.spoiled"]), path)
    return [found[True], found[False]]


class TestNothingLeftOut:
    """Whatever part of the state a resume leaves out, the training ends elsewhere."""

    # No trace, and why: last_* describe an update and are overwritten by the next one.
    WITHOUT_TRACE = {"step.last_loss", "step.last_norm", "step.last_images", "step.last_rates"}

    def left_out(self, whole, path, folder, monkeypatch, left_out):
        load_into = checkpoint.load_into

        def partly(step, values, origin):
            load_into(step, values, origin)
            restore(step, {**snapshot(step), **{n: whole.fresh[n] for n in left_out}})

        monkeypatch.setattr(checkpoint, "load_into", partly)
        return whole.resumed(path, folder, whole.step)

    def test_each_parameter_of_the_state_counts(self, whole, in_a_group, tmp_path, monkeypatch):
        without_trace = set(whole.fresh)
        for path in in_a_group:
            folder = tmp_path / path.stem
            _, final = self.left_out(whole, path, folder / "all", monkeypatch, [])
            monkeypatch.undo()
            assert_bit_equal(final, whole.final)
            for number, name in enumerate(sorted(without_trace)):
                one = folder / str(number)
                rows, final = self.left_out(whole, path, one, monkeypatch, [name])
                monkeypatch.undo()
                same = all(np.array_equal(final[n], whole.final[n]) for n in final)
                if not same or rows != whole.rows:
                    without_trace.remove(name)
        assert without_trace == self.WITHOUT_TRACE

    def test_the_position_of_the_data_counts(self, whole, in_a_group, tmp_path, monkeypatch):
        data = whole.data()
        monkeypatch.setattr(data, "set_init_step", lambda step: None)
        monkeypatch.setattr(whole, "data", lambda: data)
        _, final = whole.resumed(in_a_group[1], tmp_path / "middle", whole.step)
        assert not np.array_equal(final["1.weight"], whole.final["1.weight"])
        # At an epoch's border: the first epoch's order again, what MindSpore does by itself.
        border = whole.paths[10]
        _, final = whole.resumed(border, tmp_path / "border", whole.step)
        assert not np.array_equal(final["1.weight"], whole.final["1.weight"])


@pytest.fixture(scope="module")
def done(runtime, tmp_path_factory):
    """A finished training with all its checkpoints."""
    return Training(tmp_path_factory.mktemp("done"))


class TestContinuing:
    def test_more_epochs_are_those_of_a_longer_training(self, done, tmp_path):
        step = make_step()
        quiet_fit(step, dataset(), 2, folder=tmp_path)
        records = quiet_fit(step, dataset(), EPOCHS, folder=tmp_path, resume=True)
        assert comparable(records.rows) == done.rows
        assert_bit_equal(snapshot(step), done.final)

    def test_a_finished_training_is_left_alone(self, done, tmp_path):
        done.interrupted(done.paths[-1], tmp_path / "run")
        called = []

        class Begin(Callback):
            def on_train_begin(self, run_context):
                called.append(1)

        step = done.step
        for epochs in (EPOCHS, 1):
            records = quiet_fit(
                step, dataset(), epochs, folder=tmp_path / "run", resume=True, callbacks=[Begin()]
            )
            assert comparable(records.rows) == done.rows and not called
            assert_bit_equal(snapshot(step), done.final)

    def test_the_seconds_go_on_from_those_before(self, done, tmp_path):
        folder = done.interrupted(done.paths[12], tmp_path / "run")
        values = checkpoint.read(done.paths[12])
        position = {**position_of(done.paths[12]), "seconds": 1000.0}
        values.pop("labkit_position")
        restore(done.step, {name: value.asnumpy() for name, value in values.items()})
        checkpoint.save(done.step, checkpoint.Position(**position), folder / "checkpoint")
        seconds = quiet_fit(done.step, dataset(), folder=folder, resume=True).column("seconds")
        assert seconds == sorted(seconds) and seconds[2] < 100 and 1000 < seconds[3] < 1100

    def test_the_dataset_starts_at_its_beginning_again(self, done, tmp_path):
        data = dataset()
        first = next(data.create_tuple_iterator(num_epochs=1))[0].asnumpy()
        done.interrupted(done.paths[15], tmp_path / "run")
        quiet_fit(done.step, data, folder=tmp_path / "run", resume=True)
        again = next(data.create_tuple_iterator(num_epochs=1))[0].asnumpy()
        np.testing.assert_array_equal(first, again)

    def test_before_the_first_update_there_are_no_records(self, done, tmp_path):
        done.interrupted(done.paths[1], tmp_path / "run")
        assert position_of(done.paths[1])["records"] == 0
        (tmp_path / "run" / "records.csv").unlink()
        records = quiet_fit(done.step, dataset(), folder=tmp_path / "run", resume=True)
        assert comparable(records.rows) == done.rows
        assert_bit_equal(snapshot(done.step), done.final)

    def test_with_no_checkpoint_it_starts_anew_and_says_so(self, tmp_path, capsys):
        (tmp_path / "records.csv").write_text("epoch,update\n1,1\n")
        step = make_step()
        records = quiet_fit(step, dataset(), 1, folder=tmp_path, resume=True)
        assert "no checkpoint in" in capsys.readouterr().out
        assert read_records(tmp_path / "records.csv").rows == records.rows
        assert [row["update"] for row in records.rows] == [1, 2, 3]

    def test_a_damaged_checkpoint_is_passed_over_and_said(self, done, tmp_path, capsys):
        folder = done.interrupted(done.paths[12], tmp_path / "run")
        newest = folder / "checkpoint" / done.paths[20].name
        newest.write_bytes(done.paths[20].read_bytes()[:-100])
        quiet_fit(done.step, dataset(), folder=folder, resume=True)
        said = capsys.readouterr().out
        assert f"{newest} is damaged" in said and "trying the one before it" in said
        assert "resumed after micro-batch 13" in said
        assert_bit_equal(snapshot(done.step), done.final)

    def test_checkpoints_come_after_each_epoch_and_the_last_are_kept(self, done, tmp_path):
        quiet_fit(done.step, dataset(), 2, folder=tmp_path / "epochs")
        names = [one.name for one in (tmp_path / "epochs" / "checkpoint").iterdir()]
        assert sorted(names) == ["step-000000011.ckpt", "step-000000022.ckpt"]
        quiet_fit(done.step, dataset(), 2, folder=tmp_path / "more", checkpoint_every=5, keep=3)
        names = [one.name for one in (tmp_path / "more" / "checkpoint").iterdir()]
        assert sorted(names) == [f"step-0000000{n}.ckpt" for n in (15, 20, 22)]

    def test_nothing_is_written_without_a_folder(self, done, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        quiet_fit(done.step, dataset(), 1)
        assert list(tmp_path.iterdir()) == []


def bytes_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class TestPowerCut:
    """The checkpoint is on the disk and the rows before it are not all there."""

    DAMAGE = {
        "the last row missing": (lambda data, rows: data[: len(data) - rows[-1]], [9]),
        "the last rows zeros": (
            lambda data, rows: _zeros(data, rows[-1] + rows[-2] + 9),
            [7, 8, 9],
        ),
        "an empty file": (lambda data, rows: b"", list(range(1, 10))),
        "no file": (lambda data, rows: None, list(range(1, 10))),
        "zeros alone": (lambda data, rows: bytes(len(data)), list(range(1, 10))),
        "a byte that is no text": (lambda data, rows: _byte(data, sum(rows[:4]) + 9, 255), [4]),
        "a line's end": (lambda data, rows: _byte(data, sum(rows[:4]) - 1, 44), [3, 4]),
        "an update of the future": (lambda data, rows: _byte(data, sum(rows[:4]) + 2, 57), [4]),
        "a comma of the header": (lambda data, rows: _byte(data, 5, 255), list(range(1, 10))),
        "another column": (
            lambda data, rows: data.replace(b"images", b"pictures"),
            list(range(1, 10)),
        ),
    }

    @pytest.mark.parametrize("damage", DAMAGE)
    def test_the_training_goes_on_and_the_missing_rows_are_named(
        self, done, tmp_path, capsys, damage
    ):
        folder = tmp_path / "run"
        shutil.copytree(done.folder, folder)
        path = folder / "records.csv"
        lines = path.read_bytes().splitlines(keepends=True)
        harm, missing = self.DAMAGE[damage]
        data = harm(path.read_bytes(), [len(line) for line in lines])
        path.unlink() if data is None else path.write_bytes(data)
        records = quiet_fit(done.step, dataset(), folder=folder, resume=True)
        assert_bit_equal(snapshot(done.step), done.final)
        kept = [row for row in done.rows if row["update"] not in missing]
        assert comparable(records.rows) == kept
        assert comparable(read_records(path).rows) == kept
        said = capsys.readouterr().out
        assert f"lacks {len(missing)} of the 9 rows that were written before the checkpoint" in said
        first, last = missing[0], missing[-1]
        assert f"(of updates {first} to {last})" in said or f"(of updates {first})" in said

    @pytest.mark.parametrize("name", ["epoch", "update", "learning_rate", "peak_memory_mb"])
    def test_a_damaged_name_of_a_column_loses_no_row(self, done, tmp_path, capsys, name):
        folder = done.interrupted(done.paths[16], tmp_path / "run")
        path = folder / "records.csv"
        damaged = path.read_bytes().replace(name[:-1].encode(), name[:-2].encode() + b"\xff", 1)
        path.write_bytes(damaged)
        for epochs in (2, 3):  # and it can be resumed from then on
            records = quiet_fit(make_step(), dataset(), epochs, folder=folder, resume=True)
        assert comparable(records.rows) == comparable(read_records(path).rows) == done.rows
        assert (folder / "records.csv.damaged").read_bytes() == damaged
        said = capsys.readouterr().out
        assert said.count("is damaged; kept as it was in records.csv.damaged") == 1
        assert "lacks" not in said

    def test_an_undamaged_file_is_not_kept_twice(self, done, tmp_path):
        folder = done.interrupted(done.paths[16], tmp_path / "run")
        quiet_fit(done.step, dataset(), folder=folder, resume=True)
        assert not (folder / "records.csv.damaged").exists()

    def test_new_rows_follow_those_that_are_left(self, done, tmp_path):
        folder = done.interrupted(done.paths[16], tmp_path / "run")
        (folder / "records.csv").write_bytes(b"")
        records = quiet_fit(done.step, dataset(), folder=folder, resume=True)
        held = position_of(done.paths[16])["records"]
        assert comparable(records.rows) == done.rows[held:] and held
        assert comparable(read_records(folder / "records.csv").rows) == done.rows[held:]

    def test_rows_are_on_the_disk_before_the_checkpoint(self, tmp_path, monkeypatch):
        order = []
        monkeypatch.setattr(Records, "sync", lambda self: order.append("rows"))
        save = checkpoint.save
        monkeypatch.setattr(
            checkpoint, "save", lambda *args: (order.append("checkpoint"), save(*args))
        )
        quiet_fit(make_step(), dataset(), 2, folder=tmp_path)
        assert order == ["rows", "checkpoint"] * 2


def _byte(data, place, value):
    return data[:place] + bytes([value]) + data[place + 1 :]


def _zeros(data, count):
    return data[:-count] + bytes(count)


class TestLocked:
    """A folder that another process writes is left alone; one that only reads may look."""

    def test_a_second_training_is_refused_with_host_and_process(self, done, tmp_path):
        folder = done.interrupted(done.paths[16], tmp_path / "run")
        before = snapshot(done.step)
        words = f"is in use by a training, process {os.getpid()} on {socket.gethostname()}"
        with locked(folder, "a training"):
            files = bytes_of(folder)
            for resume in (True, False):
                with pytest.raises(InputError, match=words):
                    quiet_fit(done.step, dataset(), folder=folder, resume=resume)
            assert bytes_of(folder) == files
            records = quiet_fit(done.step, dataset(), folder=folder, resume=True, write=False)
            assert comparable(records.rows) == done.rows and bytes_of(folder) == files
        assert before.keys() == snapshot(done.step).keys()

    def test_it_is_locked_as_long_as_it_trains(self, done, tmp_path):
        class Look(Callback):
            def on_train_step_end(self, run_context):
                with pytest.raises(InputError, match="in use by a training"):
                    with locked(tmp_path, "a test"):
                        pass
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            quiet_fit(done.step, dataset(), 1, folder=tmp_path, callbacks=[Look()])
        with locked(tmp_path, "a test"):
            pass

    @pytest.mark.parametrize("write", ["yes", 2, "False"])
    def test_what_is_no_word_for_write(self, done, tmp_path, write):
        with pytest.raises(InputError, match="write is .*; expected None, True or False"):
            quiet_fit(done.step, dataset(), folder=tmp_path / "run", write=write)
        assert not (tmp_path / "run").exists()


class TestWhatIsWritten:
    """``checkpoint_epochs``, and ``write`` for all ranks but one."""

    @pytest.mark.parametrize(
        ("epochs", "expected"), [(1, [11, 22, 33]), (2, [22, 33]), (5, [33]), (None, [])]
    )
    def test_epochs_between_checkpoints(self, tmp_path, epochs, expected):
        quiet_fit(make_step(), dataset(), folder=tmp_path, checkpoint_epochs=epochs, keep=9)
        found = checkpoint.checkpoints(tmp_path / "checkpoint")
        assert [int(path.stem[-9:]) for path in found] == expected

    def test_checkpoints_within_epochs_do_not_need_those_after_them(self, tmp_path):
        options = dict(checkpoint_every=10, checkpoint_epochs=None, keep=9)
        quiet_fit(make_step(), dataset(), folder=tmp_path, **options)
        found = checkpoint.checkpoints(tmp_path / "checkpoint")
        assert [int(path.stem[-9:]) for path in found] == [10, 20, 30]

    @pytest.mark.parametrize("epochs", [0, -1, 1.5, True, "2"])
    def test_what_is_no_number_of_epochs(self, tmp_path, epochs):
        with pytest.raises(InputError, match="checkpoint_epochs is"):
            quiet_fit(make_step(), dataset(), folder=tmp_path / "run", checkpoint_epochs=epochs)
        assert not (tmp_path / "run").exists()

    def test_another_rank_writes_nothing(self, done, tmp_path):
        step = make_step()
        records = quiet_fit(step, dataset(), folder=tmp_path / "run", write=False)
        assert not (tmp_path / "run").exists()
        assert comparable(records.rows) == done.rows
        assert_bit_equal(snapshot(step), done.final)

    def test_another_rank_resumes_and_writes_nothing(self, done, tmp_path):
        done.interrupted(done.paths[16], tmp_path / "run")

        def files():
            paths = (path for path in (tmp_path / "run").rglob("*") if path.is_file())
            return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}

        before = files()
        step = make_step()
        records = quiet_fit(step, dataset(), folder=tmp_path / "run", resume=True, write=False)
        assert files() == before and before
        assert comparable(records.rows) == done.rows
        assert_bit_equal(snapshot(step), done.final)

    def test_another_rank_is_refused_where_the_first_is(self, done, tmp_path):
        done.interrupted(done.paths[16], tmp_path / "run")
        with pytest.raises(InputError, match="holds an earlier training"):
            quiet_fit(make_step(), dataset(), folder=tmp_path / "run", write=False)

    def test_records_without_a_checkpoint_are_the_writers_to_remove(self, tmp_path):
        (tmp_path / "records.csv").write_text("epoch\n1\n")
        quiet_fit(make_step(), dataset(), 1, folder=tmp_path, resume=True, write=False)
        assert (tmp_path / "records.csv").read_text() == "epoch\n1\n"


def test_defaults_said_aloud_resume(done, tmp_path):
    """As without them, to the last bit; and a checkpoint that holds only what was given."""
    done.interrupted(done.paths[16], tmp_path / "run")
    step = make_step(normalise="samples", precision="O0", loss_scale=1, clip_norm=None)
    records = quiet_fit(step, dataset(), folder=tmp_path / "run", resume=True)
    assert comparable(records.rows) == done.rows
    assert_bit_equal(snapshot(step), done.final)


class TestRefused:
    """What would not continue as it began is refused; step and folder stay as they were."""

    def refused(self, done, folder, words, step=None, data=None, position=16):
        step = step or done.step
        done.interrupted(done.paths[position], folder)
        before, files = snapshot(step), bytes_of(folder)
        with pytest.raises(InputError, match=words):
            quiet_fit(step, data or dataset(), folder=folder, resume=True)
        assert_bit_equal(snapshot(step), before)
        assert bytes_of(folder) == files

    def test_another_network(self, done, tmp_path):
        words = r"another network: .* \(7,.*expected .* \(9,"
        self.refused(done, tmp_path / "wider", words, make_step(width=9))
        net = network(norm=True)
        optimizer = nn.Adam(net.trainable_params(), 0.02)
        with pytest.warns(UserWarning, match="BatchNorm"):
            other = AccumulatedStep(LossNet(net, loss_fn()), optimizer, 4)
        words = r"another network or step: it lacks .* and holds"
        self.refused(done, tmp_path / "norm", words, other)

    def test_another_optimizer(self, done, tmp_path):
        net = network()
        optimizer = nn.Momentum(net.trainable_params(), 0.02, 0.9)
        step = AccumulatedStep(LossNet(net, loss_fn()), optimizer, 4)
        self.refused(done, tmp_path / "run", "the optimizer is Momentum, .* has Adam;", step)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"micro_steps": 2}, "settings is .*'micro_steps': 2.*'micro_steps': 4"),
            ({"tail": "carry"}, "settings is .*carry.*flush"),
            ({"nonfinite": "propagate"}, "settings is .*propagate.*drop_micro"),
            ({"clip_norm": 1.0}, "settings is .*clip_norm"),
        ],
    )
    def test_other_settings_of_the_step(self, done, tmp_path, options, words):
        self.refused(done, tmp_path / "run", words, make_step(**options))

    def test_another_step(self, done, tmp_path):
        net = network()
        step = PlainStep(LossNet(net, loss_fn()), nn.Adam(net.trainable_params(), 0.02))
        self.refused(done, tmp_path / "run", "settings is .*PlainStep.*AccumulatedStep", step)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"seed": 2}, "seed is 2, the checkpoint's 1"),
            ({"batch": 3}, "epoch_size is 15, the checkpoint's 11"),
            ({"batch": 3, "rows": 35}, "batch_size is 3, the checkpoint's 4"),
            ({"rows": 50}, "epoch_size is 12, the checkpoint's 11"),
            ({"workers": 2}, r"workers is \[1, 2, 1\], the checkpoint's \[1, 1, 1\]"),
        ],
    )
    def test_other_data(self, done, tmp_path, options, words):
        self.refused(done, tmp_path / "run", words, data=dataset(**options))

    def test_a_file_that_is_no_checkpoint_of_fit(self, done, tmp_path, monkeypatch):
        def foreign(path, folder):
            checkpoint.write(done.step, folder / "checkpoint" / "step-000000001.ckpt")

        monkeypatch.setattr(done, "interrupted", foreign)
        self.refused(done, tmp_path / "run", "holds no position; expected a checkpoint written by")

    def test_without_start(self, done, tmp_path):
        ms.dataset.config.set_fast_recovery(True)
        try:
            self.refused(done, tmp_path / "run", "call labkit.start first")
        finally:
            ms.dataset.config.set_fast_recovery(False)

    def test_an_earlier_training_in_the_folder(self, done, tmp_path):
        for name in ("both", "records", "checkpoint"):
            folder = done.interrupted(done.paths[16], tmp_path / name)
            if name == "records":
                shutil.rmtree(folder / "checkpoint")
            if name == "checkpoint":
                (folder / "records.csv").unlink()
            before, files = snapshot(done.step), bytes_of(folder)
            with pytest.raises(InputError, match="holds an earlier training; give resume=True"):
                quiet_fit(done.step, dataset(), folder=folder)
            assert_bit_equal(snapshot(done.step), before)
            assert bytes_of(folder) == files

    @pytest.mark.parametrize("resume", [False, True])
    def test_a_folder_that_cannot_be_written(self, done, tmp_path, resume):
        (tmp_path / "file").write_text("here")
        before = snapshot(done.step)
        # /proc: not even root can make files there.
        for folder in (tmp_path / "file", tmp_path / "file" / "run", "/proc/self", "/proc/none"):
            with pytest.raises(InputError, match="cannot write to"):
                quiet_fit(done.step, dataset(), folder=folder, resume=resume)
        assert_bit_equal(snapshot(done.step), before)
        assert (tmp_path / "file").read_text() == "here"

    @pytest.mark.parametrize("value", [0, -1, 2.5, "3", True, None])
    def test_counts_that_are_none(self, done, tmp_path, value):
        for name in ("epochs", "keep", "checkpoint_every"):
            if name == "checkpoint_every" and value is None:
                continue
            named = {"epochs": 1, "folder": tmp_path / "run", name: value}
            with pytest.raises(InputError, match=f"{name} is {value!r}; expected an integer >= 1"):
                fit(done.step, dataset(), progress=None, **named)
        assert not (tmp_path / "run").exists()

    def test_numpy_integers_are_integers(self, done):
        assert len(quiet_fit(done.step, dataset(), np.int64(1))) == 3

    @pytest.mark.parametrize("option", [{"resume": True}, {"checkpoint_every": 3}])
    def test_what_needs_a_folder(self, done, option):
        with pytest.raises(InputError, match="resume and checkpoint_every need a folder"):
            quiet_fit(done.step, dataset(), **option)

    def test_data_without_a_batch(self, done, tmp_path):
        with pytest.raises(InputError, match="the dataset holds no batch"):
            quiet_fit(done.step, dataset(rows=3), folder=tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_workers_are_counted_for_each_map_and_source(monkeypatch):
    monkeypatch.setattr(ms.dataset.config, "get_num_parallel_workers", lambda: 2)
    assert data_workers(dataset(workers=1)) == [1, 1, 1]
    assert data_workers(dataset(workers=2)) == [1, 2, 1]
    assert data_workers(dataset(workers=None)) == [1, 2, 1]


def test_augmentation_depends_on_the_workers_of_its_own_map():
    """Why the numbers are kept one by one: their maximum is the default of the other operations."""

    def batches(workers):
        data = dataset(augment=True, workers=workers)
        return np.concatenate([b[0].asnumpy() for b in data.create_tuple_iterator(num_epochs=1)])

    one = batches(1)
    np.testing.assert_array_equal(one, batches(1))
    assert not np.array_equal(one, batches(2))


class TestRecords:
    def test_a_row_for_each_update_with_the_images_of_that_update(self, done):
        records = read_records(done.folder / "records.csv")
        assert list(records.rows[0]) == COLUMNS
        assert records.column("update") == list(range(1, 10))
        assert records.column("epoch") == [1, 1, 1, 2, 2, 2, 3, 3, 3]
        # 11 micro-batches of 4: two whole groups, and 3 flushed.
        assert records.column("images") == [16, 16, 12] * 3
        assert records.column("learning_rate") == [np.float32(0.02)] * 9
        seconds = records.column("seconds")
        assert seconds == sorted(seconds) and 0 < seconds[0] and seconds[-1] < 60
        # MindSpore alone takes 200 MB; a unit mistaken by 1000 lies outside.
        assert all(100 < peak < 20_000 for peak in records.column("peak_memory_mb"))

    def test_the_last_batch_counts_its_real_images(self):
        step = make_step()
        records = quiet_fit(step, dataset(drop=False), 2)
        # 46 rows: eleven batches of 4 and one of 2.
        assert records.column("images") == [16, 16, 14] * 2

    def test_a_group_larger_than_an_epoch_is_one_update(self):
        records = quiet_fit(make_step(micro_steps=100), dataset(), 2)
        assert records.column("images") == [44, 44]
        assert records.column("epoch") == [1, 2]

    def test_loss_and_norm_are_those_of_the_update(self, done):
        """The first update's loss is the mean over its 16 rows, not the last micro-batch's."""
        net = network()
        images, labels = [], []
        for batch in list(dataset().create_tuple_iterator(num_epochs=1))[:4]:
            images.append(batch[0].asnumpy())
            labels.append(batch[1].asnumpy())
        logits = net(ms.Tensor(np.concatenate(images))).asnumpy().astype(np.float64)
        expected = cross_entropy(logits, np.concatenate(labels))
        assert done.rows[0]["loss"] == pytest.approx(expected, rel=1e-6)

    def test_each_group_of_parameters_has_its_rate(self):
        net = network()
        weights = [p for p in net.trainable_params() if "weight" in p.name]
        biases = [p for p in net.trainable_params() if "bias" in p.name]
        groups = [{"params": weights, "lr": 0.5}, {"params": biases, "lr": 0.25}]
        step = AccumulatedStep(LossNet(net, loss_fn()), nn.SGD(groups, 0.5), 4)
        row = quiet_fit(step, dataset(), 1).rows[0]
        assert (row["learning_rate"], row["learning_rate_1"]) == (0.5, 0.25)


class TestProgress:
    def test_lines_with_the_name_and_the_last_update(self, done, capsys, monkeypatch):
        monkeypatch.setenv("LABKIT_HEADLESS", "1")
        fit(done.step, dataset(), 1, progress="lab 01")
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 1
        assert lines[0].startswith("lab 01 11/11 epoch ") and " loss " in lines[0]

    def test_none_is_silent(self, done, capsys):
        quiet_fit(done.step, dataset(), 1)
        shown = capsys.readouterr()
        assert shown.out == shown.err == ""


def cross_entropy(logits, labels):
    shifted = logits - logits.max(1, keepdims=True)
    log_probability = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return -log_probability[np.arange(len(labels)), labels].mean()


class TestEvaluate:
    def test_all_rows_count_alike(self):
        net = network()
        images, labels = images_and_labels(46)
        data = dataset(batch=8, drop=False)
        found = evaluate(net, loss_fn(), data)
        scaled = (images.transpose(0, 3, 1, 2) - 128) / 60
        logits = net(ms.Tensor(scaled.astype(np.float32))).asnumpy().astype(np.float64)
        assert set(found) == {"accuracy", "loss"}
        assert found["accuracy"] == (logits.argmax(1) == labels).mean()
        assert found["loss"] == pytest.approx(cross_entropy(logits, labels), rel=1e-5)
        # MindSpore's own metric is another number, as the last batch holds 6 rows of 8.
        model = Model(net, loss_fn(), metrics={"loss": nn.Loss()})
        stock = model.eval(data, dataset_sink_mode=False)["loss"]
        assert abs(stock - found["loss"]) > 1e-4 * found["loss"]

    def test_one_row(self):
        assert evaluate(network(), loss_fn(), dataset(rows=1, drop=False))["accuracy"] in (0, 1)

    def test_an_empty_dataset_is_refused(self):
        with pytest.raises(InputError, match="nothing to evaluate"):
            MeanLoss().eval()
        with pytest.raises(InputError, match="nothing to evaluate"):
            evaluate(network(), loss_fn(), dataset(rows=3))

    def test_in_the_middle_of_a_training_it_changes_nothing(self):
        def trained(*callbacks):
            net = network(norm=True)
            optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
            step = PlainStep(LossNet(net, loss_fn()), optimizer)
            quiet_fit(step, dataset(), callbacks=[make(net) for make in callbacks])
            return snapshot(step)

        found = []

        class Evaluation(Callback):
            def __init__(self, net):
                super().__init__()
                self.net = net

            def on_train_step_end(self, run_context):
                if run_context.original_args().cur_step_num % 4 == 0:
                    before = snapshot(self.net)
                    found.append(evaluate(self.net, loss_fn(), dataset(drop=False))["loss"])
                    assert_bit_equal(snapshot(self.net), before)
                    assert self.net.training

        without = trained()
        with_it = trained(Evaluation)
        assert len(found) == 8 and len(set(found)) == 8
        assert_bit_equal(with_it, without)
        assert "moving_mean" in " ".join(without) and np.any(
            [value for name, value in without.items() if "moving_mean" in name]
        )

    def test_it_uses_the_running_statistics_and_leaves_the_mode(self):
        net = network(norm=True)
        for training_mode in (False, True):
            net.set_train(training_mode)
            evaluate(net, loss_fn(), dataset())
            assert net.training is training_mode
        statistics = [p for p in net.get_parameters() if "moving" in p.name]
        assert statistics and all(np.ptp(p.asnumpy()) == 0 for p in statistics)


class TestEndOfEpoch:
    def test_the_tail_is_flushed_in_a_training_by_model(self, done):
        step = make_step()
        Model(step).train(EPOCHS, dataset(), callbacks=[EndOfEpoch(step)], dataset_sink_mode=False)
        assert_bit_equal(snapshot(step), done.final)

    def test_without_it_the_tail_is_not(self, done):
        step = make_step()
        Model(step).train(EPOCHS, dataset(), dataset_sink_mode=False)
        assert step.last_update.number == EPOCHS * 11 // 4 != len(done.rows)

    def test_sink_mode_is_refused(self, done):
        """On CPU MindSpore itself leaves sink mode; elsewhere a callback is told of it so."""

        def context(sink):
            arguments = _InternalCallbackParam()
            arguments.dataset_sink_mode = sink
            arguments.train_dataset = dataset()
            return RunContext(arguments)

        callback = EndOfEpoch(done.step)
        callback.on_train_begin(context(False))
        with pytest.raises(InputError, match="sink mode"):
            callback.on_train_begin(context(True))

    @pytest.mark.parametrize("start", [11, 5])
    def test_a_training_that_starts_later_ends_its_epochs_where_they_end(self, done, start):
        step = make_step()
        ended = []
        step.end_epoch = lambda: ended.append(int(step.micro_step.asnumpy()))
        data = dataset()
        data.set_init_step(start)
        Model(step).train(
            2,
            data,
            callbacks=[EndOfEpoch(step)],
            dataset_sink_mode=False,
            initial_epoch=start // 11,
        )
        assert ended == ([3] if start == 11 else [2, 1])


def test_stock_callbacks_work_beside_ours(done, tmp_path, capsys):
    step = make_step()
    stock = [
        LossMonitor(11),
        TimeMonitor(),
        ModelCheckpoint(prefix="stock", directory=str(tmp_path / "stock")),
    ]
    records = quiet_fit(step, dataset(), folder=tmp_path / "run", callbacks=stock)
    assert comparable(records.rows) == done.rows
    assert_bit_equal(snapshot(step), done.final)
    said = capsys.readouterr().out
    assert said.count("loss is") == EPOCHS and said.count("epoch time") == EPOCHS
    # MindSpore saves right after an epoch's last micro-batch; the tail is flushed before.
    saved = ms.load_checkpoint(str(tmp_path / "stock" / "stock-3_11.ckpt"))
    for name, value in done.final.items():
        np.testing.assert_array_equal(saved[name].asnumpy(), value, err_msg=name)


def test_stock_callbacks_count_on_after_a_resume(done, tmp_path):
    done.interrupted(done.paths[12], tmp_path / "run")
    counts = []

    class Count(Callback):
        def on_train_step_end(self, run_context):
            arguments = run_context.original_args()
            counts.append((arguments.cur_epoch_num, arguments.cur_step_num))

    quiet_fit(done.step, dataset(), folder=tmp_path / "run", resume=True, callbacks=[Count()])
    assert counts == [(2, n) for n in range(14, 23)] + [(3, n) for n in range(23, 34)]


def test_a_stop_in_the_middle_of_an_epoch_flushes_nothing_and_resumes(done, tmp_path):
    class Stop(Callback):
        def on_train_step_end(self, run_context):
            if run_context.original_args().cur_step_num == 14:
                run_context.request_stop()

    step = make_step()
    stopped = quiet_fit(step, dataset(), folder=tmp_path / "stop", callbacks=[Stop()])
    assert stopped.column("images") == [16, 16, 12]
    records = quiet_fit(step, dataset(), folder=tmp_path / "stop", resume=True)
    assert comparable(records.rows) == done.rows
    assert_bit_equal(snapshot(step), done.final)


def test_one_dataset_serves_several_trainings(done):
    data = dataset()
    restore(done.step, done.fresh)
    for _ in range(2):
        quiet_fit(done.step, data)
        assert_bit_equal(snapshot(done.step), done.final)
        restore(done.step, done.fresh)
        evaluate(network(), loss_fn(), data)
        Model(done.step).train(
            EPOCHS, data, callbacks=[EndOfEpoch(done.step)], dataset_sink_mode=False
        )
        assert_bit_equal(snapshot(done.step), done.final)
        restore(done.step, done.fresh)
        data.__dict__.pop("__model_hash__")


def test_a_callback_that_raises_leaves_a_training_that_resumes(done, tmp_path):
    class Stop(Callback):
        def on_train_step_end(self, run_context):
            if run_context.original_args().cur_step_num == 14:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quiet_fit(make_step(), dataset(), folder=tmp_path, checkpoint_every=3, callbacks=[Stop()])
    step = make_step()
    records = quiet_fit(step, dataset(), folder=tmp_path, resume=True)
    assert comparable(records.rows) == done.rows
    assert_bit_equal(snapshot(step), done.final)


class TestLengthOfSchedules:
    """An array that ends before the training does is refused at the door, with the numbers."""

    # 11 micro-batches an epoch; updates of two epochs.
    UPDATES = {
        "plain": (None, {}, 22),
        "flush": (4, {}, 6),
        "drop": (4, {"tail": "drop"}, 4),
        "carry": (4, {"tail": "carry"}, 4),
        "1": (1, {}, 22),
        "all": (11, {}, 2),
        "more than there are": (30, {}, 2),
        "more than there are, dropped": (30, {"tail": "drop"}, 0),
        "schedule": (lambda updates: 2 + updates % 3, {}, 8),
        "falling": (lambda updates: 9 - 2 * min(updates, 4), {}, 7),
    }

    def build(self, micro_steps, rates, options):
        net = network()
        sgd = nn.SGD(net.trainable_params(), rates)
        loss_net = LossNet(net, loss_fn())
        if micro_steps is None:
            return PlainStep(loss_net, sgd)
        return AccumulatedStep(loss_net, sgd, micro_steps, **options)

    @pytest.mark.parametrize("case", UPDATES)
    def test_counts_the_updates_that_fit_makes(self, case):
        micro_steps, options, expected = self.UPDATES[case]
        step = self.build(micro_steps, 0.01, options)
        assert step.updates_ahead([11, 11]) == expected
        if micro_steps is not None:
            quiet_fit(step, dataset(), 2)
            assert step.last_update.number == expected

    @pytest.mark.parametrize("case", ["plain", "flush", "schedule"])
    def test_one_too_few(self, case, tmp_path):
        micro_steps, options, expected = self.UPDATES[case]
        step = self.build(micro_steps, [0.01] * (expected - 1), options)
        before = snapshot(step)
        said = f"the learning rate has {expected - 1} values for {expected} updates; expected at"
        with pytest.raises(InputError, match=said):
            quiet_fit(step, dataset(), 2, folder=tmp_path / "run")
        assert not (tmp_path / "run").exists()
        assert_bit_equal(snapshot(step), before)

    def test_just_enough(self):
        step = self.build(4, [0.01] * 6, {})
        quiet_fit(step, dataset(), 2)
        assert step.last_update.number == 6
        # What was made before counts: the optimizer goes on in its array.
        with pytest.raises(InputError, match="has 6 values for 9 updates"):
            quiet_fit(step, dataset(), 1)

    def test_of_a_group(self):
        net = network()
        first, *others = net.trainable_params()
        groups = [{"params": [first]}, {"params": others, "lr": [0.1] * 5}]
        sgd = nn.SGD(groups, nn.ExponentialDecayLR(0.1, 0.5, 1))
        step = PlainStep(LossNet(net, loss_fn()), sgd)
        with pytest.raises(InputError, match="rate of group 1 has 5 values for 11 updates"):
            quiet_fit(step, dataset(), 1)

    def test_of_a_resumed_training(self, tmp_path):
        """From the middle of a group in the middle of an epoch; the same 6 are enough."""
        for count, enough in ((6, True), (5, False)):
            folder = tmp_path / str(count)
            step = self.build(4, [0.01] * count, {})
            quiet_fit(step, dataset(), 1, folder=folder, checkpoint_every=6)
            (folder / "checkpoint" / "step-000000011.ckpt").unlink()
            again = self.build(4, [0.01] * count, {})
            if enough:
                quiet_fit(again, dataset(), 2, folder=folder, resume=True)
                assert again.last_update.number == 6
            else:
                with pytest.raises(InputError, match="has 5 values for 6 updates"):
                    quiet_fit(again, dataset(), 2, folder=folder, resume=True)

    def test_a_resume_that_is_refused_changes_nothing(self, tmp_path):
        """Its rows are later than the checkpoint; with fewer epochs it can still be continued."""
        quiet_fit(self.build(4, [0.01] * 6, {}), dataset(), 2, folder=tmp_path, keep=5)
        (tmp_path / "checkpoint" / "step-000000022.ckpt").unlink()
        step, before = self.build(4, [0.01] * 6, {}), bytes_of(tmp_path)
        fresh = snapshot(step)
        with pytest.raises(InputError, match="has 6 values for 15 updates"):
            quiet_fit(step, dataset(), 5, folder=tmp_path, resume=True)
        assert_bit_equal(snapshot(step), fresh)
        assert bytes_of(tmp_path) == before
        quiet_fit(step, dataset(), 2, folder=tmp_path, resume=True)
        assert step.last_update.number == 6

    @pytest.mark.parametrize(("held", "size"), [(0, 0), (2**31 - 1, 4), (-1, 4), (0, -4)])
    def test_a_place_in_no_group_is_refused(self, tmp_path, held, size):
        """The updates ahead would be counted for ever."""
        step = self.build(4, 0.01, {})
        set_state(step.group_size, size)
        set_state(step.micro_step, held)
        run = _Training(step, dataset(), 1, tmp_path)
        run.share(None)
        checkpoint.save(step, run.position(), tmp_path / "checkpoint")
        again = self.build(4, 0.01, {})
        fresh = snapshot(again)
        with pytest.raises(InputError, match=f"after {held} of a group's {size} micro-batches"):
            quiet_fit(again, dataset(), 2, folder=tmp_path, resume=True)
        assert_bit_equal(snapshot(again), fresh)

    def test_schedules_without_an_end(self):
        for rate in (0.1, nn.ExponentialDecayLR(0.1, 0.5, 1)):
            self.build(None, rate, {}).check_length(10**6)

    def test_of_dampings(self):
        """The array that THOR is given as damping; a number and a function have no end."""
        dampings = [0.1] * 10
        for damping in (dampings, np.array(dampings), ms.Tensor(dampings)):
            net = network()
            step = ThorStep(LossNet(net, loss_fn()), nn.SGD(net.trainable_params(), 0.1), damping)
            step.check_length(10)
            with pytest.raises(InputError, match="damping has 10 values for 11 updates; expected"):
                quiet_fit(step, dataset(), 1)
            assert step.last_update.number == 0
        for damping in (0.1, lambda update: 0.1):
            net = network()
            step = ThorStep(LossNet(net, loss_fn()), nn.SGD(net.trainable_params(), 0.1), damping)
            step.check_length(10**6)
