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
STILLS = [{"height": 0.5, "width": 2}, {"height": 1, "width": 2}, {"height": 2, "width": 1}]
DRAWN = []


def bar(axis, height, width):
    DRAWN.append((height, width))
    axis.bar([0], [height], width)
    axis.set(xlim=(-2, 2), ylim=(0, 2))


@pytest.fixture(autouse=True)
def headless(monkeypatch):
    """Without a server and outside `labkit run`; no figure is left for Jupyter to show again."""
    from matplotlib import pyplot

    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.delenv("LABKIT_RUN", raising=False)
    DRAWN.clear()
    yield
    assert not pyplot.get_fignums()


def picture_of(data):
    return Image.open(io.BytesIO(base64.b64decode(data)))


def test_without_a_front_end_the_stills_stand_side_by_side(shown):
    saved = []
    interactive.move(bar, "bars", STILLS, saved.append, (3.0, 2.0), **SLIDERS)
    ((data, options),) = shown
    assert DRAWN == [(0.5, 2), (1, 2), (2, 1)] and len(saved) == 1
    picture = picture_of(data["image/png"])  # two in a row, one place empty
    assert (picture.format, picture.mode) == ("PNG", "P")
    assert picture.size == (6 * plots.SHARP, 4 * plots.SHARP) and data["text/plain"] == "bars"
    assert options["metadata"]["image/png"] == {"alt": "bars", "width": 6 * plots.PAGE}


def test_with_one_it_is_moved_from_the_first_still(monkeypatch, shown):
    monkeypatch.setenv("JPY_SESSION_NAME", "notebooks/01.ipynb")
    interactive.move(bar, 'a "bar" <b>', STILLS, **SLIDERS)
    ((box, _),) = shown
    height, width, picture = box.children
    assert (height.description, height.min, height.max, height.step) == ("height (m)", 0, 2, 0.5)
    assert (height.value, width.value) == (0.5, 2) and DRAWN[-1] == (0.5, 2)
    assert 'alt="a &quot;bar&quot; &lt;b&gt;"' in picture.value  # text, not markup

    def ink():
        data = re.search(r"base64,([^\"]+)", picture.value)[1]
        return 255 - np.asarray(picture_of(data).convert("L")).mean()

    before = ink()
    height.value = 2
    assert DRAWN[-1] == (2, 2) and ink() > before + 1  # a higher bar
