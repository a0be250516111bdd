"""Headline metrics against the stored run: inside, outside, not compared; and labs.json itself."""

import json
import math
import sys

import pytest

from labkit.errors import InputError
from labkit.tools.reports import reference
from tests.support import run_folders as folders


def rows(tmp_path, amount=0.005, entry=(), **changes):
    place = folders.stored(tmp_path / "stored", amount, **dict(entry))
    return reference.against_reference(folders.results(**changes), place)


def metric(value, kind="absolute", amount=0.005):
    return {"metrics": {"m": {"value": value, "kind": kind, "amount": amount, "reason": "why"}}}


def test_inside_and_outside_the_tolerance(tmp_path):
    (row,) = rows(tmp_path)
    assert row.within and row.verdict == "within" and row.tolerance == "± 0.005"
    assert row.by == pytest.approx(-0.002) and row.reason == "spread of four seeds"
    (row,) = rows(tmp_path, metrics={"test accuracy": 0.99})
    assert row.within is False and row.verdict == "outside by 0.003"


def test_the_edge_of_the_tolerance_is_inside():
    assert reference.is_within(0.9805, 0.9825, "absolute", 0.002)
    assert not reference.is_within(0.98049, 0.9825, "absolute", 0.002)


@pytest.mark.parametrize(
    "value, kind, amount, within",
    [
        (1e-9, "at most", 1e-6, True),
        (2e-6, "at most", 1e-6, False),
        (10, "equal", None, True),
        (9, "equal", None, False),
        (None, "equal", None, False),
        (math.nan, "at most", 1e-6, False),
        ("nan", "absolute", 0.1, False),
        ("nan", "none", None, True),
        (None, "absolute", 0.1, False),
        (True, "absolute", 20, False),
    ],
)
def test_kinds_of_tolerance_and_values_that_are_no_numbers(value, kind, amount, within):
    assert reference.is_within(value, 10, kind, amount) is within


def test_a_goal_that_was_not_reached_is_a_value_of_its_own(tmp_path):
    (row,) = rows(tmp_path, entry=metric(None, "equal", None), metrics={"m": None}, headline=["m"])
    assert row.within and row.by is None
    (row,) = rows(tmp_path, entry=metric(None, "equal", None), metrics={"m": 17}, headline=["m"])
    assert row.within is False and row.verdict == "outside"


def test_what_has_no_tolerance_is_shown_and_not_judged(tmp_path):
    (row,) = rows(tmp_path, entry=metric(546, "none", None), metrics={"m": None}, headline=["m"])
    assert row.within is None and row.verdict == "not compared: no tolerance"
    assert (row.reference, row.tolerance) == (546, "none")


def test_a_stored_metric_that_the_run_does_not_have_is_outside(tmp_path):
    (row,) = rows(tmp_path, metrics={"other": 1}, headline=[])
    assert row.within is False and "no such metric" in row.verdict


def test_other_parameters_are_not_compared_but_other_seeds_are(tmp_path):
    (row,) = rows(tmp_path, parameters={**folders.PARAMETERS, "seed": 7})
    assert row.within
    (row,) = rows(tmp_path, parameters={**folders.PARAMETERS, "epochs": 1})
    assert row.within is None and row.verdict == "not compared: epochs is 1, stored 3"
    (row,) = rows(tmp_path, parameters={**folders.PARAMETERS, "new": 1})
    assert row.within is None and "new is 1" in row.verdict
    (row,) = rows(tmp_path, entry={"any_seed": False}, parameters={**folders.PARAMETERS, "seed": 7})
    assert row.within is None and "seed is 7, stored 1" in row.verdict


def test_what_is_not_stored_and_what_has_not_passed(tmp_path):
    (row,) = rows(tmp_path, preset="paper")
    assert row.within is None and "no stored run" in row.verdict
    _, row = rows(tmp_path, headline=["test accuracy", "updates"])
    assert row.within is None and row.verdict == "not compared: not stored"
    assert rows(tmp_path, status="failed") == []


def test_a_damaged_file_is_refused_with_the_program_that_makes_it(tmp_path):
    (tmp_path / "labs.json").write_text('{"smoke"')
    with pytest.raises(InputError, match="benchmarks/reference_runs.py"):
        reference.load(tmp_path)


def test_every_headline_metric_of_every_lab_is_stored_at_both_presets(root):
    from labkit.labs.presets import LABS

    found = reference.load()
    names = {path.stem for path in (root / "notebooks").glob("[0-9][0-9]_*.ipynb")}
    for preset in ("smoke", "lab"):
        assert set(found[preset]) == names
        for name, entry in found[preset].items():
            assert entry["metrics"] and isinstance(entry["any_seed"], bool)
            known = {**LABS.get(name, {}).get(preset, {})}
            # A preset that has changed since makes every comparison "not compared".
            assert entry["parameters"] == known, f"{name}: run benchmarks/reference_runs.py again"


def test_the_stored_runs_are_inside_their_own_tolerances():
    for preset, labs in reference.load().items():
        for name, entry in labs.items():
            for metric_name, stored in entry["metrics"].items():
                kind, amount = stored["kind"], stored["amount"]
                assert stored["reason"] and reference.tolerance_text(stored)
                for seed, value in stored["measured"]:
                    where = f"{preset} {name} {metric_name} seed {seed}"
                    assert reference.is_within(value, stored["value"], kind, amount), where


@pytest.fixture
def program(root, monkeypatch):
    import importlib.util

    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    path = root / "benchmarks" / "reference_runs.py"
    spec = importlib.util.spec_from_file_location("reference_runs", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tolerances = {"smoke": {folders.LAB: {"test accuracy": ("absolute", 0.01, "why")}}}
    monkeypatch.setattr(module, "TOLERANCES", tolerances)
    yield module
    sys.modules.pop("_lab_tolerances", None)


def make(program, tmp_path, second=0.975, any_seed=True, monkeypatch=None, **changes):
    runs = [folders.write_run(tmp_path / "one")]
    other = {"parameters": {**folders.PARAMETERS, "seed": 2}, "metrics": {"test accuracy": second}}
    runs.append(folders.write_run(tmp_path / "two", **{**other, **changes}))
    program.ANY_SEED = {"smoke": any_seed}
    return program.main([*map(str, runs), "--out", str(tmp_path)])


def test_the_program_stores_the_first_run_and_what_the_others_gave(program, tmp_path, capsys):
    assert make(program, tmp_path) == 0
    entry = reference.load(tmp_path)["smoke"][folders.LAB]
    assert entry["metrics"]["test accuracy"] == {
        "value": 0.98, "kind": "absolute", "amount": 0.01, "reason": "why",
        "measured": [[1, 0.98], [2, 0.975]],
    }  # fmt: skip
    assert entry["command"] == f"labkit run {folders.LAB} --preset smoke"
    assert "1 metrics of 2 runs" in capsys.readouterr().out


def test_the_program_prints_what_is_stored(program, tmp_path, capsys):
    assert program.main(["--out", str(folders.stored(tmp_path / "s"))]) == 0
    assert capsys.readouterr().out.split()[-2:] == ["±", "0.005"]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"second": 0.95}, "does not cover"),
        ({"status": "failed"}, "is failed"),
        ({"parameters": {**folders.PARAMETERS, "epochs": 9}}, "epochs"),
    ],
)
def test_the_program_refuses(program, tmp_path, capsys, changes, message):
    assert make(program, tmp_path, **changes) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "labs.json").exists()


def test_the_program_refuses_a_headline_metric_without_tolerance(program, tmp_path, capsys):
    run = folders.write_run(tmp_path / "one", headline=["test accuracy", "updates"])
    assert program.main([str(run), "--out", str(tmp_path)]) == 2
    assert "'updates'" in capsys.readouterr().err


def test_the_program_keeps_the_entries_of_other_labs(program, tmp_path):
    folders.stored(tmp_path)
    stored = json.loads((tmp_path / "labs.json").read_text())
    stored["lab"] = stored["smoke"]
    (tmp_path / "labs.json").write_text(json.dumps(stored))
    assert make(program, tmp_path) == 0
    assert set(reference.load(tmp_path)) == {"lab", "smoke"}
