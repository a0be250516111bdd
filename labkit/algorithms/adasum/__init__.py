r"""Adasum: combine the updates of N workers by how much they agree.

    Adasum(a, b) = (1 - m / (m + n) a.b / |a|^2) a  +  (1 - n / (m + n) a.b / |b|^2) b

for a made by m workers and b by n, layer by layer; m = n but where N is no power of two. Parallel
vectors give their mean, in which every worker counts alike, orthogonal ones their sum, and a zero
vector passes the other one through. N vectors are combined level by level, neighbours in pairs.

Source: Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021,
arXiv 2006.02924; and "Adaptive Gradient Summation Algorithm", MindSpore tutorial r1.7. Departures:
- any number of workers: where a level is odd, its last three are combined as the mean of the three
  orders, so that none of them is special; a power of two gives the source's recursion;
- every scalar product in float32, of vectors scaled to length 1 where squares would leave its
  range: nothing overflows or vanishes between 1e-30 and 1e30. MindSpore's scales each half of a
  layer by its own maximum, which gives other coefficients;
- every tensor is combined whole, biases too; MindSpore averages what has no axis to halve;
- one AllGather and the same sum on every rank, no sends: replicas hold the same bits;
- from 2 workers on, and it says how many. MindSpore's is silently off below 16 devices.
"""

from labkit.algorithms.adasum.combination import combination
from labkit.algorithms.adasum.step import AdasumStep
from labkit.algorithms.adasum.update import AdasumUpdate

__all__ = ["AdasumStep", "AdasumUpdate", "combination"]
