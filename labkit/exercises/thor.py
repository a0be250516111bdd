"""Exercises of lab 03, THOR: specifications, cases, and what to say when wrong."""

import math

import numpy as np

from labkit import checks
from labkit.checks import Exercise


def _draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def patch_factor(patches):
    """A = sum over rows and positions of p p^T / (N T), for patches (N, inputs, T)."""
    total = np.zeros((patches.shape[1],) * 2)
    for row in range(len(patches)):
        for position in range(patches.shape[2]):
            total += np.outer(patches[row, :, position], patches[row, :, position])
    return total / (patches.shape[0] * patches.shape[2])


def _mean_first(patches):
    mean = patches.mean(axis=0)
    return mean @ mean.T / patches.shape[2]


def _not_by_positions(patches):
    return patch_factor(patches) * patches.shape[2]


def _not_by_rows(patches):
    return patch_factor(patches) * len(patches)


def _by_width(patches):
    return patch_factor(patches) * len(patches) * patches.shape[2] / patches.shape[1]


def unscaled_factor(derivatives, loss_scale):
    """G = N^2 sum d d^T / N of the mean loss' derivatives, which came times the loss scale."""
    own = len(derivatives) * derivatives / loss_scale  # of each row's loss
    return sum(np.outer(d, d) for d in own) / len(derivatives)


def _scaled_back_once(derivatives, loss_scale):
    return loss_scale * unscaled_factor(derivatives, loss_scale)


def _still_scaled(derivatives, loss_scale):
    return unscaled_factor(derivatives, 1.0)


def _of_the_mean_loss(derivatives, loss_scale):
    return unscaled_factor(derivatives, loss_scale) / len(derivatives) ** 2


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


def _blocks_of(matrix, size):
    number = np.arange(len(matrix)) // size
    return np.where(number[:, None] == number, matrix, 0.0)


def _inverted_whole(factor, damping, split):
    whole = np.linalg.inv(factor + damping * np.eye(len(factor)))
    return _blocks_of(whole, math.ceil(len(factor) / math.ceil(len(factor) / split)))


def _blocks_and_a_rest(factor, damping, split):
    cut = _blocks_of(factor, split)
    return np.linalg.inv(cut + damping * np.eye(len(factor)))


def _damped_everywhere(factor, damping, split):
    size = math.ceil(len(factor) / math.ceil(len(factor) / split))
    cut = _blocks_of(factor + damping, size)
    return np.linalg.inv(cut)


def _not_damped(factor, damping, split):
    return block_inverse(factor, 0.0, split)


def pi_damping(a_factor, g_factor, positions, damping):
    """(pi sqrt(damping / T), sqrt(damping / T) / pi), pi^2 the ratio of the mean eigenvalues."""
    pi = math.sqrt(_mean_eigenvalue(a_factor) / _mean_eigenvalue(g_factor))
    return pi * math.sqrt(damping / positions), math.sqrt(damping / positions) / pi


def _mean_eigenvalue(factor):
    return np.trace(factor) / len(factor)


def _share(pi, positions, damping):
    return pi * math.sqrt(damping / positions), math.sqrt(damping / positions) / pi


def _swapped(a_factor, g_factor, positions, damping):
    return pi_damping(g_factor, a_factor, positions, damping)


def _by_traces(a_factor, g_factor, positions, damping):
    return _share(math.sqrt(np.trace(a_factor) / np.trace(g_factor)), positions, damping)


def _pi_without_root(a_factor, g_factor, positions, damping):
    pi = _mean_eigenvalue(a_factor) / _mean_eigenvalue(g_factor)
    return _share(pi, positions, damping)


def _without_positions(a_factor, g_factor, positions, damping):
    return pi_damping(a_factor, g_factor, 1, damping)


def _equal(a_factor, g_factor, positions, damping):
    return _share(1.0, positions, damping)


def refreshes_and_mean_time(updates, frequency, refresh, cached):
    """Refreshes at updates 0, frequency, 2 frequency, ... below ``updates``; mean time."""
    times = [refresh if update % frequency == 0 else cached for update in range(updates)]
    return len(range(0, updates, frequency)), sum(times) / updates


def _counted(count, updates, refresh, cached):
    return count, (count * refresh + (updates - count) * cached) / updates


def _floored(updates, frequency, refresh, cached):
    return _counted(updates // frequency, updates, refresh, cached)


def _one_more(updates, frequency, refresh, cached):
    return _counted(updates // frequency + 1, updates, refresh, cached)


def _refresh_on_top(updates, frequency, refresh, cached):
    count = len(range(0, updates, frequency))
    return count, cached + count * refresh / updates


def _in_the_long_run(updates, frequency, refresh, cached):
    count = len(range(0, updates, frequency))
    return count, cached + (refresh - cached) / frequency


def trace_decision(a_factor, g_factor, positions, damping, last, high, low):
    """(D, decision): the relative change of tr(T G (x) A + damping I), and 1, 0 or -1 by it."""
    return _decide(_trace(a_factor, g_factor, positions, damping), last, high, low)


def _trace(a_factor, g_factor, positions, damping):
    size = len(a_factor) * len(g_factor)
    return positions * np.trace(a_factor) * np.trace(g_factor) + damping * size


def _decide(now, last, high, low):
    change = abs(now - last) / last
    return change, 1 if change > high else -1 if change < low else 0


def _signed(a_factor, g_factor, positions, damping, last, high, low):
    change = (_trace(a_factor, g_factor, positions, damping) - last) / last
    return change, 1 if change > high else -1 if change < low else 0


def _absolute(a_factor, g_factor, positions, damping, last, high, low):
    change = abs(_trace(a_factor, g_factor, positions, damping) - last)
    return change, 1 if change > high else -1 if change < low else 0


def _over_the_new(a_factor, g_factor, positions, damping, last, high, low):
    now = _trace(a_factor, g_factor, positions, damping)
    change = abs(now - last) / now
    return change, 1 if change > high else -1 if change < low else 0


def _no_damping(a_factor, g_factor, positions, damping, last, high, low):
    return _decide(_trace(a_factor, g_factor, positions, 0.0), last, high, low)


def _damping_once(a_factor, g_factor, positions, damping, last, high, low):
    size = len(a_factor) * len(g_factor)
    return _decide(_trace(a_factor, g_factor, positions, damping / size), last, high, low)


def _no_positions(a_factor, g_factor, positions, damping, last, high, low):
    return _decide(_trace(a_factor, g_factor, 1, damping), last, high, low)


def _upside_down(*case):
    change, decision = trace_decision(*case)
    return change, -decision


def _factor(seed, n):
    vectors = _draw(seed, 3 * n, n)
    return vectors.T @ vectors / len(vectors)


def _trace_case(seed, change):
    """A case whose trace has changed by ``change`` since the last refresh."""
    a_factor, g_factor = _factor(seed, 4), _factor(seed + 1, 3)
    last = _trace(a_factor, g_factor, 5, 0.3) / (1 + change)
    return a_factor, g_factor, 5, 0.3, last, 0.01, 0.001


_TIMES = [(936, 10, 42.0, 21.0), (7, 3, 30.0, 10.0), (6, 3, 30.0, 10.0), (100, 1, 5.0, 2.0)]
_PI_CASES = [(_factor(1, 6), 20 * _factor(2, 3), 4, 0.3), (3 * _factor(3, 2), _factor(4, 5), 9, 1)]
# Above both thresholds, between them on both sides, below.
_CHANGES = (0.2, -0.2, 0.004, -0.005, 0.0002)

EXERCISES = (
    Exercise(
        "patch_factor",
        patch_factor,
        [(_draw(0, 4, 3, 5),), (_draw(1, 2, 4, 1),), (_draw(2, 3, 2, 7),)],
        (
            (_mean_first, "the patches were averaged over the batch first: that forgets the batch"),
            (_not_by_positions, "a mean over rows; what about the positions?"),
            (_not_by_rows, "a mean over positions; what about the rows?"),
            (_by_width, "divided by the width of the layer: that is no number of samples"),
        ),
    ),
    Exercise(
        "unscaled_factor",
        unscaled_factor,
        [(_draw(3, 8, 3), 128.0), (_draw(4, 5, 2), 1024.0), (_draw(5, 1, 4), 2.0)],
        (
            (_scaled_back_once, "G is quadratic in the derivatives: how often is the scale in it?"),
            (_still_scaled, "the loss scale is still in it"),
            (
                _of_the_mean_loss,
                "these are derivatives of the mean loss: how much larger are those of one row's?",
            ),
        ),
    ),
    Exercise(
        "block_inverse",
        block_inverse,
        [(_factor(5, 10), 0.1, 8), (_factor(6, 10), 0.1, 4), (_factor(7, 3), 0.3, 128)],
        (
            (_inverted_whole, "blocks of the inverse are not inverses of the blocks"),
            (
                _blocks_and_a_rest,
                "blocks of `split` and a rest: these are not as equal as possible",
            ),
            (_damped_everywhere, "the damping was added to every entry: where does it belong?"),
            (_not_damped, "there is no damping in it"),
        ),
    ),
    Exercise(
        "pi_damping",
        pi_damping,
        _PI_CASES,
        (
            (_swapped, "the factor with the larger eigenvalues is to get the larger damping"),
            (_by_traces, "the mean eigenvalue is the trace over what?"),
            (_pi_without_root, "that is pi squared"),
            (_without_positions, "the positions T are missing"),
            (_equal, "both got the same: where is pi?"),
        ),
    ),
    Exercise(
        "refreshes_and_mean_time",
        refreshes_and_mean_time,
        _TIMES,
        (
            (_floored, "update 0 refreshes too: is the last, incomplete stretch counted?"),
            (_one_more, "is there one more when the frequency divides the updates?"),
            (_refresh_on_top, "an update with refresh takes `refresh` in all, not on top"),
            (_in_the_long_run, "right in the long run; here the refreshes can be counted"),
        ),
        rtol=1e-9,
    ),
    Exercise(
        "trace_decision",
        trace_decision,
        [_trace_case(10 + 2 * i, change) for i, change in enumerate(_CHANGES)],
        (
            (_upside_down, "a layer whose trace hardly changes is the one to freeze"),
            (_signed, "a trace that falls has changed as well"),
            (_absolute, "the thresholds are for the relative change"),
            (_over_the_new, "relative to the last refresh's trace, not to the new one"),
            (_no_damping, "the damping is in both traces: F + lambda I"),
            (_damping_once, "lambda I has a trace: how large is I?"),
            (_no_positions, "F is T times the product of the factors"),
        ),
    ),
)


def check(name, attempt) -> bool:
    """Check ``attempt`` at the exercise ``name`` of lab 03; see ``labkit.checks.check``."""
    return checks.check(EXERCISES, name, attempt)
