"""Figures with sliders where they can be moved, plain pictures elsewhere."""

import base64
import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from labkit.base.arguments import wrong
from labkit.base.progress import has_front_end
from labkit.errors import InputError, nearest
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

    Raises:
        InputError: if there is no slider, a slider cannot be moved, or the stills do not fit.
    """
    _check(stills, sliders)
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


def _check(stills: Sequence[Mapping[str, float]], sliders: Mapping[str, Slider]) -> None:
    if not sliders:
        raise InputError("sliders: expected one for each argument of the figure, got none")
    for name, slider in sliders.items():
        if not isinstance(slider, Slider):
            raise wrong(name, slider, "a Slider", nearest(name, ("save", "size")))
        if not (slider.low < slider.high and slider.step > 0):
            raise wrong(f"slider {name}", slider, "low < high, step > 0")
    if not 2 <= len(stills) <= 4:
        raise wrong("stills", len(stills), "two to four positions of the sliders")
    for still in stills:
        if still.keys() != sliders.keys():
            raise wrong("a still", still, f"a position of each of {', '.join(sliders)}")
        for name, slider in sliders.items():
            if not slider.low <= still[name] <= slider.high:
                raise wrong(f"still of {name}", still[name], f"{slider.low} to {slider.high}")


def widget(draw: Callable[..., Any], alt: str, **sliders: Slider) -> Any:
    """Return the ipywidgets box of a picture and its sliders; arguments as in ``move``.

    ``draw`` takes the sliders' values and returns a new matplotlib figure at each call.
    """
    import ipywidgets

    moved = {name: _slider(slider) for name, slider in sliders.items()}
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


def _slider(slider: Slider) -> Any:
    import ipywidgets

    return ipywidgets.FloatSlider(
        value=slider.start, min=slider.low, max=slider.high, step=slider.step,
        description=slider.label, readout_format=".4g",
        style={"description_width": "12em"}, layout={"width": "36em"},
    )  # fmt: skip
