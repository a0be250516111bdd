"""Fixtures of the pipelines' tests."""

import mindspore as ms
import pytest


@pytest.fixture
def seeded(runtime):
    """Every test starts from the same seed, and so do the tests after it."""
    ms.set_seed(1)
    yield
    ms.set_seed(1)
