"""Preset paper of the notebooks: an interrupted run of a recipe goes on where it stood.

The cells themselves are executed, on 40 images, with settings that train within seconds.
"""

import ast
import itertools
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit.recipes import adasum_config, subspace_config, thor_config
from labkit.training.records import Records
from tests.support.recipes import NAMES, settings

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SHARED = {"batch_size": 10, "momentum": 0.9, "seed": 1}


def full_scale(lab):
    """The cells of a lab that train a recipe, in order; those of its second notebook come last."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(NOTEBOOKS.glob(f"{lab}_*.ipynb"))]
    cells = [cell for text in texts for cell in json.loads(text)["cells"]]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return [source for source in sources if trainings(source)]


def trainings(source):
    """The calls of a recipe's ``train`` that a cell of preset paper makes."""
    if 'if preset == "paper":' not in source:
        return []
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    functions = [(node, node.func) for node in calls if isinstance(node.func, ast.Attribute)]
    return [
        node
        for node, function in functions
        if function.attr == "train"
        and isinstance(function.value, ast.Name)
        and function.value.id in ("recipe", *NAMES)
    ]


@pytest.mark.parametrize(("lab", "count"), [("03", 1), ("04", 1), ("05", 2)])
def test_every_training_goes_on(lab, count):
    calls = [call for source in full_scale(lab) for call in trainings(source)]
    assert len(calls) == count
    for call in calls:
        given = {each.arg: each.value for each in call.keywords}
        assert ast.literal_eval(given["resume"]) is True, ast.unparse(call)


def test_no_other_notebook_trains_a_recipe():
    """One that did would have to go on too, and be in the list above."""
    others = {path.name[:2] for path in NOTEBOOKS.glob("*.ipynb")} - {"03", "04", "05"}
    assert others == {"00", "01", "02"}
    assert [lab for lab in others if full_scale(lab)] == []


@pytest.fixture
def cells(data, tmp_path):
    """A function: lab, the notebook's own names and settings -> its cells, to be executed."""

    def prepare(lab, names, values):
        known = {
            "preset": "paper",
            "device": "CPU",
            "settings": SHARED | values | {"data": str(data)},
            "run": (run := SimpleNamespace(path=lambda name: tmp_path / name)),
            "lab": SimpleNamespace(run=run),
        }
        return full_scale(lab), known | names | {"replace": replace}

    return prepare


class Interrupted(BaseException):
    """As KeyboardInterrupt, but nobody else's."""


def goes_on(source, names, folder, monkeypatch, capsys, *, rows, at):
    """Execute a cell that is interrupted before row ``at``, and again; check that it goes on.

    Args:
        source: of the cell.
        names: what it finds.
        folder: of its run, with records.csv.
        monkeypatch: pytest's.
        capsys: pytest's.
        rows: of the whole training.
        at: of them, the first that the interrupted run does not write.
    """
    write, count = Records._write, itertools.count()

    def interrupted(self, path, row):
        if next(count) == at:
            raise Interrupted
        write(self, path, row)

    with monkeypatch.context() as patch:
        patch.setattr(Records, "_write", interrupted)
        with pytest.raises(Interrupted):
            exec(source, names)
    before = (folder / "records.csv").read_text().splitlines()
    assert len(before) == 1 + at
    assert "resumed after" not in capsys.readouterr().out
    exec(source, names)
    # Four micro-batches an epoch, and a checkpoint after the first.
    assert "labkit: resumed after micro-batch 4\n" in capsys.readouterr().out
    lines = (folder / "records.csv").read_text().splitlines()
    kept = 1 + rows // 2
    assert len(lines) == 1 + rows and lines[:kept] == before[:kept]


@pytest.mark.usefixtures("runtime", "small")
class TestAnInterruptedRun:
    def test_thor(self, cells, tmp_path, monkeypatch, capsys):
        small = settings("thor", tmp_path)
        values = {"frequency": 2, "weight_decay": 5e-4, "learning_rate": 0.02, "damping": 0.3}
        (source,), names = cells(
            "03", {"NAMED": thor_config.NAMED | {"ascend": small}}, values | {"thor_epochs": 2}
        )
        folder = tmp_path / "resnet50"
        goes_on(source, names, folder, monkeypatch, capsys, rows=8, at=6)
        assert names["trained"].evaluation["loss"] > 0

    def test_adasum(self, cells, tmp_path, monkeypatch, capsys):
        values = {"workers": 2, "learning_rate": 0.02, "epochs": 2}
        small = settings("adasum", tmp_path)
        assert isinstance(small, type(adasum_config.NAMED["one_device"]))
        (source,), names = cells("04", {"config": small}, values)
        folder = tmp_path / "resnet50"
        goes_on(source, names, folder, monkeypatch, capsys, rows=4, at=3)
        assert names["trained"].evaluation["loss"] > 0

    def test_both_stages_of_dimension_reduction(self, cells, tmp_path, monkeypatch, capsys):
        small = settings("subspace_stage_1", tmp_path)
        second = {"tutorial": settings("subspace_stage_2", tmp_path)}
        values = {"learning_rate": 0.05, "epochs": 2, "start_epoch": 1, "saves_per_epoch": 2}
        values |= {"second_batch_size": 10, "second_epochs": 2, "components": 3, "trials": 4}
        own = {"one": small, "STAGE_TWO": subspace_config.STAGE_TWO | second}
        sources, names = cells("05", own, values)
        for source, stage in zip(sources, ("stage_1", "stage_2"), strict=True):
            goes_on(source, names, tmp_path / stage, monkeypatch, capsys, rows=8, at=6)
        assert list((tmp_path / "stage_1" / "checkpoint_pca").glob("step-*"))
