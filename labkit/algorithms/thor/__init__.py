r"""THOR: natural gradient by Kronecker factors, in blocks, refreshed every few updates.

    w <- optimizer(w, U),      U = (F + damping I)^-1 grad L(w),
    F ~ T A (x) G by layer,    A = E[p p^T],   G = E[d d^T]

p is a patch of the layer's input at one of T positions, d the derivative of one row's loss with
respect to the layer's output at that position, E the mean over rows and positions: the empirical
Fisher matrix, as in MindSpore's THOR. T is the number of positions that the layer sees, on
whichever axis, divided by the batch's rows. The optimizer supplies the minus sign; the tutorial's
"theta + alpha F^-1 grad E" is a slip.

Of a loss that is a mean over c terms (tokens: a ``TokenLossNet``, labels with more axes than the
rows', any loss net that returns (loss, c)) the unit is the term. With L = sum_t l_t / c and
d = dL/dy at a position, c d is the derivative of sum_t l_t there: of the one term l_t that the
position predicts, if positions do not mix, which Kronecker factors neglect. As the mean over terms
of (c d p^T)(c d p^T)^T = A (x) G,

    A = sum p p^T / positions,   G = (1 / c) sum (c d)(c d)^T = c sum d d^T,   T = 1

A micro-batch's padding is among its positions, not among its terms. Over rows, c = N, the product
T A (x) G is the same, (sum p p^T / positions)(N sum d d^T); only the damping is split otherwise. Of
several micro-batches or ranks, A is averaged by positions, c sum d d^T by c.

Sources: Chen et al., "THOR, Trace-based Hardware-driven Layer-Oriented Natural Gradient Descent
Computation", AAAI 2021 (blocks, trace rule); Martens and Grosse, "Optimizing Neural Networks with
Kronecker-factored Approximate Curvature", 2015 (factors, damping); Grosse and Martens, "A
Kronecker-factored approximate Fisher matrix for convolution layers", 2016; Eschenhagen et al.,
"Kronecker-Factored Approximate Curvature for Modern Neural Network Architectures", NeurIPS 2023
(terms: its "expand"); MindSpore's nn.thor.

Departures from MindSpore's THOR, with the published formulas (``formulas="thor"``):
- rows and positions whose label is ignored count in A (and T) like any other: for a padded batch
  the factors are an approximation, while the gradient is exact;
- A and G are means over all rows and positions, in float32, on every device; MindSpore's GPU branch
  averages over the batch before the outer product, and divides a dense layer's A by its width;
- patches are padded as the convolution pads; stride, dilation, groups and any kernel are honoured;
- a factor is cut into the fewest blocks of one size, not into blocks of 128 and a remainder;
- the bias is a coordinate of its layer's input (``bias="plain"`` leaves it out);
- the paper's trace rule for each layer, which its code omits, is available (``trace_rule``);
- factors are averaged over ranks; after that, each layer's inverses are computed by one rank;
- a failed inversion is retried with ten times the damping, and counted.
"""

from labkit.algorithms.thor.update import ThorOptions, ThorStep, ThorUpdate, TraceRule

__all__ = ["ThorOptions", "ThorStep", "ThorUpdate", "TraceRule"]
