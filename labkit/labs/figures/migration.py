"""The picture with sliders of lab 02: which rows a kernel sees. No MindSpore."""

from matplotlib.axes import Axes

from labkit.labs.figures import common as plots
from labkit.reference.convolution import same_padding


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


def padding(axis: Axes, rows: int, kernel: int, stride: int) -> str:
    """Draw the windows of PyTorch's padding above those of "same"; green where both agree."""
    size, k = rows, kernel
    both = windows(size, k, stride)
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
    title = f"{size} rows, kernel {k}, stride {stride}: {verdict}"
    limits = {"xlim": (-k / 2 - 0.5, size + k / 2 - 0.5), "ylim": (-0.1, 2.2)}
    plots.small(axis, title, xlabel="row of the input (hatched: zeros)", xticks=[], **limits)
    if ours == theirs:
        return "Every window sees the same rows."
    first = [", ".join(str(row) for row in seen[0]) for seen in (ours, theirs)]
    return f'First window of padding={(k - 1) // 2}: rows {first[0]}; of "same": rows {first[1]}.'
