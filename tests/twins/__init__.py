"""Slow float64 twins: those that the notebooks show (``labkit.reference``), and the tests' own."""

# ruff: noqa: F403
from labkit.reference import *
from tests.twins.accumulation import *
from tests.twins.losses import *
from tests.twins.schedules import *
