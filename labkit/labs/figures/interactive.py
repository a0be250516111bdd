"""Figures with sliders where they can be moved, plain pictures elsewhere."""

import base64
import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from labkit.base.progress import has_front_end
from labkit.labs.figures import common as plots


class Slider(NamedTuple):
    """An argument of a figure: from ``low`` to ``high`` by ``step``, initially ``start``."""

    label: str
    low: float
    high: float
    step: float
    start: float


def move(
    draw: Callable[..., object],
    alt: str,
    stills: Sequence[Mapping[str, float]],
    save: Callable[[Any], object] = lambda figure: None,
    size: tuple[float, float] = (4.6, 3.2),
    **sliders: Slider,
) -> None:
    """Display a figure with sliders in JupyterLab; elsewhere stills of it, two per row.

    A page in a repository runs no code: there the stills show what the sliders would.

    Args:
        draw: draws on a matplotlib axis, its first argument, given the sliders' values
        alt: alternative text that describes the picture
        stills: positions of the sliders, two to four; the sliders start at the first
        save: called with the figure of the stills
        size: size of one picture, inches
        **sliders: one for each further argument of ``draw``
    """
    figure, grid = plots.axes(-(-len(stills) // 2), 2, *size)
    cells = grid.ravel()
    for axis, still in zip(cells, stills, strict=False):
        draw(axis, **still)
    for axis in cells[len(stills) :]:
        axis.set_axis_off()
    save(figure)
    if not has_front_end():
        return plots.show(figure, alt)
    import ipywidgets
    from IPython.display import display

    plots.png(figure)  # closes it: Jupyter would show it a second time
    moved = {
        name: ipywidgets.FloatSlider(
            value=stills[0].get(name, slider.start), min=slider.low, max=slider.high,
            step=slider.step, description=slider.label, readout_format=".4g",
            style={"description_width": "12em"}, layout={"width": "36em"},
        )
        for name, slider in sliders.items()
    }  # fmt: skip
    shown = ipywidgets.HTML(layout={"max_width": "100%"})

    def redraw(change: object = None) -> None:
        single, axis = plots.axes(1, 1, *size)
        draw(axis, **{name: slider.value for name, slider in moved.items()})
        # As HTML, since ipywidgets' own picture takes no alternative text; JupyterLab cuts off what
        # is wider than the page.
        data, fit = base64.b64encode(plots.png(single)).decode(), "max-width: 100%; height: auto"
        source = f'src="data:image/png;base64,{data}"'
        shown.value = f'<img alt="{html.escape(alt)}" style="{fit}" {source}>'

    for slider in moved.values():
        slider.observe(redraw, names="value")
    redraw()
    display(ipywidgets.VBox([*moved.values(), shown]))
