"""Execute the committed notebooks whose inputs changed, and write their outputs back.

    python -m scripts.notebooks [LAB ...] [--force [--accept]]

What an execution depends on is stamped into the notebook's metadata, as hashes: its code, labkit,
the data and the pinned versions. A notebook that fails is left as it was.
"""

import argparse
import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping
from configparser import RawConfigParser
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from labkit.base.files import write_text
from labkit.base.project import find_project
from labkit.errors import InputError
from labkit.tools.labs import find_labs, pick

PRESET = "lab"
COMPARED = "nbval-check-output"  # the tag of the cells whose outputs `make test` compares
# What the outputs of a lab do not depend on.
_WITHOUT = ("tools", "__pycache__")


def inputs(project: Path, notebook: Mapping) -> dict[str, str]:
    """Return the hash of everything that decides what ``notebook`` prints, by kind of input."""
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    written = [(cell["source"], cell["metadata"].get("tags", [])) for cell in code]
    stored = ("benchmarks/**/*.csv", "benchmarks/**/*.json", "data_scripts/**/*.*")
    return {
        "notebook": _sha256(json.dumps(written).encode()),
        "labkit": _of_files(project, "labkit/**/*.*"),
        "data": _of_files(project, *stored),
        "versions": _of_files(project, "constraints.txt"),
    }


def why_stale(project: Path, notebook: Mapping) -> str:
    """Return why ``notebook`` must be executed again; empty if it need not."""
    stamp = notebook["metadata"].get("labkit")
    if not stamp:
        return "it was never executed"
    now = inputs(project, notebook)
    changed = [kind for kind in now if stamp["inputs"].get(kind) != now[kind]]
    return f"changed: {', '.join(changed)}" if changed else ""


def compared(project: Path, notebook: Mapping) -> dict[str, str]:
    """Return what the tagged cells print, by id, masked as nbval masks it (sanitize.cfg)."""
    masks = RawConfigParser()
    masks.read(project / "notebooks" / "sanitize.cfg", encoding="utf-8")
    texts = {}
    for cell in notebook["cells"]:
        if COMPARED in cell["metadata"].get("tags", []) and cell["execution_count"]:
            text = "".join(output.get("text", "") for output in cell["outputs"])
            for mask in map(masks.__getitem__, masks.sections()):
                text = re.sub(mask["regex"], mask["replace"], text)
            texts[cell["id"]] = text
    return texts


def execute(project: Path, path: Path, *, keep_compared: bool) -> str:
    """Execute a notebook and write it back; return why that was not possible, or an empty text.

    With ``keep_compared``, outputs of tagged cells must be the ones it has; others may differ.
    """
    notebook = nbformat.read(path, as_version=4)
    before, source = compared(project, notebook), path.read_bytes()
    folder = project / "runs" / "notebooks" / path.stem
    folder.mkdir(parents=True, exist_ok=True)
    own = {"LABKIT_PRESET": PRESET, "LABKIT_HEADLESS": "1", "LABKIT_RUN": str(folder)}
    own |= {"PYTHONPATH": str(project), "PYTHONHASHSEED": "0", "JUPYTER_PREFER_ENV_PATH": "1"}
    own |= {"IPYTHONDIR": str(folder / ".ipython")}  # not the user's own profile
    client = NotebookClient(
        notebook,
        resources={"metadata": {"path": str(path.parent)}},
        record_timing=False,
        coalesce_streams=True,
        store_widget_state=False,
    )
    try:
        client.execute(env=os.environ | own)
    except CellExecutionError as error:
        return str(error)
    now = compared(project, notebook)
    changed = [
        f"cell {name}: was\n{was}now\n{now[name]}"
        for name, was in before.items()
        if was != now[name]
    ]
    if changed and keep_compared:
        return "\n".join(["compared outputs differ (--accept takes them)", *changed])
    if path.read_bytes() != source:
        return "the notebook changed while it was running: run it again"
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    notebook.metadata["labkit"] = {
        "device": results["device"],
        "inputs": inputs(project, notebook),
        "preset": PRESET,
        "versions": {k: v for k, v in results["versions"].items() if k != "platform"},
    }
    # The patch version of one machine's Python would show in every diff; the stamp has it.
    notebook.metadata.get("language_info", {}).pop("version", None)
    write_text(path, nbformat.writes(notebook).rstrip("\n") + "\n", "the notebook")
    return ""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 0, or 1 if a notebook failed, or 2 for bad input."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("labs", nargs="*", metavar="LAB", help="number or name; none: all")
    parser.add_argument("--force", action="store_true", help="also those that are up to date")
    parser.add_argument("--accept", action="store_true", help="with --force: compared outputs too")
    options = parser.parse_args(arguments)
    project, failed = find_project(), False
    try:
        labs = pick(find_labs(project), options.labs)
    except InputError as error:
        parser.error(str(error))
    for lab in labs:
        reason = why_stale(project, nbformat.read(lab.path, as_version=4))
        if not reason and not options.force:
            print(f"{lab.name}: up to date")
            continue
        print(f"{lab.name}: executing at preset {PRESET} ({reason or 'forced'})", flush=True)
        keep = options.force and not options.accept
        fault = execute(project, lab.path, keep_compared=keep)
        failed = failed or bool(fault)
        print(f"{lab.name}: " + (f"left as it was: {fault}" if fault else "written"), flush=True)
    return 1 if failed else 0


def _of_files(project: Path, *patterns: str) -> str:
    found = sorted({path for pattern in patterns for path in project.glob(pattern)})
    return _sha256(
        b"".join(
            f"{path.relative_to(project)} {_sha256(path.read_bytes())}\n".encode()
            for path in found
            if path.is_file() and not set(path.relative_to(project).parts) & set(_WITHOUT)
        )
    )


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
