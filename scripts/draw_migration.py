"""Draw the hook of lab 02 into docs/figures: two losses that fall alike, one with six wrong lines.

    python -m scripts.draw_migration

The numbers are the lab's own: it executes the notebook's cells up to the training (two minutes).
"""

import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib
import nbformat

matplotlib.use("Agg")
ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "notebooks" / "02_resnet50_migration.ipynb"


def trained() -> Any:
    """Return a module that has executed the cells, with what they have defined."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    last = next(number for number, cell in enumerate(cells) if cell.id == "training")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LABKIT_RUN"] = folder
        path = Path(folder) / "cells.py"  # a file: MindSpore compiles functions from their source
        path.write_text("\n\n".join(cell.source for cell in cells[: last + 1]), encoding="utf-8")
        spec = importlib.util.spec_from_file_location("cells", path)
        assert spec and spec.loader
        module = sys.modules["cells"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def main() -> None:
    """Draw the two curves, without saying which is which."""
    import matplotlib.pyplot as plt

    lab = trained()
    figure, axis = plt.subplots(figsize=(6.6, 3.2))
    axis.plot(lab.smooth(lab.wrong_losses), color="C1")
    axis.plot(lab.smooth(lab.mended_losses), color="C0")
    axis.set(xlabel="update", ylabel="training loss (nats)", ylim=(0.4, 2.2))
    axis.set_title("Both learn to read digits. One has six wrong lines.")
    figure.savefig(ROOT / "docs" / "figures" / "migration_hook.png", dpi=110)


if __name__ == "__main__":
    main()
