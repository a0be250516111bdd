"""From PyTorch to MindSpore: names, weights, and one training step compared stage by stage.

    match, load, state_dict, read_torch, write_torch, convert_file, convert_back    weights
    trace, compare_step, first_difference, stage_table                             one step
    rule (synthetic weights and images), recorded (PyTorch steps shipped with labkit)

Importing this package imports MindSpore: call ``labkit.start`` first.
"""

from labkit.migration import fixtures as recorded  # noqa: F401
from labkit.migration import fixtures as rule  # noqa: F401
from labkit.migration.compare import STEP_TOLERANCE as STEP_TOLERANCE
from labkit.migration.compare import Row as Row
from labkit.migration.compare import compare_step as compare_step
from labkit.migration.compare import first_difference as first_difference
from labkit.migration.compare import stage_table as stage_table
from labkit.migration.names import Match as Match
from labkit.migration.names import Pair as Pair
from labkit.migration.names import match as match
from labkit.migration.names import pairs as pairs
from labkit.migration.trace import STAGES as STAGES
from labkit.migration.trace import Trace as Trace
from labkit.migration.trace import trace as trace
from labkit.migration.weights import convert_back as convert_back
from labkit.migration.weights import convert_file as convert_file
from labkit.migration.weights import load as load
from labkit.migration.weights import read_torch as read_torch
from labkit.migration.weights import state_dict as state_dict
from labkit.migration.weights import write_torch as write_torch
