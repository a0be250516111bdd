"""A short part of the campaign over all readers, and what the campaign counts as a failure."""

import itertools
import os
import random
import time

import pytest

from labkit.errors import InputError
from tests.campaigns import readers, worker
from tests.campaigns.reader import Reader
from tests.campaigns.table import READERS

LIGHT = sorted(name for name, reader in READERS.items() if not reader.heavy)
HEAVY = sorted(name for name, reader in READERS.items() if reader.heavy)
_SLOW = ("notebook", "results", "run", "sweep", "records")  # a report or an import of MindSpore


def _run(name, count):
    (tally,) = readers.campaign([name], count=count, say=lambda text: None)
    assert tally.inputs == count
    assert not tally.failures, next(iter(tally.failures.items()))
    return tally


@pytest.mark.parametrize("name", LIGHT)
def test_damaged_input_gives_a_result_or_one_line(name):
    _run(name, 20 if name in _SLOW else 100)


@pytest.mark.long
@pytest.mark.parametrize("name", HEAVY)
def test_damaged_weights_give_a_result_or_one_line(name):
    _run(name, 300)


def test_a_seed_gives_the_same_input_again():
    for name in LIGHT:
        make = READERS[name].make
        # Inputs made in between must not change a list among the odd values.
        first, *_, last = (make(random.Random(f"{name} {n}")) for n in (7, *range(60), 7))
        assert first == last, name


def _raising(error):
    def door(folder, out):
        raise error

    return door


TWO_LINES = InputError("x")
TWO_LINES.args = ("a\nb",)


@pytest.mark.parametrize(
    ("doors", "kind"),
    [
        ([_raising(InputError("a; b"))], "refused"),
        ([lambda folder, out: 1, _raising(InputError("x"))], "result"),
        ([_raising(TWO_LINES)], "failure"),
        ([_raising(ValueError("x"))], "failure"),
        ([_raising(MemoryError())], "failure"),
        ([_raising(RecursionError())], "failure"),
        ([_raising(SystemExit(2))], "failure"),
    ],
)
def test_only_an_input_error_of_one_line_is_no_failure(tmp_path, doors, kind):
    assert worker._judged(Reader(lambda rule: {}, doors), tmp_path, tmp_path)["kind"] == kind


def test_a_file_outside_is_seen(tmp_path):
    place = tmp_path / "work"
    place.mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x").write_text("canary")
    before = readers._outside(tmp_path, place)
    assert readers._outside(tmp_path, place) == before
    for path in (place / "new", tmp_path / "new", tmp_path / "outside" / "new"):
        path.write_text("")
        assert readers._outside(tmp_path, place) != before
        path.unlink()
    (tmp_path / "outside" / "x").write_text("changed")
    assert readers._outside(tmp_path, place) != before


def test_a_child_that_dies_or_hangs_is_a_failure_and_the_next_input_has_another(tmp_path):
    for name in ("home", "work/input", "work/out"):
        (tmp_path / name).mkdir(parents=True)
    place = tmp_path / "work"
    with readers.Child("yaml", place) as child:
        for call in (
            (os.abort,),
            (worker.within, 60, 0.1, time.sleep, 60),
            (worker.within, 0.1, 60, max, itertools.repeat(1)),
        ):
            answer = child.call(*call)
            assert answer["kind"] == "failure" and "most recent call first" in answer["text"]
            again = child.call(worker.answer, place / "input", place / "out")
            assert again["kind"] == "refused"
