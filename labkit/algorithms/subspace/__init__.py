"""Dimension reduction: search for weights in the few directions that explain their own training."""

from labkit.algorithms.subspace.basis import Basis as Basis
from labkit.algorithms.subspace.basis import basis_of as basis_of
