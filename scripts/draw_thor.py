"""Draw docs/figures/thor_hook.svg: two walkers in lab 03's valley, step by step, as a loop.

    python -m scripts.draw_thor

Where nothing moves (in print, or for readers who ask for less motion) the last step is shown.
"""

import numpy as np
from matplotlib.figure import Figure

from labkit.data.mnist import load_arrays
from labkit.data.prepare import prepare
from scripts.pictures import store

STEPS, EACH, HOLD = 20, 0.5, 2.0  # steps; seconds for each, and at the end
SCALE, LEFT, TOP, SIDE = 110, -0.6, 1.1, 440  # points for a unit of weight; the view's corner
BLUE, ORANGE = "#1f77b4", "#ff7f0e"  # matplotlib's C0 and C1, as in the lab
BEST_RATE, DAMPING = 6.0, 0.001


def valley() -> tuple[np.ndarray, np.ndarray]:
    """Return the ink in the left and right halves of 3s and 8s, (digits, 2), and which are 8s."""
    images, labels = load_arrays(prepare("mnist"), "train", 2_000)
    pixels = images[np.isin(labels, (3, 8)), 0].astype(np.float64)
    ink = np.stack([pixels[:, :, :16].mean((1, 2)), pixels[:, :, 16:].mean((1, 2))], axis=1)
    return (ink - ink.mean(0)) / ink.std(0), (labels[np.isin(labels, (3, 8))] == 8).astype(float)


INK, IS_EIGHT = valley()


def loss(w: np.ndarray) -> np.ndarray:
    """Return the mean loss of weights (..., 2)."""
    z = w @ INK.T
    return np.mean(np.logaddexp(0, z) - IS_EIGHT * z, axis=-1)


def walk(steps: int, natural: bool) -> np.ndarray:
    """Return the weights after each step, (steps + 1, 2)."""
    path = [np.array([0.0, 0.5])]
    for _ in range(steps):
        chance = 1 / (1 + np.exp(-INK @ path[-1]))
        step = INK.T @ (chance - IS_EIGHT) / len(INK)
        if natural:
            fisher = (INK.T * (chance * (1 - chance))) @ INK / len(INK)
            step = np.linalg.solve(fisher + DAMPING * np.eye(2), step)
        path.append(path[-1] - step * (1 if natural else BEST_RATE))
    return np.array(path)


def points(weights: np.ndarray) -> np.ndarray:
    """Return places on the page, (n, 2)."""
    return np.stack([weights[:, 0] - LEFT, TOP - weights[:, 1]], axis=1) * SCALE


def line(places: np.ndarray, rest: str) -> str:
    """Return a line through places."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline points="{path}" fill="none" {rest}/>'


def contours(least: float) -> list[str]:
    """Return the valley's lines of equal loss."""
    side = SIDE / SCALE
    x, y = np.meshgrid(np.linspace(LEFT, LEFT + side, 90), np.linspace(TOP - side, TOP, 90))
    heights = loss(np.stack([x, y], axis=-1).reshape(-1, 2)).reshape(90, 90) - least
    found = Figure().subplots().contour(x, y, heights, np.geomspace(1e-3, 1, 9))
    lines = [points(segment) for level in found.allsegs for segment in level]
    return [line(each, 'stroke="#999" stroke-width="0.8"') for each in lines]


def moving(name: str, path: np.ndarray, color: str) -> tuple[str, str]:
    """Return the rules and the picture of a walker and its trace."""
    places, total = points(path), (STEPS + 1) * EACH + HOLD
    ends = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(places, axis=0), axis=1))])
    trace, dot = [], []
    for step, ((x, y), walked) in enumerate(zip(places, ends, strict=True)):
        begin = 100 * step * EACH / total  # stands, then walks in the last third of its time
        rest = 100 * ((step + 0.6) * EACH if step < STEPS else total) / total
        trace.append(f"{begin:.1f}%,{rest:.1f}%{{stroke-dashoffset:{ends[-1] - walked:.1f}}}")
        dot.append(f"{begin:.1f}%,{rest:.1f}%{{transform:translate({x:.1f}px,{y:.1f}px)}}")
    x, y = places[-1]
    rules = f"@keyframes {name}-trace{{{''.join(trace)}}}@keyframes {name}-dot{{{''.join(dot)}}}"
    rules += f".{name}-trace{{stroke-dasharray:{ends[-1]:.1f};"
    rules += f"animation:{name}-trace {total}s linear infinite}}"
    rules += f".{name}-dot{{transform:translate({x:.1f}px,{y:.1f}px);"
    rules += f"animation:{name}-dot {total}s linear infinite}}"
    drawn = line(places, f'class="{name}-trace" stroke="{color}" stroke-width="2.5"')
    return rules, drawn + f'<circle class="{name}-dot" r="6" fill="{color}"/>'


def counters(place: tuple[int, int], texts: list[str], size: int, color: str) -> str:
    """Return a text for each step, of which one is shown at a time: without motion the last."""
    total, parts = (STEPS + 1) * EACH + HOLD, []
    for step, text in enumerate(texts):
        last = step == len(texts) - 1
        shown = f'class="{"last" if last else "one"}" style="animation-delay:'
        shown += f'{step * EACH - total:.2f}s" font-size="{size}" fill="{color}"'
        parts.append(f'<text x="{place[0]}" y="{place[1]}" {shown}>{text}</text>')
    return "".join(parts)


def draw() -> str:
    """Return the picture."""
    least = loss(walk(20, natural=True)[-1])
    paths = {"orange": (walk(STEPS, natural=False), ORANGE)}
    paths["blue"] = (walk(STEPS, natural=True), BLUE)
    total = (STEPS + 1) * EACH + HOLD
    one, last = 100 * EACH / total, 100 * (EACH + HOLD) / total
    rules = [
        "text{font-family:sans-serif}.one{opacity:0}",
        f"@keyframes one{{0%,{one:.2f}%{{opacity:1}}{one + 0.01:.2f}%,100%{{opacity:0}}}}",
        f"@keyframes last{{0%,{last:.2f}%{{opacity:1}}{last + 0.01:.2f}%,100%{{opacity:0}}}}",
        f".one{{animation:one {total}s linear infinite}}",
        f".last{{animation:last {total}s linear infinite}}",
    ]
    drawn = contours(least)
    for name, (path, color) in paths.items():
        rule, picture = moving(name, path, color)
        rules.append(rule)
        drawn.append(picture)
    drawn.append(counters((470, 60), [f"step {n}" for n in range(STEPS + 1)], 30, "#333"))
    said = (("orange", 130, "gradient descent"), ("blue", 240, "and with the curvature"))
    for name, y, label in said:
        path, color = paths[name]
        above = [f"{1000 * (height - least):.0f}" for height in loss(path)]
        drawn.append(f'<text x="470" y="{y}" font-size="17" fill="{color}">{label}</text>')
        drawn.append(counters((470, y + 34), above, 30, color))
        drawn.append(f'<text x="470" y="{y + 56}" font-size="13" fill="#555">'
                     "thousandths of a nat too high</text>")  # fmt: skip
    drawn.append(f'<text x="120" y="{SIDE - 8}" font-size="13" fill="#555">'
                 "weight of the left half</text>")  # fmt: skip
    drawn.append('<text transform="translate(16 330) rotate(-90)" font-size="13" fill="#555">'
                 "weight of the right half</text>")  # fmt: skip
    still = "@media (prefers-reduced-motion:reduce){*{animation:none!important}}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 680 {SIDE}" width="680">'
    clip = f'<clipPath id="view"><rect width="{SIDE}" height="{SIDE}"/></clipPath>'
    ground = f'<rect width="680" height="{SIDE}" fill="white"/>'
    style = f"<style>{''.join(rules)}{still}</style>"
    return "\n".join([head, style, clip, ground, *drawn, "</svg>", ""])


if __name__ == "__main__":
    store("thor_hook.svg", draw().encode())
