"""A stored result comes back as it was written, and a damaged one is refused."""

import math

import pytest

from labkit.errors import InputError
from labkit.labs.results import Stored, load, mean_steps, steps_to, write

NAME = "thor_race"


def point(update, accuracy):
    return {"update": update, "accuracy": accuracy, "loss": 0.5, "training_loss": 0.25}


@pytest.fixture
def stored():
    rows = [
        {"run": 1, "stage": "race", "rate": 0.1, "options": '{"split": null}', "failure": None},
        {"run": 2, "stage": "tune", "rate": 3, "options": None, "failure": "E: a, b\n c"},
    ]
    return Stored({"command": "x", "tuned": {}}, rows, {1: [point(39, 0.5), point(78, 0.985)]})


def test_what_is_written_is_read(stored, tmp_path):
    write(NAME, stored, tmp_path / "new")
    loaded = load(NAME, tmp_path / "new")
    assert loaded == stored
    assert type(loaded.curves[1][0]["update"]) is int and type(loaded.rows[0]["rate"]) is float
    stored.rows[1]["rate"] = math.nan
    write(NAME, stored, tmp_path)
    assert math.isnan(load(NAME, tmp_path).rows[1]["rate"])


def test_rows_are_selected_by_their_fields(stored):
    assert stored.select(stage="race") == [stored.rows[0]]
    assert stored.select(stage="race", rate=3) == []
    with pytest.raises(InputError, match="unknown field 'stge'.*Did you mean 'stage'"):
        stored.select(stge="race")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        *[(f"thor_race{end}", None, f"{end} cannot be read.*benchmarks/thor_race.py")
          for end in (".json", ".csv", "_curves.csv")],
        ("thor_race.json", "{", "thor_race.json cannot be read"),
        ("thor_race.json", "[]", "is damaged"),
        ("thor_race.csv", 'run,stage\n1,"ra"ce\n', "thor_race.csv cannot be read"),
        ("thor_race.csv", "run,stage\n1\n", "too many fields, or too few"),
        ("thor_race.csv", "run,stage\n1,race,more\n", "too many fields, or too few"),
        ("thor_race.csv", "run,stage\n", "is damaged"),
        ("thor_race_curves.csv", "run,update\n1,39\n", "is damaged"),
        ("thor_race_curves.csv", "", "is damaged"),
    ],
)  # fmt: skip
def test_a_missing_or_damaged_file_is_refused(stored, tmp_path, name, text, message):
    write(NAME, stored, tmp_path)
    (tmp_path / name).unlink()
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        load(NAME, tmp_path)


def test_an_unknown_name_is_refused(stored, tmp_path):
    for call in (lambda: load("thor_rase"), lambda: write("thor_rase", stored, tmp_path / "x")):
        with pytest.raises(InputError, match="Did you mean 'thor_race'"):
            call()
    assert not (tmp_path / "x").exists()


def test_steps_to_is_the_first_point_and_a_mean_needs_every_training():
    curve = [point(39, 0.97), point(78, 0.985), point(117, 0.98), point(156, 0.99)]
    assert [steps_to(curve, target) for target in (0.5, 0.98, 0.985, 0.99)] == [39, 78, 78, 156]
    assert steps_to(curve, 0.991) is None and steps_to([], 0.5) is None
    assert steps_to([{"update": 1, "accuracy": None}, *curve], 0.5) == 39
    assert mean_steps([312, 351, 351]) == 338
    assert mean_steps([312, None, 351]) is None and mean_steps([]) is None
