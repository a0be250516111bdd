"""Stored results of trainings that take an hour, for notebooks that take minutes. No MindSpore.

README.md in this folder says what the files and their columns are.
"""

from labkit.labs.results.races import Curve as Curve
from labkit.labs.results.races import Stored as Stored
from labkit.labs.results.races import fit as fit
from labkit.labs.results.races import load as load
from labkit.labs.results.races import mean_steps as mean_steps
from labkit.labs.results.races import steps_to as steps_to
