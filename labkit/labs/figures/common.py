"""Rows of numbers to figures. No MindSpore import."""

import numpy as np

# Okabe and Ito's colours: told apart by people with any colour vision, and in grey.
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE = "#CC79A7"
PALETTE = (BLUE, ORANGE, GREEN, RED, PURPLE, "#56B4E9", "#000000")


def axes(rows=1, columns=1, width=4.6, height=3.2):
    """Return (figure, axes) in the labs' style, laid out so that labels do not overlap."""
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(
        rows, columns, figsize=(width * columns, height * rows), layout="constrained"
    )
    for one in np.atleast_1d(grid).ravel():
        one.spines[["top", "right"]].set_visible(False)
        one.grid(alpha=0.25)
    return figure, grid


def smooth(values, window=25):
    """Return the running mean over ``window`` values, shorter at the ends."""
    values = np.asarray(values, dtype=float)
    kernel = np.ones(min(window, len(values)))
    return np.convolve(values, kernel, "same") / np.convolve(np.ones_like(values), kernel, "same")


def training_curve(records, title="Training"):
    """Loss of each update and its running mean, over images seen; records as ``fit`` returns."""
    figure, axis = axes(width=6.0)
    images = np.cumsum(records.column("images"))
    axis.plot(images, records.column("loss"), color=BLUE, alpha=0.25, label="each update")
    axis.plot(images, smooth(records.column("loss")), color=BLUE, label="running mean of 25")
    axis.set(xlabel="images seen", ylabel="training loss (nats)", title=title, yscale="log")
    axis.legend(frameon=False)
    return figure


def images_grid(images, labels, columns=10):
    """A row or grid of images with their labels as titles.

    images  grey (N, H, W), or colour (N, H, W, 3) in 0 .. 1
    """
    rows = -(-len(images) // columns)
    figure, grid = axes(rows, columns, width=0.8, height=0.95)
    for axis in np.atleast_1d(grid).ravel():
        axis.set_axis_off()
    for axis, image, label in zip(np.atleast_1d(grid).ravel(), images, labels, strict=False):
        axis.imshow(image, cmap="gray_r")
        axis.set_title(str(label), fontsize=9)
    return figure


def step_figure(rows, title):
    """Every row of ``labkit.migration.compare_step`` as a dot over its stage, with the tolerances.

    Equal tensors are drawn at 1e-9, those that are no number or of another shape at 10.
    """
    figure, axis = axes(width=7.2, height=3.6)
    stages = list(dict.fromkeys(row.stage for row in rows))
    for number, stage in enumerate(stages):
        own = [row for row in rows if row.stage == stage]
        heights = np.clip([row.difference for row in own], 1e-9, 10)
        spread = number + 0.6 * (np.arange(len(own)) + 0.5) / len(own) - 0.3
        for passed, color in ((True, GREEN), (False, RED)):
            chosen = [row.passed is passed for row in own]
            axis.plot(spread[chosen], heights[chosen], ".", color=color, markersize=4)
        limit = max(own[0].tolerance, 1e-9)
        axis.plot([number - 0.4, number + 0.4], [limit, limit], color="black", linewidth=1)
    axis.set_xticks(range(len(stages)), stages, rotation=20)
    axis.set(yscale="log", ylim=(4e-10, 20), ylabel="difference / largest value", title=title)
    return figure


def verdict_grid(verdicts, stages, title):
    """Which stages pass, as a grid: ``verdicts`` is row name -> {stage: number of failed rows}."""
    height = 0.45 * len(verdicts) + 1.1
    figure, axis = axes(width=7.6, height=height)
    failed = np.array([[found[stage] for stage in stages] for found in verdicts.values()])
    from matplotlib.colors import ListedColormap

    axis.imshow(failed > 0, cmap=ListedColormap([GREEN, RED]), vmin=0, vmax=1, aspect="auto")
    for (row, column), count in np.ndenumerate(failed):
        text = str(count) if count else "ok"
        axis.text(column, row, text, ha="center", va="center", color="white", fontsize=9)
    axis.set_xticks(range(len(stages)), stages, rotation=20)
    axis.set_yticks(range(len(verdicts)), list(verdicts))
    axis.set_title(title)
    axis.grid(False)
    return figure


def race(curves, title, goal=None, ylim=None):
    """Test error of trainings, over updates and over seconds, side by side.

    curves  optimizer -> its trainings, each (updates, seconds, accuracies 0 .. 1)
    goal    accuracy to be drawn as a line
    """
    figure, both = axes(1, 2)
    for (name, trainings), color in zip(curves.items(), (ORANGE, BLUE, GREEN), strict=False):
        for number, (updates, seconds, right) in enumerate(trainings):
            for axis, x in zip(both, (updates, seconds), strict=True):
                label = None if number else name
                axis.plot(x, 100 - 100 * np.asarray(right), color=color, label=label, linewidth=1.2)
    for axis, what in zip(both, ("updates", "seconds of training"), strict=True):
        if goal is not None:
            axis.axhline(100 - 100 * goal, color="grey", linewidth=0.8, linestyle="--")
        axis.set(xlabel=what, ylabel="test error (%)", yscale="log", ylim=ylim)
        axis.set_title(f"{title}, by {what.split()[0]}")
        axis.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
        axis.set_ylim(ylim)
        axis.minorticks_off()
    both[0].legend(frameon=False)
    return figure


def errors_over(panels):
    """Test error of several seeds over a number, side by side: mean as a line, seeds as dots.

    panels  label of the number -> name -> {its value: accuracies by seed, 0 .. 1}; a name has the
            same colour in every panel
    """
    figure, grid = axes(1, len(panels))
    colors = dict(zip(dict.fromkeys(n for p in panels.values() for n in p), PALETTE, strict=False))
    for axis, (label, named) in zip(np.atleast_1d(grid), panels.items(), strict=True):
        for name, points in named.items():
            values = sorted(points)
            errors = [100 - 100 * np.asarray(points[value], float) for value in values]
            means = [each.mean() for each in errors]
            axis.plot(values, means, "-", color=colors[name], label=name)
            for value, each in zip(values, errors, strict=True):
                axis.plot([value] * each.size, each, "o", color=colors[name], markersize=3.5)
        ticks = sorted({value for points in named.values() for value in points})
        axis.set(xscale="log", yscale="log", xlabel=label, ylabel="test error (%)")
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_yticks([1, 2, 5, 10, 20, 50, 90], ["1", "2", "5", "10", "20", "50", "90"])
        axis.minorticks_off()
    np.atleast_1d(grid)[0].legend(frameon=False)
    return figure


def sweep(panels, ylabel, worst):
    """One panel for each setting: errors over its values, failed trainings marked.

    panels  setting -> [(value, error or None for a failed training)]
    worst   error at which the failed ones are drawn
    """
    figure, grid = axes(1, len(panels), width=4.6 if len(panels) < 3 else 3.5)
    for axis, (name, points) in zip(np.atleast_1d(grid), panels.items(), strict=True):
        values = [value for value, _ in points]
        axis.plot(values, [error or np.nan for _, error in points], "o-", color=BLUE)
        failed = [value for value, error in points if error is None]
        axis.plot(failed, [worst] * len(failed), "x", color=RED, label="failed")
        axis.set(xscale="log", yscale="log", xlabel=name, ylabel=ylabel)
        axis.set_xticks(values, [f"{value:g}" for value in values])
        axis.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
        axis.minorticks_off()
        if failed:
            axis.legend(frameon=False)
    return figure


def matrices(named, title, decades=4):
    """Matrices side by side, the sizes of their entries on one logarithmic colour scale.

    named    title -> matrix; the largest entry of the first one is the scale's end
    decades  of the scale; smaller entries are white, as zeros are
    """
    from matplotlib.colors import LogNorm

    figure, grid = axes(1, len(named), width=3.4, height=3.3)
    largest = np.abs(next(iter(named.values()))).max()
    norm = LogNorm(largest / 10**decades, largest)
    for axis, (name, matrix) in zip(np.atleast_1d(grid), named.items(), strict=True):
        sizes = np.ma.masked_less(np.abs(matrix), norm.vmin)
        drawn = axis.imshow(sizes, norm=norm, cmap="viridis_r", interpolation="nearest")
        axis.set(title=name, xlabel="weight", ylabel="weight")
        axis.grid(False)
    figure.colorbar(drawn, ax=np.atleast_1d(grid).tolist(), label="size of the entry", shrink=0.8)
    figure.suptitle(title)
    return figure


def decisions(history, layers, every, title):
    """What a trace rule decided: ``history`` has a row of words for each refresh, ``every`` updates
    apart, a word for each of ``layers``."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    words, colors = ("refresh", "skip", "freeze"), (GREEN, ORANGE, "#999999")
    numbers = np.array([[words.index(word) for word in row] for row in history]).T
    figure, axis = axes(width=7.2, height=0.4 * len(layers) + 1.6)
    span = (-every / 2, (len(history) - 0.5) * every, len(layers) - 0.5, -0.5)
    axis.imshow(
        numbers, cmap=ListedColormap(colors), vmin=0, vmax=2, aspect="auto", extent=span,
        interpolation="nearest",
    )  # fmt: skip
    axis.set_yticks(range(len(layers)), layers)
    axis.set(xlabel="update", title=title)
    axis.grid(False)
    handles = [Patch(color=color, label=word) for word, color in zip(words, colors, strict=True)]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return figure


def png(figure):
    """Return ``figure`` as the bytes of a small PNG, and close it."""
    import io

    from matplotlib import pyplot
    from PIL import Image

    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=90)
    pyplot.close(figure)
    # A palette of 256 colours: a notebook of ten figures took 810 kB, and takes 310.
    palette = Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    palette.save(small, format="png", optimize=True)
    return small.getvalue()


def show(figure, alt):
    """Display ``figure`` in a notebook as PNG, and close it.

    alt  what is to be seen: alternative text of the picture, and its form where only text is shown
    """
    import base64

    from IPython import display

    data = {"image/png": base64.b64encode(png(figure)).decode(), "text/plain": alt}
    display.display(data, metadata={"image/png": {"alt": alt}}, raw=True)
