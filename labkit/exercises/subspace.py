"""Exercises of lab 05, dimension reduction: specifications, cases, and what to say when wrong."""

import math

import numpy as np

from labkit import checks, reference
from labkit.checks import Exercise


def _draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def explained(snapshots, components):
    """Share of the variance of snapshots (N, M) along each of their first K components, (K,)."""
    found = reference.principal_components(snapshots, components)
    return found.variance / found.total_variance


def _shares(values, components):
    return values[:components] / values.sum()


def _not_centred(snapshots, components):
    return _shares(np.linalg.svd(snapshots)[1] ** 2, components)


def _centred_by_row(snapshots, components):
    rows = snapshots - snapshots.mean(axis=1, keepdims=True)
    return _shares(np.linalg.svd(rows)[1] ** 2, components)


def _lengths(snapshots, components):
    return _shares(np.linalg.svd(snapshots - snapshots.mean(axis=0))[1], components)


def _of_the_first(snapshots, components):
    found = reference.principal_components(snapshots, components)
    return found.variance / found.variance.sum()


def _cumulative(snapshots, components):
    return np.cumsum(explained(snapshots, components))


def _variances(snapshots, components):
    return reference.principal_components(snapshots, components).variance


def nearest_point(basis, mean, weights):
    """The point of the subspace through ``mean`` that is nearest to weights (M,)."""
    return reference.reconstruct(basis, mean, weights)


def _through_origin(basis, mean, weights):
    return basis.T @ (basis @ weights)


def _mean_lost(basis, mean, weights):
    return basis.T @ (basis @ (weights - mean))


def _mean_kept(basis, mean, weights):
    return mean + basis.T @ (basis @ weights)


def _remainder(basis, mean, weights):
    return weights - nearest_point(basis, mean, weights)


def _subtracted(basis, mean, weights):
    return mean - basis.T @ (basis @ (weights - mean))


def bfgs(inverse, s, y):
    """BFGS update of the inverse Hessian; where y.s is not positive, ``inverse`` as it is."""
    return reference.bfgs_inverse(inverse, s, y) if y @ s > 0 else inverse


def _unchecked(inverse, s, y):
    return reference.bfgs_inverse(inverse, s, y)


def _of_the_hessian(inverse, s, y):
    return reference.bfgs_inverse(inverse, y, s) if y @ s > 0 else inverse


def _davidon_fletcher_powell(inverse, s, y):
    if not y @ s > 0:
        return inverse
    moved = inverse @ y
    return inverse - np.outer(moved, moved) / (y @ moved) + np.outer(s, s) / (y @ s)


def _halves(inverse, s, y):
    return np.eye(len(s)) - np.outer(s, y) / (y @ s), np.outer(s, s) / (y @ s)


def _last_term_lost(inverse, s, y):
    left, _ = _halves(inverse, s, y)
    return left @ inverse @ left.T


def _one_sided(inverse, s, y):
    left, last = _halves(inverse, s, y)
    return left @ inverse + last


def _same_side_twice(inverse, s, y):
    left, last = _halves(inverse, s, y)
    return left.T @ inverse @ left + last


def line_search(losses, loss, slope, rho, sigma):
    """rho^m of the first m with losses[m] < loss + sigma rho^m slope; 0.0 where there is none."""
    for m, came in enumerate(losses):
        if came < loss + sigma * rho**m * slope:
            return rho**m
    return 0.0


def _any_decrease(losses, loss, slope, rho, sigma):
    return line_search(losses, loss, 0.0, rho, sigma)


def _bound_of_a_whole_step(losses, loss, slope, rho, sigma):
    found = [m for m, came in enumerate(losses) if came < loss + sigma * slope]
    return rho ** found[0] if found else 0.0


def _upwards(losses, loss, slope, rho, sigma):
    return line_search(losses, loss, -slope, rho, sigma)


def _lowest(losses, loss, slope, rho, sigma):
    return rho ** int(np.nanargmin(losses))


def _number_of_the_trial(losses, loss, slope, rho, sigma):
    rate = line_search(losses, loss, slope, rho, sigma)
    return round(math.log(rate) / math.log(rho)) if rate else 0.0


def _last_taken(losses, loss, slope, rho, sigma):
    return line_search(losses, loss, slope, rho, sigma) or rho ** (len(losses) - 1)


def residual_update(residual, gradient, basis, gamma, alpha):
    """r <- gamma r + (g - P^T P g). Returns (r, alpha r), the latter is what the optimizer gets."""
    outside = gradient - reference.projected_gradient(basis, gradient)
    residual = gamma * residual + outside
    return residual, alpha * residual


def _whole_gradient(residual, gradient, basis, gamma, alpha):
    residual = gamma * residual + gradient
    return residual, alpha * residual


def _inside_gradient(residual, gradient, basis, gamma, alpha):
    residual = gamma * residual + reference.projected_gradient(basis, gradient)
    return residual, alpha * residual


def _memoryless(residual, gradient, basis, gamma, alpha):
    return residual_update(0 * residual, gradient, basis, gamma, alpha)


def _newest_only(residual, gradient, basis, gamma, alpha):
    new, _ = residual_update(residual, gradient, basis, gamma, alpha)
    return new, alpha * (new - gamma * residual)


def _old_residual(residual, gradient, basis, gamma, alpha):
    return residual_update(residual, gradient, basis, gamma, alpha)[0], alpha * residual


def _running_mean(residual, gradient, basis, gamma, alpha):
    outside, _ = residual_update(0 * residual, gradient, basis, gamma, alpha)
    new = gamma * residual + (1 - gamma) * outside
    return new, alpha * new


def first_and_count(components, ranks, rank):
    """(first component, how many): every rank has room for K / ranks, rounded up, in order."""
    room = -(-components // ranks)
    first = rank * room
    return first, max(0, min(room, components - first))


def _rounded_down(components, ranks, rank):
    room = components // ranks
    return rank * room, room


def _beyond_the_end(components, ranks, rank):
    room = -(-components // ranks)
    return rank * room, room


def _rest_to_the_last(components, ranks, rank):
    first, count = _rounded_down(components, ranks, rank)
    return first, components - first if rank == ranks - 1 else count


def _spread(components, ranks, rank):
    parts = np.array_split(np.arange(components), ranks)
    return sum(map(len, parts[:rank])), len(parts[rank])


def _snapshots(seed, count, numbers):
    return 3 + np.cumsum(_draw(seed, count, numbers), axis=0)


def _basis(seed, components, numbers):
    return np.linalg.qr(_draw(seed, numbers, components))[0].T


def _inverse(seed, size):
    half = _draw(seed, size, size)
    return half @ half.T / size + np.eye(size)


def _pair(seed, size, sign):
    """(s, y) with y.s of the given sign."""
    s, y = _draw(seed, 2, size)
    return s, y * np.sign(y @ s) * sign


_NAN = float("nan")
EXERCISES = (
    Exercise(
        "explained",
        explained,
        [(_snapshots(0, 6, 9), 3), (_snapshots(1, 5, 12), 2), (_snapshots(2, 9, 4), 3)],
        (
            (_not_centred, "the first direction is that of the mean: are the rows centred?"),
            (_centred_by_row, "which mean was taken away: of a snapshot, or over the snapshots?"),
            (_lengths, "shares of lengths; how does a variance grow with a length?"),
            (_of_the_first, "they add up to 1: is there no variance outside these components?"),
            (_cumulative, "these are running sums: what is the share of each one alone?"),
            (_variances, "these are variances, not yet shares"),
        ),
    ),
    Exercise(
        "nearest_point",
        nearest_point,
        [(_basis(3, 2, 7), _draw(4, 7), _draw(5, 7)), (_basis(6, 4, 9), _draw(7, 9), _draw(8, 9))],
        (
            (_through_origin, "that plane goes through 0: does it go through the mean?"),
            (_mean_lost, "a difference from the mean: where is the point itself?"),
            (_mean_kept, "the mean is counted twice: what is it that is projected?"),
            (_remainder, "that is what the subspace cannot express"),
            (_subtracted, "the mirror image, on the other side of the mean"),
        ),
    ),
    Exercise(
        "bfgs",
        bfgs,
        [
            (_inverse(9, 4), *_pair(10, 4, 1)),
            (_inverse(11, 3), *_pair(12, 3, 1)),
            (_inverse(13, 3), *_pair(14, 3, -1)),
        ],
        (
            (_unchecked, "after this pair B is not positive definite: which pairs are let in?"),
            (_of_the_hessian, "B s = y holds now; is B the Hessian, or its inverse?"),
            (_davidon_fletcher_powell, "B y = s holds, but this is another rule (DFP's)"),
            (_last_term_lost, "B y is 0 now: what has become of s?"),
            (_one_sided, "B is not symmetric any more"),
            (_same_side_twice, "B y is not s: in which order do the two factors stand?"),
        ),
    ),
    Exercise(
        "line_search",
        line_search,
        [
            (np.array([1.2, 0.99, 0.93, 0.94, 0.97, 0.55, 0.52]), 1.0, -1.0, 0.5, 0.4),
            (np.array([1.5, 1.25, 1.3]), 1.0, -1.0, 0.5, 0.4),
            (np.array([_NAN, 2.7, 2.55, 2.85]), 3.0, -2.0, 0.55, 0.3),
        ],
        (
            (_any_decrease, "any decrease is taken: how much does the slope foresee?"),
            (_bound_of_a_whole_step, "a short step is asked for as much as a whole one"),
            (_upwards, "the bound lies above the loss: which sign has the slope?"),
            (_lowest, "that is the lowest loss of all; when does the search stop?"),
            (_number_of_the_trial, "that is m; how far does trial m go?"),
            (_last_taken, "no trial was low enough, and one was taken all the same"),
        ),
    ),
    Exercise(
        "residual_update",
        residual_update,
        [
            (_draw(20, 6), _draw(21, 6), _basis(22, 2, 6), 0.9, 0.001),
            (_draw(23, 8), _draw(24, 8), _basis(25, 3, 8), 0.5, 0.3),
        ],
        (
            (_whole_gradient, "what lies in the subspace is in it too: who else moves along that?"),
            (_inside_gradient, "that is the part inside the subspace, which the search has had"),
            (_memoryless, "what came before is forgotten: what is gamma for?"),
            (_newest_only, "the optimizer gets the newest part only"),
            (_old_residual, "the optimizer gets the residual of the update before"),
            (_running_mean, "the new part is made smaller by 1 - gamma: is it, in the equation?"),
        ),
    ),
    Exercise(
        "first_and_count",
        first_and_count,
        [(32, 3, 2), (32, 5, 4), (3, 4, 3), (10, 3, 1)],
        (
            (_rounded_down, "some components are nobody's now"),
            (_beyond_the_end, "this rank asks for components that are not there"),
            (_rest_to_the_last, "the last rank has more than it has room for"),
            (_spread, "the room is not the same for all ranks"),
        ),
        rtol=1e-9,
    ),
)


def check(name, attempt) -> bool:
    """Check ``attempt`` at the exercise ``name`` of lab 05; see ``labkit.checks.check``."""
    return checks.check(EXERCISES, name, attempt)
