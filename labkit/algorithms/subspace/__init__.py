r"""Training in a subspace that earlier weights span: quasi-Newton inside it, small steps outside.

    g_k = P g,    d = -B g_k,    s = rho^m d,    r <- gamma r + g - P^T g_k
    w <- optimizer(w + P^T s, alpha r)

P (K, M) is the basis, with orthonormal rows, g the averaged gradient of the M weights, B (K, K) the
BFGS approximation of the inverse Hessian in the subspace, m the first of 0, 1, .. trials - 1 with
L(w + rho^m P^T d) < L(w) + sigma rho^m g_k.d on the update's own rows. With y the change of g_k
since the last update and s that update's step, from B = I on,

    B <- (I - s y^T / y.s) B (I - y s^T / y.s) + s s^T / y.s       where y.s > curvature |y| |s|

Sources: Li et al., "Low Dimensional Trajectory Hypothesis is True: DNNs Can Be Trained in Tiny
Subspaces", TPAMI 2022, arXiv 2103.11154 (projected BFGS); "Dimension Reduction Training", MindSpore
tutorial r1.6, and MindSpore's ``mindspore.boost.dim_reduce``, where the residual r comes from.
Departures:
- the user's own optimizer applies alpha r; nn.SGD at rate 1 gives the source's rule;
- up to 20 trials, as in the paper's code; MindSpore has 2 (``trials=2``);
- a failed search resets B; MindSpore returns to the previous B and pair (``failure="rollback"``);
- y.s is compared with |y| |s|; MindSpore compares it with 1e-20, which float32 noise exceeds;
- the loss scale is divided out of everything; MindSpore's residual keeps it, so that alpha = 0.001
  at scale 1024 acts as 1.024;
- losses of ranks are averaged as floats; MindSpore divides with ``//`` and compares whole numbers;
- a trial is a forward pass in training mode that leaves no trace in BatchNorm or the optimizer;
- with accumulation a trial uses all micro-batches of the update, not only the last one;
- any number of ranks can share the components; MindSpore requires a divisor of K.

On quadratics with condition number 100, the gap to the subspace's optimum falls to 1e-6 of its
initial value within 35 updates if the eigenvalues lie around 0.1 to 100; around 0.01 it takes more
than 60. A search is not continuous in the weights: in float64, a change of 1e-7 grew to anything
from 3e-7 to 0.2 after twenty updates on small batches.
"""

from labkit.algorithms.subspace.basis import Basis, basis_from
from labkit.algorithms.subspace.search import Constants, LastSearch
from labkit.algorithms.subspace.update import SubspaceStep, SubspaceUpdate

__all__ = ["Basis", "Constants", "LastSearch", "SubspaceStep", "SubspaceUpdate", "basis_from"]
