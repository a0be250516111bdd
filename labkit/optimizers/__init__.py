"""Optimizers that MindSpore does not have, as ``nn.Optimizer``: any step takes them."""

from labkit.optimizers.adamw import AdamW as AdamW
from labkit.optimizers.both import Both as Both
from labkit.optimizers.muon import Muon as Muon
