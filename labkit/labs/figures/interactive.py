"""Figures with sliders where they can be moved, plain pictures elsewhere."""

import base64
import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.base.progress import has_front_end
from labkit.labs.figures import common as plots


@dataclass(frozen=True)
class Slider:
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
    save: Callable[[Any], object] | None = None,
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
    if save is not None:
        save(figure)
    if not has_front_end():
        return plots.show(figure, alt, dpi=plots.SHARP)
    from IPython.display import display

    plots.png(figure)  # closes it: Jupyter would show it a second time

    def picture(**values: float) -> bytes:
        single, axis = plots.axes(1, 1, *size)
        draw(axis, **values)
        return plots.png(single)

    display(_widget(picture, alt, sliders, stills[0]))


def _widget(
    picture: Callable[..., bytes], alt: str, sliders: Mapping[str, Slider], start: Mapping
) -> Any:
    """Return the ipywidgets box of a picture, which is a new PNG at each call, and its sliders."""
    import ipywidgets

    moved = {
        name: ipywidgets.FloatSlider(
            value=start.get(name, slider.start), min=slider.low, max=slider.high, step=slider.step,
            description=slider.label, readout_format=".4g",
            style={"description_width": "12em"}, layout={"width": "36em"},
        )
        for name, slider in sliders.items()
    }  # fmt: skip
    shown = ipywidgets.HTML(layout={"max_width": "100%"})

    def redraw(change: object = None) -> None:
        drawn = picture(**{name: slider.value for name, slider in moved.items()})
        # As HTML, since ipywidgets' own picture takes no alternative text; JupyterLab cuts off what
        # is wider than the page.
        data, fit = base64.b64encode(drawn).decode(), 'style="max-width: 100%; height: auto"'
        shown.value = f'<img alt="{html.escape(alt)}" {fit} src="data:image/png;base64,{data}">'

    for slider in moved.values():
        slider.observe(redraw, names="value")
    redraw()
    return ipywidgets.VBox([*moved.values(), shown])
