"""Lab 04: right answers, and wrong ones."""

import numpy as np


def adasum_pair(a, b):
    dot, aa, bb = a @ b, a @ a, b @ b
    x = 1 - dot / (2 * aa) if aa > 0 else 1
    y = 1 - dot / (2 * bb) if bb > 0 else 1
    return x * a + y * b


def adasum_all(vectors):
    vectors = list(vectors)
    while len(vectors) > 1:
        pairs = range(0, len(vectors), 2)
        vectors = [adasum_pair(vectors[i], vectors[i + 1]) for i in pairs]
    return vectors[0]


def adasum_by_layer(a, b, sizes):
    ends = np.cumsum(sizes)[:-1]
    both = zip(np.split(a, ends), np.split(b, ends), strict=True)
    return np.concatenate([adasum_pair(x, y) for x, y in both])


def adasum_update(w, gradients, velocities, rate, momentum):
    first, second = (momentum * v + g for v, g in zip(velocities, gradients, strict=True))
    # Adasum(-rate a, -rate b) = -rate Adasum(a, b)
    return w - rate * adasum_pair(first, second), np.stack([first, second])


def coefficient_from_parts(parts):
    a, b = (np.concatenate(side) for side in zip(*parts, strict=True))
    return 1 - a @ b / (2 * a @ a)


def bytes_received(ranks, numbers):
    others = ranks - 1
    return 4 * others * numbers, 8 * others * numbers / ranks


def _divided(a, b, first, second):
    with np.errstate(invalid="ignore"):
        return a - a @ b / first * a + b - a @ b / second * b


def _by_cosine(a, b):
    cosine = a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-300)
    return (1 - cosine / 2) * (a + b)


def _folded(vectors):
    total = 0 * vectors[0]
    for vector in vectors:
        total = adasum_pair(total, vector)
    return total


def _horovods_order(vectors):
    half = len(vectors) // 2
    if not half:
        return vectors[0]
    both = zip(vectors[:half], vectors[half:], strict=True)
    return _horovods_order([adasum_pair(a, b) for a, b in both])


def _halves(inside):
    def attempt(vectors):
        return adasum_pair(*(inside(half, 0) for half in np.split(vectors, 2)))

    return attempt


def _first_level(vectors):
    return sum(map(adasum_pair, vectors[::2], vectors[1::2])) / (len(vectors) // 2)


def _each_number(a, b, sizes):
    return np.concatenate([adasum_pair(a[i : i + 1], b[i : i + 1]) for i in range(len(a))])


def _even(a, b, sizes):
    ends = [round(len(a) * i / len(sizes) - 0.5 + 1e-9) for i in range(1, len(sizes))]
    return np.concatenate(list(map(adasum_pair, np.split(a, ends), np.split(b, ends))))


def _without_last(a, b, sizes):
    combined, start = a + b, 0
    for size in sizes[:-1]:
        part = slice(start, start + size)
        combined[part] = adasum_pair(a[part], b[part])
        start += size
    return combined


def _moved(combine):
    def attempt(w, g, v, rate, momentum):
        velocities = momentum * v + g
        return w - rate * combine(velocities), velocities

    return attempt


def _combined_gradient(w, g, v, rate, momentum):
    v = momentum * v + adasum_pair(*g)
    return w - rate * v.mean(0), v


def _climbs(w, g, v, rate, momentum):
    v = momentum * v + g
    return w + rate * adasum_pair(*v), v


def _shared(w, g, v, rate, momentum):
    moved, v = adasum_update(w, g, v, rate, momentum)
    return moved, np.stack([adasum_pair(*v)] * 2)


def _old_velocities(w, g, v, rate, momentum):
    return adasum_update(w, g, v, rate, momentum)[0], v


def _by_own_largest(parts):
    largest = [max(np.abs(a).max(), np.abs(b).max()) for a, b in parts]
    return coefficient_from_parts(
        [(a / m, b / m) for (a, b), m in zip(parts, largest, strict=True)]
    )


WRONG = [
    ("adasum_pair", lambda a, b: _divided(
        a, b, 2 * np.linalg.norm(a), 2 * np.linalg.norm(b)), "or by its square"),
    ("adasum_pair", lambda a, b: _divided(a, b, a @ a, b @ b), "parallel vectors cancel"),
    ("adasum_pair", lambda a, b: _divided(a, b, 2 * b @ b, 2 * a @ a), "of which vector"),
    ("adasum_pair", _by_cosine, "know the two lengths"),
    ("adasum_all", _folded, "one after the other"),
    ("adasum_all", _horovods_order, "neighbours, or every other one"),
    ("adasum_all", _first_level, "only the first level"),
    ("adasum_all", _halves(np.mean), "inside the halves it is a mean"),
    ("adasum_all", _halves(np.sum), "inside the halves it is a sum"),
    ("adasum_by_layer", _each_number, "a layer is a whole vector"),
    ("adasum_by_layer", _even, "not all of one size"),
    ("adasum_by_layer", _without_last, "what about the last layer"),
    ("adasum_update", _combined_gradient, "what the optimizers make"),
    ("adasum_update", _climbs, "it climbs"),
    ("adasum_update", _moved(lambda v: v.mean(0)), "the moves were averaged"),
    ("adasum_update", _moved(lambda v: v.sum(0)), "the moves were summed"),
    ("adasum_update", _shared, "each has its own"),
    ("adasum_update", _old_velocities, "those of the update before"),
    ("coefficient_from_parts", lambda parts: np.mean(
        [coefficient_from_parts([part]) for part in parts]), "do their lengths count"),
    ("coefficient_from_parts", _by_own_largest, "a unit of its own"),
    ("coefficient_from_parts", lambda parts: 1 - sum(
        a @ b / (a @ a) for a, b in parts) / 2, "added before dividing"),
    ("bytes_received", lambda r, n: (4 * r * n, 8 * n * (r - 1) / r), "already has"),
    ("bytes_received", lambda r, n: (n * (r - 1), 2 * n * (r - 1) / r), "how many bytes"),
    ("bytes_received", lambda r, n: (4 * n * (r - 1), 4 * n * (r - 1) / r), "goes round twice"),
    ("bytes_received", lambda r, n: (4 * n * (r - 1), 8 * n * (r - 1)), "only a slice"),
    ("bytes_received", lambda r, n: (
        4 * n * r * (r - 1), 8 * n * (r - 1)), "all ranks receive together"),
]  # fmt: skip
