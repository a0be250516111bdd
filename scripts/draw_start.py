"""Draw the hook of lab 00 into docs/figures: what its two loops have learned.

    python -m scripts.draw_start

It executes the notebook at preset lab (half a minute), with one more cell at its end.
"""

import os
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
CELL = """
import io
from pathlib import Path

from PIL import Image

fig, axes = plt.subplots(1, 2, figsize=(7.6, 3.1), sharey=True)
names = "Loop A: the lower loss", "Loop B"
for axis, name, leads_there in zip(axes, names, (lead_word, leads[-1])):
    axis.contourf(places[..., 0], places[..., 1], leads_there, levels=[-1e9, 0, 1e9],
                  colors=["C0", "C1"], alpha=0.12)
    draw(axis, leads_there)
    axis.set_title(name, fontsize=10)
    axis.set(xlabel="", ylabel="", xticks=[], yticks=[])
fig.suptitle("One of these two loops goes wrong in four places")
drawn = io.BytesIO()
fig.savefig(drawn, format="png", dpi=110)
picture = Image.open(drawn).convert("RGB").quantize(48, dither=Image.Dither.NONE)
picture.save(TARGET, "png", optimize=True)
"""


def main() -> None:
    """Draw start_hook.png."""
    notebook = nbformat.read(ROOT / "notebooks" / "00_start_here.ipynb", as_version=4)
    target = ROOT / "docs" / "figures" / "start_hook.png"
    cell = CELL.replace("TARGET", repr(str(target)))
    notebook.cells.append(nbformat.v4.new_code_cell(cell))
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"LABKIT_PRESET": "lab", "LABKIT_RUN": folder}
        place = {"metadata": {"path": str(ROOT / "notebooks")}}
        NotebookClient(notebook, timeout=600, resources=place).execute()
    print(target, target.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
