"""An executed notebook as one HTML page that loads nothing: no network, no script.

nbconvert's own pages load require.js and MathJax from elsewhere. Here its bare form is taken,
cleaned of everything that would run or be loaded, and its maths is drawn (labkit.reports.maths).
"""

import logging
import warnings
from functools import cache
from pathlib import Path
from urllib.parse import quote, unquote

from labkit.errors import InputError
from labkit.input_files import parse_json, read_text
from labkit.labs import project_root
from labkit.reports.maths import draw_maths

# Of an output in several forms the first that is there is shown. No widget and no JavaScript: both
# need a page that loads programs.
_SHOWN = ("text/html", "text/markdown", "image/png", "image/jpeg", "text/latex", "text/plain")
_RUNS = "script, link, iframe, object, embed, base, meta, form, audio, video, source, style"
_LOADS = ("src", "srcset", "poster", "background", "data")


def convert(notebook: Path) -> tuple[str, str]:
    """Return the notebook's title and its cells as HTML for ``notebook.html.j2``.

    Raises ``InputError`` for a file that is no notebook.
    """
    import nbformat

    try:
        text = read_text(notebook)
        if (version := parse_json(text)["nbformat"]) != 4:
            raise ValueError(f"its format is {version}; expected 4")
        # nbformat.read would print what it finds wrong, and go on.
        read = nbformat.v4.reads(text)
        with warnings.catch_warnings():
            # Of an output that only a widget or JavaScript could show.
            warnings.simplefilter("ignore")
            nbformat.validate(read)
            body, _ = _exporter().from_notebook_node(read)
    # nbformat and nbconvert raise what the damage happens to lead to: KeyError, AttributeError.
    except Exception as error:
        raise InputError(f"{notebook.name} cannot be converted: {_first_line(error)}") from error
    return _title(read, notebook), _clean(body, notebook.parent.resolve())


@cache
def highlight_css() -> tuple[str, str]:
    """Return the colours of code as CSS, on a light and on a dark page."""
    from pygments.formatters import HtmlFormatter

    return tuple(
        HtmlFormatter(style=style).get_style_defs(".highlight")
        for style in ("default", "github-dark")
    )


@cache
def _exporter():
    from nbconvert import HTMLExporter

    # What it warns of, pictures without a text, the page mends.
    log = logging.getLogger(f"{__name__}.nbconvert")
    log.setLevel(logging.CRITICAL)
    return HTMLExporter(
        template_name="basic",
        log=log,
        config={"NbConvertBase": {"display_data_priority": list(_SHOWN)}},
    )


def _clean(body: str, folder: Path) -> str:
    """Take out what would run or be loaded, draw the maths, lead relative links from ``folder``."""
    from bs4 import BeautifulSoup

    soup = BeautifulSoup(body, "html.parser")
    for one in soup.select(f"{_RUNS}, .anchor-link"):
        one.decompose()
    seen: set[str] = set()
    for one in soup.find_all(True):
        for name in list(one.attrs):
            value = str(one.attrs[name])
            loads = name in _LOADS and not value.startswith("data:image/")
            if name.startswith("on") or loads or (name == "style" and "url(" in value):
                del one.attrs[name]
        # Two headings with the same words have the same id.
        if "id" in one.attrs and (one["id"] in seen or seen.add(one["id"])):
            del one.attrs["id"]
        if one.name == "a":
            _point(one, folder)
    for image in soup.select("img"):
        image["alt"] = image.get("alt") or "picture"
        if "src" not in image.attrs:
            image.replace_with(f"[picture: {image['alt']}]")
    for text in soup.select(".text_cell_render, .output_markdown, .output_latex"):
        drawn = BeautifulSoup(draw_maths(text.decode_contents()), "html.parser")
        text.clear()
        text.append(drawn)
    return str(soup)


def _point(link, folder: Path) -> None:
    """Make a relative link absolute; drop one that leads nowhere, or is no link to a page."""
    target = str(link.get("href", ""))
    if target.startswith(("http://", "https://", "#")) or not target:
        return
    path, _, fragment = target.partition("#")
    found = None if ":" in path.split("/", 1)[0] else _file(unquote(path), folder)
    if found is None:
        del link.attrs["href"]
        return
    link["href"] = f"file://{quote(str(found))}" + (f"#{fragment}" if fragment else "")


def _file(path: str, folder: Path) -> Path | None:
    """Return the file that a link means; a lab's are written for the place it was copied from."""
    project = project_root(folder)
    for base in (folder, project / "notebooks") if project else (folder,):
        place = (base / path).resolve()
        if place.exists():
            return place
    return None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _title(read, notebook: Path) -> str:
    for cell in read.cells:
        for line in str(cell.source).splitlines() if cell.cell_type == "markdown" else ():
            if line.startswith("# "):
                return line[2:].strip()
    return notebook.stem
