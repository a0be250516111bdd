"""A training resumed from any checkpoint ends like the uninterrupted one, to the last bit.

One battery tests every step: a new step adds a line to ``SCENARIOS``. ``test_kill.py`` tests what a
killed process leaves, ``test_on_ranks.py`` several ranks.
"""

import pytest
from mindspore import nn

from labkit.steps.options import DynamicLossScale
from labkit.training import checkpoint
from labkit.training.records import read_records
from tests.support.step_cells import assert_bit_equal, restore, snapshot
from tests.support.trainings import (
    EPOCHS,
    Training,
    accumulated_thor,
    adasum,
    comparable,
    dataset,
    make_step,
    muon_and_adamw,
    plain,
    position_of,
    quiet_fit,
    subspace,
    thor,
)

pytestmark = [
    pytest.mark.usefixtures("runtime"),
    pytest.mark.filterwarnings("ignore:the network holds a trainable BatchNorm"),
]

DROPPED = {"loss_scale": DynamicLossScale(2.0**10, 2.0, 3), "nonfinite": "drop_group"}


def scheduled():
    """A step in which every part of the state changes: rate, size of the group, loss scale."""
    rates = nn.ExponentialDecayLR(0.02, 0.5, 2)
    return make_step(lambda updates: 2 + updates % 3, rate=rates, **DROPPED)


# name -> (function that makes the step, its options, options of the data). In an epoch of 11
# micro-batches in groups of 4, the last group holds 3. A spoiled row 5 is not finite.
SPOILED = {"spoiled_row": 5}
SCENARIOS = {
    "plain": (plain, {}, {}),
    "Muon and AdamW": (muon_and_adamw, {}, {}),
    "drop": (make_step, {"tail": "drop"}, {}),
    "schedule": (scheduled, {}, SPOILED),
    "smaller last batch": (make_step, {}, {"drop": False}),
    "augmentation": (make_step, {"tail": "carry"}, {"augment": True}),
    "augmentation by two workers": (make_step, {}, {"augment": True, "workers": 2}),
    "loss scale and nan": (make_step, DROPPED, SPOILED),
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
    # One epoch in each call is the same, too.
    restore(whole.step, whole.fresh)
    data = whole.data()
    rows = [row for _ in range(EPOCHS) for row in quiet_fit(whole.step, data, 1).rows]
    assert comparable(rows) == whole.rows
    assert_bit_equal(snapshot(whole.step), whole.final)


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
