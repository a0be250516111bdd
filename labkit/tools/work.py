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
from labkit.base.files import write_json
from labkit.base.project import find_project
from labkit.errors import InputError
from labkit.tools.labs import find_labs, pick, read_notebook

_RECORD = ".copied.json"  # name of a copy -> digests of the notebooks that were put there
_EXERCISE = re.compile(r'^passed = check\("(\w+)",', re.M)
_PASSED = re.compile(r"^(\w+): passed \(", re.M)
# A relative link of markdown; not a URL, an anchor on the same page or an absolute path.
_LINK = re.compile(r"(\]\()(?![a-z]+:|#|/)([^)\s#]+)")
# The first two belong to `labkit run`. With a user's backend a notebook may show no figures, and a
# kernel "python3" in a folder of the last would take precedence over this environment's.
_NOT_FOR_KERNELS = ("LABKIT_RUN", "LABKIT_HEADLESS", "MPLBACKEND", "JUPYTER_PATH")


def lab(
    notebook: Annotated[
        str,
        typer.Argument(metavar="[LAB]", help="Number or name of a lab, or a notebook's path."),
    ] = "0",
    folder: Annotated[
        Path | None, typer.Option(help="Folder of your copies; work/ in the project if not given.")
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="First port to try.")] = 8888,
    browser: Annotated[bool, typer.Option(help="Open a browser, where there is one.")] = True,
    server: Annotated[
        bool, typer.Option(help="Start JupyterLab; --no-server only copies and lists.")
    ] = True,
) -> None:
    """Open JupyterLab on your own copies of the notebooks, and list the exercises you have solved.

    Missing copies are made first. Where the project's notebook has changed, a copy you have not
    edited is replaced; beside one that you have, the new notebook is put as NAME.new.ipynb.
    The server is for this machine only and requires a token.

    Example: labkit lab 01
    """
    project = root = find_project()
    labs = find_labs(project)
    picked = pick(labs, [notebook])
    if len(picked) != 1:
        raise wrong("LAB", notebook, "one lab")
    (chosen,) = picked
    if notebook.endswith(".ipynb"):
        place = chosen.path
        root = project if project in place.parents else place.parent
    else:
        folder = (folder or project / "work").expanduser().resolve()
        if folder == project / "notebooks":
            raise wrong("--folder", str(folder), "a folder of your own")
        place = folder / chosen.path.name
        for message in copy([each.path for each in labs], folder):
            print(message)
        for each in labs:
            try:
                asked, solved = exercises(each.path, folder / each.path.name)
            except InputError as error:
                print(f"{error}; move it away for a new copy")
                continue
            if asked:
                names = f": {', '.join(solved)}" if solved else ""
                print(f"{each.name}: {len(solved)} of {len(asked)} exercises solved{names}")
    if server:
        line = _command(root, place, port, browser)
        sys.stdout.flush()
        os.execve(line[0], line, _environment())


def copy(notebooks: Sequence[Path], folder: Path) -> list[str]:
    """Bring the copies of ``notebooks`` in ``folder`` up to date; return a line for each change.

    An edited copy is never written to: it is one whose sources differ from those copied, whatever
    its outputs. Outputs are left out: a copy shows only what its owner's code printed.
    """
    path, messages = folder / _RECORD, []
    record: dict[str, list[str]] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    for source in notebooks:
        notebook, copied = _for_learners(source, folder), folder / source.name
        known, now = record.setdefault(source.name, []), _digest(notebook)
        if copied.exists() and (known[-1:] == [now] or _digest_of(copied) == now):
            continue
        for place in (copied, copied.with_name(f"{copied.stem}.new.ipynb")):
            there = place.exists()
            if not there or _digest_of(place) in known:
                why = "" if place == copied else " beside yours, which is edited"
                messages.append(f"{place}: {'replaced' if there else 'copied'}{why}")
                write_json(place, notebook, "the notebook")
                known.append(now)
                break
        else:
            messages.append(f"{copied}: the notebook has changed; {place.name} is edited and stays")
    write_json(path, record, "the record of copies")
    return messages


def exercises(source: Path, copied: Path) -> tuple[list[str], list[str]]:
    """Return the exercises that a lab leaves unsolved, and those that ``copied`` shows as passed.

    Nothing is executed: what counts is the check's line in the saved output of its cell.
    """
    sources = [cell["source"] for cell in read_notebook(source)["cells"]]
    unsolved = [text for text in sources if "raise NotImplementedError" in text]
    asked = _EXERCISE.findall("\n".join(unsolved))
    outputs = [o for cell in read_notebook(copied)["cells"] for o in cell.get("outputs", ())]
    passed = _PASSED.findall("".join("".join(output.get("text", "")) for output in outputs))
    return asked, [name for name in asked if name in passed]


def _for_learners(source: Path, folder: Path) -> dict[str, Any]:
    """Return a notebook without outputs, with its relative links as they are from ``folder``."""

    def moved(link: re.Match) -> str:
        target = (source.parent / link[2]).resolve()
        if target.parent == source.parent and target.suffix == ".ipynb":
            return link[0]  # copied as well
        return link[1] + Path(os.path.relpath(target, folder)).as_posix()

    notebook = read_notebook(source)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
        else:
            cell["source"] = _LINK.sub(moved, cell["source"])
    notebook["metadata"].pop("labkit", None)  # the stamp describes the outputs
    return notebook


def _digest(notebook: dict[str, Any]) -> str:
    cells = [(cell["cell_type"], cell["source"]) for cell in notebook["cells"]]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()


def _digest_of(copied: Path) -> str:
    try:
        return _digest(read_notebook(copied))
    except InputError:  # damaged: it stays, as an edited copy does
        return ""


def _command(root: Path, notebook: Path, port: int, browser: bool) -> list[str]:
    import zmq

    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": port,
        "ServerApp.root_dir": root,
        "ServerApp.open_browser": browser,
        "ServerApp.allow_root": os.geteuid() == 0,  # in a container
        "LabApp.default_url": f"/lab/tree/{quote(notebook.relative_to(root).as_posix())}",
        # No network access; labconfig/ beside this file suppresses the dialog that asks about it.
        "LabApp.news_url": "None",
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        # Else each kernel warns that others on this machine could listen.
        "MappingKernelManager.transport_encryption": "auto" if zmq.has("curve") else "disabled",
    }
    line = [sys.executable, "-P", "-m", "jupyterlab"]
    return line + [f"--{name}={value}" for name, value in options.items()]


def _environment() -> dict[str, str]:
    """Return the variables of the server and its kernels; this labkit and kernel come first."""
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_KERNELS}
    here = Path(__file__).resolve()
    for name, folder in (("JUPYTER_CONFIG_PATH", here.parent), ("PYTHONPATH", here.parents[2])):
        kept[name] = os.pathsep.join([str(folder), *filter(None, [kept.get(name)])])
    # Without the last the debugger warns of Python's frozen modules whenever a kernel starts.
    return kept | {"JUPYTER_PREFER_ENV_PATH": "1", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
