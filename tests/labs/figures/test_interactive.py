"""A figure with sliders: plain where nobody can move them, redrawn where somebody does."""

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from labkit import InputError
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


@pytest.fixture
def shown(monkeypatch):
    """What is displayed, as (data, options), without a server and outside `labkit run`."""
    displayed = []
    monkeypatch.setattr(
        "IPython.display.display", lambda data, **options: displayed.append((data, options))
    )
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.delenv("LABKIT_RUN", raising=False)
    return displayed


@pytest.fixture
def drawn():
    return []


@pytest.fixture
def draw(drawn):
    def bar(height, width):
        drawn.append((height, width))
        figure, axis = plots.axes()
        axis.bar([0], [height], width)
        axis.set(xlim=(-2, 2), ylim=(0, 2))
        return figure

    return bar


def pixels(widget):
    data = re.search(r"base64,([^\"]+)", widget.value)[1]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("L"))


def test_headless_it_is_one_picture_at_the_start_values(shown, draw, drawn):
    saved = []
    interactive.show(draw, "a bar", save=saved.append, **SLIDERS)
    ((data, options),) = shown
    assert set(data) == {"image/png", "text/plain"} and data["text/plain"] == "a bar"
    assert options["metadata"]["image/png"]["alt"] == "a bar"
    assert drawn == [(1.5, 2)] and len(saved) == 1


def test_under_a_server_it_is_sliders_and_a_picture(monkeypatch, shown, draw):
    assert not interactive.has_front_end()
    monkeypatch.setenv("JPY_SESSION_NAME", "notebooks/04_adasum.ipynb")
    interactive.show(draw, "a bar", **SLIDERS)
    ((box, _),) = shown
    height, width, picture = box.children
    assert (height.description, height.min, height.max, height.step) == ("height (m)", 0, 2, 0.5)
    assert (height.value, width.value) == (1.5, 2) and 'alt="a bar"' in picture.value
    assert "max-width: 100%" in picture.value  # else JupyterLab cuts its right side off
    monkeypatch.setenv("LABKIT_RUN", "runs/x")  # a run of labkit is headless even under a server
    assert not interactive.has_front_end()


def test_a_moved_slider_redraws_the_picture_and_its_text_is_no_markup(draw, drawn):
    height, width, picture = interactive.widget(draw, "a bar", **SLIDERS).children
    before = pixels(picture)
    height.value = 0.5
    assert drawn[-1] == (0.5, 2)
    # A lower bar is less ink.
    assert pixels(picture).mean() > before.mean() + 1
    picture = interactive.widget(draw, 'a "bar" <b>', **SLIDERS).children[-1]
    assert 'alt="a &quot;bar&quot; &lt;b&gt;"' in picture.value


@pytest.mark.parametrize(
    ("sliders", "message"),
    [
        ({}, "sliders: expected one for each argument"),
        ({"height": Slider("h", 0, 1, 0.1, 2)}, "slider height: expected low <= start"),
        ({"height": Slider("h", 1, 1, 0.1, 1)}, "low < high"),
        ({"height": Slider("h", 0, 1, 0, 1)}, "step > 0"),
    ],
)
def test_sliders_that_cannot_be_moved_are_refused(sliders, message, draw):
    with pytest.raises(InputError, match=message):
        interactive.show(draw, "a bar", **sliders)
