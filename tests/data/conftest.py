"""What the pipelines' tests share."""

import mindspore as ms
import pytest


@pytest.fixture
def seeded(runtime):
    """Every test starts from one seed, and so does what comes after."""
    ms.set_seed(1)
    yield
    ms.set_seed(1)
