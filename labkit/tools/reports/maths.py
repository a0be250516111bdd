"""TeX in a notebook's text to MathML, by latex2mathml: a browser draws it without any script.

latex2mathml's own text is not safe on a page: it takes the escapes of ``\\text{<script>}`` away,
and knows ``\\href``. So its elements are taken, those of MathML's presentation alone, and escaped
here. What it cannot read stays on the page as TeX.
"""

import re
from html import unescape
from xml.etree.ElementTree import Element, tostring

LONGEST = 500  # characters, which take 10 ms; the longest of the labs has 143
# A macro can double itself at every level. Each formula is read alone, so none is of any use.
_MACRO = re.compile(r"\\(?:newcommand|newenvironment|def|DeclareMathOperator)(?![A-Za-z])")
_TAGS = frozenset(
    "math menclose mfrac mi mn mo mover mpadded mphantom mroot mrow mspace msqrt mstyle msub "
    "msubsup msup mtable mtd mtext mtr munder munderover".split()
)
_ATTRIBUTES = frozenset(
    "accent accentunder columnalign columnlines columnspacing depth display displaystyle fence "
    "form height largeop linethickness lspace mathcolor mathsize mathvariant maxsize minsize "
    "movablelimits notation rowlines rowspacing rspace scriptlevel separator stretchy symmetric "
    "voffset width".split()
)


def mathml(tex: str, display: bool = False) -> str | None:
    """Return a formula as a ``<math>`` element.

    Args:
        tex: the formula, without dollars.
        display: whether it stands on a line of its own.

    Returns:
        None where it cannot be converted, or is longer than ``LONGEST``.
    """
    tex = tex.strip()
    if len(tex) > LONGEST or _MACRO.search(tex):
        return None
    try:
        return tostring(_element(tex, display), encoding="unicode", short_empty_elements=False)
    # latex2mathml has errors of its own, and raises what a formula happens to lead to.
    except Exception:
        return None


def _element(tex: str, display: bool) -> Element:
    from latex2mathml.converter import Converter

    # The one environment in common use that it does not know, and one that it does.
    tex = tex.replace("{aligned}", "{split}")
    root = Converter(display="block" if display else "inline").convert_to_element(tex)
    for element in root.iter():
        if element.tag not in _TAGS:
            raise ValueError(f"{element.tag} is no element of a formula")
        kept = {name: str(value) for name, value in element.attrib.items() if name in _ATTRIBUTES}
        element.attrib.clear()
        element.attrib.update(kept)
        # Symbols are written as "&#x2211;" in it.
        element.text = unescape(element.text or "")
        element.tail = unescape(element.tail or "")
    return root
