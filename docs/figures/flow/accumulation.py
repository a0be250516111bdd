"""Lab 01: micro-batches, buffer, update, and the tail of an epoch."""

from flow.drawing import LEFT, RIGHT, SMALL, TEXT, Drawing

_SHOWN = (
    "Micro-batches of n_i images go through the network one after the other, all at the same "
    "weights; only the activations of the present one are in memory. Each adds n_i times its "
    "mean gradient to one float32 buffer, and n_i to a count. After k micro-batches the buffer "
    "is divided by the sum of the n_i, clipped if asked for, and given to the optimizer once. "
    "The new weights are those of the next group, and the buffer is cleared. Below, the tail "
    "of an epoch: of 7 micro-batches of 32, four make an update divided by 128, the last three "
    "make one divided by 96."
)


def accumulation() -> Drawing:
    """Micro-batches, the buffer, the update, and the tail of an epoch."""
    made = Drawing(
        "One update from *k* micro-batches",
        "The large batch's update, with one micro-batch in memory at a time",
        _SHOWN,
        626,
    )
    columns = (16, 116, 216, 316)
    for x, images, name, state in zip(
        columns, (8, 8, 8, 5), "123k", ("freed", "activations", "not yet", "not yet"), strict=True
    ):
        middle, waits = x + 40, state == "not yet"
        made.box(x, 66, 80, 40, "orange")
        made.tiles(x + 10, 78.5, images, 4, "orange")
        made.text(x + 62, 90, f"*n_{{{name}}}*")
        made.arrow((middle, 106), (middle, 126), hue="orange", kind="dashed" if waits else "")
        made.arrow((middle, 224), (middle, 262), hue="orange", kind="dashed" if waits else "")
        made.text(middle + 7, 246, f"*n_{{{name}}}* *∇L_{{{name}}}*", anchor="start")
    made.text(306, 90, "…")
    made.box(16, 126, 380, 98, "grey")
    made.text(206, 145, "forward and backward, all at the same weights *w*")
    made.lines(206, 161, "in memory: the activations of one micro-batch")
    for x, state in zip(columns, ("freed", "activations", "not yet", "not yet"), strict=True):
        now = state == "activations"
        made.box(
            x + 6, 172, 68, 40, "orange" if now else "grey", kind="" if now else "hollow dashed"
        )
        if now:
            made.tiles(x + 22.5, 178, 8, 4, "orange")
            made.lines(x + 40, 207, "now")
        else:
            made.lines(x + 40, 196, state)
    _accumulated_update(made, columns)
    _tail(made)
    return made


def _accumulated_update(made: Drawing, columns: tuple) -> None:
    made.box(16, 262, 380, 52, "blue")
    made.text(100, 284, "*Σ n_{i}* *∇L_{i}*")
    made.text(100, 304, "*Σ n_{i}*")
    made.lines(180, 284, "a float32 buffer, as large as", anchor="start")
    made.lines(180, 304, "the weights, and a number", anchor="start")
    made.arrow((56, 314), (56, 352), hue="blue")
    made.lines(70, 337, "after *k* of them, once:", anchor="start")
    made.lines(396, 337, "then the buffer is cleared", anchor="end")
    steps = (
        ("divide", "by *Σ n_{i}*"),
        ("clip", "if asked"),
        ("optimizer", "one call"),
        ("weights", "*w*"),
    )
    for x, lines in zip(columns, steps, strict=True):
        kind = "dashed" if lines[0] == "clip" else ""
        made.box(x, 352, 80, 44, "grey" if lines[0] == "weights" else "blue", *lines, kind=kind)
    for x in columns[1:]:
        made.arrow((x - 20, 374), (x, 374), hue="blue")
    made.arrow((396, 374), (418, 374), (418, 175), (396, 175), hue="blue")
    made.text(206, 424, "*Σ n_{i}* *∇L_{i}* / *Σ n_{i}*  is the gradient of the whole batch")
    made.lines(
        206,
        443,
        "where no layer mixes images (as BatchNorm does)",
        "and nothing is drawn at random (as in Dropout)",
    )


def _tail(made: Drawing) -> None:
    made.path("M16 478L424 478", "grey", "thin")
    made.text(LEFT, 504, "The tail of an epoch", TEXT, "start", "bold")
    made.lines(RIGHT, 504, "7 micro-batches of 32, *k* = 4", anchor="end")
    for start, count in ((16, 4), (232, 3)):
        for number in range(4):
            there = number < count
            x = start + 50 * number
            made.box(x, 520, 42, 26, "orange" if there else "grey",
                     kind="" if there else "hollow dashed")  # fmt: skip
            if there:
                made.text(x + 21, 537.5, "32", SMALL)
        middle = start + 25 * count - 4
        made.path(f"M{start} 550v5H{2 * middle - start}v-5", "orange")
        made.arrow((middle, 555), (middle, 576), hue="orange")
        made.box(start, 576, 192, 34, "blue", f"update: divided by {32 * count}")
