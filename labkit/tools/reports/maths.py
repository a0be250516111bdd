"""Convert TeX in a notebook's text to MathML, which a browser draws without any script.

The text that latex2mathml writes is not safe on a page: it removes the escapes of
``\\text{<script>}`` and supports ``\\href``. So its elements are used instead, only those of
Presentation MathML, and escaped here. TeX that it cannot convert stays on the page as TeX.
"""

import re
from html import unescape
from xml.etree.ElementTree import Element, tostring

LONGEST = 500  # characters, which take 10 ms; the labs' longest formula has 143
# A macro can double its text at every level. Formulas are read one by one, so none needs macros.
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
        display: whether it is set on a line of its own.

    Returns:
        The element as text; None if ``tex`` cannot be converted or is longer than ``LONGEST``.
    """
    tex = tex.strip()
    if len(tex) > LONGEST or _MACRO.search(tex):
        return None
    try:
        return tostring(_element(tex, display), encoding="unicode", short_empty_elements=False)
    # latex2mathml raises errors of its own, and any others that a formula happens to cause.
    except Exception:
        return None


def _element(tex: str, display: bool) -> Element:
    from latex2mathml.converter import Converter

    # The only common environment that it does not support, and an equivalent that it does.
    tex = tex.replace("{aligned}", "{split}")
    root = Converter(display="block" if display else "inline").convert_to_element(tex)
    for element in root.iter():
        if element.tag not in _TAGS:
            raise ValueError(f"{element.tag} is not an element of a formula")
        kept = {name: str(value) for name, value in element.attrib.items() if name in _ATTRIBUTES}
        element.attrib.clear()
        element.attrib.update(kept)
        # latex2mathml writes symbols as "&#x2211;".
        element.text = unescape(element.text or "")
        element.tail = unescape(element.tail or "")
    return root
