"""Lab 04: wrong answers."""

import numpy as np

from tests.support.answers import solved

right = solved("04_adasum")
_pair = right.adasum_pair


def _both_at_the_start(w, x, y, rate):
    return w - rate * ((w @ x + 1) * x + (w @ y + 1) * y)


def _averaged(lenet, sizes):
    (batch,) = lenet.micro_batches([sum(sizes)])  # workers of equal size: the large batch
    return [gradient.asnumpy() for gradient in lenet.gradients(*batch)]


def _flattened(lenet, sizes):
    first, second = (lenet.gradients(*batch) for batch in lenet.micro_batches(sizes))
    flat = [np.concatenate([g.asnumpy().ravel() for g in own]) for own in (first, second)]
    ends = np.cumsum([g.size for g in first])[:-1]
    cut = zip(np.split(_pair(*flat), ends), first, strict=True)
    return [part.reshape(g.shape) for part, g in cut]


def _folded(lenet, sizes, updates):
    for _ in range(updates):
        each = [lenet.gradients(*batch) for batch in lenet.micro_batches(sizes)]
        moves = []
        for total, *others in zip(*each, strict=True):
            for part in others:
                total = right.pair(total, part)
            moves.append(total)
        lenet.update(moves)
    return [parameter.asnumpy() for parameter in lenet.parameters]


def _combined_gradient(w, g, v, rate, momentum):
    v = momentum * v + _pair(*g)
    return w - rate * v.mean(0), v


def _climbs(w, g, v, rate, momentum):
    v = momentum * v + g
    return w + rate * _pair(*v), v


WRONG = [
    ("two_orders", _both_at_the_start, "where does a second step begin"),
    ("lenet_adasum", _averaged, "that is the mean"),
    ("lenet_adasum", _flattened, "one angle for the whole network"),
    ("adasum_update", _combined_gradient, "what the optimizers make"),
    ("adasum_update", _climbs, "it climbs"),
    ("adasum_update", lambda w, g, v, rate, momentum: (
        w - rate * (momentum * v.mean(0) + _pair(*g)), momentum * v + g), "Adasum of the grad"),
    ("adasum_update", lambda w, g, v, rate, momentum: (
        w - rate * (momentum * v + g).mean(0), [(momentum * v + g).mean(0)] * 2), "one optimizer"),
    ("adasum_update", lambda w, g, v, rate, momentum: (
        w - rate * (momentum * v + g).mean(0), momentum * v + g), "the moves were averaged"),
    ("lenet_adasum_training", _folded, "one after the other"),
]  # fmt: skip
