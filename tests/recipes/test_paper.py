"""With preset paper of the notebooks, an interrupted run of a recipe resumes where it stopped.

The cells that train are executed with the values of preset paper; ``train`` only records its call.
test_battery.py shows that a recipe resumes when it is called like this.
"""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit.labs import presets
from labkit.recipes.adasum import NAMED
from labkit.recipes.subspace import STAGE_TWO, StageOneConfig
from labkit.recipes.thor import NAMED as THOR
from labkit.recipes.training import Recipe

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
DATA, ONE_DEVICE = "folder of images", NAMED["one_device"]
# Notebook -> (names that other cells define, settings of each training without its folders).
LABS = {
    "03_thor_in_depth": ({"NAMED": THOR}, {"resnet50": THOR["ascend"]}),
    "04_adasum_in_depth": ({"config": ONE_DEVICE}, {"resnet50": ONE_DEVICE}),
    "05_dimension_reduction_in_depth": (
        {"stage_one": StageOneConfig(), "STAGE_TWO": STAGE_TWO},
        {"stage_1": StageOneConfig(snapshot_start_epoch=31), "stage_2": STAGE_TWO["tutorial"]},
    ),
}


def full_scale(path):
    """The cells of a notebook that train a recipe, in order."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return [x for x in sources if 'if preset == "paper":' in x and ".train(" in x]


@pytest.mark.parametrize("name", LABS)
def test_every_training_is_the_documents_and_goes_on(name, tmp_path, monkeypatch):
    """Executed again, as after an interruption, the cells repeat the training in its folder."""
    calls, (defined, trainings) = [], LABS[name]
    record = lambda self, *given, **options: calls.append((*given, options))  # noqa: E731
    monkeypatch.setattr(Recipe, "train", record)
    run = SimpleNamespace(path=lambda folder: tmp_path / folder)
    known = {"preset": "paper", "device": "CPU", "replace": replace} | defined
    settings = presets.choose(name, "paper", data=DATA)
    known |= {"run": run, "lab": SimpleNamespace(run=run, settings=settings)}
    known |= settings | {"settings": settings}
    for _ in range(2):
        names = dict(known)
        for source in full_scale(NOTEBOOKS / f"{name}.ipynb"):
            exec(source, names)
    expected = []
    for folder, config in trainings.items():
        stage_1 = {"stage_1": str(tmp_path / "stage_1")} if folder == "stage_2" else {}
        own = replace(config, save_checkpoint_path=str(tmp_path / folder), **stage_1)
        expected.append((own, DATA, {"device": "CPU", "resume": True}))
    assert calls == expected * 2


def test_no_other_notebook_trains_a_recipe():
    """A notebook that did would have to resume too, and to be in the list above."""
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb") if full_scale(path)} == LABS.keys()
