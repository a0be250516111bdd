"""A notebook that `labkit run` has really executed, on a page and in a chart."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from labkit.tools import cli
from tests.support import run_folders as folders
from tests.support.html_pages import check

ROOT = Path(cli.__file__).resolve().parents[2]
SOURCE = """
from labkit.training.records import Records
from labkit.labs.run import Run

run = Run.open("01_sums", preset=preset, parameters={"epochs": 2})
records = Records(run.folder / "records.csv")
for update in range(1, 9):
    records.add(update=update, loss=1 / update, seconds=0.1 * update)
records.close()
run.finish({"last loss": 1 / 8}, headline=["last loss"])
import labkit

print("the end", labkit.attach(run.folder))
"""


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """A project with one lab, executed; the folder of the run."""
    project = tmp_path_factory.mktemp("project")
    (project / "notebooks").mkdir()
    (project / "pyproject.toml").write_text('[project]\nname = "labkit"\n')
    cells = [folders.markdown("# 01 · Sums\n\n$\\sum_i x_i$"), folders.code(
        'preset = "lab"\ndevice = "auto"'), folders.code(SOURCE)]  # fmt: skip
    cells[1]["metadata"] = {"tags": ["parameters"]}
    path = project / "notebooks" / "01_sums.ipynb"
    path.write_text(json.dumps(folders.notebook(*cells)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.delenv("LABKIT_RUN", raising=False)
        done = CliRunner().invoke(cli.app, ["run", "--preset", "smoke", "--out", "runs/one"])
    assert done.exit_code == 0, done.output
    return project / "runs" / "one"


def test_its_report_has_its_numbers_its_curve_and_its_notebook(executed):
    done = CliRunner().invoke(cli.app, ["report", str(executed)])
    assert done.exit_code == 0, done.output
    out = Path(done.stdout.strip())
    report = check(out.read_text())
    assert "1 passed" in report.text and "last loss" in report.text and "0.125" in report.text
    assert "loss (nats) over update" in report.text and "loss (nats) over time (s)" in report.text
    (link,) = [link for link in report.links if not link.startswith("#")]
    assert "the end running" in check((out.parent / link).read_text()).text


def test_in_a_notebook_without_a_browser_the_figure_of_attach_is_there(executed):
    cells = json.loads((executed / "01_sums" / "01_sums.ipynb").read_text())["cells"]
    kinds = [kind for output in cells[-1]["outputs"] for kind in output.get("data", ())]
    assert kinds.count("image/png") == 1


def test_it_can_be_attached_to_and_compared_with_itself(executed):
    shown = CliRunner().invoke(cli.app, ["attach", str(executed), "--once"])
    assert shown.exit_code == 0 and "01_sums: passed" in shown.output
    same = CliRunner().invoke(cli.app, ["compare", str(executed), str(executed / "01_sums")])
    assert same.exit_code == 0 and same.output.startswith("no differences")
