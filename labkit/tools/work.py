"""`labkit lab`: JupyterLab on the learner's own copies of the notebooks, in work/."""

import hashlib
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from labkit.base.arguments import wrong
from labkit.base.files import make_folder, write_json
from labkit.base.project import find_project
from labkit.errors import InputError

FOLDER = "work"
# Name of a copy -> digests of the notebook that was copied and of the last that was offered for it.
_RECORD = ".copied.json"
_EXERCISE = re.compile(r'^passed = check\("(\w+)",', re.M)
# A relative link of markdown; not a URL, an anchor on the same page or an absolute path.
_LINK = re.compile(r"(\]\()(?![a-z]+:|#|/)([^)\s#]+)")
# The first two belong to `labkit run`. With a user's backend a notebook may show no figures, and a
# kernel "python3" in a folder of the last would take precedence over this environment's.
_NOT_FOR_KERNELS = ("LABKIT_RUN", "LABKIT_HEADLESS", "MPLBACKEND", "JUPYTER_PATH")


def lab(
    notebook: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[LAB|NOTEBOOK] [-- OPTION...]",
            help="Number or name of a lab, or a notebook's path; options for JupyterLab itself.",
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder of your copies; work/ in the project if not given.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="First port to try; 8888 if not given.")
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open a browser, where there is one.")] = True,
    server: Annotated[
        bool, typer.Option(help="Start JupyterLab; --no-server only copies and lists.")
    ] = True,
) -> None:
    """Open JupyterLab on your own copies of the notebooks, and list the exercises you have solved.

    Missing copies are made first. Where the project's notebook has changed, a copy you have not
    edited is replaced; beside one that you have, the new notebook is put as NAME.new.ipynb.
    The server is for this machine only, requires a token, and uses this environment's kernel.

    Example: labkit lab 01
    """
    words = list(notebook or ())
    named = [] if not words or words[0].startswith("-") else [words.pop(0)]
    if words and not words[0].startswith("-"):
        raise wrong("LAB", f"{named[0]} {words[0]}", "one lab or notebook")
    project = find_project()
    if named and named[0].endswith(".ipynb"):
        place = Path(named[0]).expanduser().resolve()
        if not place.is_file():
            raise InputError(f"no notebook {place}")
    else:
        place = _own_copy(project, folder, named[0] if named else "0")
    if not server:
        return
    root = project if project in place.parents else place.parent
    line = _command(root, place, port, browser) + words
    sys.stdout.flush()
    os.execve(line[0], line, _environment())


def _own_copy(project: Path, folder: Path | None, name: str) -> Path:
    """Make or renew the copies, say what is solved in them, and return that of the lab ``name``."""
    from labkit.tools.labs import find_labs, pick

    labs = find_labs(project)
    (lab,) = pick(labs, [name])[:1]
    folder = project / FOLDER if folder is None else folder.expanduser().resolve()
    if folder == project / "notebooks":
        raise wrong("--folder", str(folder), "a folder of your own")
    for message in copy([each.path for each in labs], folder):
        print(message)
    for each in labs:
        try:
            asked, solved = exercises(each.path, folder / each.path.name)
        except InputError as error:
            print(error)
            continue
        if asked:
            names = f": {', '.join(solved)}" if solved else ""
            print(f"{each.name}: {len(solved)} of {len(asked)} exercises solved{names}")
    return folder / lab.path.name


def copy(notebooks: Sequence[Path], folder: Path) -> list[str]:
    """Bring the copies of ``notebooks`` in ``folder`` up to date; return a line for each change.

    An edited copy is never written to: it is one whose sources differ from those copied, whatever
    its outputs. Outputs are left out: a copy shows only what its owner's code printed.
    """
    make_folder(folder)
    record = json.loads(_text(folder / _RECORD)) if (folder / _RECORD).exists() else {}
    messages = []
    for source in notebooks:
        path = folder / source.name
        notebook = _for_learners(source, folder)
        known, now = record.get(path.name, []), _digest(notebook)
        if path.exists() and now in known:
            continue
        new = path.with_name(f"{path.stem}.new.ipynb")
        if not path.exists():
            messages.append(f"{path}: copied")
            record[path.name] = [now]
        elif _digest_of(path) in known:
            messages.append(f"{path}: replaced, for the notebook has changed and this copy has not")
            record[path.name] = [now]
        elif _digest_of(path) == now:
            record[path.name] = [now]
            continue
        elif new.exists() and _digest_of(new) not in known:
            messages.append(
                f"{path}: the notebook has changed; {new.name} is edited too, and stays"
            )
            continue
        else:
            messages.append(f"{path}: the notebook has changed; yours stays, see {new.name}")
            record[path.name] = [*known[:1], now]
            path = new
        write_json(path, notebook, "the notebook")
    write_json(folder / _RECORD, record, "the record of copies")
    return messages


def exercises(source: Path, copied: Path) -> tuple[list[str], list[str]]:
    """Return the exercises that a lab leaves unsolved, and those that ``copied`` shows as passed.

    Nothing is executed: what counts is the check's line in the saved output of its cell.
    """
    asked = [
        name
        for cell in _code(json.loads(_text(source)))
        if "raise NotImplementedError" in "".join(cell["source"])
        for name in _EXERCISE.findall("".join(cell["source"]))
    ]
    try:
        cells = _code(json.loads(_text(copied)))
    except (ValueError, KeyError) as error:
        raise InputError(f"{copied} is not a notebook: move it away for a new copy") from error
    printed = [
        "".join(output.get("text", "")) for cell in cells for output in cell.get("outputs", ())
    ]
    lines = "".join(printed)
    return asked, [name for name in asked if re.search(rf"^{name}: passed \(", lines, re.M)]


def _code(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _for_learners(source: Path, folder: Path) -> dict[str, Any]:
    """Return a notebook without outputs, with its relative links as they are from ``folder``."""

    def moved(link: re.Match) -> str:
        target = (source.parent / link[2]).resolve()
        if target.parent == source.parent and target.suffix == ".ipynb":
            return link[0]  # copied as well
        return link[1] + Path(os.path.relpath(target, folder)).as_posix()

    notebook = json.loads(_text(source))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
        elif cell["cell_type"] == "markdown":
            moved_text = _LINK.sub(moved, "".join(cell["source"]))
            cell["source"] = moved_text.splitlines(keepends=True)
    notebook["metadata"].pop("labkit", None)  # the stamp describes the outputs
    return notebook


def _digest_of(path: Path) -> str:
    """Return the digest of the sources at ``path``, or "" if it is damaged."""
    try:
        return _digest(json.loads(_text(path)))
    except (ValueError, KeyError):
        return ""


def _digest(notebook: dict[str, Any]) -> str:
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()


def _command(root: Path, notebook: Path, port: int | None, browser: bool) -> list[str]:
    import zmq

    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.root_dir": str(root),
        "LabApp.default_url": f"/lab/tree/{quote(notebook.relative_to(root).as_posix())}",
        # No network access; labconfig/ beside this file suppresses the dialog that asks about it.
        "LabApp.news_url": "None",
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
    }
    if zmq.has("curve"):  # else each kernel warns that others on this machine could listen
        options["MappingKernelManager.transport_encryption"] = "auto"
    if port is not None:
        options["ServerApp.port"] = str(port)
    if os.geteuid() == 0:  # in a container, where `labkit run` runs the same code as root
        options["ServerApp.allow_root"] = "True"
    line = [sys.executable, "-P", "-m", "jupyterlab"]
    line += [f"--{name}={value}" for name, value in options.items()]
    return line if browser else [*line, "--no-browser"]


def _environment() -> dict[str, str]:
    """Return the variables of the server and its kernels; this labkit and kernel come first."""
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_KERNELS}
    here = Path(__file__).resolve()
    for name, folder in (("JUPYTER_CONFIG_PATH", here.parent), ("PYTHONPATH", here.parents[2])):
        kept[name] = os.pathsep.join([str(folder), *filter(None, [kept.get(name)])])
    # Without the last the debugger warns of Python's frozen modules whenever a kernel starts.
    return kept | {"JUPYTER_PREFER_ENV_PATH": "1", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
