"""What every committed notebook is, and how `make notebooks` executes them."""

import ast
import base64
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from papermill.inspection import inspect_notebook

from labkit.labs.presets import choose
from labkit.tools.labs import parameter_names, read_lab, read_notebook
from scripts import notebooks
from scripts.notebooks import COMPARED
from tests.support import answers
from tests.support.answers import LABS

FOLDER = Path(__file__).parents[2] / "notebooks"
PICTURES = {path.read_bytes() for path in FOLDER.parent.glob("docs/figures/*")}
# A folder of a user or of an installation, not the path of a URL.
PATH = re.compile(r"(?<![\w.:/])/(?:home|root|Users|tmp|var|opt|mnt|usr|work)/[\w.+@-]+")


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_it_is_executed_at_lab_and_can_be_committed(path):
    """`make notebooks` checks whether outputs are up to date, which takes minutes and may wait."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata["labkit"]["preset"] == "lab"
    assert path.stat().st_size <= 500_000
    assert path.read_text(encoding="utf-8") == nbformat.writes(notebook).rstrip("\n") + "\n"
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.execution_count or not cell.source, cell.source
            assert not PATH.search(json.dumps(cell.outputs)), f"a local path: {cell.source}"
            assert not any(output.output_type == "error" for output in cell.outputs)
        else:  # a picture inside is seen in any folder; docs/figures has it to be edited
            inside = re.findall(r"^\[flow\]: data:image/[a-z+]+;base64,(\S+)$", cell.source, re.M)
            assert cell.source.count("![") == cell.source.count("][flow]") == len(inside)
            assert {base64.b64decode(picture) for picture in inside} <= PICTURES


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_papermill_shows_type_meaning_and_value_of_every_parameter(path):
    shown, settings = inspect_notebook(path), choose(path.stem, "lab")
    assert [*shown] == parameter_names(read_lab(path)) and {*shown} >= settings.keys()
    for name, each in shown.items():
        assert each["inferred_type_name"] in ("int", "float", "str") and each["help"], name
        if settings.get(name):
            assert float(settings[name]).is_integer() or each["inferred_type_name"] == "float"
            assert float(each["default"]) == settings[name]


def test_plain_pytest_executes_notebooks(tmp_path):
    """Measured columns are masked, and the cells of a notebook stay together."""
    claims = 'print("gap │", a, time.time(), "│ < 1 ✓")'
    cells = [new_code_cell("import time"), new_code_cell("a = 1"), new_code_cell(claims)]
    cells[2] |= {"outputs": [new_output("stream", text="gap │ 0 │ < 1 ✓\n")], "execution_count": 3}
    cells[2].metadata["tags"] = [COMPARED]
    nbformat.write(new_notebook(cells=cells), tmp_path / "01_tiny.ipynb")
    for name in ("conftest.py", "sanitize.cfg"):
        shutil.copy(FOLDER / name, tmp_path)
    command = [sys.executable, "-m", "pytest", "--nbval-lax", "-n", "2", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "3 passed" in done.stdout, done.stdout


@pytest.mark.parametrize("lab", LABS)
def test_a_solution_defines_every_exercise_once_and_checks_it_in_its_cell(lab):
    """Exercises are in the lab's order; tests/labs/exercises executes the cells, and they pass."""
    path = answers.FOLDER / f"{lab}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "committed without outputs"
    checked = []
    for source in answers.code(path):
        defined = re.findall(r"^def (\w+)\(", source, re.M)
        names = re.findall(r'^passed = check\("(\w+)", \1\)$', source, re.M)
        assert names == defined[-1:] and source.count("check(") == len(names), source
        checked += [(name, set(defined)) for name in names]
    assert [name for name, _ in checked] == [each.name for each in LABS[lab][0].EXERCISES]
    owners = [name for _, defined in checked for name in defined]
    assert len(owners) == len(set(owners)), "a later cell would replace what an earlier one uses"


def torch_column():
    """Return PyTorch's numbers that the notebook quotes, by the labels of MindSpore's numbers."""
    values, cells = {}, read_notebook(FOLDER / "00_start_here.ipynb")["cells"]
    for source in (cell["source"] for cell in cells if cell["cell_type"] == "code"):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                values[node.targets[0].id] = node.value
    labels = [key.value for key in values["here"].keys]
    return dict(zip(labels, ast.literal_eval(values["pytorch"].args[0].args[1]), strict=True))


def test_the_numbers_of_pytorch_in_notebook_00_are_true():
    torch = pytest.importorskip("torch")
    nn, image = torch.nn, torch.zeros(1, 1, 28, 28)
    conv, minus_one = nn.Conv2d(1, 1, 3), torch.tensor(-1.0)
    torch.manual_seed(1)
    assert torch_column() == {
        "LeakyReLU()(-1)": round(float(nn.LeakyReLU()(minus_one)), 3),
        "Dropout(0.2): share dropped": nn.Dropout(0.2).p,
        "Conv2d(1, 1, 3): side of a 28 x 28 image": conv(image).shape[-1],
        "Conv2d(1, 1, 3): tensors of parameters": len(list(conv.parameters())),
        "MaxPool2d(2): side of a 28 x 28 image": nn.MaxPool2d(2)(image).shape[-1],
        "LayerNorm(8): epsilon": nn.LayerNorm(8).eps,
        "GELU()(-1)": round(float(nn.GELU()(minus_one)), 4),
        "Embedding(1000, 32): spread": round(
            float(nn.Embedding(1000, 32).weight.detach().std()), 2
        ),
    }
    norm = nn.BatchNorm1d(2)  # and what the text says of a new one, and of a new Dropout
    norm(torch.full((64, 2), 5.0))
    assert norm.running_mean.tolist() == pytest.approx([0.5, 0.5]) and norm.momentum == 0.1
    assert 150 < int((nn.Dropout(0.2)(torch.ones(1000)) == 0).sum()) < 250
    assert torch.optim.AdamW([torch.nn.Parameter(minus_one)]).defaults["weight_decay"] == 0.01


RUN = """
import json, os, time
from pathlib import Path
preset = os.environ["LABKIT_PRESET"]
folder = Path(os.environ["LABKIT_RUN"])
results = {"device": "CPU", "versions": {"labkit": "1", "platform": "x"}}
written = (folder / "results.json").write_text(json.dumps(results))
"""


class Project:
    """A small project in ``folder``, whose notebook ``python -m scripts.notebooks`` executes."""

    def __init__(self, folder):
        self.folder, self.path = folder, folder / "notebooks" / "01_tiny.ipynb"

    def call(self, *arguments):
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            return notebooks.main(list(arguments))

    def write(self, name, text):
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)

    def read(self):
        return nbformat.read(self.path, as_version=4)

    def edit(self, source):
        notebook = self.read()
        notebook.cells[1].source = source
        nbformat.write(notebook, self.path)


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    compared = new_code_cell('print("preset", preset)\nprint("gap │", time.time(), "│ 1")')
    compared.metadata["tags"] = [COMPARED]
    cells = [new_code_cell(RUN), compared, new_code_cell("print(time.time())")]
    project = Project(tmp_path_factory.mktemp("notebooks") / "project")
    project.write("pyproject.toml", '[project]\nname = "mindspore-labs"\n')
    project.write("labkit/step.py", "rate = 1\n")
    project.write("data_scripts/digits.py", "")
    project.write("notebooks/sanitize.cfg", (FOLDER / "sanitize.cfg").read_text())
    project.write("notebooks/01_tiny.ipynb", nbformat.writes(new_notebook(cells=cells)))
    assert project.call() == 0
    return project


@pytest.fixture
def project(executed, tmp_path):
    return Project(Path(shutil.copytree(executed.folder, tmp_path / "project")))


def test_outputs_come_back_with_a_stamp_and_nothing_is_executed_twice(project, capsys):
    first = project.read()
    assert first.cells[1].outputs[0].text.startswith("preset lab\n")
    stamp = first.metadata["labkit"]
    assert (stamp["device"], stamp["preset"], stamp["versions"]) == ("CPU", "lab", {"labkit": "1"})
    assert project.call() == 0 and "up to date" in capsys.readouterr().out
    assert project.read() == first
    for file, why in {
        "labkit/tools/report.py": "",
        "labkit/step.py": "changed: labkit",
        "data_scripts/digits.gz": "changed: labkit, data",
        "constraints.txt": "changed: labkit, data, versions",
    }.items():
        project.write(file, "changed")
        assert notebooks.why_stale(project.folder, first) == why


def test_a_changed_cell_is_executed_and_a_failing_one_leaves_the_file(project, capsys):
    project.edit("print('new')")
    assert notebooks.why_stale(project.folder, project.read()) == "changed: notebook"
    assert project.call("01") == 0
    assert project.read().cells[1].outputs[0].text == "new\n"
    project.edit("1 / 0")
    before = project.path.read_bytes()
    assert project.call() == 1
    assert "ZeroDivisionError" in capsys.readouterr().out
    assert project.path.read_bytes() == before


def test_forced_tagged_outputs_must_stay_and_others_may_differ(project, capsys):
    """What a table of claims has measured is masked, as nbval masks it."""
    before = project.read()
    assert project.call("--force") == 0
    notebook = project.read()
    assert notebook.cells[2].outputs != before.cells[2].outputs
    notebook.cells[1].outputs[0].text = "preset smoke\n"
    nbformat.write(notebook, project.path)
    assert project.call("--force") == 1
    assert "preset smoke" in capsys.readouterr().out
    assert project.call("--force", "--accept") == 0
    with pytest.raises(SystemExit, match="2"):
        project.call("nothing")
