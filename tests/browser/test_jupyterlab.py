"""The notebooks in JupyterLab as a person uses them: `make lab`, a browser, Run All Cells."""

import sys
import urllib.error

import pytest

NOTEBOOK = "01_gradient_accumulation"
SECONDS = 300  # 20 to 80 s while another test runs


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
def test_every_cell_runs_and_is_to_be_seen(lab):
    """nbval runs the cells of all notebooks; this one has figures, a slider and a bar."""
    lab.open(NOTEBOOK)
    lab.run_all(SECONDS)
    assert lab.noise() == []
    images = lab.images()
    assert images
    for image in images:
        assert image["width"] > 0 and image["right"] <= image["edge"] + 1, image
    assert lab.page.locator(".jp-OutputArea-output .widget-hprogress").count()

    label = "micro-batches so far"
    slider = lab.page.locator(".widget-slider", has_text=label).locator(".noUi-handle")
    picture = lab.page.locator(".widget-vbox", has_text=label).locator("img")
    slider.scroll_into_view_if_needed()
    seen = [picture.get_attribute("src")]
    for position in ("8.0", "9.0"):
        slider.press("ArrowRight")
        assert slider.get_attribute("aria-valuenow") == position
        lab.page.wait_for_function(
            "([label, before]) => [...document.querySelectorAll('.widget-vbox')]"
            ".find(box => box.textContent.includes(label)).querySelector('img').src !== before",
            arg=[label, seen[-1]],
        )
        seen.append(picture.get_attribute("src"))
    assert len(set(seen)) == 3 and lab.noise() == []


def test_an_exercise_says_what_is_wrong_and_counts_as_solved_when_right(lab, server):
    lab.open(NOTEBOOK)
    cell = lab.cell("def mean_gradient(gradients, sizes)")
    source = (
        "from labkit.labs.exercises.accumulation import check, hint\n\n\n"
        "def mean_gradient(gradients, sizes):\n"
        "    total = sum({} for n, g in zip(sizes, gradients))\n"
        "    return total / {}\n\n\n"
        'passed = check("mean_gradient", mean_gradient)\n'
    )
    said = lab.type_into(cell, source.format("g", "len(sizes)"))
    assert "right only while all micro-batches have the same size" in said, said
    said = lab.type_into(cell, source.format("n * g", "sum(sizes)"))
    assert said.strip() == "mean_gradient: passed (4 of 4 public checks)"
    lab.page.keyboard.press("Control+s")
    lab.page.wait_for_timeout(1000)
    assert f"{NOTEBOOK}: 1 of 7 exercises solved: mean_gradient\n" in server.copies_only()
