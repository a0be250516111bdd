"""Figures with sliders where they can be moved, plain pictures elsewhere."""

import base64
import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
        stills: two to four positions of the sliders, drawn side by side; the sliders start at the
            first
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
    if has_front_end():
        from IPython.display import display

        plots.png(figure)  # closes it: Jupyter would show it a second time

        def picture(**values: float) -> Any:
            single, axis = plots.axes(1, 1, *size)
            draw(axis, **values)
            return single

        starts = {name: replace(slider, start=stills[0][name]) for name, slider in sliders.items()}
        display(widget(picture, alt, **starts))
    else:
        plots.show(figure, alt, dpi=plots.SHARP)


def widget(draw: Callable[..., Any], alt: str, **sliders: Slider) -> Any:
    """Return the ipywidgets box of a picture and its sliders; arguments as in ``move``.

    ``draw`` takes the sliders' values and returns a new matplotlib figure at each call.
    """
    import ipywidgets

    moved = {
        name: ipywidgets.FloatSlider(
            value=slider.start, min=slider.low, max=slider.high, step=slider.step,
            description=slider.label, readout_format=".4g",
            style={"description_width": "12em"}, layout={"width": "36em"},
        )
        for name, slider in sliders.items()
    }  # fmt: skip
    picture = ipywidgets.HTML(layout={"max_width": "100%"})

    def redraw(change: object = None) -> None:
        figure = draw(**{name: slider.value for name, slider in moved.items()})
        # As HTML, since ipywidgets' own picture takes no alternative text.
        data = base64.b64encode(plots.png(figure)).decode()
        # JupyterLab cuts off what is wider than the page.
        fit = 'style="max-width: 100%; height: auto"'
        picture.value = f'<img alt="{html.escape(alt)}" {fit} src="data:image/png;base64,{data}">'

    for slider in moved.values():
        slider.observe(redraw, names="value")
    redraw()
    return ipywidgets.VBox([*moved.values(), picture])
