"""Options shared by several commands, and the shell completion of their values."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labkit.errors import InputError
from labkit.labs.presets import PRESETS

if TYPE_CHECKING:
    from labkit.tools.labs import Lab
    from labkit.tools.running.watch import Limits

# Far above a lab's time, 30 s and 4 minutes on two cores: a lab that hangs must end at some point.
_SECONDS = {"smoke": 900.0, "lab": 3600.0, "paper": None}
_DEVICES = ("auto", "Ascend", "GPU", "CPU")


def labs(incomplete: str) -> list[str]:
    """Return the names of labs that begin with ``incomplete``."""
    return [lab.name for lab in _labs_of() if lab.name.startswith(incomplete)]


def parameters(incomplete: str) -> list[str]:
    """Return the matching parameters of the labs named on the command line, or of all labs."""
    from labkit.tools.labs import parameter_names

    named = [lab for word in _words() for lab in _labs_of(word)]
    try:
        names = {name for lab in named or _labs_of() for name in parameter_names(lab)}
    except InputError:
        return []
    return [
        f"{name}=" for name in sorted(names - {"preset", "device"}) if name.startswith(incomplete)
    ]


def _words() -> list[str]:
    """Return the words of the line being completed, without options and the words after them.

    The command's context has no arguments yet: an option without its value ends the parsing.
    """
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    words = line.split()
    pairs = zip(words, words[1:], strict=False)
    return [word for before, word in pairs if not before.startswith("-") and word[0] != "-"]


def _labs_of(*words: str) -> Sequence["Lab"]:
    """Return the labs that ``words`` name, all labs without words; none outside a project."""
    from labkit.tools.labs import chosen

    try:
        return chosen(words)[1]
    except InputError:
        return ()


def _among(words: Iterable[str]) -> Callable[[str], list[str]]:
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


Labs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[LAB]...",
        help="Number or name, as in `labkit list`; none: all.",
        autocompletion=labs,
    ),
]
SingleLab = Annotated[
    str,
    typer.Argument(metavar="LAB", help="Number or name, as in `labkit list`.", autocompletion=labs),
]
_PRESET = typer.Option(
    envvar="LABKIT_PRESET", help="smoke, lab or paper.", autocompletion=_among(PRESETS)
)
_DEVICE = typer.Option(help="auto, Ascend, GPU or CPU.", autocompletion=_among(_DEVICES))
Preset = Annotated[str | None, _PRESET]
Device = Annotated[str | None, _DEVICE]
# For commands that set a default.
PresetOrDefault = Annotated[str, _PRESET]
DeviceOrDefault = Annotated[str, _DEVICE]
Parameters = Annotated[
    list[str] | None,
    typer.Option(
        "-p",
        "--parameter",
        metavar="NAME=VALUE",
        help="Set one; may be repeated.",
        autocompletion=parameters,
    ),
]
CellTimeout = Annotated[float | None, typer.Option(min=1, help="Seconds that one cell may take.")]
Timeout = Annotated[
    float | None,
    typer.Option(
        min=1,
        help="Seconds that one lab may take; 900 at preset smoke, 3600 at lab, no limit at paper "
        "if not given; inf: no limit.",
    ),
]
Memory = Annotated[
    float | None,
    typer.Option(
        min=0.1,
        metavar="GB",
        help="Memory that one lab may take, in GB; if not given, 90 % of what is free, shared by "
        "those that run at once.",
    ),
]
Folder = Annotated[
    Path | None, typer.Option(help="Folder of your copies; work/ in the project if not given.")
]
Out = Annotated[
    Path | None,
    typer.Option(help="Folder to write to; runs/<time> of the project if not given."),
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Only the closing table.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Every line that labs print, too.")]
Json = Annotated[
    bool, typer.Option("--json", help="One JSON object a line, and nothing else, on stdout.")
]


def limits(
    preset: str,
    timeout: float | None,
    cell_timeout: float | None,
    memory: float | None,
    runs: int = 1,
) -> "Limits":
    """Return the limits of one lab at ``preset``; ``runs`` at once share the free memory.

    Raises:
        InputError: if no memory is free and no limit is given
    """
    from labkit.tools.running.watch import GB, Limits, free_memory

    held = free_memory() / runs if memory is None else memory * GB
    if memory is None and not held:
        raise InputError(
            "no memory is free here, or the container is at its limit: expected some, or --memory"
        )
    seconds = _SECONDS[preset] if timeout is None else timeout
    return Limits(seconds=seconds, cell_seconds=cell_timeout, memory=held)
