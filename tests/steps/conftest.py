"""Fixtures of the tests of the steps."""

import mindspore as ms
import pytest


@pytest.fixture
def pynative(runtime):
    """PyNative mode for one test."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=ms.GRAPH_MODE)
