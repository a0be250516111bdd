"""Specifications of lab 03, THOR: what each exercise asks for, slow and plain."""

import math

import numpy as np


def patch_factor(patches):
    """A = sum over rows and positions of p p^T / (N T), for patches (N, inputs, T)."""
    total = np.zeros((patches.shape[1],) * 2)
    for row in range(len(patches)):
        for position in range(patches.shape[2]):
            total += np.outer(patches[row, :, position], patches[row, :, position])
    return total / (patches.shape[0] * patches.shape[2])


def unscaled_factor(derivatives, loss_scale):
    """G = N^2 sum d d^T / N of the mean loss' derivatives, which came times the loss scale."""
    own = len(derivatives) * derivatives / loss_scale  # of each row's loss
    return sum(np.outer(d, d) for d in own) / len(derivatives)


def block_inverse(factor, damping, split):
    """Blocks of ceil(n / ceil(n / split)) rows, damped, inverted, on the diagonal of zeros."""
    n = len(factor)
    size = math.ceil(n / math.ceil(n / split))
    inverse = np.zeros_like(factor)
    for first in range(0, n, size):
        block = factor[first : first + size, first : first + size]
        block = block + damping * np.eye(len(block))
        inverse[first : first + size, first : first + size] = np.linalg.inv(block)
    return inverse


def pi_damping(a_factor, g_factor, positions, damping):
    """(pi sqrt(damping / T), sqrt(damping / T) / pi), pi^2 the ratio of the mean eigenvalues."""
    pi = math.sqrt(mean_eigenvalue(a_factor) / mean_eigenvalue(g_factor))
    return pi * math.sqrt(damping / positions), math.sqrt(damping / positions) / pi


def mean_eigenvalue(factor):
    """Mean of the eigenvalues of a symmetric matrix, from its diagonal."""
    return np.trace(factor) / len(factor)


def refreshes_and_mean_time(updates, frequency, refresh, cached):
    """Refreshes at updates 0, frequency, 2 frequency, ... below ``updates``; mean time."""
    times = [refresh if update % frequency == 0 else cached for update in range(updates)]
    return len(range(0, updates, frequency)), sum(times) / updates


def trace_decision(a_factor, g_factor, positions, damping, last, high, low):
    """(D, decision): the relative change of tr(T G (x) A + damping I), and 1, 0 or -1 by it."""
    return decide(trace(a_factor, g_factor, positions, damping), last, high, low)


def trace(a_factor, g_factor, positions, damping):
    """Trace of T G (x) A + damping I, without building the Kronecker product."""
    size = len(a_factor) * len(g_factor)
    return positions * np.trace(a_factor) * np.trace(g_factor) + damping * size


def decide(now, last, high, low):
    """(D, decision) of a trace that is ``now`` and was ``last``."""
    change = abs(now - last) / last
    return change, 1 if change > high else -1 if change < low else 0
