"""Pictures of lab 03 in depth: what a trace rule decides by its thresholds.

No MindSpore import.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from labkit.labs.figures import common as plots
from labkit.reference.thor import TraceRule

WORDS = {"refresh": plots.GREEN, "skip": plots.ORANGE, "freeze": "#999999"}


def decide(traces: np.ndarray, refresh: float, freeze: float) -> list[list[str]]:
    """Return the trace rule's decisions for known traces, a row of ``WORDS`` for each refresh.

    ``traces`` (refreshes, layers) are tr(F + damping I); a layer whose trace changes by more than
    ``refresh`` is refreshed, by less than ``freeze`` frozen for good.
    """
    rule, by_layer = TraceRule(refresh, freeze), []
    for trace in traces.T:
        last, words = trace[0], ["refresh"]
        for now in trace[1:]:
            words.append("freeze" if words[-1] == "freeze" else rule.decide(now, last))
            last = now if words[-1] == "refresh" else last
        by_layer.append(words)
    return [list(row) for row in zip(*by_layer, strict=True)]


def decisions(
    axis: Axes, history: Sequence[Sequence[str]], layers: Sequence[str], every: int, title: str
) -> None:
    """Draw a trace rule's decisions by layer over the updates, and how often it refreshed.

    ``history`` is from ``decide``, with one refresh ``every`` updates.
    """
    numbers = np.array([[list(WORDS).index(word) for word in row] for row in history]).T
    span = (-every / 2, (len(history) - 0.5) * every, len(layers) - 0.5, -0.5)
    style: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest", "vmin": 0, "vmax": 2}
    axis.imshow(numbers, ListedColormap([*WORDS.values()]), extent=span, **style)
    made = (numbers == 0).sum(axis=1)
    axis.set_yticks(range(len(layers)), [f"{n}: {k}" for n, k in zip(layers, made, strict=True)])
    plots.small(axis, title, xlabel="update", ylabel="layer: inverses made")
    axis.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    handles = [Patch(color=color, label=word) for word, color in WORDS.items()]
    below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.28), "ncols": 3}
    axis.legend(handles=handles, frameon=False, fontsize=8, **below)
