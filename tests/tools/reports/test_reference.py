"""Headline metrics against the stored run: inside, outside or not compared; labs.json itself."""

import importlib
import json
import math

import pytest

from labkit.errors import InputError
from labkit.labs.presets import LABS
from labkit.tools.reports import reference
from tests.support import run_folders as folders


def asked(**parameters):
    return {"parameters": {**folders.PARAMETERS, **parameters}}


@pytest.fixture
def rows(tmp_path, monkeypatch):
    def compared(entry=(), **changes):
        monkeypatch.setattr(reference, "FOLDER", folders.stored(tmp_path / "stored", **dict(entry)))
        return reference.against_reference(folders.results(**changes))

    return compared


def metric(value, kind):
    return {"metrics": {"m": {"value": value, "kind": kind, "amount": None, "reason": "why"}}}


def test_a_row_has_value_stored_value_tolerance_and_reason(rows):
    (row,) = rows()
    assert (row.value, row.reference, row.tolerance) == (0.98, 0.982, "± 0.005")
    assert row.by == pytest.approx(-0.002) and row.reason == "spread of four seeds"


@pytest.mark.parametrize(
    ("changes", "within", "verdict"),
    [
        ({}, True, "within"),
        ({"metrics": {"test accuracy": 0.99}}, False, "outside by 0.003"),
        ({"metrics": {"other": 1}, "headline": []}, False, "outside: the run has no such metric"),
        ({"entry": metric(None, "equal"), "metrics": {"m": None}}, True, "within"),
        ({"entry": metric(None, "equal"), "metrics": {"m": 17}}, False, "outside"),
        ({"entry": metric(546, "none"), "metrics": {"m": None}}, None,
         "not compared: no tolerance"),
        (asked(seed=7), True, "within"),
        (asked(seed=7) | {"entry": {"any_seed": False}}, None, "not compared: seed is 7, stored 1"),
        (asked(epochs=1), None, "not compared: epochs is 1, stored 3"),
        (asked(epochs=1) | {"metrics": {"other": 1}, "headline": []}, None,
         "not compared: epochs is 1, stored 3"),
        (asked(new=1), None, "not compared: new is 1, stored None"),
        ({"preset": "paper"}, None,
         f"not compared: no stored run of {folders.LAB} at preset paper"),
    ],
)  # fmt: skip
def test_the_verdict_on_a_metric(rows, changes, within, verdict):
    (row,) = rows(**changes)
    assert (row.within, row.verdict) == (within, verdict)
    if row.tolerance == "none":
        assert row.reference == 546


def test_what_is_not_stored_and_what_has_not_passed(rows, tmp_path):
    _, row = rows(headline=["test accuracy", "updates"])
    assert row.within is None and row.verdict == "not compared: not stored"
    assert rows(status="failed") == []
    (tmp_path / "labs.json").write_text('{"smoke"')
    with pytest.raises(InputError, match="benchmarks/reference_runs.py"):
        reference.load(tmp_path)


@pytest.mark.parametrize(
    "value, kind, amount, within",
    [
        # The bound is inclusive, although 10.3 - 10 is 0.3000000000000007.
        (10.3, "absolute", 0.3, True),
        (10.30001, "absolute", 0.3, False),
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


def test_every_headline_metric_of_every_lab_is_stored_at_both_presets(root):
    """Each measured value is within the tolerance of its metric."""
    stored = reference.load()
    names = {path.stem for path in (root / "notebooks").glob("[0-9][0-9]_*.ipynb")}
    assert {preset: set(labs) for preset, labs in stored.items()} == {"smoke": names, "lab": names}
    for preset, labs in stored.items():
        for lab, entry in labs.items():
            assert entry["metrics"] and isinstance(entry["any_seed"], bool)
            # If a preset has changed since, every comparison becomes "not compared".
            known = LABS.get(lab, {}).get(preset, {})
            assert entry["parameters"] == known, f"{lab}: run benchmarks/reference_runs.py again"
            for name, row in entry["metrics"].items():
                assert row["reason"] and reference.tolerance_text(row)
                for seed, value in row["measured"]:
                    within = reference.is_within(value, row["value"], row["kind"], row["amount"])
                    assert within, (preset, lab, name, seed)


@pytest.fixture
def program(root, monkeypatch):
    monkeypatch.syspath_prepend(root / "benchmarks")
    module = importlib.import_module("reference_runs")
    tolerances = {"smoke": {folders.LAB: {"test accuracy": ("absolute", 0.01, "why")}}}
    monkeypatch.setattr(module, "TOLERANCES", tolerances)
    monkeypatch.setattr(module, "ANY_SEED", {"smoke": True})
    return module


def make(program, tmp_path, second=0.975, **changes):
    runs = [folders.write_run(tmp_path / "one")]
    other = {**asked(seed=2), "metrics": {"test accuracy": second}}
    runs.append(folders.write_run(tmp_path / "two", **{**other, **changes}))
    return program.main([*map(str, runs), "--out", str(tmp_path)])


def test_the_program_stores_the_first_run_and_keeps_the_entries_of_others(
    program, tmp_path, capsys
):
    folders.stored(tmp_path)
    assert program.main(["--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.split()[-2:] == ["±", "0.005"]
    stored = json.loads((tmp_path / "labs.json").read_text())
    (tmp_path / "labs.json").write_text(json.dumps({**stored, "lab": stored["smoke"]}))
    assert make(program, tmp_path) == 0
    assert set(reference.load(tmp_path)) == {"lab", "smoke"}
    entry = reference.load(tmp_path)["smoke"][folders.LAB]
    assert entry["metrics"]["test accuracy"] == {
        "value": 0.98, "kind": "absolute", "amount": 0.01, "reason": "why",
        "measured": [[1, 0.98], [2, 0.975]],
    }  # fmt: skip
    assert entry["command"] == f"labkit run {folders.LAB} --preset smoke"
    assert "1 metrics of 2 runs" in capsys.readouterr().out


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"second": 0.95}, "does not cover"),
        ({"status": "failed"}, "is failed"),
        (asked(epochs=9), "epochs"),
    ],
)
def test_the_program_refuses(program, tmp_path, capsys, changes, message):
    assert make(program, tmp_path, **changes) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "labs.json").exists()
    run = folders.write_run(tmp_path / "three", headline=["test accuracy", "updates"])
    assert program.main([str(run), "--out", str(tmp_path)]) == 2
    assert "'updates'" in capsys.readouterr().err
