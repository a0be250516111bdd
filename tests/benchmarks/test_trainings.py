"""What the races share: a stored result is read as it was written."""

import math

import pytest
from _trainings import write

from labkit.errors import InputError
from labkit.labs.results import Stored, load

NAME = "thor_race"


@pytest.fixture
def stored():
    rows = [
        {"run": 1, "stage": "race", "rate": 0.1, "options": '{"split": null}', "failure": None},
        {"run": 2, "stage": "tune", "rate": 3, "options": None, "failure": "E: a, b\n c"},
    ]
    points = [
        {"update": update, "accuracy": accuracy, "loss": 0.5, "training_loss": 0.25}
        for update, accuracy in ((39, 0.5), (78, 0.985))
    ]
    return Stored({"command": "x", "tuned": {}}, rows, {1: points})


def test_what_is_written_is_read(stored, tmp_path):
    write(NAME, stored, tmp_path / "new")
    loaded = load(NAME, tmp_path / "new")
    assert vars(loaded) == vars(stored)
    assert type(loaded.curves[1][0]["update"]) is int and type(loaded.rows[0]["rate"]) is float
    stored.rows[1]["rate"] = math.nan
    write(NAME, stored, tmp_path)
    assert math.isnan(load(NAME, tmp_path).rows[1]["rate"])


def test_an_unknown_name_is_refused_before_anything_is_written(stored, tmp_path):
    with pytest.raises(InputError, match="Did you mean 'thor_race'"):
        write("thor_rase", stored, tmp_path / "x")
    assert not (tmp_path / "x").exists()
