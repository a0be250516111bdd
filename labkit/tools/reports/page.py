"""Runs on one self-contained HTML page: no network, no script, pictures as data URIs.

Differences come first, then what ran where, failures, headline numbers compared with the stored
run, overlaid curves, figures, and links to the executed notebooks, which are separate pages in a
folder beside this one.
"""

import base64
import os
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.base.arguments import wrong
from labkit.base.files import write_text
from labkit.base.input_files import first_bytes
from labkit.errors import InputError
from labkit.tools.reports import curves, notebook_page, tables
from labkit.tools.reports.read import LabRun, RunFolder, read_all

if TYPE_CHECKING:
    import jinja2

# Converting a notebook takes two to four seconds and up to 0.8 MB.
MOST_NOTEBOOKS = 24
_HERE = Path(__file__).resolve().parent
_NO_LETTER = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_TITLE, _HEAD_BYTES = b"<title>labkit report: ", 1000  # the title's place in report.html.j2
_Curve = tuple[str, int, list[dict]]  # label, number of its colour, rows of records


def write(
    folders: Sequence[str | os.PathLike],
    out: str | os.PathLike | None = None,
    notebooks: bool = True,
) -> Path:
    """Read runs, write the page and its notebooks, and return the page's path.

    Every file appears whole or not at all, and the page appears last.

    Args:
        folders: folders of runs, labs or sweeps.
        out: path of the page; by default RUN/report.html for one folder, else ./report.html.
        notebooks: whether the executed notebooks become pages in ``<name of the page>_notebooks``.

    Raises:
        InputError: if a folder holds no run, or the page cannot be written; an existing file is
            replaced only if it is an earlier report.
    """
    runs = read_all(folders)
    out = Path(out) if out else (runs[0].folder if len(runs) == 1 else Path.cwd()) / "report.html"
    if out.suffix.lower() not in (".html", ".htm"):
        raise wrong("--out", str(out), "a name that ends in .html")
    earlier = not os.path.lexists(out) or _TITLE in first_bytes(out, _HEAD_BYTES)
    if out.is_dir() or not earlier:
        raise wrong("--out", str(out), "a new file, or an earlier report of labkit")
    out = out.absolute()
    links = _write_notebooks(runs, out) if notebooks else {}
    write_text(out, _letters(render(runs, links)), "the report")
    return out


def render(runs: Sequence[RunFolder], links: Mapping[Path, str] | None = None) -> str:
    """Return the page as text; ``links`` is notebook -> link to its page."""
    every = [lab for run in runs for lab in run.labs]
    by_lab: dict[str, list[LabRun]] = {}
    for lab in sorted(every, key=lambda lab: lab.lab):
        by_lab.setdefault(lab.lab, []).append(lab)
    # Numbers choose colours: a label has the same colour on the whole page.
    labels = dict.fromkeys(lab.label for labs in by_lab.values() for lab in labs)
    numbers = {label: number for number, label in enumerate(labels)}
    sections = [_section(name, labs, numbers) for name, labs in by_lab.items()]
    differing: dict[tables.Table | None, list[str]] = {}
    for section in sections:
        differing.setdefault(section["inputs"].differ, []).append(section["name"])
    differing.pop(None, None)
    return _template("report.html.j2").render(
        made=time.strftime("%Y-%m-%d %H:%M"),
        runs=runs,
        labs=every,
        counts=Counter(lab.status for lab in every),
        around=tables.facts({run.label: tables.surroundings(run) for run in runs}),
        sections=sections,
        differing=differing,
        same_inputs=[section["name"] for section in sections if section["same_inputs"]],
        what_ran=tables.what_ran(runs),
        failures=[lab for lab in every if lab.status in ("failed", "interrupted")],
        problems=[
            *((run.label, problem) for run in runs for problem in run.problems),
            *((f"{lab.label}: {lab.lab}", problem) for lab in every for problem in lab.problems),
        ],
        sweeps=[_sweep(run) for run in runs if run.kind == "sweep"],
        links=links or {},
    )


def _section(name: str, labs: Sequence[LabRun], numbers: Mapping[str, int]) -> dict[str, Any]:
    """Return the contents of the page's section on one lab, with all its runs."""
    inputs = {lab.label: tables.inputs(lab) for lab in labs if lab.results.get("parameters")}
    facts, headline = tables.facts(inputs), tables.headline(labs)
    return {
        "name": name,
        "inputs": facts,
        "same_inputs": len(inputs) > 1 and not facts.differ,
        "headline": headline,
        "within": Counter(row.within for rows in headline.values() for _, row in rows),
        "metrics": tables.all_metrics(labs),
        "curves": _curves(labs, numbers),
        "figures": _figures(labs),
        "many": len(labs) > 2,
    }


def _curves(labs: Sequence[LabRun], numbers: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return, for each group of records, its legend, its first panels and the other panels."""
    groups: dict[str, list[_Curve]] = {}
    for lab in labs:
        for file, rows in lab.records().items():
            group, name = _group(file)
            label = f"{lab.label}, {name}" if name and len(labs) > 1 else name or lab.label
            # A run has one colour everywhere, but in a group of files each line has its own.
            number = len(groups.get(group, ())) if name else numbers[lab.label]
            groups.setdefault(group, []).append((label, number, rows))
    return [_pictures_of(group, lines) for group, lines in sorted(groups.items())]


def _pictures_of(group: str, lines: Sequence[_Curve]) -> dict[str, Any]:
    drawn = lines[: curves.MOST]
    names = list(dict.fromkeys(name for *_, rows in drawn for name in curves.columns(rows)))
    first = [(x, y) for y in names if y in curves.FIRST for x in ("update", "seconds")]
    rest = [("update", y) for y in names if y not in curves.FIRST]
    return {
        "group": group,
        "legend": [(label, *curves.look(number)) for label, number, _ in drawn],
        "left_out": [label for label, *_ in lines[curves.MOST :]],
        "panels": _panels(drawn, first),
        "rest": _panels(drawn, rest),
    }


def _group(file: str) -> tuple[str, str]:
    """Return group and name of a file of records: race, THOR for ``race/THOR/records.csv``."""
    *group, name = Path(file).parts[:-1] or ("",)
    return ("/".join(group), name) if group else (name, "")


def _panels(drawn: Sequence[_Curve], axes: Sequence[tuple[str, str]]) -> list[curves.Panel]:
    """Return a panel for each pair of columns that has points."""
    panels = []
    for x, y in axes:
        lines = [curves.Line(name, n, curves.points(rows, x, y)) for name, n, rows in drawn]
        if lines := [line for line in lines if line.points]:
            panels.append(curves.panel(lines, x, y))
    return panels


def _figures(labs: Sequence[LabRun]) -> dict[str, list[dict[str, str]]]:
    """Return figure -> its pictures, one from each run that has it."""
    figures: dict[str, list[dict[str, str]]] = {}
    for lab in labs:
        for path in lab.figures:
            alt = f"figure {path.stem} of {lab.lab}, run {lab.label}"
            figures.setdefault(path.stem, []).append(_picture(path, lab.label, alt))
    return dict(sorted(figures.items()))


def _sweep(run: RunFolder) -> dict[str, Any]:
    pictures = [
        _picture(path, path.stem.replace("_", " "), f"{path.stem} over the sweep {run.label}")
        for path in run.figures
    ]
    grid = run.about.get("grid")
    axes = grid.items() if isinstance(grid, dict) else ()
    asked = ", ".join(f"{name} = {tables.text(values)}" for name, values in axes)
    table = tables.rows_as_table(run.table)
    return {"run": run, "asked": asked, "table": table, "pictures": pictures}


def _picture(path: Path, caption: str, alt: str) -> dict[str, str]:
    """Return a PNG as a data URI, with its caption and its alternative text."""
    uri = "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
    return {"uri": uri, "caption": caption, "alt": alt}


def _write_notebooks(runs: Sequence[RunFolder], out: Path) -> dict[Path, str]:
    """Convert each lab's notebook; return notebook -> link. A failure becomes a problem."""
    pairs = [(lab, lab.notebook) for run in runs for lab in run.labs if lab.notebook]
    folder = out.with_name(f"{out.stem}_notebooks")
    if folder.is_symlink():
        raise InputError(f"{folder} is a link; expected a folder, or nothing, for the notebooks")
    links = {}
    for number, (lab, notebook) in enumerate(pairs[:MOST_NOTEBOOKS], start=1):
        try:
            title, body = notebook_page.convert(notebook)
        except InputError as error:
            lab.problems.append(str(error))
            continue
        name = re.sub(r"[^A-Za-z0-9_.=-]+", "-", f"{number:02}-{lab.label}-{lab.lab}")[:120]
        light, dark = _highlight_css()
        page = _template("notebook.html.j2").render(
            title=title, body=body, lab=lab, back=out.name, light=light, dark=dark
        )
        write_text(folder / f"{name}.html", _letters(page), "the notebook's page")
        links[notebook] = f"{folder.name}/{name}.html"
    return links


def _letters(text: str) -> str:
    # A lone surrogate, from a damaged file, is not a character in any encoding.
    return _NO_LETTER.sub("\ufffd", text)


@cache
def _highlight_css() -> tuple[str, str]:
    """Return the colours of code as CSS, on a light and on a dark page."""
    from pygments.formatters import HtmlFormatter

    return tuple(
        HtmlFormatter(style=style).get_style_defs(".highlight")
        for style in ("default", "github-dark")
    )


@cache
def _template(name: str) -> "jinja2.Template":
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["shown"] = tables.text
    return environment.get_template(name)
