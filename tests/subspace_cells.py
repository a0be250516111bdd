"""What the tests of the subspace step share: bases by QR, and networks with a float64 twin."""

import hashlib
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class QR:
    """A basis with what a step reads of one: the rows of a random orthogonal matrix."""

    matrix: np.ndarray
    names: tuple
    shapes: tuple

    @property
    def checksum(self):
        return hashlib.sha256(self.matrix.tobytes()).hexdigest()


def basis_of(parameters, components, seed=0):
    """A random basis of the parameters, as ``Basis.of`` would make one of snapshots."""
    parameters = list(parameters)
    numbers = sum(parameter.size for parameter in parameters)
    columns = np.random.default_rng(seed).normal(size=(numbers, components))
    matrix = np.ascontiguousarray(np.linalg.qr(columns)[0].T, np.float32)
    return QR(matrix, tuple(p.name for p in parameters), tuple(p.shape for p in parameters))
