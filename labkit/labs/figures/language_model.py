"""The picture at the top of lab 06, from the stored race. No MindSpore import."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labkit.labs.figures import common as plots
from labkit.labs.results import Stored

COLORS = {"AdamW": plots.ORANGE, "THOR": plots.BLUE, "Muon": plots.GREEN}


def by_seconds(axis: Axes, stored: Stored, tables: dict[str, float], title: str) -> None:
    """Loss on Macbeth over CPU seconds, compiling included, of each seed and ``COLORS``' methods.

    ``tables`` is name -> loss of a table of counts, a dashed line.
    """
    for method, color in COLORS.items():
        for row in stored.select(stage="race", method=method):
            points = stored.curves[row["run"]]
            seconds = [row["compile_seconds"] + point["seconds"] for point in points]
            label = method if row["seed"] == 1 else None
            losses = [point["loss"] for point in points]
            axis.plot(seconds, losses, ".-", color=color, linewidth=1.2, label=label)
    _tables(axis, tables)
    axis.set(xlabel="processor seconds, compiling included", title=title)
    axis.set(ylabel="loss on Macbeth (nats a character)", xlim=(0, None))
    axis.legend(frameon=False)


def of_means(axis: Axes, stored: Stored, title: str) -> None:
    """How far the mean of means is from the token mean over a training on lines, each seed."""
    for column, color, name in (
        ("gradient_error", plots.ORANGE, "its gradient"),
        ("loss_error", "black", "its loss"),
    ):
        for row in stored.select(stage="race", method="token mean"):
            points = stored.curves[row["run"]]
            places = [point["update"] for point in points]
            errors = [100 * point[column] for point in points]
            label = name if row["seed"] == 1 else None
            axis.plot(places, errors, ".-", color=color, linewidth=1.2, label=label)
    axis.set(xlabel="update", ylabel="the mean of means is off by (%)", title=title)
    axis.set(ylim=(0, None))
    axis.legend(frameon=False)


def hook(stored: Stored, tables: dict[str, float]) -> Figure:
    """Return both, side by side."""
    figure, (left, right) = plots.axes(1, 2, 4.6, 3.4)
    by_seconds(left, stored, tables, "Below trigrams in a minute")
    of_means(right, stored, "An error that no loss curve shows")
    return figure


def _tables(axis: Axes, tables: dict[str, float]) -> None:
    for name, loss in tables.items():
        axis.axhline(loss, color=plots.GREY, linestyle="--", linewidth=1)
        axis.text(0, loss, f" {name}", va="bottom", color=plots.GREY, fontsize=9)
