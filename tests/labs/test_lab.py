"""A lab opens with its notebook's parameters; its claims are compared; its run folder holds all."""

import json
import math

import numpy as np
import pytest
from mindspore import Tensor, nn
from papermill.translators import PythonTranslator

import labkit
from labkit.labs import claims
from labkit.labs.figures import common as plots
from labkit.labs.presets import choose
from labkit.labs.run import Run, last_lines, plain

NAME = "01_gradient_accumulation"


@pytest.fixture
def opened(runtime, tmp_path, monkeypatch):
    """(preset, changed settings) -> the lab, in a run folder of its own."""
    monkeypatch.setenv("LABKIT_RUN", str(tmp_path / "run"))
    monkeypatch.delenv("LABKIT_PRESET", raising=False)  # it would take the place of lab

    def opened(preset="smoke", **named):
        cell = choose(NAME, "lab") | {"preset": preset, "device": "CPU"}
        return labkit.open_lab(NAME, cell | {"np": plots, "_": 3} | named)

    return opened


def test_settings_values_and_claims_of_the_text_are_the_presets(opened, capsys):
    eight = opened(micro_steps=8)
    assert eight.settings == choose(NAME, "smoke", micro_steps=8) == eight.run.parameters
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("labkit: CPU (asked for)") and len(printed) == 2
    assert printed[1].startswith("preset smoke: micro_batch=32, micro_steps=8")
    smoke, lab = opened(), opened("lab", seed=4)
    assert (smoke.value(smoke=1, lab=2), lab.value(smoke=1, lab=2)) == (1, 2)
    for other in (smoke, opened("lab", micro_steps=8)):
        capsys.readouterr()
        other.check_text(("accuracy", 0.1, "> 0.9"))
        assert "not compared with the text" in capsys.readouterr().out
    for check in (lab.check_text, lab.check, smoke.check):
        with pytest.raises(AssertionError, match="accuracy: 0.1, expected > 0.9"):
            check(("accuracy", 0.1, "> 0.9"))


def test_a_preset_replaces_what_is_still_labs_and_not_what_is_named(opened, monkeypatch):
    lab, smoke = (choose(NAME, preset) for preset in ("lab", "smoke"))
    assert opened(**lab).settings == opened("lab", **smoke).settings == smoke != lab
    assert opened(**lab | {"micro_steps": 8}).settings == smoke | {"micro_steps": 8}
    # Of papermill's cell a value stays even if it is lab's own: a sweep over it at smoke.
    named = {"train_images": lab["train_images"]}
    code = PythonTranslator.codify(named | {"device": "CPU"})
    namespace = dict(lab) | {"preset": "lab", "device": "CPU", "In": ["", code]}
    monkeypatch.setenv("LABKIT_PRESET", "smoke")
    assert labkit.open_lab(NAME, namespace).settings == smoke | named
    assert {name: namespace[name] for name in smoke} == smoke | named
    namespace["In"].append("# Parameters\npreset = 'lab'\n")
    assert labkit.open_lab(NAME, namespace).run.preset == "lab"


def test_what_does_not_compile_leaves_nothing_beside_the_notebook(opened, tmp_path, monkeypatch):
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    monkeypatch.delenv("MS_OM_PATH", raising=False)
    folder = opened().run.folder
    with pytest.raises(Exception, match="analyze_fail.ir"):
        nn.Dense(3, 2)(Tensor(np.ones((1, 4), np.float32)))
    assert not any((tmp_path / "notebooks").iterdir()) and [*folder.glob("rank_0/*/*.ir")]


HOLD = [
    (1e-6, "< 1e-5"), (np.float32(0.06), "> 5 %"), (5, "≥ 5"), (5, "≤ 5.0"), (4.00005, "4 ± 1e-4"),
    (0.0104, "1 % ± 0.1 %"), (-3.0, "-3 ± 0"), ((128, 96), [128, 96]), ("float32", "float32"),
    (469, 469), (np.array([3, 4]), [3, 4]), ([3, 4], np.array([3, 4])),
]  # fmt: skip
FAIL = [
    (1e-5, "< 1e-5"), (0.05, "> 5 %"), (4.9, "≥ 5"), (5.1, "≤ 5"), (4.0002, "4 ± 1e-4"),
    (3.9998, "4 ± 1e-4"), (math.nan, "< 1"), (math.nan, "> 1"), (math.nan, "0 ± 9"),
    ([128], [128, 96]), (False, True), (468, 469),
]  # fmt: skip


def test_claims_that_hold_get_their_mark_and_others_are_named_after_all_rows(capsys):
    claims.check(*(("a claim", *each) for each in HOLD))
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [(line[:9], line[-1]) for line in lines] == [("a claim │", "✓")] * len(HOLD)
    for measured, expected in FAIL:
        with pytest.raises(AssertionError, match="^this one: .*, expected "):
            claims.check(("fine", 1, 1), ("this one", measured, expected), ("fine", 2, "> 1"))
        assert [line[-1] for line in capsys.readouterr().out.splitlines()[1:]] == [*"✓✗✓"]


def test_columns_stand_below_each_other_and_shares_are_percents(capsys):
    claims.check(("gap", 0.1234, "> 5 %"), ("a longer name", 2.25e-7, "< 1e-5"))
    assert capsys.readouterr().out == (
        "              │ measured │ expected\n"
        "gap           │ 12.3 %   │ > 5 %    ✓\n"
        "a longer name │ 2.25e-07 │ < 1e-5   ✓\n"
    )


def test_the_folder_is_in_the_project_and_new_each_time_or_the_runners(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mindspore-labs"\n')
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    monkeypatch.delenv("LABKIT_RUN", raising=False)
    first, again = (Run.open("01_sums", preset="smoke", parameters={}) for _ in range(2))
    assert first.folder.parent == again.folder.parent == tmp_path / "runs"
    assert first.folder.name.startswith("01_sums-smoke-20") and first.folder != again.folder
    monkeypatch.setenv("LABKIT_RUN", str(tmp_path / "here" / "01_sums"))
    named = Run.open("01_sums", preset="smoke", parameters={})
    assert named.folder == tmp_path / "here" / "01_sums" and named.folder.is_dir()
    for value in (1, 2):  # the records of a custom loop start anew
        records = named.records("race/THOR")
        records.add(update=1, accuracy=value)
    assert (named.folder / "race/THOR/records.csv").read_text() == "update,accuracy\n1,2\n"


def test_results_hold_what_was_run_and_what_came_out(opened, capsys):
    lab = opened(seed=3)
    metrics = {"test accuracy": np.float32(0.5), "curve": np.arange(2), "equal": np.bool_(True)}
    lab.finish({**metrics, "lost": float("nan"), "net": "LeNet"}, ["test accuracy", "net"])
    assert capsys.readouterr().out.endswith("test accuracy: 0.5\nnet: LeNet\n")
    results = json.loads((lab.run.folder / "results.json").read_text())
    expected = {"test accuracy": 0.5, "curve": [0, 1], "equal": True, "lost": "nan", "net": "LeNet"}
    assert results["metrics"] == expected and results["headline"] == ["test accuracy", "net"]
    assert (results["lab"], results["preset"], results["device"]) == (NAME, "smoke", "CPU")
    assert (results["parameters"], results["status"]) == (lab.settings, "passed")
    assert (results["runtime"]["device"], results["runtime"]["seed"]) == ("CPU", 3)
    assert {"python", "mindspore", "numpy", "labkit", "platform"} == results["versions"].keys()


def test_numbers_become_plain_json_and_others_are_refused_by_their_place():
    record = {"a": np.float32(0.5), "b": np.arange(3), "c": (math.inf, -math.inf, math.nan)}
    assert plain(record, "record") == {"a": 0.5, "b": [0, 1, 2], "c": ["inf", "-inf", "nan"]}
    with pytest.raises(TypeError, match=r"metrics\['a'\]\[1\]: expected numbers.*, got object"):
        plain({"a": [1, object()]}, "metrics")


def test_the_last_lines_of_a_log_are_what_a_terminal_shows(tmp_path):
    log = tmp_path / "log.txt"
    log.write_bytes(b"1\n\n2\n\nhalf a letter \xc3\n0 %\r50 %\r100 %\r\n")
    assert last_lines(log, 3) == ["2", "half a letter \ufffd", "100 %"]
    assert last_lines(tmp_path / "none", 15) == []
