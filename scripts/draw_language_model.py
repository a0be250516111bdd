"""Draw docs/figures/language_hook.png, the first picture of lab 06.

    python -m scripts.draw_language_model

Two curves of the stored race over processor seconds, three seeds each, and what tables of pairs
and triples of characters know. The lab names the second method in its section 6.
"""

import io
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

from labkit.data import shakespeare
from labkit.data.prepare import prepare
from labkit.labs import results

FILE = Path(__file__).parents[1] / "docs" / "figures" / "language_hook.png"
ORANGE, GREEN, QUIET = "#E69F00", "#009E73", "#595959"  # the lab's C1 and C2


def table_loss(seen: np.ndarray, text: np.ndarray, order: int, symbols: int) -> float:
    """Return the nats a character of ``text`` by a table of ``seen``, as the lab counts them."""

    def numbers(codes: np.ndarray) -> np.ndarray:
        runs = np.lib.stride_tricks.sliding_window_view(codes, order)
        return runs @ symbols ** np.arange(order)[::-1]

    counts = (np.bincount(numbers(seen), minlength=symbols**order) + 0.1).reshape(-1, symbols)
    chances = counts / counts.sum(axis=1, keepdims=True)
    return float(-np.log(chances.ravel()[numbers(text)]).mean())


def main() -> None:
    """Draw the picture and print where its curves end."""
    stored, plays = results.load("language_race"), shakespeare.load(prepare("shakespeare"))
    figure, axis = plt.subplots(figsize=(7, 3.4), layout="constrained")
    for order, name in ((2, "a table of all pairs"), (3, "a table of all triples")):
        nats = table_loss(plays.train, plays.validation, order, len(plays.alphabet))
        axis.axhline(nats, color=QUIET, linestyle="--", linewidth=1)
        axis.text(0.5, nats, name, va="bottom", color=QUIET, fontsize=9)
        print(f"{name}: {nats:.3f}")
    for method, color, label in (("AdamW", ORANGE, "AdamW"), ("Muon", GREEN, "?")):
        cost = stored.head["measured"][method]
        for row in stored.select(stage="race", method=method):
            curve = stored.curves[row["run"]]
            update = np.array([point["update"] for point in curve])
            seconds = cost["compile_seconds"] + cost["seconds"] * update / row["updates"]
            axis.plot(seconds, [point["loss"] for point in curve], color=color, linewidth=1.8)
            print(f"{method}: {curve[-1]['loss']:.3f} after {seconds[-1]:.0f} s")
        axis.text(seconds[-1] + 0.5, curve[-1]["loss"], label, color=color, va="center", size=13)
    axis.set(xlabel="seconds of one processor core, with compiling", xlim=(0, 39))
    axis.set(ylabel="surprise by a character of Macbeth (nats)", ylim=(2.05, 2.8))
    axis.set_title("One of them learns more than a table of triples knows")
    axis.spines[["top", "right"]].set_visible(False)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=110)
    few_colors = Image.open(drawn).convert("RGB").quantize(48, dither=Image.Dither.NONE)
    few_colors.save(FILE, optimize=True)


if __name__ == "__main__":
    main()
