"""Lab 05: snapshots, components, and then search and residual."""

from flow.drawing import RIGHT, TEXT, Drawing

_SHOWN = (
    "Stage one is an ordinary training that keeps N snapshots of the M weights. Their mean is "
    "taken away, and their principal components are the K orthonormal rows of the basis P. In "
    "stage two the gradient g of each batch is split. Inside the subspace P g, K numbers, "
    "gives a direction by BFGS, and a line search tries the lengths 1, rho, rho squared and so "
    "on until the loss of the batch falls far enough; the step s is projected back by P^T. "
    "Outside, the residual g - P^T P g is gathered with a momentum, and the optimizer, in the "
    "tutorial SGD, gets alpha times it. Both are added to the weights."
)


def subspace() -> Drawing:
    """Stage one's snapshots and their basis; stage two's search and residual."""
    made = Drawing(
        "Find few directions, then search in them",
        "Snapshots of a training, their main directions, and a search in these",
        _SHOWN,
        700,
    )
    made.frame(16, 62, 408, 158)
    made.text(28, 82, "Stage one", TEXT, "start", "bold")
    made.lines(RIGHT - 12, 82, "an ordinary training", anchor="end")
    way = ((34, 138), (56, 160), (50, 180), (80, 188), (92, 164), (112, 172), (122, 194))
    made.path("M" + "L".join(f"{x} {y}" for x, y in way), "grey")
    for x, y in way[2:]:
        made.box(x - 3.5, y - 3.5, 7, 7, "blue", corner=3.5)
    made.arrow((138, 168), (168, 168), hue="blue")
    _rows(made, 168, 138, 104, 7)
    made.arrow((272, 168), (304, 168), hue="blue")
    _rows(made, 304, 151, 104, 4)
    made.lines(82, 106, "*N* snapshots", "of *M* weights")
    made.lines(220, 106, "less their mean,", "*N × M*")
    made.lines(356, 106, "basis *P*, *K × M*,", "rows orthonormal")
    made.frame(16, 232, 408, 452)
    made.text(28, 252, "Stage two", TEXT, "start", "bold")
    made.lines(120, 252, "at every update", anchor="start")
    made.box(28, 266, 150, 40, "grey", "gradient *g*", "*M* numbers")
    made.arrow((178, 286), (216, 286))
    made.box(216, 266, 196, 40, "grey", "split *g* by the basis", "*P^{T}P g*  and the rest")
    made.arrow((356, 187), (356, 266), hue="blue")
    _search(made)
    _residual(made)
    made.box(28, 628, 384, 44, "grey", "*w ← w + P^{T}s*, and the optimizer's move",
             "where no trial lowers the loss enough, *s* = 0")  # fmt: skip
    return made


def _rows(made: Drawing, x: float, y: float, width: float, count: int) -> None:
    """Add a matrix of ``count`` long rows."""
    for number in range(count):
        made.box(x, y + 9 * number, width, 6.5, "blue", kind="thin", corner=1)


def _search(made: Drawing) -> None:
    """Add the branch inside the subspace."""
    made.arrow((236, 306), (236, 322), (126, 322), (126, 352), hue="blue")
    made.lines(28, 340, "inside", anchor="start")
    made.box(28, 352, 196, 40, "blue", "*g_{k} = P g*", "*K* numbers")
    made.arrow((126, 392), (126, 410), hue="blue")
    made.box(28, 410, 196, 40, "blue", "*d = −B g_{k}*", "*B*, *K × K*: by BFGS")
    made.arrow((126, 450), (126, 468), hue="blue")
    made.box(28, 468, 196, 84, "blue")
    made.text(126, 486, "line search: trials")
    for x, name, good in ((70, "1", False), (122, "ρ", False), (176, "ρ^{2}", True)):
        made.text(x - 4, 509, f"*{name}*", anchor="end")
        (made.tick if good else made.cross)(x + 9, 505, "green" if good else "red")
    made.lines(126, 529, "the first at which the batch's", "loss falls far enough")
    made.arrow((126, 552), (126, 570), hue="blue")
    made.box(28, 570, 196, 40, "blue", "*s = ρ^{m} d*", "back by *P^{T}*: *M* numbers")
    made.arrow((126, 610), (126, 628), hue="blue")


def _residual(made: Drawing) -> None:
    """Add the branch outside the subspace."""
    made.arrow((328, 306), (328, 352), hue="orange")
    made.lines(412, 340, "outside", anchor="end")
    made.box(244, 352, 168, 40, "orange", "*g − P^{T}P g*", "*M* numbers")
    made.arrow((328, 392), (328, 410), hue="orange")
    made.box(244, 410, 168, 40, "orange", "*r ← γ r + g − P^{T}P g*", "momentum of its own")
    made.arrow((328, 450), (328, 570), hue="orange")
    made.text(336, 514, "*α r*", anchor="start")
    made.box(244, 570, 168, 40, "orange", "optimizer", "in the tutorial SGD, rate 1")
    made.arrow((328, 610), (328, 628), hue="orange")
