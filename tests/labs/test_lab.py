"""A lab opens with its notebook's parameters, and hides what a reader need not see."""

import json

import pytest

import labkit
from labkit.labs.figures import common as plots
from labkit.labs.figures.interactive import Slider
from labkit.labs.presets import choose

NAME = "01_gradient_accumulation"


@pytest.fixture
def opened(runtime, tmp_path, monkeypatch):
    """(preset, changed settings) -> the lab, in a run folder of its own."""
    monkeypatch.setenv("LABKIT_RUN", str(tmp_path / "run"))

    def opened(preset="smoke", **named):
        cell = dict.fromkeys(choose(NAME, "lab")) | {"preset": preset, "device": "CPU"}
        return labkit.open_lab(NAME, cell | {"np": plots, "_": 3} | named)

    return opened


def test_none_is_the_presets_and_a_value_beats_it(opened, capsys):
    lab = opened(micro_steps=8)
    assert lab.settings == choose(NAME, "smoke", micro_steps=8)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("labkit: CPU (asked for)") and len(printed) == 2
    assert printed[1].startswith("preset smoke: epochs=1, batch_size=32, micro_steps=8")
    assert (lab.run.lab, lab.run.preset, lab.run.parameters) == (NAME, "smoke", lab.settings)


def test_values_and_claims_of_the_text_are_the_presets(opened, capsys):
    smoke, lab = opened(), opened("lab", seed=4)
    assert (smoke.value(smoke=1, lab=2), lab.value(smoke=1, lab=2)) == (1, 2)
    assert not smoke.as_written and lab.as_written
    assert not opened("lab", micro_steps=8).as_written
    capsys.readouterr()
    smoke.check_text(("accuracy", 0.1, "> 0.9"))
    assert "not compared with the text" in capsys.readouterr().out
    for check in (lab.check_text, lab.check, smoke.check):
        with pytest.raises(AssertionError, match="accuracy: 0.1, expected > 0.9"):
            check(("accuracy", 0.1, "> 0.9"))


@pytest.mark.parametrize(("preset", "drawn"), [("smoke", [1, 2]), ("lab", [1, 2, 3])])
@pytest.mark.usefixtures("shown")
def test_a_smoke_run_draws_two_stills(opened, preset, drawn):
    lab, seen = opened(preset=preset), []
    stills = [{"height": height} for height in (1, 2, 3)]
    height = Slider("height", 0, 3, 1, 1)
    lab.interactive(lambda axis, height: seen.append(height), "bar", "a bar", stills, height=height)
    assert seen == drawn


@pytest.mark.parametrize(
    ("guess", "line"),
    [
        (None, "none; measured 4 times │ to compare, set guess = a number and run again"),
        (4.1, "4.1; measured 4 times │ close"),
        (3, "3; measured 4 times │ near"),
        (1, "1; measured 4 times │ far off: why?"),
    ],
)
def test_a_guess_is_compared(opened, guess, line, capsys):
    lab = opened()
    capsys.readouterr()
    lab.compare_guess(guess, 4.0, "times")
    assert capsys.readouterr().out == f"your guess │ {line}\n"


def test_its_end_is_in_the_run_folder(opened, capsys):
    lab = opened()
    metrics = {"test accuracy": 0.98, "more": 1, "net": "LeNet", "fits": True}
    lab.finish(metrics, ["test accuracy", "net", "fits"])
    assert capsys.readouterr().out.endswith("test accuracy: 0.98\nnet: LeNet\nfits: True\n")
    assert json.loads((lab.run.folder / "results.json").read_text())["metrics"] == metrics
