"""What a cell prints arrives in many messages; the executed notebook holds it as one text."""

from collections.abc import Mapping
from typing import Any


def merge_streams(cell: Any, **message: Any) -> None:
    """Join the stream outputs of ``cell`` that follow each other on one stream, in place.

    A line that redraws itself with carriage returns keeps its last state. nbclient's own
    coalesce_streams does this with an expression that is quadratic in the length of a line: 300 000
    characters without an end took it a minute, in which no time limit was kept.
    """
    merged: list = []
    for output in cell["outputs"]:
        if _stream(output) and merged and _stream(merged[-1]) == _stream(output):
            merged[-1]["text"] += output["text"]
        else:
            merged.append(output)
    for output in merged:
        if _stream(output):
            output["text"] = "\n".join(map(last_state, output["text"].split("\n")))
    cell["outputs"] = merged


def last_state(line: str) -> str:
    """Return what a terminal shows of a line that redraws itself with carriage returns."""
    return line.rstrip("\r").rsplit("\r", 1)[-1]


def _stream(output: Mapping[str, Any]) -> str | None:
    return output["name"] if output["output_type"] == "stream" else None
