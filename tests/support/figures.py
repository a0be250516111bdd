"""What tests read from a figure's axes."""

from labkit.labs.figures import common as plots


def drawn(draw, *arguments, **values):
    """Return a new axis on which ``draw`` has drawn."""
    _, axis = plots.axes()
    draw(axis, *arguments, **values)
    return axis


def lines(axis):
    """Return label -> line."""
    return {line.get_label(): line for line in axis.get_lines()}


def dots(axis, mark="o"):
    """Return the y values of each line of dots."""
    return [list(line.get_ydata()) for line in axis.get_lines() if line.get_marker() == mark]


def x_labels(axis):
    """Return the tick labels of the horizontal axis."""
    return [tick.get_text() for tick in axis.get_xticklabels()]


def y_labels(axis):
    """Return the tick labels of the vertical axis."""
    return [tick.get_text() for tick in axis.get_yticklabels()]


def legend(holder):
    """Return the texts of the legend of an axis, or of the only legend of a figure."""
    (own,) = holder.legends if hasattr(holder, "legends") else [holder.get_legend()]
    return [text.get_text() for text in own.get_texts()]
