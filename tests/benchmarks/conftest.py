"""Access to the programs of benchmarks/, which is not a package."""

import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.append(str(PROGRAMS))


@pytest.fixture
def programs():
    """The folder of the programs, whose modules can be imported."""
    return PROGRAMS
