"""Figures: units on the axes, alternative texts in the notebook, numbers as given."""

import base64

import numpy as np
import pytest

from labkit import plots
from labkit.records import Records


@pytest.fixture(autouse=True)
def agg():
    from matplotlib import pyplot

    pyplot.switch_backend("agg")
    yield
    pyplot.close("all")


def test_smooth_is_the_mean_over_the_window_and_shorter_at_the_ends():
    np.testing.assert_allclose(plots.smooth([1, 2, 3, 4, 5], 3), [1.5, 2, 3, 4, 4.5])
    np.testing.assert_allclose(plots.smooth([7.0] * 4, 25), [7.0] * 4)


def test_the_training_curve_is_over_images_seen():
    records = Records()
    for images, loss in ((128, 2.0), (128, 1.0), (96, 0.5)):
        records.add(images=images, loss=loss)
    (axis,) = plots.training_curve(records).axes
    each, mean = axis.get_lines()
    assert list(each.get_xdata()) == [128, 256, 352] and list(each.get_ydata()) == [2.0, 1.0, 0.5]
    np.testing.assert_allclose(mean.get_ydata(), [1.5, 3.5 / 3, 0.75])
    assert axis.get_xlabel() == "images seen" and "nats" in axis.get_ylabel()


def test_a_shown_figure_is_a_png_with_its_alternative_text(monkeypatch):
    shown = []
    monkeypatch.setattr(
        "IPython.display.display", lambda data, **options: shown.append((data, options))
    )
    plots.show(plots.axes()[0], "what is to be seen")
    ((data, options),) = shown
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    assert options["metadata"]["image/png"]["alt"] == data["text/plain"] == "what is to be seen"
