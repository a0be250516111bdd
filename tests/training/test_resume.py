"""A training resumed from any checkpoint ends like the uninterrupted one, to the last bit.

One battery tests every step: a new step adds a line to ``SCENARIOS``. ``test_kill.py`` tests what a
killed process leaves, ``test_on_ranks.py`` several ranks.
"""

import numpy as np
import pytest
from mindspore import nn

from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.losses import LossNet
from labkit.steps.options import DynamicLossScale
from labkit.training import checkpoint
from labkit.training.records import read_records
from tests.support.resuming import (
    EPOCHS,
    Training,
    accumulated_thor,
    adasum,
    plain,
    position_of,
    subspace,
    thor,
)
from tests.support.step_cells import assert_bit_equal, restore, snapshot
from tests.support.trainings import comparable, dataset, loss_fn, make_step, network

pytestmark = [
    pytest.mark.usefixtures("runtime"),
    pytest.mark.filterwarnings("ignore:the network holds a trainable BatchNorm"),
]

SCALE = DynamicLossScale(2.0**10, 2.0, 3)
# name -> (function that makes the step, its options, options of the data). In an epoch of 11
# micro-batches in groups of 4, the last group holds 3. A spoiled row 5 is not finite.
SPOILED = {"spoiled_row": 5}
SCENARIOS = {
    "plain": (plain, {}, {}),
    "flush": (make_step, {}, {}),
    "carry": (make_step, {"tail": "carry"}, {}),
    "drop": (make_step, {"tail": "drop"}, {}),
    "schedule": (make_step, {"micro_steps": lambda updates: 2 + updates % 3}, {}),
    "smaller last batch": (make_step, {}, {"drop": False}),
    "augmentation by two workers": (make_step, {}, {"augment": True, "workers": 2}),
    "loss scale and nan": (make_step, {"loss_scale": SCALE, "nonfinite": "drop_group"}, SPOILED),
    # 6 micro-batches an epoch: in groups of 4 the second group is a flushed tail.
    "thor": (thor, {}, {"rows": 26}),
    "accumulated thor": (accumulated_thor, {}, {"rows": 26}),
    "adasum": (adasum, {"workers": 3, "micro_steps": 2}, SPOILED),
    "adasum, drop": (adasum, {"workers": 4, "tail": "drop"}, SPOILED),
    "adasum of gradients": (adasum, {"workers": 2, "on": "gradients", "micro_steps": 2}, SPOILED),
    "subspace": (subspace, {"sigma": 0.95, "trials": 2}, SPOILED),
    "accumulated subspace": (subspace, {"micro_steps": 4}, SPOILED),
}

# Also resumed once by a newly built step, which knows nothing but the checkpoint.
ANEW = ("thor", "adasum of gradients", "subspace")


@pytest.mark.parametrize("name", SCENARIOS)
def test_from_any_checkpoint(name, tmp_path):
    """Within a group or a team, between refreshes, and at the ends of epochs."""
    make, options, data = SCENARIOS[name]
    whole = Training(tmp_path / "whole", lambda: make(**options), lambda: dataset(**data))
    size = whole.data().get_dataset_size()
    by_number = {position_of(path).micro_batches: path for path in whole.paths}
    if name == "accumulated subspace":  # saved only at the end of a group
        assert list(by_number) == [4, 8, 11, 15, 19, 22, 26, 30, 33]
    else:
        assert list(by_number) == list(range(1, EPOCHS * size + 1))
    assert_remembers(name, whole)
    taken = {1, 4, 6, 8, size, size + 1, size + 5, 2 * size, EPOCHS * size - 1}
    taken = sorted(taken & by_number.keys())
    for number in taken:
        # The compiled step continues from a state other than its own.
        step = None if number == taken[2] and name in ANEW else whole.step
        folder = tmp_path / str(number)
        rows, final = whole.resumed(by_number[number], folder, step)
        assert_bit_equal(final, whole.final)
        assert rows == whole.rows
        assert comparable(read_records(folder / "records.csv").rows) == rows


def assert_remembers(name, whole):
    """Assert that the training had something to remember, else the test would prove nothing."""
    final = whole.final
    if SCENARIOS[name][2] == SPOILED:
        assert final["step.dropped"] >= EPOCHS
    if name == "thor":  # some layer was skipped or frozen
        update = whole.step.update
        assert update.refreshes.asnumpy().min() < whole.rows[-1]["update"] / 3
    if name == "subspace":
        failed = sum(row["step_size"] == 0 for row in whole.rows)
        assert final["step.subspace.failures"] == failed == whole.rows[-1]["failed_searches"] > 0
        assert whole.rows[-1]["trials"] == final["step.subspace.trials"]
        assert all(1 <= row["trials"] <= 2 for row in whole.rows)
        held = checkpoint.read(whole.paths[0])
        # The basis, of 6 rows, is not in the checkpoint.
        assert max(value.size for value in held.values()) < 6 * 16 * 7


@pytest.fixture(scope="module")
def whole(runtime, tmp_path_factory):
    """A training in which every Parameter of the state changes.

    It has schedules of rate and group size, a dynamic loss scale and a row that is not finite.
    """

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
    """Two checkpoints in the middle of an epoch and of a group.

    In the first, the group has a non-finite micro-batch, and nothing else in it matters; in the
    second it has none.
    """
    by_spoiled = {}
    for path in whole.paths:
        values = {n: v for n, v in checkpoint.read(path).items() if n.startswith("step.")}
        state = {name: float(np.ravel(value.asnumpy())[0]) for name, value in values.items()}
        if position_of(path).micro_batches % 11 and state["step.updates"] > 1:
            if state["step.weight_sum"] and state["step.dropped"]:
                by_spoiled.setdefault(bool(state["step.spoiled"]), path)
    return [by_spoiled[True], by_spoiled[False]]


class TestNothingLeftOut:
    """If a resume leaves out any part of the state, the training ends differently."""

    # last_* leave no trace: they describe an update and are overwritten by the next one.
    WITHOUT_TRACE = {"step.last_loss", "step.last_norm", "step.last_images", "step.last_rates"}

    def left_out(self, whole, path, folder, monkeypatch, left_out):
        load_into = checkpoint.load_into

        def partly(step, values, origin):
            load_into(step, values, origin)
            restore(step, {**snapshot(step), **{n: whole.fresh[n] for n in left_out}})

        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "load_into", partly)
            return whole.resumed(path, folder, whole.step)

    def test_each_parameter_of_the_state_counts(self, whole, in_a_group, tmp_path, monkeypatch):
        without_trace = set(whole.fresh)
        for path in in_a_group:
            folder = tmp_path / path.stem
            _, final = self.left_out(whole, path, folder / "all", monkeypatch, [])
            assert_bit_equal(final, whole.final)
            for number, name in enumerate(sorted(without_trace)):
                own = folder / str(number)
                rows, final = self.left_out(whole, path, own, monkeypatch, [name])
                same = all(np.array_equal(final[n], whole.final[n]) for n in final)
                if not same or rows != whole.rows:
                    without_trace.remove(name)
        assert without_trace == self.WITHOUT_TRACE

    def test_the_position_of_the_data_counts(self, whole, in_a_group, tmp_path, monkeypatch):
        data = whole.data()
        monkeypatch.setattr(data, "set_init_step", lambda step: None)
        monkeypatch.setattr(whole, "data", lambda: data)
        # At the end of an epoch MindSpore by itself repeats the first epoch's order.
        for path in (in_a_group[1], whole.paths[10]):
            _, final = whole.resumed(path, tmp_path / path.stem, whole.step)
            assert not np.array_equal(final["1.weight"], whole.final["1.weight"])
