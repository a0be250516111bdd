"""What is read out of the race of PyTorch and MindSpore, from a table that is known in full."""

import math

import pytest

from labkit.errors import InputError
from labkit.labs.results import migration_race as race
from labkit.labs.results import write
from tests.support.races import invented_migration

# Of the rows PyTorch 1, MindSpore 1, PyTorch 2, MindSpore 2, and PyTorch 1 backwards.
ENDS = [0.9 + (2 + 3 * number) / 400 for number in range(5)]


@pytest.fixture
def stored():
    return invented_migration({"seeds": [1, 2]}, 3, 6, ("PyTorch", "MindSpore", race.AVX2))


def test_what_is_written_is_read(stored, tmp_path):
    write(race.NAME, stored, tmp_path)
    assert race.load(tmp_path) == stored


def test_accuracies_are_by_framework_and_seed(stored):
    assert race.accuracies(stored, "PyTorch") == [ENDS[0], ENDS[2]]
    assert race.accuracies(stored, "MindSpore") == [ENDS[1], ENDS[3]]


def test_the_gap_is_that_of_the_means_and_the_spread_the_smaller_one(stored):
    gap, spread = race.gap_and_spread(stored)
    assert math.isclose(gap, 3 / 400) and math.isclose(spread, 6 / 400)
    stored.rows[3]["last_accuracy"] = ENDS[1]  # MindSpore's seeds agree
    gap, spread = race.gap_and_spread(stored)
    assert spread == 0 and math.isclose(gap, 0, abs_tol=1e-12)


def test_losses_are_compared_with_pytorchs_of_the_same_seed(stored):
    def of(number, update):
        return (1 + number * (update - 1) / 100) / update

    for seed, framework, order, ours, theirs in (
        (1, "MindSpore", "given", 1, 0),
        (2, "MindSpore", "given", 3, 2),
        (1, "PyTorch", "backwards", 4, 0),
    ):
        off = race.loss_differences(stored, seed, framework, order)
        expected = [of(ours, u) / of(theirs, u) - 1 for u in range(1, 7)]
        assert off == pytest.approx(expected, rel=1e-9) and off[0] == 0 < off[1]
    assert set(race.loss_differences(stored, 2, "PyTorch")) == {0.0}


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda s: race.accuracies(s, "Pytorch"), "Did you mean 'PyTorch'"),
        (lambda s: race.accuracies(s, "JAX"), "unknown framework 'JAX'"),
        (lambda s: race.loss_differences(s, 7, "MindSpore"), "'seed': 7.*not raced"),
        (lambda s: race.loss_differences(s, 1, "MindSpore", "backwards"), "was not raced"),
        (lambda s: race.setting_of("PyTorch", "backward"), "Did you mean 'backwards'"),
    ],
)
def test_what_was_not_raced_is_refused(stored, ask, message):
    with pytest.raises(InputError, match=message):
        ask(stored)
