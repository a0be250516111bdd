"""A stored result's rows are selected by their fields, and a damaged one is refused."""

import shutil

import pytest

from labkit.errors import InputError
from labkit.labs.results import load, mean_steps, steps_to
from labkit.labs.results.stored import FOLDER

NAME = "thor_race"


def point(update, accuracy):
    return {"update": update, "accuracy": accuracy, "loss": 0.5, "training_loss": 0.25}


def test_rows_are_selected_by_their_fields():
    stored = load(NAME)
    selected = stored.select(stage="race", net="LeNet")
    assert selected and selected == [
        row for row in stored.rows if row["stage"] == "race" and row["net"] == "LeNet"
    ]
    assert stored.select(stage="race", run=-1) == []
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
def test_a_missing_or_damaged_file_is_refused(tmp_path, name, text, message):
    for end in (".json", ".csv", "_curves.csv"):
        shutil.copy(FOLDER / f"{NAME}{end}", tmp_path)
    load(NAME, tmp_path)
    (tmp_path / name).unlink()
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        load(NAME, tmp_path)


def test_an_unknown_name_is_refused():
    with pytest.raises(InputError, match="Did you mean 'thor_race'"):
        load("thor_rase")


def test_steps_to_is_the_first_point_and_a_mean_needs_every_training():
    curve = [point(39, 0.97), point(78, 0.985), point(117, 0.98), point(156, 0.99)]
    assert [steps_to(curve, target) for target in (0.5, 0.98, 0.985, 0.99)] == [39, 78, 78, 156]
    assert steps_to(curve, 0.991) is None and steps_to([], 0.5) is None
    assert steps_to([{"update": 1, "accuracy": None}, *curve], 0.5) == 39
    assert mean_steps([312, 351, 351]) == 338
    assert mean_steps([312, None, 351]) is None and mean_steps([]) is None
