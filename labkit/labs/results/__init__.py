"""Stored results of trainings that take an hour, for notebooks that take minutes. No MindSpore."""

from labkit.labs.results.stored import Stored as Stored
from labkit.labs.results.stored import load as load
from labkit.labs.results.thor_race import compare as compare
from labkit.labs.results.thor_race import mean_steps as mean_steps
from labkit.labs.results.thor_race import steps_to as steps_to
