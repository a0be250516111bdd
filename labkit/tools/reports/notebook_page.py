"""An executed notebook as one self-contained HTML page: no network, no script.

nbconvert's own pages load require.js and MathJax from the network. This module uses its basic
template, keeps only harmless tags and attributes, and converts formulas to MathML
(labkit.tools.reports.maths).
"""

import base64
import logging
import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from labkit.base.input_files import parse_json, read_bytes, read_text
from labkit.base.project import project_root
from labkit.errors import InputError
from labkit.tools.reports.maths import LONGEST, mathml

if TYPE_CHECKING:
    from bs4 import BeautifulSoup, Tag

# An output in several formats is shown in the first of these that it has. Widgets and JavaScript
# are left out: both need a page that loads programs.
_SHOWN = ("text/html", "text/markdown", "image/png", "image/jpeg", "text/latex", "text/plain")
# The only tags that stay on the page. Unlike style, textarea, noscript, svg or a comment, they do
# not change how a browser parses what follows, so for every HTML parser each "<" of the page begins
# one of these tags, however the text was nested before.
_TAGS = frozenset(
    "a abbr b bdi bdo blockquote br caption center cite code col colgroup dd del details dfn div "
    "dl dt em figcaption figure font h1 h2 h3 h4 h5 h6 hr i img ins kbd li mark ol p pre q rp rt "
    "ruby s samp small span strike strong sub summary sup table tbody td tfoot th thead tr tt u ul "
    "var wbr".split()
)
# Removed with their content, which is not text for a reader. Other tags become spans.
_EMPTIED = frozenset(
    "applet audio base canvas embed frame frameset head iframe input link math meta noembed "
    "noframes noscript object param plaintext script select source style svg template textarea "
    "title track video xmp".split()
)
# Markdown beyond these limits is shown as source. mistune takes 48 us per character of headings and
# time quadratic in the number of "[": 15 s for 64 kB of "![](", 0.3 s for 2000 of them. A lab's
# longest cell has 2 kB, all of its markdown 20 kB.
_LONGEST, _MOST_BRACKETS, _MOST_MARKDOWN = 20_000, 2000, 200_000
_MOST_TEX, _EACH_FORMULA = 20_000, 20  # characters; a lab has 72 formulas, 1200 in all
_LARGEST_FIGURE = 100_000  # bytes; the labs' pictures have 16 000
_DEEPEST = 256  # levels of nested tags; a notebook's own have 15
_ATTRIBUTES = frozenset(
    "align alt aria-hidden aria-label border class color colspan datetime dir headers height id "
    "lang reversed role rowspan scope span start style title valign width".split()
)
_PICTURE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]*\Z")
_STYLE = re.compile(
    r"\s*(?:(?:background-)?color|font-(?:weight|style|size)|text-(?:align|decoration)|"
    r"vertical-align|white-space|(?:max-|min-)?(?:width|height)|(?:margin|padding)(?:-[a-z]+)?)"
    r"\s*:\s*(?:[#\w\s.%-]+|rgba?\([\d\s.,%]+\))\s*\Z"
)


def convert(notebook: Path) -> tuple[str, str]:
    """Return the notebook's title and its cells as HTML for ``notebook.html.j2``.

    Raises:
        InputError: if the file is not a readable notebook.
    """
    import nbformat

    try:
        text = read_text(notebook)
        if (version := parse_json(text)["nbformat"]) != 4:
            raise ValueError(f"its format: expected 4, got {version}")
        # nbformat.read would only print the faults that it finds, and continue.
        read = nbformat.v4.reads(text)
        _formulas_as_markdown(read)
        with warnings.catch_warnings():
            # nbformat and nbconvert warn of outputs that only a widget or JavaScript could show.
            warnings.simplefilter("ignore")
            nbformat.validate(read)
            exporter = _exporter()
            exporter.markdown_left = _MOST_MARKDOWN
            body, _ = exporter.from_notebook_node(read)
            body = _clean(body, notebook.parent.resolve())
    # nbformat and nbconvert raise whatever the damage causes: KeyError, AttributeError.
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"{notebook.name} cannot be converted: {reason}") from error
    return _title(read, notebook), body


def _exporter_class() -> type:
    """Return an HTMLExporter that formats markdown; imports nbconvert, which only pages need."""
    from jinja2 import pass_context
    from nbconvert import HTMLExporter
    from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

    class Renderer(IPythonRenderer):
        """Marks formulas for ``_clean`` to convert, which removes any other ``<math>``."""

        def inline_math(self, body: str) -> str:
            return f'<span class="maths">{escape(body)}</span>'

        def block_math(self, body: str) -> str:
            return f'<span class="maths display">{escape(body)}</span>'

        def latex_environment(self, name: str, body: str) -> str:
            return self.block_math(f"\\begin{{{name}}}{body}\\end{{{name}}}")

    class Exporter(HTMLExporter):
        """Formats markdown of cells and outputs, up to ``markdown_left`` characters in all."""

        markdown_left = _MOST_MARKDOWN

        @pass_context
        def markdown2html(self, context: Mapping[str, Any], source: str) -> str:
            longest = min(_LONGEST, self.markdown_left)
            if len(source) > longest or source.count("[") > _MOST_BRACKETS:
                return _as_written(source)
            self.markdown_left -= len(source)
            attachments = context.get("cell", {}).get("attachments", {})
            renderer = Renderer(escape=False, attachments=attachments)
            return MarkdownWithMath(renderer=renderer).render(source)

    return Exporter


@cache  # compiling its templates takes a tenth of a second
def _exporter() -> Any:
    # It warns of pictures without alternative text, which ``_clean`` adds.
    log = logging.getLogger(f"{__name__}.nbconvert")
    log.setLevel(logging.CRITICAL)
    return _exporter_class()(
        template_name="basic",
        log=log,
        # nbconvert looks templates up in the working folder first, and a template can execute code.
        extra_template_basedirs=[],
        config={"NbConvertBase": {"display_data_priority": list(_SHOWN)}},
    )


def _formulas_as_markdown(notebook: Any) -> None:
    """Turn outputs that are a single formula, such as IPython's Math, into markdown."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if re.fullmatch(r"\s*\$.*\$\s*", str(data.get("text/latex", "")), re.DOTALL):
                data.setdefault("text/markdown", data.pop("text/latex"))


def _as_written(markdown: str) -> str:
    # nbconvert looks for links in this function's result too: 14 s for 64 kB of "![](".
    text = escape(markdown).replace("[", "&#91;")
    return f"<p><em>too long to be formatted:</em></p><pre>{text}</pre>"


def _clean(body: str, folder: Path) -> str:
    """Keep only what is harmless, convert formulas, resolve relative links from ``folder``."""
    from bs4 import BeautifulSoup, NavigableString

    soup = BeautifulSoup(_whole_tags(body), "html.parser")
    _drop_all_but_text(soup)
    ids: set[str] = set()
    embedded: set[Path] = set()
    for tag in soup.find_all(True):
        source = str(tag.get("src", ""))
        _drop_attributes(tag)
        if tag.name == "img" and "src" not in tag.attrs:
            _embed(tag, source, folder, embedded)
        # Two headings with the same words have the same id.
        if "id" in tag.attrs:
            name = str(tag["id"])
            if name in ids:
                del tag.attrs["id"]
            ids.add(name)
        if tag.name == "a":
            _point(tag, folder)
    for image in soup.find_all("img"):
        image["alt"] = image.get("alt") or "picture"
        if "src" not in image.attrs:
            image.replace_with(f"[picture: {image['alt']}]")
    left = _MOST_TEX
    for formula in soup.select("span.maths"):
        if not isinstance(text := formula.string, NavigableString):  # it has tags inside
            continue
        left -= len(text) + _EACH_FORMULA if len(text) <= LONGEST else 0
        if left >= 0 and (html := mathml(text, "display" in formula["class"])):
            # Inside its tag: replacing the tag itself takes time linear in its parent's children.
            text.replace_with(BeautifulSoup(html, "html.parser"))
        else:
            formula.name = "code"
    return str(soup)


def _whole_tags(html: str) -> str:
    """Return ``html`` without comments, and with every "<" escaped that begins no complete tag.

    html.parser is quadratic in both: 100 kB of "<a" or "<!--" take it 40 s.
    """
    parts, place = [], 0
    while (start := html.find("<!--", place)) >= 0:
        end = html.find("-->", start + 4)
        if end < 0:
            break
        parts.append(html[place:start])
        place = end + 3
    parts.append(html[place:])
    return re.sub(r"<(?!/?[A-Za-z][^<>]*>)", "&lt;", "".join(parts))


def _drop_all_but_text(soup: "BeautifulSoup") -> None:
    """Keep only tags of ``_TAGS`` and text: no comments, declarations, instructions, other tags."""
    from bs4.element import NavigableString, PreformattedString, Tag

    depth = {id(soup): 0}
    for node in list(soup.descendants):
        depth[id(node)] = depth[id(node.parent)] + 1
        if depth[id(node)] > _DEEPEST:
            raise InputError(f"its HTML is nested more than {_DEEPEST} deep")
    for node in list(soup.descendants):
        if isinstance(node, PreformattedString):  # a comment, CDATA, <!...> or <?...>
            node.extract()
        elif isinstance(node, NavigableString):
            if type(node) is not NavigableString:  # a script's text, written without escapes
                node.replace_with(NavigableString(node))
        elif not isinstance(node, Tag):
            continue
        elif node.name in _EMPTIED or "anchor-link" in (node.get("class") or ()):
            node.extract()
        elif node.name not in _TAGS:
            node.name = "span"
            node.attrs = {}


def _drop_attributes(tag: "Tag") -> None:
    """Keep only the attributes that neither run nor load nor cover anything."""
    for name in list(tag.attrs):
        value = str(tag.attrs[name])
        if name == "src" and tag.name == "img" and _PICTURE.match(value):
            continue
        if name == "href" and tag.name == "a":
            continue
        if name not in _ATTRIBUTES:
            del tag.attrs[name]
    if "style" in tag.attrs:
        kept = filter(_STYLE.match, str(tag["style"]).split(";"))
        tag["style"] = ";".join(kept)


def _point(link: "Tag", folder: Path) -> None:
    """Make a relative link absolute; drop one that leads nowhere or has another scheme."""
    target = str(link.get("href", ""))
    if target.startswith(("http://", "https://", "#")) or not target:
        return
    path, hash_sign, fragment = target.partition("#")
    file = None if ":" in path.split("/", 1)[0] else _file(unquote(path), folder)
    if file is None:
        del link.attrs["href"]
    else:
        link["href"] = f"file://{quote(str(file))}{hash_sign if fragment else ''}{fragment}"


def _embed(image: "Tag", source: str, folder: Path, embedded: set[Path]) -> None:
    """Embed an SVG of the project's docs/figures in the page, each once; leave other files out.

    Pages are shared, and a notebook may come from anyone: so it embeds no other file, and no file a
    million times. A browser that draws SVG as an image runs nothing in it and loads nothing for it.
    """
    project, file = project_root(folder), _file(unquote(source), folder)
    if project is None or file is None or file in embedded:
        return
    if file.suffix == ".svg" and project / "docs" / "figures" in file.parents:
        embedded.add(file)
        with suppress(OSError, InputError):  # too large, or gone since: ``alt`` stays
            content = base64.b64encode(read_bytes(file, _LARGEST_FIGURE)).decode()
            image["src"] = f"data:image/svg+xml;base64,{content}"


def _file(path: str, folder: Path) -> Path | None:
    """Return the file that a link means; a lab's links are relative to where it was copied from."""
    project = project_root(folder)
    for base in (folder, project / "notebooks") if project else (folder,):
        try:
            place = (base / path).resolve()
            if place.exists():
                return place
        except (OSError, ValueError, RuntimeError):  # name too long, null byte, circular links
            return None
    return None


def _title(content: Any, notebook: Path) -> str:
    for cell in content.cells:
        for line in str(cell.source).splitlines() if cell.cell_type == "markdown" else ():
            if line.startswith("# "):
                return line[2:].strip()
    return notebook.stem
