"""Mistakes that learners make in lab 03, THOR, each with what to say to them."""

import math

import numpy as np

from labkit.labs.exercises.specs import thor as specs


def _mean_first(patches):
    mean = patches.mean(axis=0)
    return mean @ mean.T / patches.shape[2]


def _not_by_positions(patches):
    return specs.patch_factor(patches) * patches.shape[2]


def _not_by_rows(patches):
    return specs.patch_factor(patches) * len(patches)


def _by_width(patches):
    return specs.patch_factor(patches) * len(patches) * patches.shape[2] / patches.shape[1]


def _scaled_back_once(derivatives, loss_scale):
    return loss_scale * specs.unscaled_factor(derivatives, loss_scale)


def _still_scaled(derivatives, loss_scale):
    return specs.unscaled_factor(derivatives, 1.0)


def _of_the_mean_loss(derivatives, loss_scale):
    return specs.unscaled_factor(derivatives, loss_scale) / len(derivatives) ** 2


def _summed_over_rows(derivatives, loss_scale):
    return specs.unscaled_factor(derivatives, loss_scale) * len(derivatives)


def _averaged_first(derivatives, loss_scale):
    mean = derivatives.sum(axis=0) / loss_scale  # of each row's own loss
    return np.outer(mean, mean)


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
    return specs.block_inverse(factor, 0.0, split)


def _share(pi, positions, damping):
    return pi * math.sqrt(damping / positions), math.sqrt(damping / positions) / pi


def _swapped(a_factor, g_factor, positions, damping):
    return specs.pi_damping(g_factor, a_factor, positions, damping)


def _by_traces(a_factor, g_factor, positions, damping):
    return _share(math.sqrt(np.trace(a_factor) / np.trace(g_factor)), positions, damping)


def _pi_without_root(a_factor, g_factor, positions, damping):
    pi = specs.mean_eigenvalue(a_factor) / specs.mean_eigenvalue(g_factor)
    return _share(pi, positions, damping)


def _without_positions(a_factor, g_factor, positions, damping):
    return specs.pi_damping(a_factor, g_factor, 1, damping)


def _equal(a_factor, g_factor, positions, damping):
    return _share(1.0, positions, damping)


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


def _signed(a_factor, g_factor, positions, damping, last, high, low):
    change = (specs.trace(a_factor, g_factor, positions, damping) - last) / last
    return change, 1 if change > high else -1 if change < low else 0


def _absolute(a_factor, g_factor, positions, damping, last, high, low):
    change = abs(specs.trace(a_factor, g_factor, positions, damping) - last)
    return change, 1 if change > high else -1 if change < low else 0


def _over_the_new(a_factor, g_factor, positions, damping, last, high, low):
    now = specs.trace(a_factor, g_factor, positions, damping)
    change = abs(now - last) / now
    return change, 1 if change > high else -1 if change < low else 0


def _no_damping(a_factor, g_factor, positions, damping, last, high, low):
    return specs.decide(specs.trace(a_factor, g_factor, positions, 0.0), last, high, low)


def _damping_once(a_factor, g_factor, positions, damping, last, high, low):
    size = len(a_factor) * len(g_factor)
    return specs.decide(specs.trace(a_factor, g_factor, positions, damping / size), last, high, low)


def _no_positions(a_factor, g_factor, positions, damping, last, high, low):
    return specs.decide(specs.trace(a_factor, g_factor, 1, damping), last, high, low)


def _upside_down(*case):
    change, decision = specs.trace_decision(*case)
    return change, -decision


HINTS = {
    "patch_factor": (
        (_mean_first, "the patches were averaged over the batch first: that forgets the batch"),
        (_not_by_positions, "a mean over rows; what about the positions?"),
        (_not_by_rows, "a mean over positions; what about the rows?"),
        (_by_width, "divided by the width of the layer: that is no number of samples"),
    ),
    "unscaled_factor": (
        (_scaled_back_once, "G is quadratic in the derivatives: how often is the scale in it?"),
        (_still_scaled, "the loss scale is still in it"),
        (
            _of_the_mean_loss,
            "these are derivatives of the mean loss: how much larger are those of one row's?",
        ),
        (_summed_over_rows, "a sum over the rows: it grows with the batch, and G must not"),
        (_averaged_first, "the derivatives were averaged first: that forgets the batch"),
    ),
    "block_inverse": (
        (_inverted_whole, "blocks of the inverse are not inverses of the blocks"),
        (
            _blocks_and_a_rest,
            "blocks of `split` and a rest: these are not as equal as possible",
        ),
        (_damped_everywhere, "the damping was added to every entry: where does it belong?"),
        (_not_damped, "there is no damping in it"),
    ),
    "pi_damping": (
        (_swapped, "the factor with the larger eigenvalues is to get the larger damping"),
        (_by_traces, "the mean eigenvalue is the trace over what?"),
        (_pi_without_root, "that is pi squared"),
        (_without_positions, "the positions T are missing"),
        (_equal, "both got the same: where is pi?"),
    ),
    "refreshes_and_mean_time": (
        (_floored, "update 0 refreshes too: is the last, incomplete stretch counted?"),
        (_one_more, "is there one more when the frequency divides the updates?"),
        (_refresh_on_top, "an update with refresh takes `refresh` in all, not on top"),
        (_in_the_long_run, "right in the long run; here the refreshes can be counted"),
    ),
    "trace_decision": (
        (_upside_down, "a layer whose trace hardly changes is the one to freeze"),
        (_signed, "a trace that falls has changed as well"),
        (_absolute, "the thresholds are for the relative change"),
        (_over_the_new, "relative to the last refresh's trace, not to the new one"),
        (_no_damping, "the damping is in both traces, in the last one and in the new one"),
        (_damping_once, "lambda I has a trace: how large is I?"),
        (_no_positions, "the positions T are not in F"),
    ),
}
