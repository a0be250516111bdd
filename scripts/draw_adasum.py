"""Draw the two stored pictures of lab 04 into docs/figures.

    python -m scripts.draw_adasum

adasum_hook.png has two vectors that agree and two that do not, with their mean, sum and Adasum.
adasum_orders.svg shows, in a loop, two steps of SGD in both orders, and the one step of Adasum.
"""

import math

import matplotlib.pyplot as plt
import numpy as np

from labkit.labs.figures.common import png
from labkit.reference import adasum_pair
from scripts.pictures import store

KINDS = {"sum": ("C3", "o", 11), "Adasum": ("C0", "D", 8), "mean": ("C1", "s", 11)}


def hook() -> bytes:
    """Return the picture of two pairs of vectors, 15 and 90 degrees apart, as a small PNG."""
    figure, axes = plt.subplots(1, 2, figsize=(7.6, 3.1), layout="constrained")
    titles = "They agree: average", "They have nothing in common: add"
    for axis, half, title in zip(axes, (7.5, 45), titles, strict=True):
        angles = np.deg2rad([30 + half, 30 - half])
        a, b = 2 * np.stack([np.cos(angles), np.sin(angles)], 1)
        for name, vector in (("a", a), ("b", b)):
            arrow = {
                "arrowstyle": "-|>",
                "linewidth": 2,
                "mutation_scale": 16,
                "shrinkA": 0,
                "shrinkB": 0,
            }
            axis.annotate("", vector, (0, 0), arrowprops=arrow | {"color": "black"})
            place = (-14, 4) if name == "a" else (4, -14)
            axis.annotate(name, vector, place, textcoords="offset points", style="italic", size=12)
        made = {"sum": a + b, "Adasum": adasum_pair(a, b), "mean": (a + b) / 2}
        for name, vector in made.items():
            color, mark, size = KINDS[name]
            axis.plot(*zip((0, 0), vector, strict=True), color=color, linewidth=1, zorder=1)
            face = color if name == "Adasum" else "none"
            axis.plot(*vector, mark, color=color, markersize=size, markerfacecolor=face, mew=2)
            met = "mean" if half < 10 else "sum"  # where Adasum lies, and one name is enough
            if name != met:
                label = f"Adasum and {met}" if name == "Adasum" else name
                style = {"textcoords": "offset points", "color": color, "size": 11}
                axis.annotate(label, vector, (12, -6), **style)
        axis.plot(0, 0, ".", color="black")
        axis.set(xlim=(-0.2, 4.9), ylim=(-0.8, 2.3), aspect="equal")
        axis.set_title(title, fontsize=12)
        axis.set_axis_off()
    return png(figure, 120)


# The loop. Losses (a.w + 1)^2 / 2 and (b.w + 1)^2 / 2, with a and b of length 1 and 60 degrees
# apart, both at a rate of 1; a length of 1 is SIZE pixels, and w = 0 is drawn at START.
SIZE, START, SECONDS = 230, (310, 50), 10
# What appears when, in per cent of a loop: (begins, is complete).
TIMES = {"a1": (5, 14), "b2": (20, 29), "b3": (36, 45), "a4": (50, 59), "star": (64, 66),
         "both": (76, 86)}  # fmt: skip
COLORS = {"first": "#1b1b1b", "second": "#8a8a8a", "adasum": "#1f77b4"}


def orders() -> str:
    """Return the loop as an SVG; where nothing moves it is its last picture."""
    a, b = (np.array([math.cos(angle), math.sin(angle)]) for angle in np.deg2rad([60, 120]))

    def step(w: np.ndarray, v: np.ndarray) -> np.ndarray:
        return w - (v @ w + 1) * v

    start = np.zeros(2)
    by_a, by_b = step(start, a), step(start, b)
    ends = step(by_a, b), step(by_b, a)
    mean = (ends[0] + ends[1]) / 2
    assert np.allclose(mean, -adasum_pair(a, b))

    def at(w: np.ndarray) -> tuple[float, float]:
        return START[0] + SIZE * w[0], START[1] - SIZE * w[1]

    def line(*points: np.ndarray) -> str:
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in map(at, points))

    def arrow(name: str, color: str, begin: np.ndarray, end: np.ndarray) -> str:
        along = (end - begin) / np.linalg.norm(end - begin)
        side = np.array([-along[1], along[0]])
        barbs = [end - 0.07 * along + 0.035 * sign * side for sign in (1, -1)]
        ink = f'stroke="{COLORS[color]}"'
        shaft = f'<path class="grow grow-{name}" pathLength="1" {ink} d="{line(begin, end)}"/>'
        return f'{shaft}<path class="late late-{name}" {ink} d="{line(barbs[0], end, barbs[1])}"/>'

    def text(name: str, w: np.ndarray, off: tuple[float, float], words: str, rest: str) -> str:
        x, y = at(w)
        place = f'x="{x + off[0]:.1f}" y="{y + off[1]:.1f}"'
        return f'<text class="late soon-{name}" {place} {rest}>{words}</text>'

    left, center = 'text-anchor="end"', 'text-anchor="middle"'
    right, blue = 'text-anchor="start"', f'{center} fill="{COLORS["adasum"]}"'
    parts = [
        '<rect width="620" height="430" rx="10" fill="#ffffff"/>',
        f'<text x="{START[0]}" y="{START[1] - 16}" {center}>start</text>',
        arrow("a1", "first", start, by_a),
        text("a1", by_a / 2, (-16, 0), "first a: a whole step", left),
        arrow("b2", "first", by_a, ends[0]),
        text("b2", (by_a + ends[0]) / 2, (-16, 12), "then b: half a step is left", left),
        arrow("b3", "second", start, by_b),
        text("b3", by_b / 2, (16, 0), "first b: a whole step", right),
        arrow("a4", "second", by_b, ends[1]),
        text("a4", (by_b + ends[1]) / 2, (16, 12), "then a: half a step is left", right),
        f'<path class="late soon-star" style="stroke-width:1.5;stroke-dasharray:3 6" '
        f'stroke="#1b1b1b" d="{line(*ends)}"/>',
        text("star", mean, (0, 8), "★", f'{center} style="font-size:24px"'),
        text("star", mean, (0, 30), "half-way between the two ends", center),
        arrow("both", "adasum", start, mean),
        text("both", mean, (0, 52), "one step of Adasum ends there too", blue),
    ]
    moves = []
    for name, (begin, done) in TIMES.items():
        moves += [
            f"@keyframes grow-{name}{{0%,{begin}%{{stroke-dashoffset:1}}{done}%,100%{{"
            "stroke-dashoffset:0}}",
            f"@keyframes late-{name}{{0%,{done - 1}%{{opacity:0}}{done}%,100%{{opacity:1}}}}",
            f"@keyframes soon-{name}{{0%,{begin}%{{opacity:0}}{begin + 1}%,100%{{opacity:1}}}}",
            *(
                f".{kind}-{name}{{animation-name:{kind}-{name}}}"
                for kind in ("late", "soon", "grow")
            ),
        ]
    style = (
        "text{font-family:system-ui,sans-serif;font-size:16px}"
        "path{fill:none;stroke-width:3.5;stroke-linecap:butt}"
        "@media (prefers-reduced-motion:no-preference){.grow{stroke-dasharray:1}"
        f".grow,.late{{animation:{SECONDS}s linear infinite}}{''.join(moves)}}}"
    )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 620 430" width="620" height="430" '
        'role="img"><title>Two steps of SGD in both orders, and one step of Adasum</title>'
        f"<style>{style}</style>{''.join(parts)}</svg>\n"
    )


def main() -> None:
    store("adasum_hook.png", hook())
    store("adasum_orders.svg", orders().encode())


if __name__ == "__main__":
    main()
