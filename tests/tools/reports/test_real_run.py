"""A notebook that `labkit run` has really executed, on a page and in a chart."""

import json
from pathlib import Path

import pytest

from tests.support.command import labkit
from tests.support.html_pages import check
from tests.support.lab_projects import ROOT, write_labs

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
    """The run folder of a project with one lab that was executed."""
    project = tmp_path_factory.mktemp("project")
    write_labs(project, {"01_sums": [SOURCE]}, card="# 01 · Sums\n\n$\\sum_i x_i$")
    (project / "work").mkdir()
    (project / "work" / "01_sums.ipynb").write_text("a learner's own, which nobody executes")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.delenv("LABKIT_RUN", raising=False)
        done = labkit("run", "--preset", "smoke", "--out", "runs/sums")
    assert done.exit_code == 0, done.output
    assert [path.name for path in (project / "work").iterdir()] == ["01_sums.ipynb"]
    assert "a learner's own" in (project / "work" / "01_sums.ipynb").read_text()
    return project / "runs" / "sums"


def test_its_report_has_its_numbers_its_curve_and_its_notebook(executed):
    done = labkit("report", executed)
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
