"""Lab 02: one training step with a planted fault, stage by stage."""

from flow.drawing import LEFT, RIGHT, SMALL, Drawing

# Of a ResNet whose layer3 has its stride in the wrong place, against one without a fault: which
# tensors of a stage differ, by layer. conv1's statistics are those of bn1; fc has none.
LAYERS = ("conv1", "layer1", "layer2", "layer3", "layer4", "fc")
AGREES, DIFFERS, NONE = True, False, None
VERDICTS = {
    "preprocessing": (AGREES,),
    "weights": (AGREES,) * 6,
    "forward": (AGREES,) * 3 + (DIFFERS,) * 3,
    "loss": (DIFFERS,),
    "gradients": (DIFFERS,) * 6,
    "update": (DIFFERS,) * 6,
    "statistics": (AGREES,) * 3 + (DIFFERS,) * 2 + (NONE,),
}
FAULT = "layer3"


_SHOWN = (
    "A table of the stages of one training step over the layers conv1, layer1 to layer4 and fc "
    "of a ResNet whose layer3 has its stride in the wrong place. Preprocessing and weights "
    "agree. Forward agrees in conv1, layer1 and layer2; layer3 is the first that differs, and "
    "there the fault is; layer4 and fc differ as well. So do the loss, all gradients, whose "
    "way leads back through the fault, and the update of all weights. BatchNorm's running "
    "statistics agree up to layer2 and differ in layer3 and layer4. What agrees has a tick, "
    "what differs a cross and a hatching."
)


def migration() -> Drawing:
    """One training step with a planted fault, each stage and layer green or red."""
    made = Drawing(
        "A planted fault, seen stage by stage",
        "One training step, compared with the original's tensor by tensor",
        _SHOWN,
        592,
    )
    left, width, gap = 122, 42, 10
    centres = [left + number * (width + gap) + width / 2 for number in range(6)]
    for name, x in zip(LAYERS, centres, strict=True):
        made.text(x, 80, name, SMALL, kind="bold" if name == FAULT else "")
    tops = dict(zip(VERDICTS, (92, 142, 220, 270, 320, 370, 420), strict=True))
    for stage, verdicts in VERDICTS.items():
        top = tops[stage]
        made.text(LEFT, top + 21.5, stage, anchor="start")
        for number, agrees in enumerate(verdicts):
            wide = len(verdicts) == 1
            x, size = (left, RIGHT - left) if wide else (centres[number] - 21, width)
            _verdict(made, x, top, size, agrees)
        if stage == "forward":
            for x in centres[1:]:
                made.arrow((x - 31, top + 17), (x - 21, top + 17))
        if stage == "gradients":
            for x in centres[:-1]:
                made.arrow((x + 31, top + 17), (x + 21, top + 17))
    for above, below in zip(tops.values(), list(tops.values())[1:], strict=False):
        made.arrow((30, above + 29), (30, below + 7), hue="grey")
    fault = centres[LAYERS.index(FAULT)]
    made.path(f"M{fault - 21} 220h42v34h-42z", "", "thick")
    made.text(RIGHT, 194, "the fault: its stride. First red: look here", SMALL, "end", "bold")
    made.arrow((fault, 200), (fault, 218))
    _reading(made)
    return made


def _verdict(made: Drawing, x: float, y: float, width: float, agrees: bool | None) -> None:
    """Add one cell of the table: green with a tick, red with hatching and a cross, or empty."""
    if agrees is None:
        made.box(x, y, width, 34, "grey", kind="hollow dashed", corner=3)
        made.lines(x + width / 2, y + 21, "none")
        return
    made.box(x, y, width, 34, "green" if agrees else "red", corner=3)
    if agrees:
        made.tick(x + width / 2, y + 17)
        return
    made.hatch(x, y, width, 34, "red")
    made.box(x + width / 2 - 10, y + 7, 20, 20, "red", corner=10)
    made.cross(x + width / 2, y + 17)


def _reading(made: Drawing) -> None:
    """Add what the colours mean, and why the red ones are where they are."""
    made.path("M16 474L424 474", "grey", "thin")
    _verdict(made, LEFT, 488, 42, True)
    made.text(68, 509.5, "agrees", anchor="start")
    _verdict(made, 142, 488, 42, False)
    made.text(194, 509.5, "differs by more than its tolerance", SMALL, "start")
    made.lines(
        LEFT,
        544,
        "Forward is red from the fault on. The backward pass leads back",
        "through the fault: all gradients are red, and all updates. Running",
        "statistics are made in the forward pass: red from the fault on.",
        anchor="start",
    )
