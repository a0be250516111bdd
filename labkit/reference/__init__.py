"""Reference implementations in NumPy float64: slow on purpose, easy to read and to trust.

Each function follows its equation, keeps every intermediate and takes no shortcut. Tests and
exercise checks compare the fast cells with them. No MindSpore import.
"""

from labkit.reference.accumulation import Accumulation as Accumulation
from labkit.reference.accumulation import MicroBatch as MicroBatch
from labkit.reference.accumulation import Update as Update
from labkit.reference.accumulation import clip_by_global_norm as clip_by_global_norm
from labkit.reference.accumulation import dynamic_loss_scale as dynamic_loss_scale
from labkit.reference.accumulation import global_norm as global_norm
from labkit.reference.accumulation import momentum_update as momentum_update
from labkit.reference.accumulation import weight as weight
from labkit.reference.accumulation import weighted_mean as weighted_mean
from labkit.reference.adasum import adasum_pair as adasum_pair
from labkit.reference.adasum import adasum_tree as adasum_tree
from labkit.reference.adasum import adasum_triple as adasum_triple
from labkit.reference.adasum import cosine as cosine
from labkit.reference.convolution import Window as Window
from labkit.reference.convolution import convolution_slopes as convolution_slopes
from labkit.reference.convolution import convolve as convolve
from labkit.reference.convolution import patches as patches
from labkit.reference.convolution import same_padding as same_padding
from labkit.reference.convolution import sum_of_patches as sum_of_patches
from labkit.reference.kronecker import block_bounds as block_bounds
from labkit.reference.kronecker import block_diagonal as block_diagonal
from labkit.reference.kronecker import damped_inverse as damped_inverse
from labkit.reference.kronecker import damping_pair as damping_pair
from labkit.reference.kronecker import exact_fisher as exact_fisher
from labkit.reference.kronecker import gradient_matrix as gradient_matrix
from labkit.reference.kronecker import kronecker_factors as kronecker_factors
from labkit.reference.kronecker import kronecker_fisher as kronecker_fisher
from labkit.reference.kronecker import kronecker_solve as kronecker_solve
from labkit.reference.kronecker import layer_block as layer_block
from labkit.reference.kronecker import per_sample_gradients as per_sample_gradients
from labkit.reference.kronecker import relative_error as relative_error
from labkit.reference.kronecker import thor_direction as thor_direction
from labkit.reference.kronecker import weight_and_bias as weight_and_bias
from labkit.reference.lenet import lenet_gradients as lenet_gradients
from labkit.reference.lenet import lenet_parameters as lenet_parameters
from labkit.reference.losses import linear_regression as linear_regression
from labkit.reference.losses import smoothed_cross_entropy as smoothed_cross_entropy
from labkit.reference.losses import softmax_regression as softmax_regression
from labkit.reference.losses import token_cross_entropy as token_cross_entropy
from labkit.reference.rules import TraceRule as TraceRule
from labkit.reference.rules import fisher_quadratic as fisher_quadratic
from labkit.reference.rules import kl_clip_factor as kl_clip_factor
from labkit.reference.rules import running_average as running_average
from labkit.reference.rules import trace_of_fisher as trace_of_fisher
from labkit.reference.schedules import cosine_schedule as cosine_schedule
from labkit.reference.schedules import resnet_schedule as resnet_schedule
from labkit.reference.schedules import thor_damping as thor_damping
from labkit.reference.schedules import thor_schedule as thor_schedule
from labkit.reference.subspace import ProjectedBFGS as ProjectedBFGS
from labkit.reference.subspace import bfgs_inverse as bfgs_inverse
from labkit.reference.subspace import principal_components as principal_components
from labkit.reference.subspace import projected_gradient as projected_gradient
from labkit.reference.subspace import reconstruct as reconstruct
from labkit.reference.thor import Layer as Layer
from labkit.reference.thor import Thor as Thor
from labkit.reference.thor import upstream_factors as upstream_factors
