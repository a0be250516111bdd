"""Rules for the outputs of a committed notebook."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from labkit.labs.claims import BAR
from labkit.tools.notebook_files import tags
from labkit.tools.running.digests import text_digest

COMPARED = "nbval-check-output"
MAX_BYTES = 500_000

NO_ALT = re.compile(r"!\[\s*\]\(|<img(?![^>]*\balt=[\"'][^\"'])[^>]*>")
# Only folders that hold files of a user or of an installation; never the path of a URL.
PATH = re.compile(
    r"(?:(?<![\w.:/])|(?<=file://))"
    r"/(?:home|root|Users|tmp|var|opt|mnt|media|srv|usr|work|workspace|private)/[\w.+@-]+"
    r"|\b[A-Za-z]:\\\w"
)
# What differs between two runs or two machines: times, memory, dates, digits of raw numbers.
_UNSTABLE = re.compile(
    r"\d+(?:\.\d+)?\s*(?:[µun]s|ms|s|secs?|seconds?|min|minutes?|h|hours?|it/s|[KMG]i?B)\b"
    r"|\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d|\d\.\d{5,}|0x[0-9a-f]{6,}"
)

# Measured values in a table of claims (labkit/labs/claims.py), which nbval does not compare.
_MEASURED = re.compile(rf"(?<={BAR})[^{BAR}\n]*(?={BAR})")


def output_faults(notebook: Mapping, places: Iterable[Path] = ()) -> list[str]:
    """Return what is wrong with the outputs of an executed notebook; empty if nothing.

    Args:
        notebook: the notebook with its outputs
        places: folders of this machine whose paths may not appear, besides the usual ones
    """
    literal = [str(place) for place in places if len(str(place)) > 3]
    faults = []
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            each = dict.fromkeys(_cell_output_faults(cell, literal))
            faults += [f"cell {number}: {fault}" for fault in each]
    return faults


def compared_text(cell: Mapping) -> str:
    """Return the text of a cell's outputs, streams joined, in the form that runs are compared."""
    return "\n".join(text for _, text in _texts(cell)).rstrip()


def github_anchor(heading: str) -> str:
    """Return the anchor that GitHub gives to a heading of a Markdown page."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def output_digest(notebook: Mapping) -> str:
    """Return the SHA-256 of all outputs and execution counts, in order."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return text_digest([(cell.get("execution_count"), cell.get("outputs", [])) for cell in cells])


def _cell_output_faults(cell: Mapping, literal: list[str]) -> Iterator[str]:
    if cell["source"].strip() and cell.get("execution_count") is None:
        yield "not executed"
    for output in cell.get("outputs", []):
        if output["output_type"] == "error":
            yield f"an error: {output.get('ename')}"
        if "image/png" in output.get("data", {}):
            about = output.get("metadata", {}).get("image/png", {})
            if not str(about.get("alt", "")).strip():
                yield "a PNG without alternative text; expected metadata['image/png']['alt']"
    for kind, text in _texts(cell):
        match = PATH.search(text)
        path = match[0] if match else next((place for place in literal if place in text), None)
        if path:
            yield f"a path of this machine: {path}"
        if kind == "text/html" and (match := NO_ALT.search(text)):
            yield f"a picture without alternative text: {match[0][:60]}"
        text = _MEASURED.sub("", text)
        if COMPARED in tags(cell) and (match := _UNSTABLE.search(text)):
            yield f"compared (tag {COMPARED}), but this differs between runs: {match[0]!r}"
    if COMPARED in tags(cell) and not compared_text(cell):
        yield f"compared (tag {COMPARED}), but there is no text to compare"


def _texts(cell: Mapping) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) of every text output; streams of the same name are joined."""
    streams: dict[str, str] = {}
    for output in cell.get("outputs", []):
        if output["output_type"] == "stream":
            streams[output["name"]] = streams.get(output["name"], "") + "".join(output["text"])
    yield from streams.items()
    for output in cell.get("outputs", []):
        if output["output_type"] == "error":
            yield "traceback", "\n".join(output.get("traceback", []))
        for kind, text in output.get("data", {}).items():
            if kind.startswith("text/"):
                yield kind, "".join(text)
