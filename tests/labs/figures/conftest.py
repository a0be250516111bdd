"""Figures are drawn without a screen, and closed after each test."""

import pytest


@pytest.fixture(autouse=True)
def agg():
    from matplotlib import pyplot

    pyplot.switch_backend("agg")
    yield
    pyplot.close("all")
