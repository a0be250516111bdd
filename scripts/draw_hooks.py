"""Draw the first pictures of labs 00, 02 and 06 from what their own cells compute.

    python -m scripts.draw_hooks [LAB ...]

A notebook is executed at preset lab up to the cell that computes what is shown, with one more cell
at its end: seconds for 06, half a minute for 00, one or two minutes for 02.
"""

import os
import sys
import tempfile

import nbformat
from nbclient import NotebookClient

from scripts.pictures import FIGURES, NOTEBOOKS, store

START = """
fig, axes = plt.subplots(1, 2, figsize=(7.6, 3.1), sharey=True)
names = "Loop A: the lower loss", "Loop B"
for axis, name, leads_there in zip(axes, names, (lead_word, leads[-1])):
    axis.contourf(places[..., 0], places[..., 1], leads_there, levels=[-1e9, 0, 1e9],
                  colors=["C0", "C1"], alpha=0.12)
    draw(axis, leads_there)
    axis.set_title(name, fontsize=10)
    axis.set(xlabel="", ylabel="", xticks=[], yticks=[])
fig.suptitle("One of these two loops goes wrong in four places")
"""
MIGRATION = """
fig, axis = plt.subplots(figsize=(6.6, 3.2))
axis.plot(smooth(wrong_losses), color="C1")
axis.plot(smooth(mended_losses), color="C0")
axis.set(xlabel="update", ylabel="training loss (nats)", ylim=(0.4, 2.2))
axis.set_title("Both learn to read digits. One has six wrong lines.")
"""
LANGUAGE = """
from labkit.labs import results

stored = results.load("language_race")
fig, axis = plt.subplots(figsize=(7, 3.4))
for order, name in ((2, "a table of all pairs"), (3, "a table of all triples")):
    nats = table_loss(plays.train, plays.validation, order, symbols)
    axis.axhline(nats, color="#595959", linestyle="--", linewidth=1)
    axis.text(0.5, nats, name, va="bottom", color="#595959", fontsize=9)
for method, color, label in (("AdamW", "C1", "AdamW"), ("Muon", "C2", "?")):
    cost = stored.head["measured"][method]
    for row in stored.select(stage="race", method=method):
        curve = stored.curves[row["run"]]
        update = np.array([point["update"] for point in curve])
        seconds = cost["compile_seconds"] + cost["seconds"] * update / row["updates"]
        axis.plot(seconds, [point["loss"] for point in curve], color=color, linewidth=1.8)
    axis.text(seconds[-1] + 0.5, curve[-1]["loss"], label, color=color, va="center", size=13)
axis.set(xlabel="seconds of one processor core, with compiling", xlim=(0, 39))
axis.set(ylabel="surprise by a character of Macbeth (nats)", ylim=(2.05, 2.8))
axis.set_title("One of them learns more than a table of triples knows")
"""
# Lab -> its picture, the last of its cells that are needed, and what draws ``fig``.
HOOKS = {
    "00_start_here": ("start_hook.png", "leads.append(", START),
    "02_resnet50_migration": ("migration_hook.png", "def smooth(", MIGRATION),
    "06_language_model": ("language_hook.png", "def table_loss(", LANGUAGE),
}
KEEP = """
from pathlib import Path
from labkit.labs.figures.common import png
Path({target!r}).write_bytes(png(fig, 110))
"""


def draw(lab: str) -> None:
    """Draw a lab's first picture and put it into the notebook."""
    name, last, code = HOOKS[lab]
    notebook = nbformat.read(NOTEBOOKS / f"{lab}.ipynb", as_version=4)
    (at,) = (i for i, c in enumerate(notebook.cells) if c.cell_type == "code" and last in c.source)
    with tempfile.TemporaryDirectory() as folder:
        target = os.path.join(folder, name)
        cell = nbformat.v4.new_code_cell(code + KEEP.format(target=target))
        notebook.cells[at + 1 :] = [cell]
        os.environ |= {"LABKIT_PRESET": "lab", "LABKIT_RUN": folder}
        place = {"metadata": {"path": str(NOTEBOOKS)}}
        NotebookClient(notebook, timeout=600, resources=place).execute()
        with open(target, "rb") as file:
            store(name, file.read())
    print(FIGURES / name)


if __name__ == "__main__":
    asked = sys.argv[1:] or list(HOOKS)
    for lab in HOOKS:
        if any(lab.startswith(one) for one in asked):
            draw(lab)
