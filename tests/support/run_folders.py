"""Run folders made by code: the part of what `labkit run` writes that a report reads."""

import csv
import json
from pathlib import Path

from PIL import Image

from tests.support.image_files import encode

LAB = "01_gradient_accumulation"
PARAMETERS = {"epochs": 3, "learning_rate": 0.01, "seed": 1}
METRICS = {"test accuracy": 0.98, "updates": 4, "training seconds": 2.5}


def results(**changes) -> dict:
    """The results.json of a lab that has passed; a key set to None is left out."""
    record = {
        "lab": LAB,
        "preset": "smoke",
        "parameters": dict(PARAMETERS),
        "device": "CPU",
        "versions": {"python": "3.11.7", "mindspore": "2.10.0", "platform": "Linux-6.1"},
        "git": "0123456789abcdef",
        "runtime": {"device": "CPU", "ranks": 1},
        "started": "2026-01-02T03:04:05",
        "seconds": 10.0,
        "total_seconds": 12.5,
        "metrics": dict(METRICS),
        "headline": ["test accuracy"],
        "notebook": f"{LAB}.ipynb",
        "status": "passed",
        **changes,
    }
    return {name: value for name, value in record.items() if value is not None}


def png() -> bytes:
    """A picture of one white point."""
    return encode(Image.new("L", (1, 1), 255), "PNG")


def notebook(*cells: dict, **metadata) -> dict:
    """A notebook of format 4 with these cells, whose missing keys are filled in."""
    for number, cell in enumerate(cells):
        cell.setdefault("id", f"cell-{number}")
        cell.setdefault("metadata", {})
        if cell["cell_type"] == "code":
            cell.setdefault("execution_count", number)
            cell.setdefault("outputs", [])
    metadata = {"language_info": {"name": "python"}} | metadata
    return {"cells": list(cells), "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def markdown(source: str) -> dict:
    """A cell of text."""
    return {"cell_type": "markdown", "source": source}


def code(source: str, *outputs: dict) -> dict:
    """A cell of code with its outputs."""
    return {"cell_type": "code", "source": source, "outputs": list(outputs)}


def write_notebook(folder: Path, *cells: dict, name: str = "n") -> Path:
    """Write a notebook of these cells into a folder; return its path."""
    path = folder / f"{name}.ipynb"
    path.write_text(json.dumps(notebook(*cells)))
    return path


def display(kind: str, data: str, metadata: dict | None = None) -> dict:
    """An output of a cell with the MIME type ``kind``."""
    return {"output_type": "display_data", "data": {kind: data}, "metadata": metadata or {}}


def write_lab(folder: Path, rows=4, log=None, **changes) -> Path:
    """Write a lab's folder: results, records, a notebook, a figure, a log."""
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps(results(**changes)))
    write_records(folder / "records.csv", rows)
    cells = markdown("# 01 · Sums\n\nThe mean is $\\frac1n$."), code("print(1)")
    write_notebook(folder, *cells, name=LAB)
    (folder / "figures").mkdir()
    (folder / "figures" / "training.png").write_bytes(png())
    (folder / "log.txt").write_text(log or "preset smoke\nmnist 4/4 loss 0.2500 1 s\n")
    return folder


def write_records(path: Path, rows: int, scale=1.0) -> None:
    """Write ``rows`` updates with a falling loss, an accuracy and seconds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("update", "loss", "accuracy", "seconds"))
        for n in range(1, rows + 1):
            writer.writerow((n, scale / n, 1 - 1 / (n + 1), 0.5 * n))


def write_run(folder: Path, *, labs=(LAB,), **changes) -> Path:
    """Write the folder of one `labkit run`."""
    for lab in labs:
        write_lab(folder / lab, **{"lab": lab, **changes})
    about = {"labs": list(labs), "preset": "smoke", "started": "2026-01-02T03:04:05"}
    (folder / "run.json").write_text(json.dumps(about))
    return folder


def write_sweep(folder: Path, seeds=(1, 2)) -> Path:
    """Write the folder of a sweep over seeds."""
    for seed in seeds:
        write_lab(folder / "runs" / f"seed={seed}", parameters={**PARAMETERS, "seed": seed})
    about = {"lab": LAB, "preset": "smoke", "device": "CPU", "grid": {"seed": list(seeds)}}
    (folder / "sweep.json").write_text(json.dumps(about))
    rows = [f"{seed},passed,12.5,0.98" for seed in seeds]
    (folder / "sweep.csv").write_text("\n".join(["seed,status,seconds,test accuracy", *rows, ""]))
    (folder / "figures").mkdir()
    (folder / "figures" / "test accuracy.png").write_bytes(png())
    return folder


def stored(folder: Path, **changes) -> Path:
    """Write a labs.json that holds the lab at preset smoke; return its folder."""
    entry = {
        "parameters": dict(PARAMETERS),
        "any_seed": True,
        "metrics": {
            "test accuracy": {
                "value": 0.982,
                "kind": "absolute",
                "amount": 0.005,
                "reason": "spread of four seeds",
            }
        },
        **changes,
    }
    folder.mkdir(exist_ok=True)
    (folder / "labs.json").write_text(json.dumps({"smoke": {LAB: entry}}))
    return folder
