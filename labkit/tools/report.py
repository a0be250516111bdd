"""`labkit report`: one HTML page about runs that needs no network."""

import base64
import html
import itertools
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from labkit.base.arguments import is_number, wrong
from labkit.base.files import write_text
from labkit.errors import InputError
from labkit.labs.run import FIGURES, RESULTS
from labkit.tools.run import headline, read_results

_HERE = Path(__file__).parent
# Stored runs: preset -> lab -> parameters and metrics: name -> value, kind and amount of the
# tolerance, its reason. benchmarks/reference_runs.py makes the file. Kinds: "absolute" (at most
# ``amount`` away), "at most" (an error: not above ``amount``), "equal", "none" (shown, not judged:
# seeds differ too much for any meaningful amount).
HEADLINES = _HERE / "headlines.json"
_SHOWN = {"absolute": "± {:g}", "at most": "at most {:g}"}
_TIMES = re.compile(r"\b(ms|seconds|minutes|total_seconds)\b")
_FORMULA = re.compile(r"`[^`]*`|\$\$(.+?)\$\$|\$([^$\n]+?)\$", re.DOTALL)
_NO_SOURCE = re.compile(r"<script\b[^>]*\bsrc=\"\"[^>]*>\s*</script>")
_COMPARED = "status preset device git parameters versions metrics total_seconds".split()


def read(folders: Sequence[Path]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return path -> lab -> results of the folders of runs, of sweeps, or of single labs."""
    runs: dict[str, dict[str, dict[str, Any]]] = {}
    for folder in map(Path.resolve, folders):
        labs = runs[os.path.relpath(folder)] = {}
        for path in sorted(folder.glob(f"**/{RESULTS}")):
            name = path.parent.relative_to(folder).as_posix()
            results = read_results(path.parent) | {"folder": path.parent}
            if "lab" not in results:
                raise InputError(f"{path} is damaged: expected a lab's results")
            labs[results["lab"] if name == "." else name] = results
        if not labs:
            raise InputError(f"{folder} holds no run: expected a folder with {RESULTS} in it")
    if len(runs) < len(folders):
        raise wrong("RUN", " ".join(map(str, folders)), "different runs")
    return runs


Difference = tuple[Any, ...]  # lab, name, a value for each run


def differences(
    runs: Sequence[Mapping[str, dict[str, Any]]],
) -> tuple[list[Difference], list[Difference]]:
    """Return what is not the same in all runs: what counts, and times, which do not."""
    listed: tuple[list[Difference], list[Difference]] = ([], [])
    for lab in dict.fromkeys(name for run in runs for name in run):
        sides = [_flat(run[lab]) if lab in run else {"status": "(none)"} for run in runs]
        for name in dict.fromkeys(name for side in sides for name in side):
            values = [side.get(name, "(none)") for side in sides]
            if any(value != values[0] for value in values):
                listed[bool(_TIMES.search(name))].append((lab, name, *values))
    return listed


def _flat(results: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name in _COMPARED:
        value = results.get(name, "(none)")
        nested = value if isinstance(value, Mapping) else {}
        flat |= {f"{name}: {key}": each for key, each in nested.items()} or {name: value}
    return flat


def check(folders: Sequence[Path]) -> list[str]:
    """Return a line for each difference of runs and each headline number outside its tolerance."""
    runs = list(read(folders).values())
    lines = [f"{lab}: {n}: {' | '.join(map(str, v))}" for lab, n, *v in differences(runs)[0]]
    for lab, results in itertools.chain(*map(dict.items, runs)):
        for name, value, stored, tolerance, verdict in judged(results):
            if verdict == "outside":
                lines.append(f"{lab}: {name} is {value}, stored {stored} {tolerance}: outside")
    return lines


def judged(results: Mapping[str, Any]) -> list[tuple[str, Any, Any, str, str]]:
    """Return (metric, value, stored value, tolerance, verdict) of each headline metric.

    The verdict is "within", "outside", or why it is not compared: nothing is where a parameter
    differs from the stored run's; the seed may, where the stored tolerances cover seeds.
    """
    stored = json.loads(HEADLINES.read_text("utf-8"))
    entry = stored.get(results.get("preset"), {}).get(results.get("lab"))
    metrics = results.get("metrics", {})
    if entry is None:
        names = [name for name in results.get("headline", ()) if name in metrics]
        return [(name, metrics[name], "", "", "not compared: no stored run") for name in names]
    known, asked = entry["parameters"], results.get("parameters", {})
    free = ("seed",) if entry["any_seed"] else ()
    differ = [n for n in {**known, **asked} if n not in free and known.get(n) != asked.get(n)]
    rows = []
    for name, each in entry["metrics"].items():
        reference, kind, amount = (each[key] for key in ("value", "kind", "amount"))
        value = metrics.get(name)
        if kind == "none" or differ:
            why = f"another {', '.join(differ)}" if differ else "no tolerance"
            verdict = f"not compared: {why}"
        elif kind == "equal" or not is_number(value):
            verdict = "within" if kind == "equal" and value == reference else "outside"
        else:
            # A little slack for rounding, or 0.9825 would be more than 0.0020 away from 0.9805.
            distance = value if kind == "at most" else abs(value - reference)
            verdict = "within" if distance <= amount * (1 + 1e-9) else "outside"
        rows.append((name, value, reference, _SHOWN.get(kind, kind).format(amount), verdict))
    return rows


def write(folders: Sequence[Path], out: Path | None = None, notebooks: bool = True) -> Path:
    """Write the page about runs, and a page of each executed notebook; return the first's path."""
    from jinja2 import Environment, FileSystemLoader

    runs = read(folders)
    place = out or (folders[0] if len(folders) == 1 else Path()) / "report.html"
    differ, times = differences(list(runs.values()))
    labs = [(run, lab, each) for run, known in runs.items() for lab, each in known.items()]
    pages, figures = {}, []
    for number, (run, lab, results) in enumerate(labs):
        source = results["folder"] / results.get("notebook", "")
        if notebooks and source.is_file():
            pages[run, lab] = f"{place.stem}_notebooks/{number}-{source.stem}.html"
            try:
                page = page_of(source)
            except Exception as error:  # nbformat and nbconvert raise many types for a damaged one
                page = html.escape(f"{source} cannot be shown: {error!r}")
            write_text(place.parent / pages[run, lab], page, "the notebook's page")
        for path in sorted((results["folder"] / FIGURES).glob("*.png")):
            figures.append((run, lab, path.stem, base64.b64encode(path.read_bytes()).decode()))
    environment = Environment(loader=FileSystemLoader(_HERE), autoescape=True)
    text = environment.get_template("report.html.j2").render(
        runs=list(runs),
        differ=differ,
        times=times,
        labs=labs,
        headline=headline,
        judged=[(run, lab, *row) for run, lab, each in labs for row in judged(each)],
        figures=figures,
        pages=pages,
        shown=lambda value: f"{value:.6g}" if isinstance(value, float) else value,
        made=time.strftime("%Y-%m-%d %H:%M"),
    )
    write_text(place, text, "the report")
    return place


def page_of(notebook: Path) -> str:
    """Return an executed notebook as a page that loads nothing: pictures inside, MathML."""
    import nbformat
    from nbconvert import HTMLExporter

    content = nbformat.read(notebook, as_version=4)
    for cell in content.cells:
        if cell.cell_type == "markdown":
            cell.source = _FORMULA.sub(_formula, cell.source)
    exporter = HTMLExporter(embed_images=True, mathjax_url="", require_js_url="", jquery_url="")
    resources = {"metadata": {"path": str(notebook.parent)}}
    return _NO_SOURCE.sub("", exporter.from_notebook_node(content, resources)[0])


def mathml(tex: str, display: bool) -> str:
    """Return a formula as MathML, which a browser draws without any script."""
    from latex2mathml.converter import convert

    return convert(tex.replace("{aligned}", "{split}"), "block" if display else "inline")


def _formula(match: re.Match) -> str:
    """Return a formula as MathML; code as it is."""
    if tex := match[1] or match[2]:
        with suppress(Exception):  # latex2mathml raises errors of its own, and any others
            return mathml(tex, display=bool(match[1]))
    return match[0]
