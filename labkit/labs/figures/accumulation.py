"""Which micro-batches go into which update: lab 01's picture of a tail. No MindSpore import."""

from matplotlib.axes import Axes

from labkit.base.arguments import choice
from labkit.labs.figures import common as plots

TAILS = ("carry", "drop", "flush")
_FAINT = 0.3


def updates(in_epoch: int, micro_steps: int, tail: str) -> list[list[int]]:
    """Return the numbers, from 0, of the micro-batches in each update of two epochs.

    Args:
        in_epoch: micro-batches in an epoch
        micro_steps: micro-batches in a full update
        tail: one of ``TAILS``, as in ``AccumulatedStep``
    """
    choice("tail", tail, TAILS)
    made: list[list[int]] = []
    buffer: list[int] = []
    for epoch in range(2):
        for number in range(in_epoch):
            buffer.append(epoch * in_epoch + number)
            if (number + 1) % micro_steps == 0:
                made.append(buffer)
                buffer = []
        if buffer and tail == "flush":
            made.append(buffer)
        if tail != "carry":
            buffer = []
    return made


def leak(axis: Axes, micro_steps: float, tail: float, seen: float, in_epoch: int = 7) -> None:
    """Draw two epochs of micro-batches after ``seen`` of them, coloured by their update.

    ``tail`` is a place in ``TAILS``; the others are as in ``updates``.
    """
    k, word, now = int(micro_steps), TAILS[int(tail)], int(seen)
    done = [group for group in updates(in_epoch, k, word) if group[-1] < now]
    home = {number: place for place, group in enumerate(done) for number in group}
    started = now - now % in_epoch if word != "carry" else 0
    for number in range(2 * in_epoch):
        row, column = divmod(number, in_epoch)
        color, alpha, text = plots.PALE, _FAINT, ""
        if number in home:
            color, alpha = plots.PALETTE[home[number] % 5], 1.0
            text = f"update\n{home[number] + 1}"
        elif started <= number < now:
            color, text = "black", "buffer"
        elif number < now:
            alpha, text = 1.0, "lost"
        dark = color in (plots.BLUE, plots.GREEN, plots.RED)
        ink = "white" if dark else "black"
        axis.bar(column, 0.8, 0.9, 0.6 - row, color=color, alpha=alpha)
        axis.text(column, 1.0 - row, text, ha="center", va="center", fontsize=7, color=ink)
    sizes = ", ".join(str(len(group)) for group in done) or "none"
    title = f"k = {k}, {word}, after {now} micro-batches\nmicro-batches in each update: {sizes}"
    axis.set_yticks([1, 0], ["epoch 1", "epoch 2"])
    axis.set_xticks(range(in_epoch), [str(number + 1) for number in range(in_epoch)])
    limits = {"xlim": (-0.6, in_epoch - 0.4), "ylim": (-0.6, 1.6)}
    plots.small(axis, title, xlabel="micro-batch of the epoch", **limits)
