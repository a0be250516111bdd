"""`labkit lab`: JupyterLab on the learner's own copies of the notebooks, in work/."""

import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from labkit.base.arguments import local_path, wrong
from labkit.base.files import make_folder, write_json
from labkit.base.machine import need_linux
from labkit.base.project import find_project
from labkit.errors import InputError, refuse_unknown
from labkit.labs.language import LANGUAGES, VARIABLE, catalogue, translate
from labkit.tools.doctor import refuse_what_stops_kernels
from labkit.tools.labs import Lab, find_labs, pick, read_notebook

_RECORD = ".copied.json"  # name of a copy -> digests of the notebooks that were put there
_EXERCISE = re.compile(r'^passed = check\("(\w+)",', re.M)
_PASSED = re.compile(r"^(\w+): (?:passed \(|通过（)", re.M)
# A relative link of markdown; not a URL, an anchor of the page, an absolute path or a neighbour.
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/|\w+\.ipynb)[^)\s#]+")
# The first two belong to `labkit run`. With a user's backend a notebook may show no figures, and a
# kernel "python3" in a folder of the last would take precedence over this environment's.
_NOT_FOR_KERNELS = ("LABKIT_RUN", "LABKIT_HEADLESS", "MPLBACKEND", "JUPYTER_PATH")


def lab(
    notebook: Annotated[
        str,
        typer.Argument(metavar="[LAB]", help="Number or name of a lab, or a notebook's path."),
    ] = "0",
    folder: Annotated[
        str | None, typer.Option(help="Folder of your copies; work/ in the project if not given.")
    ] = None,
    language: Annotated[
        str, typer.Option(envvar=VARIABLE, help="en or zh (简体中文: copies in work/zh).")
    ] = "en",
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
    need_linux("labkit lab")
    refuse_unknown("--language", language, LANGUAGES)
    project = find_project()
    labs = find_labs(project)
    chosen, *others = pick(labs, [notebook])
    if others:
        raise wrong("LAB", notebook, "one lab")
    read_notebook(chosen.path)  # or refuse it
    if notebook.endswith(".ipynb"):
        place = chosen.path
    else:
        default = project / "work" / ("" if language == "en" else language)
        copies = local_path("--folder", default if folder is None else folder).resolve()
        if copies == project / "notebooks":
            raise wrong("--folder", folder, "a folder of your own")
        place = copies / chosen.path.name
        for line in copy([each.path for each in labs], copies, language) + progress(labs, copies):
            print(line)
    if server:
        root = project if project in place.parents else place.parent
        _become_jupyterlab(root, place, port, browser, language)


def copy(notebooks: Sequence[Path], folder: Path, language: str = "en") -> list[str]:
    """Bring the copies of ``notebooks`` in ``folder`` up to date; return a line for each change.

    An edited copy is never written to: it is one whose sources differ from those copied, whatever
    its outputs. Outputs are left out: a copy shows only what its owner's code printed.
    """
    path, lines = folder / _RECORD, []
    record: dict[str, list[str]] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    for source in notebooks:
        words: Mapping[str, str] = {}
        try:
            words = catalogue(language, f"notebooks/{source.stem}")
        except InputError as error:  # a lab of the user's own
            lines.append(f"{error}; it is copied in English")
        try:
            notebook, copied = _for_learners(source, folder, words), folder / source.name
        except InputError as error:
            lines.append(f"{error}; it is not copied")
            continue
        known, now = record.setdefault(source.name, []), _digest(notebook)
        if copied.exists() and (known[-1:] == [now] or _digest_of(copied) == now):
            continue
        for place in (copied, copied.with_name(f"{copied.stem}.new.ipynb")):
            there = place.exists()
            if not there or _digest_of(place) in known:
                why = "" if place == copied else " beside yours, which is edited"
                lines.append(f"{place}: {'replaced' if there else 'copied'}{why}")
                write_json(place, notebook, "the notebook")
                known.append(now)
                break
        else:
            lines.append(f"{copied}: the notebook has changed; {place.name} is edited and stays")
    write_json(path, record, "the record of copies")
    return lines


def progress(labs: Sequence[Lab], folder: Path) -> list[str]:
    """Return a line for each lab with exercises: which of them its copy in ``folder`` shows solved.

    Nothing is executed: what counts is the check's line in the saved output of its cell.
    """
    lines = []
    for lab in labs:
        try:
            sources = [cell["source"] for cell in read_notebook(lab.path)["cells"]]
            unsolved = (source for source in sources if "raise NotImplementedError" in source)
            asked = _EXERCISE.findall("\n".join(unsolved))
            cells = read_notebook(folder / lab.path.name)["cells"]
        except InputError as error:
            lines.append(f"{error}; move it away for a new copy")
            continue
        outputs = [output for cell in cells for output in cell.get("outputs", ())]
        passed = _PASSED.findall("".join("".join(output.get("text", "")) for output in outputs))
        solved = [name for name in asked if name in passed]
        if asked:
            names = f": {', '.join(solved)}" if solved else ""
            lines.append(f"{lab.name}: {len(solved)} of {len(asked)} exercises solved{names}")
    return lines


def _for_learners(source: Path, folder: Path, words: Mapping[str, str]) -> dict[str, Any]:
    """Return a notebook without outputs, with its relative links as they are from ``folder``."""
    notebook, here = read_notebook(source), os.path.relpath(source.parent, folder)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
        else:
            text = translate(cell["source"], words)
            cell["source"] = _LINK.sub(lambda link: os.path.normpath(f"{here}/{link[0]}"), text)
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


def _become_jupyterlab(root: Path, notebook: Path, port: int, browser: bool, language: str) -> None:
    """Replace this process by a server whose kernels take this labkit and kernel first."""
    import zmq
    from jupyter_core import paths

    refuse_what_stops_kernels()
    make_folder(paths.jupyter_runtime_dir())  # in HOME, unless another variable names it
    if not Path(paths.jupyter_config_dir()).is_dir():  # which may be read-only
        make_folder(paths.jupyter_config_dir())
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": port,
        "ServerApp.root_dir": root,
        "ServerApp.open_browser": browser,
        "ServerApp.allow_root": True,  # in a container
        "LabApp.default_url": f"/lab/tree/{quote(notebook.relative_to(root).as_posix())}",
        # No network access; labconfig/ beside this file suppresses the dialog that asks about it.
        "LabApp.news_url": "None",
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        # Else each kernel warns that others on this machine could listen.
        "MappingKernelManager.transport_encryption": "auto" if zmq.has("curve") else "disabled",
    }
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_KERNELS}
    here = Path(__file__).resolve()
    for name, folder in (("JUPYTER_CONFIG_PATH", here.parent), ("PYTHONPATH", here.parents[2])):
        kept[name] = os.pathsep.join([str(folder), *filter(None, [kept.get(name)])])
    # Without the last the debugger warns of Python's frozen modules whenever a kernel starts.
    kept[VARIABLE] = language
    kept |= {"JUPYTER_PREFER_ENV_PATH": "1", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    words = [f"--{name}={value}" for name, value in options.items()]
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-P", "-m", "jupyterlab", *words], kept)
