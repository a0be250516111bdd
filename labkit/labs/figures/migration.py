"""Interactive pictures of lab 02: what a kernel sees, how far a fault spreads. No MindSpore."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from labkit.labs.figures import common as plots
from labkit.reference.convolution import same_padding

LAYERS = ("stem", "layer1", "layer2", "layer3", "layer4", "fc")


def windows(size: int, kernel: int, stride: int) -> dict[str, tuple[int, int, list[range]]]:
    """Return what PyTorch's usual padding and "same" see of an input of ``size`` rows.

    By name: the rows of padding (before, after) and, for each row of the output, the rows that an
    odd ``kernel`` covers, counted from 0; those below 0, and ``size`` and above, are padding.
    """
    half = (kernel - 1) // 2
    before, after, *_ = same_padding((size, size), (kernel, kernel), (stride, stride))
    made = {}
    for name, left, right in ((f"padding={half}", half, half), ('"same"', before, after)):
        starts = range(-left, size + right - kernel + 1, stride)
        made[name] = left, right, [range(start, start + kernel) for start in starts]
    return made


def rows_seen(size: int, kernel: int, stride: int) -> list[list[list[int]]]:
    """Return the windows of both paddings without the rows of padding."""
    return [
        [[row for row in window if 0 <= row < size] for window in seen]
        for *_, seen in windows(size, kernel, stride).values()
    ]


def padding(axis: Axes, rows: float, kernel: float, stride: float) -> None:
    """Draw the windows of PyTorch's padding above those of "same"; green where both agree."""
    size, k, step = int(rows), int(kernel), int(stride)
    both = windows(size, k, step)
    ours, theirs = (seen for *_, seen in both.values())
    color, verdict = plots.ORANGE, "different windows"
    if ours == theirs:
        color, verdict = plots.GREEN, "the same windows"
    for base, (before, after, seen) in zip((1.15, 0.0), both.values(), strict=True):
        for row in range(-before, size + after):
            fill, hatch, number = "white", "////", ""
            if 0 <= row < size:
                fill, hatch, number = plots.PALE, "", str(row)
            axis.bar(row, 0.16, 0.9, base + 0.8, color=fill, hatch=hatch, edgecolor="grey", lw=0.6)
            axis.text(row, base + 0.88, number, ha="center", va="center", fontsize=7)
        thick = 0.76 / max(len(seen), 4)
        for place, window in enumerate(seen):
            bottom, wide = base + 0.76 - (place + 0.9) * thick, k - 0.1
            axis.bar(window[0] - 0.45, 0.8 * thick, wide, bottom, align="edge", color=color)
    labels = [f"{name}\n{left} before\n{right} after" for name, (left, right, _) in both.items()]
    axis.set_yticks([1.6, 0.45], labels)
    title = f"size {size}, kernel {k}, stride {step}: {verdict}"
    limits = {"xlim": (-k / 2 - 0.5, size + k / 2 - 0.5), "ylim": (-0.1, 2.2)}
    plots.small(axis, title, xlabel="row of the input (hatched: zeros)", xticks=[], **limits)


def fault(axis: Axes, rows: Sequence[Any], title: str) -> None:
    """Draw where a step differs, stages downwards and layers to the right, below the fault's name.

    ``rows`` are from ``labkit.migration.compare`` on networks with ResNet's names; the tensors of a
    stage and layer are in one box, which says how many of them differ.
    """
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    for row in rows:
        head = row.place.split(".")[0].split("#")[0]
        if head in ("avgpool", "flatten"):  # between layer4 and fc, without parameters
            continue
        layer = head if head in LAYERS else "stem"
        key = row.stage, "" if row.stage in ("preprocessing", "loss", "run") else layer
        failed, number = counts.get(key, (0, 0))
        counts[key] = failed + (not row.passed), number + 1
    stages = list(dict.fromkeys(stage for stage, _ in counts))
    for (stage, layer), (failed, number) in counts.items():
        left, width = (LAYERS.index(layer), 0.92) if layer else (0, len(LAYERS) - 0.08)
        color, level = plots.RED if failed else plots.GREEN, stages.index(stage)
        axis.bar(left - 0.46, 0.86, width, level - 0.43, align="edge", color=color)
        text, middle = f"{failed}/{number}" if failed else "ok", left - 0.46 + width / 2
        axis.text(middle, level, text, ha="center", va="center", color="white", fontsize=7)
    first = next((f"first: {row.stage}, {row.place}" for row in rows if not row.passed), None)
    axis.set_yticks(range(len(stages)), stages)
    axis.set_xticks(range(len(LAYERS)), LAYERS)
    limits = {"xlim": (-0.6, len(LAYERS) - 0.4), "ylim": (len(stages) - 0.4, -0.6)}
    plots.small(axis, f"{title}\n{first or 'all stages agree'}", **limits)
    axis.tick_params(labelsize=8)
