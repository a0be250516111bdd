"""Fixtures of the tests of the algorithms."""

import pytest

from labkit.runtime import pynative


@pytest.fixture
def eager(runtime):
    """Operator by operator, which compiles nothing: a graph takes seconds.

    That both modes agree is shown for every step in tests/steps/test_step.py.
    """
    with pynative():
        yield
