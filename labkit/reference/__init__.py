"""Reference implementations in NumPy float64: slow on purpose, easy to read and to trust.

Each function follows its equation, keeps every intermediate and takes no shortcut. The notebooks
show them, and tests and exercises compare the fast cells with them. No MindSpore import.
"""

# ruff: noqa: F401
from labkit.reference.adasum import adasum_pair, adasum_tree, adasum_triple, cosine
from labkit.reference.convolution import (
    Window,
    convolution_slopes,
    convolve,
    patches,
    same_padding,
    sum_of_patches,
)
from labkit.reference.kronecker import (
    block_bounds,
    block_diagonal,
    damped_inverse,
    damping_pair,
    exact_fisher,
    gradient_matrix,
    kronecker_factors,
    kronecker_fisher,
    per_sample_gradients,
    relative_error,
    thor_direction,
    weight_and_bias,
)
from labkit.reference.lenet import lenet_gradients, lenet_parameters
from labkit.reference.subspace import (
    ProjectedBFGS,
    bfgs_inverse,
    principal_components,
    projected_gradient,
    reconstruct,
)
from labkit.reference.thor import (
    Layer,
    Thor,
    TraceRule,
    kl_clip_factor,
    momentum_update,
    running_average,
    trace_of_fisher,
    upstream_factors,
)
