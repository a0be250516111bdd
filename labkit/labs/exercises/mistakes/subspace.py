"""Mistakes that learners make in lab 05, dimension reduction, each with what to say to them."""

import math

import numpy as np

from labkit import reference
from labkit.labs.exercises.specs import subspace as specs


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
    return np.cumsum(specs.explained(snapshots, components))


def _variances(snapshots, components):
    return reference.principal_components(snapshots, components).variance


def _through_origin(basis, mean, weights):
    return basis.T @ (basis @ weights)


def _mean_lost(basis, mean, weights):
    return basis.T @ (basis @ (weights - mean))


def _mean_kept(basis, mean, weights):
    return mean + basis.T @ (basis @ weights)


def _remainder(basis, mean, weights):
    return weights - specs.nearest_point(basis, mean, weights)


def _subtracted(basis, mean, weights):
    return mean - basis.T @ (basis @ (weights - mean))


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


def _any_decrease(losses, loss, slope, rho, sigma):
    return specs.line_search(losses, loss, 0.0, rho, sigma)


def _bound_of_a_whole_step(losses, loss, slope, rho, sigma):
    found = [m for m, came in enumerate(losses) if came < loss + sigma * slope]
    return rho ** found[0] if found else 0.0


def _upwards(losses, loss, slope, rho, sigma):
    return specs.line_search(losses, loss, -slope, rho, sigma)


def _lowest(losses, loss, slope, rho, sigma):
    return rho ** int(np.nanargmin(losses))


def _number_of_the_trial(losses, loss, slope, rho, sigma):
    rate = specs.line_search(losses, loss, slope, rho, sigma)
    return round(math.log(rate) / math.log(rho)) if rate else 0.0


def _last_taken(losses, loss, slope, rho, sigma):
    return specs.line_search(losses, loss, slope, rho, sigma) or rho ** (len(losses) - 1)


def _whole_gradient(residual, gradient, basis, gamma, alpha):
    residual = gamma * residual + gradient
    return residual, alpha * residual


def _inside_gradient(residual, gradient, basis, gamma, alpha):
    residual = gamma * residual + reference.projected_gradient(basis, gradient)
    return residual, alpha * residual


def _memoryless(residual, gradient, basis, gamma, alpha):
    return specs.residual_update(0 * residual, gradient, basis, gamma, alpha)


def _newest_only(residual, gradient, basis, gamma, alpha):
    new, _ = specs.residual_update(residual, gradient, basis, gamma, alpha)
    return new, alpha * (new - gamma * residual)


def _old_residual(residual, gradient, basis, gamma, alpha):
    return specs.residual_update(residual, gradient, basis, gamma, alpha)[0], alpha * residual


def _running_mean(residual, gradient, basis, gamma, alpha):
    outside, _ = specs.residual_update(0 * residual, gradient, basis, gamma, alpha)
    new = gamma * residual + (1 - gamma) * outside
    return new, alpha * new


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


HINTS = {
    "explained": (
        (_not_centred, "the first direction is that of the mean: are the rows centred?"),
        (_centred_by_row, "which mean was taken away: of a snapshot, or over the snapshots?"),
        (_lengths, "shares of lengths; how does a variance grow with a length?"),
        (_of_the_first, "they add up to 1: is there no variance outside these components?"),
        (_cumulative, "these are running sums: what is the share of each one alone?"),
        (_variances, "these are variances, not yet shares"),
    ),
    "nearest_point": (
        (_through_origin, "that plane goes through 0: does it go through the mean?"),
        (_mean_lost, "a difference from the mean: where is the point itself?"),
        (_mean_kept, "the mean is counted twice: what is it that is projected?"),
        (_remainder, "that is what the subspace cannot express"),
        (_subtracted, "the mirror image, on the other side of the mean"),
    ),
    "bfgs": (
        (_unchecked, "after this pair B is not positive definite: which pairs are let in?"),
        (_of_the_hessian, "B s is y now: is B the Hessian, or its inverse?"),
        (_davidon_fletcher_powell, "B y is s, as it should, but this is another rule (DFP's)"),
        (_last_term_lost, "B y is 0 now: what has become of s?"),
        (_one_sided, "B is not symmetric any more"),
        (_same_side_twice, "B y is not s: in which order do the two factors stand?"),
    ),
    "line_search": (
        (_any_decrease, "any decrease is taken: how much does the slope foresee?"),
        (_bound_of_a_whole_step, "a short step is asked for as much as a whole one"),
        (_upwards, "the bound lies above the loss: which sign has the slope?"),
        (_lowest, "that is the lowest loss of all; when does the search stop?"),
        (_number_of_the_trial, "that is m; how far does trial m go?"),
        (_last_taken, "no trial was low enough, and one was taken all the same"),
    ),
    "residual_update": (
        (_whole_gradient, "what lies in the subspace is in it too: who else moves along that?"),
        (_inside_gradient, "that is the part inside the subspace, which the search has had"),
        (_memoryless, "what came before is forgotten: what is gamma for?"),
        (_newest_only, "the optimizer gets the newest part only"),
        (_old_residual, "the optimizer gets the residual of the update before"),
        (
            _running_mean,
            "gamma and what is left of 1 weigh old and new: does the equation weigh both?",
        ),
    ),
    "first_and_count": (
        (_rounded_down, "some components are nobody's now"),
        (_beyond_the_end, "this rank asks for components that are not there"),
        (_rest_to_the_last, "the last rank has more than it has room for"),
        (_spread, "the room is not the same for all ranks"),
    ),
}
