"""Lab 03: a layer's inputs and derivatives, A and G, two small inverses, and the bill."""

from flow.drawing import LEFT, RIGHT, TEXT, TITLE, Drawing

_SHOWN = (
    "Of a layer with weight W the derivatives d at its output and its inputs p are averaged to "
    "two small matrices, G, the mean of d d^T, and A, the mean of p p^T. Both are damped by "
    "the root of lambda over T and inverted, only every `frequency` updates; in between the "
    "two inverses are kept. At every update the gradient of W is multiplied by G's inverse "
    "from the left and by A's from the right, and divided by T, the number of positions. The "
    "result U takes the gradient's place in an ordinary optimizer. The bill for 400 inputs and "
    "120 outputs: one inverse of 48 000 rows costs 1.1e14 multiplications, the two small ones "
    "together 6.6e7."
)


def thor() -> Drawing:
    """A layer's inputs and derivatives, two factors, two inverses, the update, and the bill."""
    inputs, outputs = 400, 120
    made = Drawing(
        "THOR: two small inverses for a layer",
        "In place of one inverse, of a matrix of all weights by all weights",
        _SHOWN,
        660,
    )
    made.box(16, 66, 104, 42, "purple", "derivatives *d*", "backward")
    made.box(168, 66, 104, 42, "grey", "layer", "weight *W*")
    made.box(320, 66, 104, 42, "green", "inputs *p*", "forward")
    made.arrow((120, 87), (168, 87), hue="purple")
    made.arrow((320, 87), (272, 87), hue="green")
    made.frame(16, 124, 408, 172)
    made.lines(80, 144, "only every", "*frequency* updates", anchor="start")
    made.lines(360, 144, "in between both", "inverses are kept", anchor="end")
    for centre, inverse, side, hue, name, small in (
        (60, 146, 40, "purple", "G", "d"),
        (384, 304, 60, "green", "A", "p"),
    ):
        way = 1 if inverse > centre else -1
        made.arrow((centre, 108), (centre, 226 - side / 2), hue=hue)
        made.box(centre - side / 2, 226 - side / 2, side, side, hue, f"*{name}*", corner=2)
        made.box(inverse - side / 2, 226 - side / 2, side, side, hue, f"*{name}^{{−1}}*", corner=2)
        made.arrow((centre + way * side / 2, 226), (inverse - way * side / 2, 226), hue=hue)
        made.text(centre + 4 * way, 276, f"*{name}* = *E[{small} {small}^{{T}}]*")
        made.text(inverse + 8 * way, 186, f"*({name} + ε I)^{{−1}}*")
        made.arrow((inverse, 226 + side / 2), (inverse, 352 - side / 2), hue=hue)
    made.arrow((220, 108), (220, 334), hue="red")
    made.text(227, 232, "*∇W*", anchor="start")
    made.lines(229, 274, "damping", "*ε = √(λ/T)*", anchor="start")
    _preconditioned(made)
    _bill(made, inputs, outputs)
    return made


def _preconditioned(made: Drawing) -> None:
    made.frame(16, 306, 408, 138)
    made.lines(28, 325, "at every", "update", anchor="start")
    made.box(126, 332, 40, 40, "purple", "*G^{−1}*", corner=2)
    made.text(178, 357, "·", TITLE)
    made.box(190, 334, 60, 36, "red", "*∇W*", corner=2)
    made.text(262, 357, "·", TITLE)
    made.box(274, 322, 60, 60, "green", "*A^{−1}*", corner=2)
    made.text(220, 410, "*U = 1/T (G + ε I)^{−1} ∇W (A + ε I)^{−1}*")
    made.lines(220, 431, "*E*: mean over samples and positions; *T*: positions (dense: 1)")
    made.arrow((98, 444), (98, 464), hue="blue")
    made.box(16, 464, 164, 44, "blue", "*U*", "in the gradient's place")
    made.arrow((180, 486), (206, 486), hue="blue")
    made.box(206, 464, 96, 44, "blue", "optimizer", "any")
    made.arrow((302, 486), (328, 486), hue="blue")
    made.box(328, 464, 96, 44, "grey", "weights", "*w*")


def _bill(made: Drawing, inputs: int, outputs: int) -> None:
    made.path("M16 528L424 528", "grey", "thin")
    made.text(LEFT, 553, "The bill", TEXT, "start", "bold")
    made.lines(RIGHT, 553, "to invert *n × n* costs about *n^{3}*", anchor="end")
    made.lines(LEFT, 574, f"a layer with {inputs} inputs and {outputs} outputs:", anchor="start")
    whole, small = (inputs * outputs) ** 3, inputs**3 + outputs**3
    side = f"{inputs * outputs:,}".replace(",", " ")
    rows = (
        ("one inverse", f"*{side}^{{3}}*", whole),
        ("two small inverses", f"*{inputs}^{{3}} + {outputs}^{{3}}*", small),
    )
    for y, (name, sum_, count) in zip((598, 622), rows, strict=True):
        digits, power = f"{count:.1e}".split("e+")
        made.text(LEFT, y, name, anchor="start")
        made.text(306, y, sum_, anchor="end")
        made.text(320, y, f"*≈ {digits} × 10^{{{int(power)}}}*", anchor="start")
    times = f"{whole / small / 1e6:.1f} million times"
    made.lines(LEFT, 645, f"the one inverse costs {times} as much as the two", anchor="start")
