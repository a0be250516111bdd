"""Lab 04: wrong answers."""

import numpy as np
from mindspore import Tensor

from tests.support.solutions import solved

right = solved("04_adasum")
_pair = right.adasum_pair


def _both_at_the_start(w, x, y, rate):
    return w - rate * ((w @ x + 1) * x + (w @ y + 1) * y)


def _emulated(w, x, y, rate):
    return w - rate * _pair((w @ x + 1) * x, (w @ y + 1) * y)


def _divided(a, b, first, second):
    with np.errstate(invalid="ignore"):
        return a - a @ b / first * a + b - a @ b / second * b


def _layers(pair):
    def attempt(a, b, sizes):
        combined, start = np.zeros(len(a)), 0
        for size in sizes:
            part = slice(start, start + size)
            combined[part] = pair(a[part], b[part])
            start += size
        return combined

    return attempt


def _by_cosine(a, b):
    cosine = a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-300)
    return (1 - cosine / 2) * (a + b)


def _each_number(a, b, sizes):
    return np.concatenate([_pair(a[i : i + 1], b[i : i + 1]) for i in range(len(a))])


def _averaged(lenet, sizes):
    (batch,) = lenet.micro_batches([sum(sizes)])  # workers of equal size: the large batch
    return [gradient.asnumpy() for gradient in lenet.gradients(*batch)]


def _flattened(lenet, sizes):
    first, second = (lenet.gradients(*batch) for batch in lenet.micro_batches(sizes))
    flat = [np.concatenate([g.asnumpy().ravel() for g in own]) for own in (first, second)]
    ends = np.cumsum([g.size for g in first])[:-1]
    cut = zip(np.split(_pair(*flat), ends), first, strict=True)
    return [part.reshape(g.shape) for part, g in cut]


def _trains_with(combine):
    def attempt(lenet, sizes, updates):
        for _ in range(updates):
            each = [lenet.gradients(*batch) for batch in lenet.micro_batches(sizes)]
            lenet.update([combine(parts) for parts in zip(*each, strict=True)])
        return [parameter.asnumpy() for parameter in lenet.parameters]

    return attempt


def _folded(parts):
    total, *others = parts
    for part in others:
        total = right.pair(total, part)
    return total


def _moved(combine):
    def attempt(w, g, v, rate, momentum):
        velocities = momentum * v + g
        return w - rate * combine(velocities), velocities

    return attempt


def _combined_gradient(w, g, v, rate, momentum):
    v = momentum * v + _pair(*g)
    return w - rate * v.mean(0), v


def _climbs(w, g, v, rate, momentum):
    v = momentum * v + g
    return w + rate * _pair(*v), v


def _shared(w, g, v, rate, momentum):
    moved, v = right.adasum_update(w, g, v, rate, momentum)
    return moved, np.stack([_pair(*v)] * 2)


def _old_velocities(w, g, v, rate, momentum):
    return right.adasum_update(w, g, v, rate, momentum)[0], v


WRONG = [
    ("two_orders", _both_at_the_start, "where does a second step begin"),
    ("two_orders", _emulated, "the same at one rate only"),
    ("two_orders", lambda w, x, y, rate: w, "off by"),
    ("bytes_received", lambda r, n: (4 * r * n, 8 * n * (r - 1) / r), "already has"),
    ("bytes_received", lambda r, n: (n * (r - 1), 2 * n * (r - 1) / r), "how many bytes"),
    ("bytes_received", lambda r, n: (4 * n * (r - 1), 4 * n * (r - 1) / r), "goes round twice"),
    ("bytes_received", lambda r, n: (4 * n * (r - 1), 8 * n * (r - 1)), "only a slice"),
    ("bytes_received", lambda r, n: (
        4 * n * r * (r - 1), 8 * n * (r - 1)), "all ranks receive together"),
    ("adasum_by_layer", _each_number, "a layer is a whole vector"),
    ("adasum_by_layer", _layers(lambda a, b: _divided(
        a, b, 2 * np.linalg.norm(a), 2 * np.linalg.norm(b))), "or by its square"),
    ("adasum_by_layer", _layers(
        lambda a, b: _divided(a, b, a @ a, b @ b)), "parallel vectors cancel"),
    ("adasum_by_layer", _layers(
        lambda a, b: _divided(a, b, 2 * b @ b, 2 * a @ a)), "of which vector"),
    ("adasum_by_layer", _layers(_by_cosine), "know the two lengths"),
    ("lenet_adasum", _averaged, "that is the mean"),
    ("lenet_adasum", _flattened, "one angle for the whole network"),
    ("adasum_update", _combined_gradient, "what the optimizers make"),
    ("adasum_update", _climbs, "it climbs"),
    ("adasum_update", _moved(lambda v: v.mean(0)), "the moves were averaged"),
    ("adasum_update", _moved(lambda v: v.sum(0)), "the moves were summed"),
    ("adasum_update", _shared, "each has its own"),
    ("adasum_update", _old_velocities, "those of the update before"),
    ("lenet_adasum_training", _trains_with(_folded), "one after the other"),
    ("lenet_adasum_training", _trains_with(
        lambda parts: Tensor(sum(part.asnumpy() for part in parts))), "were summed"),
]  # fmt: skip
