"""The book: notebooks, guides and docstrings. scripts/book.py stages and builds it."""

import inspect
import re
from html import escape

from numpy.typing import ArrayLike
from sphinx.search import SearchLanguage, languages
from sphinx.util.inspect import stringify_signature
from sphinx.util.typing import stringify_annotation

import labkit
from labkit.tools.report import mathml

project, author = "mindspore-labs", "The mindspore-labs authors"
version = release = labkit.__version__
project_copyright = author
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
nb_execution_mode = "off"  # the committed outputs, of preset lab
nb_ipywidgets_js = {}  # no widget is left in them, and these are fetched from outside
nb_render_markdown_format = "myst"
myst_enable_extensions = ["dollarmath", "amsmath", "html_image"]
myst_heading_anchors = 4
# The notebooks' own <a id> are no targets of Sphinx; scripts/book.py looks up every link.
suppress_warnings = ["myst.xref_missing", "config.cache"]
autosummary_generate = True
autodoc_typehints_format = "short"
autodoc_docstring_signature = False  # else pybind11's signature of __init__, of every Cell
autodoc_default_options = {"members": True, "inherited-members": False}
maximum_signature_line_length = 88  # then an argument a line
napoleon_numpy_docstring = False
html_theme = "furo"
html_static_path = ["_static"]
html_css_files, html_js_files = ["book.css"], ["book.js"]
templates_path = ["_templates"]
html_title = "mindspore-labs"
html_show_sphinx = False
html_show_search_summary = False  # it would be fetched, which no browser does from a file
html_copy_source = html_show_sourcelink = False
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "language.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_theme_options = {"navigation_with_keys": True}
html_context = {"languages": {"en": "English", "zh_CN": "中文"}}
copybutton_selector = "div.highlight pre"
copybutton_exclude = ".linenos"
exclude_patterns = ["_templates"]


class ChinesePairs(SearchLanguage):
    """Chinese as pairs of neighbouring characters, in the index and in what is asked for."""

    lang, language_name = "zh", "Chinese"
    stopwords: set[str] = set()
    js_stemmer_rawcode = ""
    js_stemmer_code = "class Stemmer { stemWord(word) { return word; } }"
    js_splitter_code = """
function splitQuery(query) {
  const pairs = (run) => run.charCodeAt(0) < 0x4e00 || run.length < 3 ? [run]
    : [...run].slice(1).map((_, at) => run.slice(at, at + 2));
  return (query.toLowerCase().match(/[a-z0-9_]+|[\\u4e00-\\u9fff]+/g) ?? []).flatMap(pairs);
}
"""

    def split(self, input: str) -> list[str]:
        terms = []
        for run in re.findall(r"[a-z0-9_]+|[\u4e00-\u9fff]+", input.lower()):
            terms += [run] if run.isascii() else [run[at : at + 2] for at in range(len(run) - 1)]
        return terms

    def stem(self, word: str) -> str:
        return word

    def word_filter(self, word: str) -> bool:
        return len(word) > 1


languages["zh"] = ChinesePairs


def formula(self: object, node: object) -> None:
    """Write a formula as MathML, which browsers draw without a script."""
    from docutils.nodes import SkipNode

    inline = node.tagname == "math"
    tex = node.astext().strip()
    tag = "span" if inline else "div"
    shown = mathml(tex, display=not inline)
    self.body.append(f'<{tag} class="math" data-tex="{escape(tex)}">{shown}</{tag}>')
    raise SkipNode


_UNPACKED = re.compile(r"\*<class '[\w.]*?(\w+)'>")  # as Python prints **options: Unpack[Options]
_ARRAY_LIKE = stringify_annotation(ArrayLike, "smart")


def signature(app, what, name, obj, options, text, returns):
    """Return the signature of a class, which MindSpore's metaclass hides, or of a function."""
    if what not in ("class", "function"):
        return None
    try:
        own = inspect.signature(obj)
    except (TypeError, ValueError):
        return None
    shown = stringify_signature(own, show_return_annotation=False, unqualified_typehints=True)
    shown = re.sub(r"~(?:\w+\.)*", "", shown.replace(_ARRAY_LIKE, "ArrayLike"))
    return _UNPACKED.sub(r"Unpack[\1]", shown), returns


def docstring(app, what, name, obj, options, lines):
    """Show what is indented below a colon as it is; | and ** are no markup, as in plain text."""
    literal = None  # the indentation of the line above a literal block
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if literal is not None and line.strip() and indent <= literal:
            literal = None
        if literal is not None or not line.strip():
            continue
        below = lines[number + 1 : number + 3]
        if line.endswith(":") and len(below) == 2 and not below[0].strip():
            if len(below[1]) - len(below[1].lstrip()) > indent:
                literal, line = indent, f"{line}:"
        lines[number] = _MARKED.sub(_as_markup, line)


_MARKED = re.compile(r"``(.*?)``|(\||\*\*)")
_PUBLIC = {name: f"labkit.{name}" for name in labkit.__all__}


def _as_markup(found):
    if found[2]:
        return "\\" + "\\".join(found[2])
    return f":py:obj:`{found[1]} <{_PUBLIC[found[1]]}>`" if found[1] in _PUBLIC else found[0]


def setup(app):
    app.add_html_math_renderer("mathml", (formula, None), (formula, None))
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-process-docstring", docstring, priority=400)  # before Napoleon


html_math_renderer = "mathml"
