"""Draw the two pictures of lab 01 into docs/figures: the hook, and the buffer that fills.

    python -m scripts.draw_accumulation [--loop-only]

The hook is measured, a process for each point (a minute on two cores). The loop is an SVG that
moves by CSS alone; where the reader asks for reduced motion it stands still at the full buffer.
"""

import sys

import matplotlib.pyplot as plt

from labkit.labs.figures.common import png
from labkit.labs.measure import peaks_mb
from scripts.pictures import store

SIZES = (32, 512, 1024, 2048, 3072, 4096)
MICRO, PARTS, SECONDS = 32, 4, 12
PHASE = 100 / (PARTS + 1)  # per cent of the loop: one for each micro-batch, one for the update
ORANGE, BLUE, QUIET, INK = "#d55e00", "#0072b2", "#595959", "#1b1b1b"


def hook() -> None:
    """Draw peak memory over the images in an update."""

    whole = [peaks_mb("lenet", [size])[0] for size in SIZES]
    pieces = peaks_mb("lenet", SIZES, MICRO)
    print("whole", whole, "pieces", pieces)
    figure, axis = plt.subplots(figsize=(6.6, 3.2))
    axis.plot(SIZES, whole, "o-", color="C1")
    axis.plot(SIZES, pieces, "o-", color="C0")
    axis.text(2900, 500, "the whole batch at once", color="C1", ha="right")
    axis.text(4096, 165, "the same batch, 32 images at a time", color="C0", ha="right")
    axis.set(xlabel="images in one update", ylabel="peak memory (MB)", ylim=(0, 600))
    axis.set_title("The same step, less than half the memory")
    store("accumulation_hook.png", png(figure, 110))


def shown(name: str, begin: float, end: float) -> str:
    """Return the CSS that shows a part from ``begin`` to ``end`` per cent of the loop."""
    off, on = "{opacity:0}", "{opacity:1}"
    frames = f"0%,{max(begin - 0.5, 0):.1f}%{off}{begin:.1f}%,{end:.1f}%{on}"
    frames += f"{min(end + 0.5, 100):.1f}%,100%{off}"
    if begin == 0:
        frames = f"0%,{end:.1f}%{on}{end + 0.5:.1f}%,100%{off}"
    return f"@keyframes {name}{{{frames}}}.{name}{{animation:{name} {SECONDS}s linear infinite}}"


def box(x: float, y: float, width: float, height: float, style: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" class="{style}"/>'


def text(x: float, y: float, words: str, style: str = "", anchor: str = "middle") -> str:
    return f'<text x="{x}" y="{y}" class="{style}" text-anchor="{anchor}">{words}</text>'


def loop() -> None:
    """Draw micro-batches that pass through a network, and the buffer that they fill."""
    css, parts = [], []
    for i in range(PARTS):
        begin, x = i * PHASE, 24 + 72 * i
        # The tile falls into the network and goes; its quarter of the buffer stays.
        css.append(
            f"@keyframes t{i}{{0%,{begin:.1f}%{{transform:none;opacity:1}}"
            f"{begin + 4:.1f}%,{begin + 12:.1f}%{{transform:translate({132 - x}px,66px);opacity:1}}"
            f"{begin + 14:.1f}%,97%{{transform:translate({132 - x}px,66px);opacity:0}}"
            f"98%{{transform:none;opacity:0}}100%{{transform:none;opacity:1}}}}"
            f".t{i}{{animation:t{i} {SECONDS}s ease-in-out infinite}}"
        )
        css.append(shown(f"b{i}", begin + 14, 94))
        last = i == PARTS - 1
        css.append(shown(f"n{i}", begin + 14, 94 if last else begin + PHASE + 13.5))
        parts.append(box(x, 40, 60, 34, "slot"))
        tile = box(x, 40, 60, 34, "orange") + text(x + 30, 62, f"{MICRO} images", "small white")
        parts.append(f'<g class="t{i}">{tile}</g>')
        parts.append(box(24 + 69 * i, 186, 69, 36, f"blue b{i}"))
        rest = "" if last else ' opacity="0"'
        words = f"buffer: the sum over {MICRO * (i + 1)} images"
        parts.append(f'<g class="n{i}"{rest}>{text(162, 242, words, "small quiet")}</g>')
    css += [shown("go", 82, 94), shown("wait", 0, 80), shown("empty", 0, 13.5)]
    still = text(368, 146, "stand still until", "small quiet")
    still += text(368, 160, "the buffer is full", "small quiet")
    update = box(316, 178, 104, 52, "blue") + text(368, 199, f"÷ {MICRO * PARTS}", "white")
    update += text(368, 218, "one step", "white")
    update += f'<path d="M300 204h12m-5-5 5 5-5 5" fill="none" stroke="{BLUE}" stroke-width="2"/>'
    update += f'<path d="M368 178V126m-5 5 5-5 5 5" fill="none" stroke="{BLUE}" stroke-width="2"/>'
    body = [
        '<rect width="440" height="262" rx="10" fill="#fff"/>',
        text(24, 25, f"A batch of {MICRO * PARTS} images, {PARTS} micro-batches", "", "start"),
        box(24, 92, 276, 74, "frame"),
        text(162, 160, "network: one micro-batch at a time", "small quiet"),
        box(24, 186, 276, 36, "frame"),
        box(316, 92, 104, 34, "frame"),
        text(368, 114, "weights"),
        f'<g class="wait" opacity="0">{still}</g>',
        f'<g class="empty" opacity="0">{text(162, 242, "buffer: empty", "small quiet")}</g>',
        *parts,
        f'<g class="go">{update}</g>',
    ]
    style = (
        "text{font:13px system-ui,'Liberation Sans',sans-serif;fill:" + INK + "}"
        ".small{font-size:11px}text.white{fill:#fff}text.quiet{fill:" + QUIET + "}"
        ".orange{fill:" + ORANGE + "}.blue{fill:" + BLUE + "}"
        ".frame{fill:none;stroke:#888;stroke-width:1.5}.slot{fill:none;stroke:#bbb;"
        "stroke-dasharray:3 3}" + "".join(css) + "@media (prefers-reduced-motion:reduce)"
        "{*{animation:none!important}}"
    )
    about = (
        f"{PARTS} micro-batches of {MICRO} images go through the network one after the other and "
        f"are forgotten; each fills a quarter of the buffer. Then the buffer is divided by "
        f"{MICRO * PARTS}, the weights take one step, and the buffer is empty again."
    )
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 440 262" width="550" height="327" '
        f'role="img" aria-label="{about}">\n<style>{style}</style>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )
    store("accumulation_loop.svg", svg.encode())


if __name__ == "__main__":
    loop()
    if "--loop-only" not in sys.argv:
        hook()
