"""Draw the two pictures that lab 05 carries inside its text: its hook, and a cloud that moves.

    python -m scripts.draw_subspace          writes docs/figures/subspace_hook.png and _cloud.svg

The hook is cut out of the lab's own figure with a slider, as its last execution has left it.
"""

import base64
import io
import json
import re

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

from labkit.labs.figures.common import png
from scripts.pictures import NOTEBOOKS, store

NOTEBOOK = NOTEBOOKS / "05_dimension_reduction.ipynb"
DIGITS = "def draw_digits"  # the cell with the slider; its stills: all directions, and one

WALKERS, UPDATES, EVERY = 16, 160, 10  # of the cloud; a picture every so many updates
SECONDS, TRAVEL = 10, 0.8  # of a loop; its part before the picture rests
WIDTH, HEIGHT, SCALE = 620, 250, 34  # the picture's, and pixels of one unit across the river


def hook() -> None:
    """Draw five digits with what two networks say: the trained one, and one direction of it."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    (cell,) = (cell for cell in cells if DIGITS in "".join(cell["source"]))
    (stills,) = (each["data"]["image/png"] for each in cell["outputs"] if "data" in each)
    both = np.asarray(Image.open(io.BytesIO(base64.b64decode("".join(stills)))).convert("RGB"))
    high, half = both.shape[0], both.shape[1] // 2
    rows = [cut(both[: int(0.45 * high), left : left + half]) for left in (0, half)]
    figure, axes = plt.subplots(2, 1, figsize=(7, 3.4), layout="constrained")
    captions = "as trained", "one direction\nof 32 kept"
    for axis, row, caption in zip(axes, rows, captions, strict=True):
        axis.imshow(row)
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
        axis.set_ylabel(caption, rotation=0, ha="right", va="center", fontsize=13)
    store("subspace_hook.png", png(figure, 80))


def cut(part: np.ndarray) -> np.ndarray:
    """Return the top of a picture, down to the first empty line below the digits, unframed."""
    inked = (part < 250).any(axis=(1, 2))
    first = int(inked.argmax())
    below = first + int(0.25 * len(inked))  # past the answers, which stand above the digits
    empty = below + int((~inked[below:]).argmax())
    part = part[max(first - 4, 0) : empty + 1]
    columns = np.flatnonzero((part < 250).any(axis=(0, 2)))
    return part[:, columns[0] : columns[-1] + 1]


def walked() -> tuple[np.ndarray, np.ndarray]:
    """Return learning rates (pictures,) and places (pictures, walkers, 2) along and across."""
    random = np.random.default_rng(0)
    rates = np.interp(np.arange(UPDATES), [0, 95, 145], [0.5, 0.5, 0.01])
    place = random.normal(size=(WALKERS, 2)) * (0.5, 1)
    places = [place]
    for rate in rates:
        along, across = place.T
        batch = random.normal(size=WALKERS)
        place = np.stack([along + rate * 0.2, across - rate * (across - batch)], axis=1)
        places.append(place)
    return np.append(rates, rates[-1])[::EVERY], np.array(places)[::EVERY]


def cloud() -> None:
    """Draw 16 walkers in a river valley, while their learning rate stays high and then falls."""
    rates, places = walked()
    along = 60 + places[..., 0] / places[..., 0].max() * (WIDTH - 110)
    across = 100 - SCALE * places[..., 1]
    moments = TRAVEL * 100 * np.linspace(0, 1, len(rates))
    rules = []

    def moving(name: str, values: list[str]) -> str:
        """Add the rule of an animation; the element stays where that ends."""
        frames = [f"{m:.1f}%{{{v}}}" for m, v in zip(moments, values, strict=True)]
        rules.append(f"@keyframes {name}{{{''.join(frames)}to{{{values[-1]}}}}}")
        rules.append(f"#{name}{{{values[-1]};animation:{name} {SECONDS}s linear infinite}}")
        return f'id="{name}"'

    def way(x: np.ndarray, y: np.ndarray) -> list[str]:
        return [f"transform:translate({a:.0f}px,{b:.1f}px)" for a, b in zip(x, y, strict=True)]

    dots = "".join(
        f'<circle class="walker" r="4" {moving(f"w{n}", way(along[:, n], across[:, n]))}/>'
        for n in range(WALKERS)
    )
    middle = moving("mean", way(along.mean(axis=1), across.mean(axis=1)))
    bar = moving("rate", [f"transform:scaleX({rate / rates.max():.3f})" for rate in rates])
    slopes = "".join(
        f'<line class="slope" x1="0" x2="{WIDTH}" y1="{y:.0f}" y2="{y:.0f}"/>'
        for y in 100 + SCALE * np.array([-2.5, -1.9, -1.2, 1.2, 1.9, 2.5])
    )
    style = (
        "text{font:14px sans-serif;fill:#1b1b1b}.page{fill:#fff}.river{stroke:#1f77b4;"
        "stroke-width:5;opacity:.35}.slope{stroke:#bbb}.walker{fill:#ff7f0e;opacity:.75}"
        "#mean{fill:#000}#rate{fill:#ff7f0e;transform-origin:150px 0}"
        "@media(prefers-color-scheme:dark){text{fill:#e6e6e6}.page{fill:#16181b}#mean{fill:#fff}}"
        "@media(prefers-reduced-motion:reduce){*{animation:none!important}}"
    )
    svg = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}"
height="{HEIGHT}"><style>{style}{"".join(rules)}</style>
<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="8"/>{slopes}
<line class="river" x1="0" x2="{WIDTH}" y1="100" y2="100"/>{dots}
<path d="M0-8L8 0L0 8L-8 0Z" {middle}/>
<text x="20" y="232">learning rate</text><rect x="150" y="220" width="220" height="14" {bar}/>
<text x="400" y="232">◆ mean of the 16</text></svg>
"""
    store("subspace_cloud.svg", re.sub(r"\n(?=height)", " ", svg).encode())


if __name__ == "__main__":
    cloud()
    hook()
