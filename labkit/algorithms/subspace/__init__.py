r"""Training in a subspace: quasi-Newton where the weights' path has gone, little beside it.

    g_k = P g,    d = -B g_k,    s = rho^m d,    r <- gamma r + g - P^T g_k
    w <- optimizer(w + P^T s, alpha r)

P (K, M) is the basis, its rows orthonormal, g the averaged gradient of the M weights, B (K, K) the
BFGS approximation of the inverse Hessian in the subspace, m the first of 0, 1, .. trials - 1 with
L(w + rho^m P^T d) < L(w) + sigma rho^m g_k.d on the update's own rows. With y the change of g_k
since the last update and s that update's step,

    B <- (I - s y^T / y.s) B (I - y s^T / y.s) + s s^T / y.s       where y.s > curvature |y| |s|

Sources: Li et al., "Low Dimensional Trajectory Hypothesis is True: DNNs Can Be Trained in Tiny
Subspaces", TPAMI 2022, arXiv 2103.11154 (projected BFGS); "Dimension Reduction Training", MindSpore
tutorial r1.6, and MindSpore's ``mindspore.boost.dim_reduce``, where the residual r comes from.
Departures:
- the user's own optimizer, its groups, rates and weight decay, takes alpha r; nn.SGD at rate 1
  gives the source's rule, which puts that in every optimizer's place;
- up to 20 trials, as in the paper's code; MindSpore has a hidden 2 (``trials=2``);
- a failed search takes no subspace step, is counted, and forgets B, as L-BFGS programs do; it is
  MindSpore's to go back to the B and the pair of before (``failure="rollback"``);
- the curvature is compared with |y| |s|; MindSpore's with 1e-20, which float32 noise exceeds;
- the loss scale is taken out once, of everything: in MindSpore's residual it stays, so that
  alpha = 0.001 at scale 1024 is 1.024;
- with several ranks the losses of a trial are averaged as floats; MindSpore's are divided with
  ``//`` and compared as whole numbers;
- a trial is a forward pass in training mode that leaves no trace: neither in BatchNorm's running
  statistics nor in the optimizer's count of steps;
- with accumulation a trial is made on all micro-batches of the update, not on the last one;
- any number of ranks shares the components out: MindSpore's wants a divisor of K.

As in the sources B starts as I. On quadratics of condition 100 the gap to the subspace's optimum is
1e-6 of its start after 17 updates where the eigenvalues lie around 1, after 32 around 0.1 and 35
around 100; around 0.01 more than 60 go by. ``start="scaled"`` takes 23 wherever they lie.

A search is not continuous: after twenty updates on small batches a change of 1e-7 in the weights
was anything from 3e-7 to 0.2, in float64.
"""

from labkit.algorithms.subspace.basis import Basis, basis_of
from labkit.algorithms.subspace.search import Constants, LastSearch
from labkit.algorithms.subspace.step import SubspaceStep
from labkit.algorithms.subspace.update import SubspaceUpdate

__all__ = ["Basis", "Constants", "LastSearch", "SubspaceStep", "SubspaceUpdate", "basis_of"]
