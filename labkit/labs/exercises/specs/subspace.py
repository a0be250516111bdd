"""Specifications of lab 05, dimension reduction: what each exercise asks for, slow and plain."""

from labkit import reference


def explained(snapshots, components):
    """Share of the variance of snapshots (N, M) along each of their first K components, (K,)."""
    found = reference.principal_components(snapshots, components)
    return found.variance / found.total_variance


def nearest_point(basis, mean, weights):
    """The point of the subspace through ``mean`` that is nearest to weights (M,)."""
    return reference.reconstruct(basis, mean, weights)


def bfgs(inverse, s, y):
    """BFGS update of the inverse Hessian; where y.s is not positive, ``inverse`` as it is."""
    return reference.bfgs_inverse(inverse, s, y) if y @ s > 0 else inverse


def line_search(losses, loss, slope, rho, sigma):
    """rho^m of the first m with losses[m] < loss + sigma rho^m slope; 0.0 where there is none."""
    for m, came in enumerate(losses):
        if came < loss + sigma * rho**m * slope:
            return rho**m
    return 0.0


def residual_update(residual, gradient, basis, gamma, alpha):
    """r <- gamma r + (g - P^T P g). Returns (r, alpha r), the latter is what the optimizer gets."""
    outside = gradient - reference.projected_gradient(basis, gradient)
    residual = gamma * residual + outside
    return residual, alpha * residual


def first_and_count(components, ranks, rank):
    """(first component, how many): every rank has room for K / ranks, rounded up, in order."""
    room = -(-components // ranks)
    first = rank * room
    return first, max(0, min(room, components - first))
