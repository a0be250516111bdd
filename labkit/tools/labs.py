"""The labs of a project: their files, names and parameters."""

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.base.arguments import wrong
from labkit.base.project import find_project
from labkit.errors import InputError, nearest
from labkit.labs.presets import LABS, PRESETS
from labkit.tools import notebook_files as files

# Suffix of a lab's second notebook, such as "03_thor_in_depth", for readers who want every detail.
_IN_DEPTH = "_in_depth"
_NOTEBOOK = re.compile(r"(\d\d)_(\w+)\.ipynb")
_TITLE = re.compile(r"^#\s+(?:\d+\s*·\s*)?(.+?)\s*$", re.MULTILINE)
_MINUTES = re.compile(r"(\d+(?:\.\d+)?(?:\s*[-–]\s*\d+)?)\s*min", re.IGNORECASE)


@dataclass(frozen=True)
class Lab:
    """One notebook: ``number`` "01", ``name`` "01_gradient_accumulation", and its header card.

    ``minutes`` is the duration stated on the header card, as text; empty if it states none.
    """

    number: str
    name: str
    title: str
    minutes: str
    presets: tuple[str, ...]
    path: Path

    @property
    def short_name(self) -> str:
        """The name without its number: ``gradient_accumulation``."""
        return self.name.split("_", 1)[1]

    @property
    def is_in_depth(self) -> bool:
        """Whether it is the second notebook of the lab with the same number."""
        return self.name.endswith(_IN_DEPTH)

    @property
    def prefix(self) -> str:
        """Prefix of this notebook's anchors and of no other's: "03", "03-in-depth"."""
        return self.number + (_IN_DEPTH.replace("_", "-") if self.is_in_depth else "")


def find_labs(project: Path) -> tuple[Lab, ...]:
    """Return the labs of ``project`` in reading order: every ``notebooks/NN_name.ipynb``."""
    paths = sorted((project / "notebooks").glob("*.ipynb"))
    return tuple(_read_lab(path) for path in paths if _NOTEBOOK.fullmatch(path.name))


def chosen(names: Iterable[str] = ()) -> tuple[Path, tuple[Lab, ...]]:
    """Return the project of the working folder and its labs that ``names`` select; see ``pick``."""
    project = find_project()
    return project, pick(find_labs(project), names)


def pick(labs: Sequence[Lab], names: Iterable[str]) -> tuple[Lab, ...]:
    """Return the labs that ``names`` select, each once and in that order; no name means all labs.

    A lab is selected by its number (``01`` or ``1``), its name, or its name without the number; a
    second notebook only by the latter two. Names may be joined by commas or spaces. Raises
    ``InputError`` for an unknown or ambiguous name.
    """
    names = list(names)
    wanted = [name for text in names for name in re.split(r"[,\s]+", text) if name]
    if names and not wanted:
        raise wrong("LAB", names[0], "a number or name, or nothing for all")
    if not labs:
        raise InputError("no lab found; expected notebooks named like notebooks/01_name.ipynb")
    chosen = [_lab_called(labs, name) for name in wanted] if wanted else labs
    return tuple(dict.fromkeys(chosen))


def parameter_names(lab: Lab) -> tuple[str, ...]:
    """Return the names assigned in the lab's one cell tagged ``parameters``, in order.

    They are read from the syntax tree: papermill's own reader works line by line and skips every
    line with a second ``=``.

    Raises:
        InputError: if papermill could not set parameters of the notebook: it has no such cell,
            several, or one that does not set ``preset`` and ``device``
    """
    cells = [cell for cell in _code_cells(lab.path) if "parameters" in files.tags(cell)]
    if len(cells) != 1:
        raise InputError(
            f"{lab.path} has {len(cells)} cells tagged 'parameters'; expected exactly one"
        )
    names = tuple(_assigned(cells[0]["source"], lab.path))
    missing = [name for name in ("preset", "device") if name not in names]
    if missing:
        raise InputError(f"the parameters cell of {lab.path} does not set {' and '.join(missing)}")
    return names


def mentions(lab: Lab, word: str) -> bool:
    """Return whether the lab's code contains ``word``, ignoring case; used for names of data."""
    return any(word.lower() in cell["source"].lower() for cell in _code_cells(lab.path))


def _lab_called(labs: Sequence[Lab], name: str) -> Lab:
    if name.isdecimal():
        matches = [lab for lab in labs if int(lab.number) == int(name) and not lab.is_in_depth]
    else:
        matches = [lab for lab in labs if name in (lab.name, lab.short_name)]
    if len(matches) > 1:
        both = " or ".join(lab.name for lab in matches)
        raise wrong("LAB", name, f"a full name, {both}")
    if not matches:
        known = [lab.name for lab in labs]
        hint = nearest(name, [*known, *(lab.short_name for lab in labs)])
        raise InputError(f"unknown lab {name!r}; expected one of: {', '.join(known)}.{hint}")
    return matches[0]


def _read_lab(path: Path) -> Lab:
    number, short_name = path.stem.split("_", 1)
    cells = files.read(path)["cells"]
    card = next((cell["source"] for cell in cells if cell["cell_type"] == "markdown"), "")
    title, minutes = _TITLE.search(card), _MINUTES.search(card)
    return Lab(
        number=number,
        name=path.stem,
        title=title[1] if title else short_name.replace("_", " "),
        minutes=minutes[1] if minutes else "",
        presets=tuple(name for name in PRESETS if name in LABS.get(path.stem, PRESETS)),
        path=path,
    )


def _code_cells(path: Path) -> list[dict]:
    return [cell for cell in files.read(path)["cells"] if cell["cell_type"] == "code"]


def _assigned(source: str, path: Path) -> Iterable[str]:
    try:
        statements = ast.parse(source).body
    # ValueError: a NUL character; the last two: brackets nested some hundred levels deep.
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"the parameters cell of {path} is not plain Python: {error}") from error
    for statement in statements:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        yield from (target.id for target in targets if isinstance(target, ast.Name))
