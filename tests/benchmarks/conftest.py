"""The programs of benchmarks/, which is no package."""

import sys

import pytest


@pytest.fixture(scope="package", autouse=True)
def programs(root):
    """The folder of the programs, whose modules can be imported."""
    sys.path.insert(0, str(root / "benchmarks"))
    yield root / "benchmarks"
    sys.path.remove(str(root / "benchmarks"))
