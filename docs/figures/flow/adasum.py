"""Lab 04: workers, the tree, one move, and the rule for a pair."""

import numpy as np

from flow.drawing import LEFT, RIGHT, SMALL, TEXT, Drawing
from labkit.reference import adasum_pair

_SHOWN = (
    "Four workers start from the same weights. Each takes a batch of its own, and its own "
    "optimizer makes a move d_i of it. Neighbours are combined in pairs by Adasum, then the "
    "two results, layer by layer, until one vector is left. It is added to the weights of all "
    "workers, which are then the same again. Below, the rule of a pair: for parallel vectors "
    "a and b the result is their mean, for orthogonal ones their sum."
)


def adasum() -> Drawing:
    """Workers, the tree of pairs, one vector, and the rule of a pair."""
    made = Drawing(
        "Adasum: from many workers to one move",
        "Each worker: its own batch, its own optimizer, its own move *d_{i}*",
        _SHOWN,
        640,
    )
    made.box(16, 62, 396, 28, "grey", "the same weights *w*")
    centres = (58, 166, 274, 382)
    for number, x in enumerate(centres, 1):
        made.arrow((x, 90), (x, 108))
        made.box(x - 42, 108, 84, 88, "grey")
        made.text(x, 125, f"worker {number}", SMALL, kind="bold")
        made.tiles(x - 16.5, 133, 4, 4, "orange")
        made.arrow((x, 143), (x, 161))
        made.box(x - 36, 161, 72, 26, "grey")
        made.text(x, 178, "optimizer", SMALL)
        inner = x + (16 if number % 2 else -16)
        made.arrow((x, 196), (x, 246), (inner, 246))
        side = "start" if number % 2 else "end"
        made.text(x + (7 if number % 2 else -7), 221, f"*d_{{{number}}}*", anchor=side)
    for x in (112, 328):
        made.box(x - 38, 230, 76, 32, "blue", "Adasum")
    made.arrow((112, 262), (112, 304), (182, 304), hue="blue")
    made.arrow((328, 262), (328, 304), (258, 304), hue="blue")
    made.box(182, 288, 76, 32, "blue", "Adasum")
    made.lines(16, 288, "layer by", "layer", anchor="start")
    made.lines(RIGHT, 288, "any number", "of workers", anchor="end")
    made.arrow((220, 320), (220, 344), hue="blue")
    made.box(96, 344, 248, 44, "blue", "*w ← w* + Adasum*(d_{1}, …, d_{4})*",
             "the same on every worker")  # fmt: skip
    made.arrow((344, 366), (432, 366), (432, 76), (412, 76), hue="blue")
    made.path("M16 408L424 408", "grey", "thin")
    made.text(LEFT, 433, "The rule for a pair", TEXT, "start", "bold")
    made.text(220, 460, "*(1 − a·b/(2|a|^{2})) a + (1 − a·b/(2|b|^{2})) b*")
    _parallel(made)
    _orthogonal(made)
    return made


def _parallel(made: Drawing) -> None:
    a, b = np.array([60.0, 0.0]), np.array([130.0, 0.0])
    result = adasum_pair(a, b)[0]
    made.box(16, 476, 198, 148, "grey", kind="hollow")
    made.text(115, 498, "parallel: the mean", kind="bold")
    for y, name, length, hue in (
        (526, "a", a[0], ""),
        (554, "b", b[0], "grey"),
        (592, "", result, "blue"),
    ):
        made.arrow((30, y), (30 + length, y), hue=hue, kind="thick" if hue == "blue" else "")
        made.text(38 + length, y + 4.5, f"*{name}*" if name else "*(a + b)/2*", anchor="start")


def _orthogonal(made: Drawing) -> None:
    a, b = np.array([100.0, 0.0]), np.array([0.0, 70.0])
    x, y = adasum_pair(a, b)
    made.box(226, 476, 198, 148, "grey", kind="hollow")
    made.text(325, 498, "orthogonal: the sum", kind="bold")
    left, low = 260, 600
    made.path(
        f"M{left} {low - 70}L{left + 100} {low - 70}L{left + 100} {low}", "grey", "dashed thin"
    )
    made.arrow((left, low), (left + a[0], low))
    made.arrow((left, low), (left, low - b[1]), hue="grey")
    made.arrow((left, low), (left + x, low - y), hue="blue", kind="thick")
    made.text(left + 108, low + 4.5, "*a*", anchor="start")
    made.text(left - 8, low - 66, "*b*", anchor="end")
    made.text(left + 108, low - 66, "*a + b*", anchor="start")
