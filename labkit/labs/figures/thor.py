"""Pictures of lab 03, each on an axis: a valley, a step by its damping, a rule by its thresholds.

No MindSpore import.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from labkit.labs.figures import common as plots
from labkit.reference.thor import TraceRule

WORDS = {"refresh": plots.GREEN, "skip": plots.ORANGE, "freeze": "#999999"}
_WIDE, _HIGH = (-1.0, 4.6), (-4.4, 2.4)
_LEVELS = np.geomspace(1e-3, 4, 12)  # loss above the minimum


def valley(
    axis: Axes, height: Callable, paths: Mapping[str, np.ndarray], step: float, title: str
) -> None:
    """Draw paths through a valley of two weights, as far as they are after ``step`` steps.

    ``height`` takes weights (n, 2) to the loss above the minimum, (n,); ``paths`` is name ->
    weights after each step, (steps + 1, 2), the first in Momentum's colour, the second in THOR's.
    """
    grid = np.meshgrid(np.linspace(*_WIDE, 70), np.linspace(*_HIGH, 70))
    heights = height(np.stack(grid, axis=-1).reshape(-1, 2)).reshape(70, 70)
    axis.contour(*grid, heights, _LEVELS, colors="grey", linewidths=0.6, alpha=0.7)
    for (name, path), color in zip(paths.items(), (plots.ORANGE, plots.BLUE), strict=True):
        walked = path[: int(step) + 1]
        above = float(height(walked[-1:])[0])
        label = f"{name}: {above:.0e}" if above < 100 else f"{name}: far away"
        axis.plot(*walked.T, ".-", color=color, linewidth=1.3, label=label)
        axis.plot(*walked[-1], "o", color=color, markersize=7)
    labels = {"xlabel": "weight of the left half", "ylabel": "weight of the right half"}
    plots.small(axis, title, xlim=_WIDE, ylim=_HIGH, **labels)
    legend: dict[str, Any] = {"title": "loss above the least (nats)", "loc": "upper right"}
    axis.legend(fontsize=8, title_fontsize=8, edgecolor="none", **legend)


def damped_step(axis: Axes, layers: Mapping[str, tuple[float, float]], title: str) -> None:
    """Draw, for each layer, how far a step is from the gradient's in direction and length.

    ``layers`` is name -> (cosine with the gradient, length over |gradient| / damping).
    """
    places = np.arange(len(layers))
    cosines, lengths = zip(*layers.values(), strict=True)
    for shift, values, color, label in (
        (-0.2, cosines, plots.BLUE, "direction: cosine with the gradient"),
        (0.2, lengths, plots.GREEN, "length, over |gradient| / damping"),
    ):
        bars = axis.bar(places + shift, values, 0.38, color=color, label=label)
        axis.bar_label(bars, [f"{value:.2f}" for value in values], fontsize=7)
    axis.axhline(1, color="grey", linewidth=0.8, linestyle="--", label="plain gradient")
    axis.set_xticks(places, list(layers))
    axis.set(ylim=(0, 1.6), xlim=(-0.5, len(layers) - 0.5), ylabel="part of the gradient's step")
    axis.set_title(title, fontsize=9)
    axis.legend(frameon=False, fontsize=7, loc="upper left")


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
