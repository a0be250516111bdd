"""Which micro-batches go into which update: lab 01's picture of a tail. No MindSpore import."""

from matplotlib.axes import Axes

from labkit.labs.figures import common as plots

TAILS = ("carry", "drop", "flush")
_IN_EPOCH = 7  # micro-batches that are drawn of an epoch


def updates(in_epoch: int, micro_steps: int, tail: str) -> list[list[int]]:
    """Return the numbers, from 0, of the micro-batches in each update of two epochs.

    ``in_epoch`` micro-batches are an epoch; the others are arguments of ``AccumulatedStep``.
    """
    made: list[list[int]] = []
    buffer: list[int] = []
    for number in range(2 * in_epoch):
        buffer.append(number)
        in_this = number % in_epoch + 1
        full, ends = in_this % micro_steps == 0, in_this == in_epoch
        if full or ends and tail == "flush":
            made.append(buffer)
        if full or ends and tail != "carry":
            buffer = []
    return made


def leak(axis: Axes, micro_steps: float, tail: float, seen: float) -> None:
    """Draw micro-batches, coloured by update, after ``seen``; ``tail`` is a place in ``TAILS``."""
    k, word, now = int(micro_steps), TAILS[int(tail)], int(seen)
    done = [group for group in updates(_IN_EPOCH, k, word) if group[-1] < now]
    home = {number: place for place, group in enumerate(done) for number in group}
    started = now - now % _IN_EPOCH if word != "carry" else 0
    for number in range(2 * _IN_EPOCH):
        row, column = divmod(number, _IN_EPOCH)
        color, alpha, text = plots.PALE, 0.3, ""
        if number in home:
            color, alpha = plots.PALETTE[home[number] % 5], 1.0
            text = f"update\n{home[number] + 1}"
        elif started <= number < now:
            color, text = "black", "buffer"
        elif number < now:
            alpha, text = 1.0, "lost"
        ink = "white" if color in (plots.BLUE, plots.GREEN, plots.RED) else "black"
        axis.bar(column, 0.8, 0.9, 0.6 - row, color=color, alpha=alpha)
        axis.text(column, 1.0 - row, text, ha="center", va="center", fontsize=7, color=ink)
    sizes = ", ".join(str(len(group)) for group in done) or "none"
    title = f"k = {k}, {word}, after {now} micro-batches\nmicro-batches in each update: {sizes}"
    axis.set_yticks([1, 0], ["epoch 1", "epoch 2"])
    axis.set_xticks(range(_IN_EPOCH), map(str, range(1, _IN_EPOCH + 1)))
    limits = {"xlim": (-0.6, _IN_EPOCH - 0.4), "ylim": (-0.6, 1.6)}
    plots.small(axis, title, xlabel="micro-batch of the epoch", **limits)
