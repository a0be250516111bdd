"""Reference implementations in NumPy float64: slow on purpose, easy to read and to trust.

Each function follows its equation, keeps every intermediate and takes no shortcut. The notebooks
show them, and tests and exercises compare the fast cells with them. No MindSpore import.
"""

# ruff: noqa: F403
from labkit.reference.adasum import *
from labkit.reference.convolution import *
from labkit.reference.kronecker import *
from labkit.reference.lenet import *
from labkit.reference.subspace import *
from labkit.reference.thor import *
