"""What the labs' figures share, and figures of rows of numbers. No MindSpore import.

Functions that return a figure make it; those that are given an axis draw on it. Accuracies are
0 .. 1, errors are in per cent.
"""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from cycler import cycler
from IPython import display
from matplotlib import pyplot, rcdefaults, rcParams
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

# Okabe and Ito's colours: distinguishable with any colour vision, and in grey.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY = "#CC79A7", "#56B4E9"
PALE, GREY = "#DDDDDD", "#777777"
SHARP, PAGE = 160, 90  # dots per inch: for a sharp picture, and for its size on a page
PALETTE = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, "#000000")
_PER_CENT = (1, 2, 5, 10, 20, 50)
rcdefaults()  # a matplotlibrc of the reader's decides nothing; style.use in a notebook later does
rcParams["axes.prop_cycle"] = cycler(color=PALETTE)  # C0, C1, ... of a notebook's own figures
rcParams["axes.spines.top"] = rcParams["axes.spines.right"] = False
rcParams["figure.constrained_layout.use"] = True  # else what is outside of the axes is cut off


def axes(rows: int = 1, columns: int = 1, width: float = 4.6, height: float = 3.2) -> tuple:
    """Return (figure, axes) in the labs' style, each of ``width`` by ``height`` inches."""
    size = (width * columns, height * rows)
    figure = Figure(figsize=size, layout="constrained")  # pyplot's would need a backend
    grid = figure.subplots(rows, columns)
    for axis in np.atleast_1d(grid).ravel():
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    return figure, grid


def side_by_side(panels: Mapping[str, Any], width: float, height: float = 3.2) -> tuple:
    """Return (figure, [(axis, name, value)]), with an axis for each of ``panels`` in one row."""
    figure, grid = axes(1, len(panels), width, height)
    pairs = zip(np.atleast_1d(grid), panels.items(), strict=True)
    return figure, [(axis, name, value) for axis, (name, value) in pairs]


def curves(
    panels: Mapping[str, Mapping[str, tuple[Any, Any]]],
    mark: str = "-",
    legend: str = "below",
    size: tuple[float, float] = (4.6, 3.2),
    style: Mapping[str, float] | None = None,
    **settings: Any,
) -> Figure:
    """Panels side by side, title -> {label: (x, y) of a curve}.

    ``legend`` is below all panels, beside them, or inside the first; ``style`` is of the lines,
    ``settings`` are of every axis.
    """
    figure, drawn = side_by_side(panels, *size)
    for axis, title, named in drawn:
        for (label, points), color in zip(named.items(), cycle(PALETTE)):
            axis.plot(*points, mark, color=color, label=label, **style or {})
        axis.set(title=title, **settings)
    first = drawn[0][0]
    handles, labels = first.get_legend_handles_labels()
    if legend == "below":
        figure.legend(handles, labels, frameon=False, loc="outside lower center", ncols=len(labels))
    elif legend == "beside":
        figure.legend(handles, labels, frameon=False, loc="outside right center", fontsize=9)
    else:
        first.legend(frameon=False, fontsize=9)
    return figure


def small(axis: Axes, title: str, fontsize: Any = 9, **settings: Any) -> None:
    """Give a picture of a lab's sliders its small title and its settings, without a grid."""
    axis.set_title(title, fontsize=fontsize)
    axis.set(**settings)
    axis.grid(False)


def errors(accuracies: Iterable[float | None]) -> np.ndarray:
    """Return accuracies as errors; None (a failed training) counts as 100 %."""
    return np.array([100.0 if right is None else 100 - 100 * right for right in accuracies])


def mean_and_seeds(
    axis: Axes, values: Mapping[Any, Any], color: str, label: str | None = None, **dots: Any
) -> None:
    """Draw the mean over seeds as a line and each seed as a dot; ``values`` is x -> y by seed."""
    places = sorted(values)
    axis.plot(places, [np.mean(values[x]) for x in places], color=color, label=label)
    seeds = [(x, y) for x in places for y in values[x]]
    axis.plot(*zip(*seeds, strict=True), color=color, linestyle="none", **dots)


def label_ticks(axis: Axes, ticks: Iterable[float], which: str = "y") -> None:
    """Label ticks with plain numbers, without minor ticks; the limits grow to include them."""
    ticks = list(ticks)
    set_ticks = axis.set_xticks if which == "x" else axis.set_yticks
    set_ticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()


def error_figure(figure: Figure, ticks: Iterable[float], xlabel: str, title: str) -> Figure:
    """Let a figure's one axis show test errors, with these ticks, and its legend be beside it."""
    (axis,) = figure.axes
    axis.set(yscale="log", xlabel=xlabel, ylabel="test error (%)", title=title)
    low, high = axis.get_ylim()
    inside = [tick for tick in ticks if low <= tick <= high * 1.01]
    if len(inside) < 2:  # the training has hardly begun
        inside = [tick for tick in MaxNLocator(4).tick_values(low, high) if low <= tick <= high]
    label_ticks(axis, inside)
    figure.legend(frameon=False, loc="outside right center", fontsize=9)
    return figure


def sweep(panels: Mapping[str, Sequence[tuple[float, float | None]]]) -> Figure:
    """Validation errors: setting -> [(value, error)]; None, a failed training, is a cross at 50."""
    figure, drawn = side_by_side(panels, width=3.5)
    for axis, name, points in drawn:
        values = [value for value, _ in points]
        axis.plot(values, [error or np.nan for _, error in points], "o-", color=BLUE)
        failed = [value for value, error in points if error is None]
        axis.plot(failed, [50] * len(failed), "x", color=RED, label="failed")
        axis.set(xscale="log", yscale="log", xlabel=name, ylabel="validation error (%)")
        label_ticks(axis, values, "x")
        label_ticks(axis, _PER_CENT)
        if failed:
            axis.legend(loc="center", frameon=True)  # framed: its cross is not a training
    return figure


def matrices(named: Mapping[str, np.ndarray], title: str) -> Figure:
    """Matrices side by side, the sizes of their entries on one colour scale of four decades.

    The scale ends at the largest entry of the first matrix; entries below its start are white.
    """
    figure, drawn = side_by_side(named, width=3.4, height=3.3)
    largest = np.abs(next(iter(named.values()))).max()
    norm = LogNorm(largest / 1e4, largest)
    for axis, name, matrix in drawn:
        sizes = np.ma.masked_less(np.abs(matrix), norm.vmin)
        image = axis.imshow(sizes, norm=norm, cmap="viridis_r", interpolation="nearest")
        axis.set(title=name, xlabel="weight", ylabel="weight")
        axis.grid(False)
    figure.colorbar(image, ax=figure.axes, label="size of the entry", shrink=0.8)
    figure.suptitle(title)
    return figure


def png(figure: Figure, dpi: int = PAGE) -> bytes:
    """Return ``figure`` as the bytes of a small PNG; ``dpi`` is in dots per inch."""
    drawn, small_file = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=dpi)
    # With a palette of 128 colours, a notebook of ten figures takes 280 kB instead of 810.
    palette = Image.open(drawn).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    palette.save(small_file, format="png", optimize=True)
    return small_file.getvalue()


def show(figure: Figure, alt: str) -> None:
    """Display ``figure`` in a notebook as a sharp PNG with a text that describes it; close it."""
    about = {"alt": alt, "width": round(figure.get_figwidth() * PAGE)}
    data = {"image/png": base64.b64encode(png(figure, SHARP)).decode(), "text/plain": alt}
    display.display(data, metadata={"image/png": about}, raw=True)
    pyplot.close(figure)  # else the notebook shows a figure of pyplot's once more
