"""The notebooks in JupyterLab as a person uses them: `make lab`, a browser, Run All Cells."""

import sys
import urllib.error

import pytest

from tests.support.lab_server import ROOT

# A slider of a notebook, with its initial position and the one after each key press.
MOVED = {"micro-batches so far": ["7.0", "8.0", "9.0", "10.0", "11.0"]}
SECONDS = 300  # 20 to 80 s while another test runs


def place(server, name):
    return (server.folder / f"{name}.ipynb").relative_to(ROOT).as_posix()


def test_it_is_for_this_machine_behind_a_token_on_this_interpreter(server):
    """A user's own kernel "python3" does not come first."""
    assert server.port != server.taken
    with pytest.raises(urllib.error.HTTPError, match="403"):
        server.ask("kernels", token="")
    kernel = server.ask("kernels", "POST")
    assert server.kernel_process().cmdline()[0] == sys.executable
    server.ask(f"kernels/{kernel['id']}", "DELETE")
    assert "0.0.0.0" not in server.log.read_text()


@pytest.mark.slow
def test_every_cell_runs_and_is_to_be_seen(lab, server):
    """nbval runs the cells of all notebooks; this one has figures, a slider and a bar."""
    lab.open(place(server, "01_gradient_accumulation"))
    assert "Python 3 (ipykernel)" in lab.page.locator(".jp-Toolbar-kernelName").inner_text()
    lab.picture("begin")
    lab.run_all(SECONDS)
    lab.whole("cells")
    assert lab.errors() == lab.noise() == lab.cut() == []
    images = lab.images()
    assert images
    for image in images:
        assert image["width"] > 0 and image["right"] <= image["edge"] + 1, image
    assert lab.page.locator(".jp-OutputArea-output .widget-hprogress").count()
    for label, (start, *positions) in MOVED.items():
        step_through(lab, label, start, positions)


def step_through(lab, label, start, positions):
    """Move a slider by its keys; every position has a different picture, which is kept."""
    box = lab.page.locator(".widget-vbox", has_text=label)
    picture, knob = box.locator("img"), lab.slider(label)
    knob.scroll_into_view_if_needed()
    assert knob.get_attribute("aria-valuenow") == start
    seen = [picture.get_attribute("src")]
    for position in positions:
        knob.press("ArrowRight")
        assert knob.get_attribute("aria-valuenow") == position
        lab.page.wait_for_function(
            "([label, before]) => [...document.querySelectorAll('.widget-vbox')]"
            ".find(box => box.textContent.includes(label)).querySelector('img').src !== before",
            arg=[label, seen[-1]],
        )
        seen.append(picture.get_attribute("src"))
    assert len(set(seen)) == len(seen) and lab.errors() == []


def test_an_exercise_says_what_is_wrong_and_counts_as_solved_when_right(lab, server):
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
    said = server.copies_only()
    assert "01_gradient_accumulation: 1 of 7 exercises solved: mean_gradient\n" in said
