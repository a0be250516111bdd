"""Refresh the committed notebooks: execute those whose inputs changed, write their outputs back.

    python -m scripts.notebooks.refresh [LAB ...] [--check | --links | --force [--accept]]

Their links (scripts.notebooks.navigation) are written first; ``--links`` does nothing else.
The inputs of an execution are stamped into the notebook's metadata (``metadata.labkit``), as hashes
of the notebook, labkit, the data and the versions. If nothing has changed, nothing is written.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import nbformat

from labkit.base.command_line import Parser
from labkit.base.files import whole_file
from labkit.base.project import find_project
from labkit.errors import InputError
from labkit.tools.labs import Lab, find_labs, pick
from labkit.tools.notebook_files import tags
from labkit.tools.running import digests as inputs
from labkit.tools.running import runner
from labkit.tools.running.request import check
from scripts.notebooks import navigation, rules

PRESET = "lab"
_KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


class Refused(Exception):
    """Raised if an executed notebook must not be written back; the message says why."""


def stamped(project: Path, notebook: Mapping) -> dict[str, str]:
    """Return the hash of everything that decides what ``notebook`` prints, by kind of input."""
    versions = inputs.file_digest(project, "constraints.txt")
    return inputs.of_project(project, notebook) | {"versions": versions}


def why_stale(project: Path, notebook: Mapping) -> str:
    """Return why ``notebook`` must be executed again, or an empty text if it is up to date."""
    stamp = notebook["metadata"].get("labkit", {})
    if not stamp:
        return "it has no stamp of an execution"
    changed = inputs.changed(stamp.get("inputs", {}), stamped(project, notebook))
    if changed:
        return f"changed: {', '.join(changed)}"
    if stamp.get("outputs") != rules.output_digest(notebook):
        return "its outputs are not those of the stamped execution"
    return ""


def refresh(
    project: Path,
    names: Sequence[str] = (),
    *,
    force: bool = False,
    accept: bool = False,
    say: Callable[[str], None] = print,
) -> list[str]:
    """Execute the stale notebooks among ``names`` (none: all) and return the labs that failed.

    A notebook that failed or was refused is left unchanged, byte for byte.

    Args:
        project: folder of the checkout
        names: numbers or names of labs
        force: execute those that are up to date as well; outputs that nbval compares must then be
            the same as before
        accept: with ``force``, also write compared outputs that have changed
        say: called with each line of progress

    Raises:
        InputError: for an unknown lab
        RuntimeError: if the data cannot be prepared
    """
    write_links(project, names, say=say)
    failed = []
    for lab in pick(find_labs(project), names):
        reason = why_stale(project, nbformat.read(lab.path, as_version=4))
        if not reason and not force:
            say(f"{lab.name}: up to date")
            continue
        say(f"{lab.name}: executing at preset {PRESET} ({reason or 'forced'})")
        try:
            changed = _renew(project, lab, keep_compared=force and not accept, say=say)
        except Refused as error:
            failed.append(lab.name)
            say(f"{lab.name}: left as it was: {error}")
        else:
            say(f"{lab.name}: written" + "".join(f"\n  {line}" for line in changed))
    return failed


def write_links(
    project: Path, names: Sequence[str] = (), *, say: Callable[[str], None] = print
) -> None:
    """Write anchors and cells of links where they are not up to date; execute nothing.

    The map in the first notebook lists all labs, so that notebook is always checked as well.

    Args:
        project: folder of the checkout
        names: numbers or names of labs; none: all
        say: called with a line for each notebook that is written
    """
    labs = find_labs(project)
    chosen = dict.fromkeys([*pick(labs, names), labs[0]])
    for lab in navigation.write(project, labs, list(chosen)):
        say(f"{lab.name}: links written")


def _renew(
    project: Path, lab: Lab, *, keep_compared: bool, say: Callable[[str], None]
) -> list[str]:
    """Execute one notebook and write it back; return a line for each changed compared output."""
    before = lab.path.read_bytes()
    notebook = nbformat.reads(before.decode("utf-8"), as_version=4)
    stamp, old_texts = stamped(project, notebook), _compared(notebook)
    outcome = _execute(project, lab, say)
    _take_outputs(notebook, nbformat.read(outcome.notebook, as_version=4))
    new_texts = _compared(notebook)
    changed = [
        f"{name}: compared output was {text!r} and is {new_texts[name]!r}"
        for name, text in old_texts.items()
        if text != new_texts[name]
    ]
    notebook.metadata["labkit"] = {
        "device": outcome.results["device"],
        "inputs": stamp,
        "outputs": rules.output_digest(notebook),
        "preset": PRESET,
        "versions": {k: v for k, v in outcome.results["versions"].items() if k != "platform"},
    }
    text = nbformat.writes(notebook).rstrip("\n") + "\n"
    faults = _faults(project, notebook, text) + (changed if keep_compared else [])
    if faults:
        where = os.path.relpath(outcome.notebook)
        raise Refused("\n  ".join([f"the executed copy is {where}", *faults]))
    if lab.path.read_bytes() != before or stamped(project, notebook) != stamp:
        raise Refused("the notebook or its inputs changed while it was running; run it again")
    with whole_file(lab.path, "the notebook") as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        shutil.copymode(lab.path, temporary)
    return changed


def _faults(project: Path, notebook: Mapping, text: str) -> list[str]:
    places = (project, Path(sys.prefix), Path.home(), Path(tempfile.gettempdir()))
    faults = rules.output_faults(notebook, places)
    if (size := len(text.encode("utf-8"))) > rules.MAX_BYTES:
        faults.append(f"{size} bytes; expected at most {rules.MAX_BYTES}")
    return faults


def _execute(project: Path, lab: Lab, say: Callable[[str], None]) -> runner.Outcome:
    """Run the lab as `labkit run` does, into the same folder every time."""
    out = project / "runs" / "notebooks"
    if (out / lab.name).exists():
        shutil.rmtree(out / lab.name)
    request = check([lab.name], preset=PRESET, start=project)
    outcome = runner.run(request, out, say=lambda event: say(event.text))[0]
    if outcome.failure:
        failure = outcome.failure
        where = os.path.relpath(outcome.notebook)
        raise Refused(f"In [{failure.cell}]: {failure.name}: {failure.message} (see {where})")
    return outcome


def _take_outputs(notebook: nbformat.NotebookNode, executed: nbformat.NotebookNode) -> None:
    """Copy outputs cell by cell, but nothing else that papermill adds.

    Cells are renumbered: the cell with injected parameters has taken a number.
    """
    sources = {cell.get("id"): cell for cell in executed.cells if cell.cell_type == "code"}
    count = 0
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = sources[cell.id].outputs
            runs = bool(cell.source.strip())
            count += runs
            cell.execution_count = count if runs else None
            for output in cell.outputs:
                if "execution_count" in output:
                    output["execution_count"] = cell.execution_count
    language = dict(executed.metadata.get("language_info", {"name": "python"}))
    # The patch version of one machine's Python would show in every diff; the stamp has it.
    language.pop("version", None)
    notebook.metadata["language_info"] = language
    notebook.metadata["kernelspec"] = dict(_KERNEL)


def _compared(notebook: Mapping) -> dict[str, str]:
    """Return the text of each executed cell that nbval compares, by a name a reader can find."""
    return {
        f"cell {number}": rules.compared_text(cell)
        for number, cell in enumerate(notebook["cells"])
        if rules.COMPARED in tags(cell) and cell.get("execution_count") is not None
    }


def _check(project: Path, names: Sequence[str]) -> list[str]:
    labs = find_labs(project)
    chosen, stale = pick(labs, names), []
    unlinked = navigation.outdated(project, labs, chosen)
    for lab in chosen:
        reason = why_stale(project, nbformat.read(lab.path, as_version=4))
        reason = reason or ("its links are not up to date" if lab in unlinked else "")
        print(f"{lab.name}: {reason or 'up to date'}")
        stale += [lab.name] if reason else []
    return stale


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0, 1 if a notebook failed or is stale, or 2 for bad input."""
    parser = Parser(prog="scripts.notebooks.refresh", description=__doc__.split("\n")[0])
    parser.add_argument("labs", nargs="*", metavar="LAB", help="number or name; none: all")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="only say what is stale; exit 1 if any")
    what.add_argument("--links", action="store_true", help="only write links; execute nothing")
    what.add_argument("--force", action="store_true", help="also those that are up to date")
    parser.add_argument("--accept", action="store_true", help="with --force: compared outputs too")
    options = parser.parse_args(arguments)
    if options.accept and not options.force:
        parser.error("--accept goes with --force")
    try:
        project = find_project()
        if options.check:
            return 1 if _check(project, options.labs) else 0
        if options.links:
            write_links(project, options.labs)
            return 0
        failed = refresh(project, options.labs, force=options.force, accept=options.accept)
        return 1 if failed else 0
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the notebook that was running is as it was", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
