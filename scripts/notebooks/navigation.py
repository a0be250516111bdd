"""Navigation within and between the notebooks: generated cells of links, and anchors.

Each notebook has a cell below its header card (with links to the notebooks before and after it, the
map of the labs, its sources and its contents) and one at its end; the first notebook has the map
itself. These cells are tagged ``navigation`` and are generated from the notebooks' headings and
header cards. Neither they nor the anchors enter the digest of the source
(``digests.source_digest``), so that outputs stay up to date.

A second notebook of a lab, such as ``03_thor_in_depth``, and the lab link to each other; the links
from lab to lab skip it.

Every heading below the title gets an anchor, ``<a id="03-idea"></a>``. JupyterLab 4.6.6 follows a
link to a heading only if its text is ASCII ("1 · Question" is not), and jumps to the first anchor
of that name in any open notebook, so that names begin with ``Lab.prefix``.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.tools import notebook_files as files
from labkit.tools.labs import Lab
from labkit.tools.running.digests import ANCHOR, NAVIGATION
from scripts.notebooks import rules

TOP, MAP, END = "navigation", "map", "navigation-end"  # the ids of the cells
WORDS_A_MINUTE, CODE_LINES_A_MINUTE = 200, 15
_SOURCES = "docs/sources.md"
_HEADING = re.compile(r"(#{2,6}) (.+?)\s*$")
_FENCE = re.compile(r"^(```|~~~)")


def outdated(project: Path, labs: Sequence[Lab], chosen: Sequence[Lab]) -> list[Lab]:
    """Return the labs among ``chosen`` whose links differ from those that ``write`` would write.

    Args:
        project: folder of the checkout
        labs: all labs, in reading order
        chosen: labs to check
    """
    return [lab for lab in chosen if files.read(lab.path) != navigated(project, labs, lab)]


def write(project: Path, labs: Sequence[Lab], chosen: Sequence[Lab]) -> list[Lab]:
    """Write the cells and anchors of ``chosen`` that are not up to date; return the changed labs.

    Nothing is executed, and no output changes. Raises ``InputError`` if a file cannot be read or
    written.
    """
    changed = outdated(project, labs, chosen)
    for lab in changed:
        files.write(lab.path, navigated(project, labs, lab))
    return changed


def navigated(project: Path, labs: Sequence[Lab], lab: Lab) -> dict[str, Any]:
    """Return the notebook of ``lab`` with its anchors and its cells of links."""
    notebook = files.read(lab.path)
    cells = notebook["cells"]
    contents = anchor(notebook, lab.prefix)
    ways = _ways(project, labs, lab)
    minutes = f"**Contents** ({reading_minutes(notebook)} minutes of reading)"
    listed = ", ".join(f"[{heading}](#{name})" for heading, name in contents)
    _put(cells, TOP, 1, f"{ways}\n\n{minutes}: {listed}")
    if any(cell.get("id") == MAP for cell in cells):
        _put(cells, MAP, 0, _map(labs))
    _put(cells, END, len(cells), _ways(project, labs, lab, short=True))
    return notebook


def anchor(notebook: Mapping[str, Any], prefix: str) -> list[tuple[str, str]]:
    """Put an anchor above every heading below the title; return (heading, anchor) of each section.

    Args:
        notebook: the notebook, whose cells are changed
        prefix: beginning of every anchor, ``Lab.prefix``
    """
    names: dict[str, int] = {}
    sections = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown" and NAVIGATION not in files.tags(cell):
            cell["source"], own = _anchored(cell["source"], prefix, names)
            sections += own
    return sections


def reading_minutes(notebook: Mapping[str, Any]) -> int:
    """Return the reading time in multiples of 5 minutes, at 200 words or 15 code lines a minute."""
    words = lines = 0
    for cell in notebook["cells"]:
        if NAVIGATION in files.tags(cell):
            continue
        if cell["cell_type"] == "markdown":
            prose, code = _prose_and_code(cell["source"])
            words += len(" ".join(prose).split())
        else:
            code = cell["source"].splitlines()
        lines += sum(bool(line.strip()) for line in code)
    minutes = words / WORDS_A_MINUTE + lines / CODE_LINES_A_MINUTE
    return max(5, 5 * round(minutes / 5))


def _prose_and_code(source: str) -> tuple[list[str], list[str]]:
    """Return the lines of markdown outside and inside fences, without anchors."""
    prose: list[str] = []
    code: list[str] = []
    fenced = False
    for line in ANCHOR.sub("", source).splitlines():
        if _FENCE.match(line):
            fenced = not fenced
        else:
            (code if fenced else prose).append(line)
    return prose, code


def _anchored(source: str, prefix: str, names: dict[str, int]) -> tuple[str, list[tuple[str, str]]]:
    """Return markdown with an anchor above each heading, and (heading, name) of each section."""
    made, sections, fenced = [], [], False
    for line in ANCHOR.sub("", source).split("\n"):
        fenced ^= bool(_FENCE.match(line))
        heading = None if fenced else _HEADING.match(line)
        if heading:
            plain = re.sub(r"[`*$\\]", "", heading[2])
            slug = re.sub(r"[^a-z0-9]+", "-", plain.split(" · ", 1)[-1].lower()).strip("-")
            name = f"{prefix}-{slug}"
            names[name] = names.get(name, 0) + 1
            if names[name] > 1:
                name += f"-{names[name]}"
            made += [f'<a id="{name}"></a>', ""]
            if len(heading[1]) == 2:
                title = heading[2].split(" · ", 1)[-1]
                sections.append((re.sub(r"[\[\]]", "", title), name))
        made.append(line)
    return "\n".join(made), sections


def _put(cells: list[dict[str, Any]], name: str, place: int, source: str) -> None:
    """Set the source of the cell ``name``; if there is no such cell, insert it at ``place``."""
    cell = next((cell for cell in cells if cell.get("id") == name), None)
    if cell is None:
        cell = {"cell_type": "markdown", "id": name, "metadata": {}}
        cells.insert(place, cell)
    cell["metadata"]["tags"] = [NAVIGATION]
    cell["source"] = source


def _ways(project: Path, labs: Sequence[Lab], lab: Lab, short: bool = False) -> str:
    """Return the line with the previous notebook, the map, the sources, and the next notebook.

    ``short``: only numbers, without the sources and the second notebook, which the top cell has.
    """
    line = [each for each in labs if not each.is_in_depth]
    second = [each for each in labs if each.is_in_depth and each.number == lab.number]
    here = next((i for i, each in enumerate(line) if each.number == lab.number), 0)
    before = line[here : here + 1] if lab.is_in_depth else line[max(here - 1, 0) : here]
    ways = [f"← {_link(each, short)}" for each in before]
    if any(cell.get("id") == MAP for cell in files.read(labs[0].path)["cells"]):
        ways.append(f"[Map of the labs]({labs[0].path.name if here else ''}#{MAP})")
    if not short and (project / _SOURCES).is_file():
        ways.append(f"[Sources](../{_SOURCES}{_anchor_of_sources(project, line[here])})")
    ways += [_link(each) for each in second if each != lab and not short]
    ways += [f"{_link(each, short)} →" for each in line[here + 1 : here + 2]]
    return " | ".join(ways)


def _link(lab: Lab, short: bool = False) -> str:
    name = f"Notebook {lab.number}" if short else f"{lab.number} · {lab.title}"
    return f"[{name}]({lab.path.name})"


def _anchor_of_sources(project: Path, lab: Lab) -> str:
    """Return GitHub's anchor in docs/sources.md for the document behind ``lab``, if any."""
    text = (project / _SOURCES).read_text(encoding="utf-8")
    row = re.search(rf"^\| (\d{{3}}), .*\(\.\./notebooks/{re.escape(lab.path.name)}\)", text, re.M)
    heading = row and re.search(rf"^## ({row[1]} · .+?)\s*$", text, re.M)
    return f"#{rules.github_anchor(heading[1])}" if heading else ""


def _map(labs: Sequence[Lab]) -> str:
    """Return an entry for each lab after the first, made from its header card."""
    entries = [f'<a id="{MAP}"></a>']
    for lab in labs[1:]:
        notebook = files.read(lab.path)
        card = notebook["cells"][0]["source"]
        summary = [*card.split("\n\n"), "–"][1]
        known, takes = (_row(card, name) for name in ("You need to know", "Takes"))
        reading = f"*Reading:* {reading_minutes(notebook)} minutes. *Machine:* {takes}."
        entries.append(f"**{_link(lab)}**<br>\n{summary}<br>\n*First:* {known}.<br>\n{reading}")
    return "\n\n".join(entries)


def _row(card: str, name: str) -> str:
    row = re.search(rf"^\| \*\*{name}\*\* \| (.+?) \|\s*$", card, re.M)
    return row[1] if row else "–"
