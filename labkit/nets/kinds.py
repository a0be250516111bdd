"""Kinds of layers, as tuples for ``isinstance``: MindSpore's ``nn`` and ``mint.nn`` side by side.

What a Parameter is for follows from the Cell that owns it, not from its name: names are the
user's, and ``nn`` and ``mint.nn`` call the same thing ``gamma`` and ``weight``.
"""

from mindspore import mint, nn
from mindspore.mint.nn.layer.normalization import _NormBase
from mindspore.nn.layer.normalization import _BatchNorm, _InstanceNorm

# nn.BatchNorm3d is none of them, and holds one that is.
NORMS = (
    _BatchNorm,
    _NormBase,
    _InstanceNorm,
    nn.LayerNorm,
    mint.nn.LayerNorm,
    nn.GroupNorm,
    mint.nn.GroupNorm,
)
CONVOLUTIONS_2D = (nn.Conv2d, mint.nn.Conv2d)
CONVOLUTIONS = (*CONVOLUTIONS_2D, nn.Conv1d, nn.Conv3d, mint.nn.Conv1d, mint.nn.Conv3d)
DENSE = (nn.Dense, mint.nn.Linear)
