"""The notebooks in JupyterLab as a person uses them: `make lab`, a browser, Run All Cells."""

import os
import re
import subprocess
import sys
import urllib.error

import pytest

from tests.support.lab_server import ROOT

# Sliders of a notebook, each with its initial position and the one after each key press.
MOVED = {
    "01_gradient_accumulation": {
        "micro-batches so far": ["7.0", "8.0", "9.0", "10.0", "11.0"],
        "images in the first micro-batch": ["16.0", "64.0", "112.0"],
    },
    "02_resnet50_migration": {
        "rows of the input": ["8.0", "9.0", "10.0", "11.0"],
        "fault planted": ["3.0", "4.0", "5.0", "6.0"],
    },
    "03_thor": {
        "steps made": ["6.0", "7.0", "8.0", "9.0"],
        "rate, part of the limit": ["0.8", "0.9", "1.0"],
        "correlation": ["0.8", "0.9"],
        "log10(damping of U)": ["-2.0", "-1.5", "-1.0", "-0.5"],
    },
    "03_thor_in_depth": {
        "log10(damping)": ["0.5", "1.0"],
        "log10(freeze below)": ["-3.0", "-2.0"],
    },
    "04_adasum": {
        "angle (degrees)": ["60.0", "65.0", "70.0", "75.0"],
        "angle of x and y (degrees)": ["60.0", "65.0", "70.0"],
        "rate, times |x|²": ["1.0", "1.3", "1.5"],  # the slider rounds 1.25 to one decimal
        "workers": ["9.0", "10.0", "11.0", "12.0"],
    },
    "05_dimension_reduction": {
        "noise of the batches": ["0.0", "0.5", "1.0"],
        "place on the axis": ["1.0", "2.0", "3.0", "4.0"],
        "images in a batch": ["1.0", "2.0", "3.0"],
    },
}
# nbval runs the cells of all notebooks; JupyterLab takes 50 s more for each, so four labs and the
# in-depth notebooks are left to ALL=long.
LONG = ("02_resnet50_migration", "03_thor", "04_adasum", "05_dimension_reduction")
NOTEBOOKS = [
    pytest.param(
        path.stem,
        marks=pytest.mark.long if path.stem in LONG or path.stem.endswith("in_depth") else (),
    )
    for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
]
# 20 to 80 s while another test runs.
SECONDS = 300


def place(server, name):
    return (server.folder / f"{name}.ipynb").relative_to(ROOT).as_posix()


def test_it_is_for_this_machine_behind_a_token_on_this_interpreter(server):
    """This holds although the user's own settings name another kernel and turn tokens off."""
    assert server.port != server.taken
    with pytest.raises(urllib.error.HTTPError, match="403"):
        server.ask("kernels", token="")
    specs = server.ask("kernelspecs")
    assert specs["default"] == "python3" and list(specs["kernelspecs"]) == ["python3"]
    kernel = server.ask("kernels", "POST")
    assert server.kernel_process().cmdline()[0] == sys.executable
    server.ask(f"kernels/{kernel['id']}", "DELETE")
    assert "0.0.0.0" not in server.log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_cell_runs_and_is_to_be_seen(lab, server, name):
    lab.open(place(server, name))
    assert "Python 3 (ipykernel)" in lab.page.locator(".jp-Toolbar-kernelName").inner_text()
    lab.picture("begin")
    if name == "00_start_here":
        kill_the_kernel(lab, server)
    lab.run_all(SECONDS)
    lab.whole("cells")
    assert lab.errors() == []
    assert lab.noise() == []
    assert lab.cut() == []
    images = lab.images()
    assert len(images) >= (name != "00_start_here")
    for image in images:
        assert image["width"] > 0 and image["right"] <= image["edge"] + 1, image
    if name == "01_gradient_accumulation":
        assert lab.page.locator(".jp-OutputArea-output .widget-hprogress").count()
    for label, (start, *positions) in MOVED.get(name, {}).items():
        step_through(lab, label, start, positions)


def kill_the_kernel(lab, server):
    """Kill the kernel; JupyterLab reports it and starts a new one."""
    first = server.kernel_process()
    first.kill()
    lab.page.wait_for_selector(".jp-Dialog", timeout=60_000)
    said = lab.page.locator(".jp-Dialog").inner_text()
    assert "appears to have died. It will restart automatically" in said
    lab.picture("died")
    lab.page.locator(".jp-Dialog button", has_text="Ok").click()
    lab.wait(lambda state: state["status"] == "idle", 60, "the new kernel is idle")
    assert server.kernel_process().pid != first.pid


def step_through(lab, label, start, positions):
    """Move a slider by its keys; every position has a different picture, which is kept."""
    box = lab.page.locator(".widget-vbox", has_text=label)
    picture, knob = box.locator("img"), lab.slider(label)
    knob.scroll_into_view_if_needed()
    assert knob.get_attribute("aria-valuenow") == start
    name = label.replace(" ", "-")
    seen = [picture.get_attribute("src")]
    lab.picture(f"{name}-{start}")
    for position in positions:
        knob.press("ArrowRight")
        assert knob.get_attribute("aria-valuenow") == position
        lab.page.wait_for_function(
            "([label, before]) => [...document.querySelectorAll('.widget-vbox')]"
            ".find(box => box.textContent.includes(label)).querySelector('img').src !== before",
            arg=[label, seen[-1]],
        )
        seen.append(picture.get_attribute("src"))
        picture.scroll_into_view_if_needed()
        lab.picture(f"{name}-{position}")
    assert len(set(seen)) == len(seen) and lab.errors() == []


def test_an_exercise_says_what_is_wrong_and_passes_when_right(lab, server):
    lab.open(place(server, "01_gradient_accumulation"))
    cell = lab.cell("def mean_gradient(gradients, sizes)")
    source = (
        "from labkit.labs.exercises.accumulation import check, hint\n\n\n"
        "def mean_gradient(gradients, sizes):\n"
        "    total = sum({} for n, g in zip(sizes, gradients))\n"
        "    return total / {}\n\n\n"
        'passed = check("mean_gradient", mean_gradient)\n'
    )
    lab.type_into(cell, source.format("g", "len(sizes)"))
    said = cell.locator(".jp-OutputArea-output").inner_text()
    assert "right only while all micro-batches have the same size" in said, said
    lab.picture("wrong")
    lab.type_into(cell, source.format("n * g", "sum(sizes)"))
    said = cell.locator(".jp-OutputArea-output").inner_text()
    assert said.strip() == "mean_gradient: passed (4 of 4 public checks)"
    lab.picture("right")
    lab.page.keyboard.press("Control+s")
    lab.page.wait_for_timeout(1000)
    done = subprocess.run(
        [sys.executable, "-m", "labkit.tools.cli", "progress", "01", "--folder", server.folder],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert re.search(r"mean_gradient +passed\n", done.stdout), done.stdout
    assert "1 of 7 exercises passed" in done.stdout
