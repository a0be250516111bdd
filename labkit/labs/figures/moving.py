"""Figures with sliders that need no kernel: one SVG in the output holds all of their frames.

Stills stand in its place where no script may run: in a notebook that is not trusted, on the page
of a repository, in a PDF.
"""

import base64
import html
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any
from xml.etree import ElementTree

import numpy as np
from IPython.display import display
from matplotlib import rc_context
from matplotlib.figure import Figure

from labkit.labs.figures.common import png

_STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "labkit", "legend.framealpha": 0}
# Runs when the stills have loaded, and replaces them. It and what it shows are attributes of the
# picture: whatever strips those leaves a picture with its alternative text, and no litter.
_SCRIPT = """(stills => {
  const box = Object.assign(document.createElement('div'), {innerHTML: stills.dataset.box});
  const inputs = [...box.querySelectorAll('input')], said = box.querySelector('p');
  (box.oninput = () => {
    const k = inputs.reduce((k, input) => k * (+input.max + 1) + +input.value, 0);
    for (const part of box.querySelectorAll('[data-k]'))
      part.style.display = part.matches(`[data-k~="${k}"]`) ? '' : 'none';
    for (const i of inputs) i.setAttribute('aria-valuetext', i.nextElementSibling.textContent =
      JSON.parse(i.dataset.values)[i.value]);
    said.textContent = JSON.parse(said.dataset.texts)[k];
  })(stills.replaceWith(box));
})(this)"""


def moving(
    draw: Callable[..., str],
    alt: str,
    stills: Sequence[Mapping[str, Any]],
    size: tuple[float, float] = (4.6, 3.2),
    **sliders: tuple[str, Sequence],
) -> None:
    """Display a figure whose sliders work in every browser.

    Each combination of the sliders' values is a frame, drawn now: 15 to 75 of them take 2 to 12 s
    and 50 to 300 kB.

    Args:
        draw: draws on an axis, its first argument, given the sliders' values by name; returns a
            sentence on what is to be seen, which is shown below and read aloud.
        alt: alternative text of the figure and of its stills.
        stills: positions drawn side by side; the sliders start at the first.
        size: of a frame, in inches.
        **sliders: (label, values that it may take) of each.
    """

    def drawn(*places: Mapping) -> tuple[Figure, str]:
        figure = Figure(figsize=(size[0] * len(places), size[1]), layout="tight")
        axes = figure.subplots(1, len(places), squeeze=False)[0]
        said = [draw(axis, **place) for axis, place in zip(axes, places, strict=True)]
        return figure, said[0]

    def frame(place: Mapping) -> tuple[ElementTree.Element, str]:
        (figure, said), file = drawn(place), io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
        return ElementTree.fromstring(file.getvalue()), said

    values = (numbers for _, numbers in sliders.values())
    places = [dict(zip(sliders, each, strict=True)) for each in product(*values)]
    with rc_context(_STYLE):  # the same bytes in every run, and text that stays text
        frames = [frame(place) for place in places]
        picture = base64.b64encode(png(drawn(*stills)[0], 100)).decode()
    controls = "".join(_control(label, list(numbers), stills[0][name])
                       for name, (label, numbers) in sliders.items())  # fmt: skip
    svg = _merged([root for root, _ in frames], alt)
    texts = html.escape(json.dumps([said for _, said in frames]))
    box = f'{controls}{svg}<p aria-live="polite" data-texts="{texts}"></p>'
    box, script = (text.replace("&", "&amp;").replace("'", "&#39;") for text in (box, _SCRIPT))
    page = f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{picture}" '
    page += f"data-box='{box}' onload='{script}'>"
    display({"text/html": page, "image/png": picture, "text/plain": alt}, raw=True)


def _control(label: str, values: list, first: Any) -> str:
    # Without lumino's attribute JupyterLab takes the arrow keys, to go to the next cell.
    shown = json.dumps(
        [f"{v:.4g}" if isinstance(v, int | float | np.number) else v for v in values]
    )
    return (
        f'<div><label>{html.escape(label)} <input type="range" max="{len(values) - 1}" '
        f'value="{values.index(first)}" data-lm-suppress-shortcuts="true" '
        f"data-values='{html.escape(shown)}'><b></b></label></div>"
    )


def _merged(roots: Sequence[ElementTree.Element], alt: str) -> str:
    """Return one SVG: once what all frames share, the rest marked with the frames it is in."""
    used = set(re.findall(rb"#([\w-]+)", b"".join(map(ElementTree.tostring, roots))))
    for root in roots:
        for part in list(root.iter()):
            if part.tag.endswith(("}metadata", "}style")):  # a style would reach the whole page
                part.clear()
            if part.get("id", "").encode() not in used:  # such as axes_1, alike in every figure
                part.attrib.pop("id", None)
            part.tail = None
            if "style" in part.attrib:  # the list of fonts, 190 bytes a text, stands at the root
                part.set("style", re.sub(r"font-family: [^;]*;? ?", "", part.attrib["style"]))
            if part.get("transform", "").startswith("rotate(-0 "):
                del part.attrib["transform"]
            for name in part.attrib.keys() & {"d", "transform", "x", "y"}:  # tenths of a point do
                short = re.sub(r"-?\d+\.\d+", lambda n: f"{float(n[0]):.1f}", part.attrib[name])
                part.set(name, " ".join(short.split()))
    for name, place in (("", "2000/svg"), ("xlink", "1999/xlink")):  # else markers are lost
        ElementTree.register_namespace(name, f"http://www.w3.org/{place}")
    (root,) = _shared(roots)
    root.attrib |= {"role": "img", "aria-label": alt, "fill": "currentColor"}
    root.set("style", "max-width: 100%; height: auto; font-family: DejaVu Sans, sans-serif")
    # Black is the page's own colour of text: white on a dark page.
    return ElementTree.tostring(root, "unicode").replace("#000000", "currentColor")


def _shared(parts: Sequence[ElementTree.Element]) -> list[ElementTree.Element]:
    """Return one element for parts that are alike, else each variant with its frames."""
    if len({(part.tag, str(part.attrib), part.text, len(part)) for part in parts}) == 1:
        parts[0][:] = [kept for column in zip(*parts, strict=True) for kept in _shared(column)]
        return [parts[0]]
    variants: dict[bytes, list[int]] = {}
    for number, part in enumerate(parts):
        variants.setdefault(ElementTree.tostring(part), []).append(number)
    for frames in variants.values():
        parts[frames[0]].set("data-k", " ".join(map(str, frames)))
    return [parts[frames[0]] for frames in variants.values()]
