"""From PyTorch to MindSpore: names, weights, and a network compared place by place.

Importing this package imports MindSpore: call ``labkit.start`` first.
"""

# ruff: noqa: F401
from labkit.migration.compare import Comparison, compare
from labkit.migration.files import read_torch, write_torch
from labkit.migration.judge import Row
from labkit.migration.names import Match, Rule, applied, match, pairs
from labkit.migration.propose import propose
from labkit.migration.trace import Trace, read, save
from labkit.migration.updates import compare_updates, torch_updates
from labkit.migration.weights import convert, load, state_dict
