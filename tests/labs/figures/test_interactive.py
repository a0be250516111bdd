"""A figure with sliders is static without a front end and redrawn when a slider is moved."""

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from labkit.labs.figures import common as plots
from labkit.labs.figures import interactive
from labkit.labs.figures.interactive import Slider

SLIDERS = {"height": Slider("height (m)", 0, 2, 0.5, 1.5), "width": Slider("width (m)", 1, 3, 1, 2)}


@pytest.fixture(autouse=True)
def agg():
    from matplotlib import pyplot

    pyplot.switch_backend("agg")
    yield
    assert not pyplot.get_fignums(), "a figure was left open: Jupyter would show it once more"


@pytest.fixture(autouse=True)
def headless(monkeypatch):
    """Without a server and outside `labkit run`."""
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.delenv("LABKIT_RUN", raising=False)


@pytest.fixture
def drawn():
    return []


def pixels(widget):
    data = re.search(r"base64,([^\"]+)", widget.value)[1]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("L"))


STILLS = [{"height": 0.5, "width": 2}, {"height": 1, "width": 2}, {"height": 2, "width": 1}]


@pytest.fixture
def draw_on(drawn):
    def bar(axis, height, width):
        drawn.append((height, width))
        axis.bar([0], [height], width)
        axis.set(xlim=(-2, 2), ylim=(0, 2))

    return bar


def test_without_a_front_end_the_stills_stand_side_by_side(shown, draw_on, drawn):
    saved = []
    interactive.move(draw_on, "bars", STILLS, saved.append, (3.0, 2.0), **SLIDERS)
    ((data, options),) = shown
    assert drawn == [(0.5, 2), (1, 2), (2, 1)] and len(saved) == 1
    picture = Image.open(io.BytesIO(base64.b64decode(data["image/png"])))
    assert picture.size == (6 * plots.SHARP, 4 * plots.SHARP)  # two in a row, one place empty
    assert options["metadata"]["image/png"] == {"alt": "bars", "width": 6 * plots.PAGE}


def test_with_one_it_is_moved_from_the_first_still(monkeypatch, shown, draw_on, drawn):
    assert not interactive.has_front_end()
    monkeypatch.setenv("JPY_SESSION_NAME", "notebooks/01.ipynb")
    interactive.move(draw_on, 'a "bar" <b>', STILLS, **SLIDERS)
    ((box, _),) = shown
    height, width, picture = box.children
    assert (height.description, height.min, height.max, height.step) == ("height (m)", 0, 2, 0.5)
    assert (height.value, width.value) == (0.5, 2) and drawn[-1] == (0.5, 2)
    assert 'alt="a &quot;bar&quot; &lt;b&gt;"' in picture.value  # text, not markup
    assert "max-width: 100%" in picture.value  # else JupyterLab cuts its right side off
    before = pixels(picture)
    height.value = 2
    assert drawn[-1] == (2, 2)
    assert pixels(picture).mean() < before.mean() - 1  # a higher bar is more ink
    monkeypatch.setenv("LABKIT_RUN", "runs/x")  # a run of labkit is headless even under a server
    assert not interactive.has_front_end()
