r"""Adasum: combine the updates of N workers by how much they agree.

    Adasum(a, b) = (1 - m / (m + n) a.b / |a|^2) a  +  (1 - n / (m + n) a.b / |b|^2) b

where m workers made a and n made b, layer by layer; m and n differ only if N is not a power of two.
Parallel vectors give their mean, in which all workers count equally; orthogonal ones give their
sum; a zero vector leaves the other unchanged. N vectors are combined level by level, in pairs of
neighbours.

Source: Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021,
arXiv 2006.02924; and "Adaptive Gradient Summation Algorithm", MindSpore tutorial r1.7. Departures:
- any number of workers: on a level with an odd number of vectors, the last three are combined in
  each of three orders and the results averaged, so that all three are treated alike; a power of two
  gives the source's recursion;
- scalar products are in float32, of vectors scaled to length 1 where squares would leave its range:
  nothing overflows or underflows between 1e-30 and 1e30. MindSpore scales each half of a layer by
  its own maximum, which changes the coefficients;
- every tensor is combined as a whole, biases too; MindSpore averages tensors without an axis to
  halve;
- one AllGather, then the same sum on every rank, without sends: replicas hold the same bits;
- it works from 2 workers on and reports how many there are; MindSpore's is silently off below 16
  devices.
"""

from labkit.algorithms.adasum.combination import combination
from labkit.algorithms.adasum.step import AdasumStep
from labkit.algorithms.adasum.update import AdasumUpdate

__all__ = ["AdasumStep", "AdasumUpdate", "combination"]
