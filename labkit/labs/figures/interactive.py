"""Figures with sliders where somebody can move them, plain pictures everywhere else."""

import base64
import html
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from labkit.base.progress import has_front_end
from labkit.errors import InputError
from labkit.labs.figures import common as plots


@dataclass(frozen=True)
class Slider:
    """One argument of a figure: from ``low`` to ``high`` by ``step``; ``start`` at first."""

    label: str
    low: float
    high: float
    step: float
    start: float


def show(draw: Callable[..., Any], alt: str, save=None, **sliders: Slider) -> None:
    """Display the figure ``draw(**values)``, in JupyterLab with a slider for each value.

    draw     returns a matplotlib figure, a new one at each call
    alt      what is to be seen: alternative text of the picture
    save     is called with the figure at the start values
    sliders  argument of ``draw`` -> its ``Slider``

    Headless it is the picture at the sliders' start values. Raises ``InputError`` where there is
    no slider, and for one that cannot be moved to its start.
    """
    if not sliders:
        raise InputError("no slider came; expected one for each argument of the figure")
    for name, one in sliders.items():
        if not (one.low <= one.start <= one.high and one.low < one.high and one.step > 0):
            raise InputError(f"slider {name} is {one}; expected low <= start <= high, step > 0")
    figure = draw(**{name: one.start for name, one in sliders.items()})
    if save is not None:
        save(figure)
    if has_front_end():
        from IPython.display import display

        plots.png(figure)  # closes it: Jupyter would show it a second time
        display(widget(draw, alt, **sliders))
    else:
        plots.show(figure, alt)


def widget(draw: Callable[..., Any], alt: str, **sliders: Slider):
    """Return the ipywidgets box of a picture and its sliders; arguments as in ``show``."""
    import ipywidgets

    moved = {name: _slider(one) for name, one in sliders.items()}
    picture = ipywidgets.HTML(layout={"max_width": "100%"})

    def redraw(change=None):
        figure = draw(**{name: one.value for name, one in moved.items()})
        # As HTML, since a widget's picture takes no alternative text.
        data = base64.b64encode(plots.png(figure)).decode()
        # JupyterLab cuts off what is wider than the page.
        fit = 'style="max-width: 100%; height: auto"'
        picture.value = f'<img alt="{html.escape(alt)}" {fit} src="data:image/png;base64,{data}">'

    for one in moved.values():
        one.observe(redraw, names="value")
    redraw()
    return ipywidgets.VBox([*moved.values(), picture])


def _slider(one):
    import ipywidgets

    return ipywidgets.FloatSlider(
        value=one.start, min=one.low, max=one.high, step=one.step,
        description=one.label, readout_format=".4g",
        style={"description_width": "12em"}, layout={"width": "36em"},
    )  # fmt: skip
