"""From PyTorch to MindSpore: names, weights, and one training step compared stage by stage.

``rule`` gives synthetic weights and images, ``recorded`` PyTorch's steps shipped with labkit.
Importing this package imports MindSpore: call ``labkit.start`` first.
"""

# ruff: noqa: F401
from labkit.migration import fixtures
from labkit.migration.compare import Row, compare_step, first_difference, stage_table
from labkit.migration.names import Match, Rule, applied, match, pairs
from labkit.migration.trace import STAGES, Trace, trace
from labkit.migration.weights import (
    convert_back,
    convert_file,
    load,
    read_torch,
    state_dict,
    write_torch,
)

recorded = rule = fixtures
