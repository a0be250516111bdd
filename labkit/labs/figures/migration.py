"""Interactive pictures of lab 02: what a kernel sees, how far a fault spreads. No MindSpore."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes

from labkit.labs.figures import common as plots
from labkit.reference.convolution import same_padding

if TYPE_CHECKING:
    from labkit.migration import Row

LAYERS = ("stem", "layer1", "layer2", "layer3", "layer4", "fc")
_WHOLE = ("preprocessing", "loss")  # stages of the step, not of a layer


def paddings(size: int, kernel: int, stride: int) -> dict[str, tuple[int, int]]:
    """Return the rows (before, after) that PyTorch's usual padding and "same" add on one axis.

    ``size`` and ``kernel`` are the rows of the input and of an odd kernel.
    """
    half = (kernel - 1) // 2
    before, after, *_ = same_padding((size, size), (kernel, kernel), (stride, stride))
    return {f"padding={half}": (half, half), '"same"': (before, after)}


def windows(size: int, kernel: int, stride: int, padding: tuple[int, int]) -> list[range]:
    """Return the rows of the input that each row of the output sees.

    Rows are counted from 0; those below 0, and ``size`` and above, are padding.
    """
    before, after = padding
    starts = range(-before, size + after - kernel + 1, stride)
    return [range(start, start + kernel) for start in starts]


def rows_seen(size: int, kernel: int, stride: int, padding: tuple[int, int]) -> list[list[int]]:
    """Return ``windows`` without their padding."""
    seen = windows(size, kernel, stride, padding)
    return [[row for row in window if 0 <= row < size] for window in seen]


def padding(axis: Axes, rows: float, kernel: float, stride: float) -> None:
    """Draw the windows of PyTorch's padding above those of "same"; green where both agree."""
    size, k, step = int(rows), int(kernel), int(stride)
    both = paddings(size, k, step)
    seen = {name: windows(size, k, step, sides) for name, sides in both.items()}
    agree = len(set(map(str, seen.values()))) == 1
    color = plots.GREEN if agree else plots.ORANGE
    for base, (name, (before, after)) in zip((1.15, 0.0), both.items(), strict=True):
        for row in range(-before, size + after):
            fill, hatch = (plots.PALE, "") if 0 <= row < size else ("white", "////")
            axis.bar(row, 0.16, 0.9, base + 0.8, color=fill, hatch=hatch, edgecolor="grey", lw=0.6)
            number = str(row) if 0 <= row < size else ""
            axis.text(row, base + 0.88, number, ha="center", va="center", fontsize=7)
        thick = 0.76 / max(len(seen[name]), 4)
        for place, window in enumerate(seen[name]):
            bottom, wide = base + 0.76 - (place + 0.9) * thick, len(window) - 0.1
            axis.bar(window[0] - 0.45, 0.8 * thick, wide, bottom, align="edge", color=color)
    labels = [f"{name}\n{before} before\n{after} after" for name, (before, after) in both.items()]
    axis.set_yticks([1.6, 0.45], labels)
    verdict = "the same windows" if agree else "different windows"
    title = f"size {size}, kernel {k}, stride {step}: {verdict}"
    limits = {"xlim": (-k / 2 - 0.5, size + k / 2 - 0.5), "ylim": (-0.1, 2.2)}
    plots.small(axis, title, xlabel="row of the input (hatched: zeros)", xticks=[], **limits)


def spread(rows: "Sequence[Row]") -> dict[tuple[str, str], tuple[int, int]]:
    """Count the tensors that differ: (stage, layer) -> (failed, all).

    The layer is one of ``LAYERS``, or "" for stages that belong to no layer; ``rows`` are from
    ``labkit.migration.compare_step`` on networks with ResNet's names.
    """
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    for row in rows:
        head = row.name.split(".")[0]
        layer = "" if row.stage in _WHOLE else head if head in LAYERS else "stem"
        if head in ("avgpool", "flatten"):  # between layer4 and fc, without parameters
            continue
        failed, number = counts.get((row.stage, layer), (0, 0))
        counts[row.stage, layer] = failed + (not row.passed), number + 1
    return counts


def fault(axis: Axes, rows: "Sequence[Row]", title: str) -> None:
    """Draw where a step differs, stages downwards and layers to the right, below the fault's name.

    ``rows`` are as in ``spread``.
    """
    counts = spread(rows)
    stages = list(dict.fromkeys(stage for stage, _ in counts))
    for (stage, layer), (failed, number) in counts.items():
        left, width = (LAYERS.index(layer), 0.92) if layer else (0, len(LAYERS) - 0.08)
        color, level = plots.RED if failed else plots.GREEN, stages.index(stage)
        axis.bar(left - 0.46, 0.86, width, level - 0.43, align="edge", color=color)
        text, middle = f"{failed}/{number}" if failed else "ok", left - 0.46 + width / 2
        axis.text(middle, level, text, ha="center", va="center", color="white", fontsize=7)
    first = next((f"first: {row.stage}, {row.name}" for row in rows if not row.passed), None)
    axis.set_yticks(range(len(stages)), stages)
    axis.set_xticks(range(len(LAYERS)), LAYERS)
    limits = {"xlim": (-0.6, len(LAYERS) - 0.4), "ylim": (len(stages) - 0.4, -0.6)}
    plots.small(axis, f"{title}\n{first or 'all stages agree'}", **limits)
    axis.tick_params(labelsize=8)
