"""A lab as its notebook uses it: settings, run folder, figures and claims behind one object."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.base.arguments import is_number, names_checked, number
from labkit.errors import InputError, nearest, refuse_unknown
from labkit.labs import claims
from labkit.labs.figures import common as plots
from labkit.labs.figures import interactive
from labkit.labs.figures.interactive import Slider
from labkit.labs.presets import LABS, PRESETS, choose
from labkit.labs.run import Run
from labkit.runtime import start


@dataclass(frozen=True)
class OpenLab:
    """What ``open_lab`` returns.

    Attributes:
        run: the run folder.
        settings: what the lab runs with, by name.
    """

    run: Run
    settings: Mapping[str, Any]

    @property
    def as_written(self) -> bool:
        """Whether these are the settings that the text speaks of: preset lab, any seed."""
        seed = {"seed": self.settings["seed"]} if "seed" in self.settings else {}
        return self.settings == choose(self.run.lab, "lab", **seed)

    @names_checked
    def value(self, *, smoke: Any, lab: Any) -> Any:
        """Return ``smoke`` at that preset, else ``lab``: how much of something a cell does."""
        return smoke if self.run.preset == "smoke" else lab

    def check(self, *rows: claims.Claim) -> None:
        """Print a table of claims and raise where one does not hold; as ``claims.check``."""
        claims.check(*rows)

    def check_text(self, *rows: claims.Claim) -> None:
        """As ``check``, for what the text says of its own settings; at others it says so."""
        if self.as_written:
            claims.check(*rows)
        else:
            print(f"not compared with the text, which speaks of preset lab: {len(rows)} claims")

    @names_checked
    def show(self, figure: Any, name: str, alt: str) -> None:
        """Display a figure and keep it in the run folder.

        Args:
            figure: of matplotlib
            name: of its file, without the suffix
            alt: what is to be seen: alternative text
        """
        self.run.figure(figure, name)
        plots.show(figure, alt, dpi=plots.SHARP)

    def interactive(
        self,
        draw: Callable[..., object],
        name: str,
        alt: str,
        stills: Sequence[Mapping[str, float]],
        size: tuple[float, float] = (4.6, 3.2),
        **sliders: Slider,
    ) -> None:
        """Display a figure to be moved, and keep its stills; as ``interactive.move``.

        Args:
            draw: draws on an axis, given the sliders' values
            name: of the file of the stills
            alt: what is to be seen: alternative text
            stills: positions of the sliders that a page shows side by side; at preset smoke two
            size: of one picture, inches
            **sliders: one for each further argument of ``draw``
        """
        save = lambda figure: self.run.figure(figure, name)  # noqa: E731
        drawn = stills[:2] if self.run.preset == "smoke" else stills
        interactive.move(draw, alt, drawn, save=save, size=size, **sliders)

    @names_checked
    def compare_guess(self, guess: float | None, measured: float, unit: str = "") -> None:
        """Print one line: what was guessed beside what was measured.

        Args:
            guess: the learner's number; None for none
            measured: what it is
            unit: of both
        """
        said, guessed = f"measured {measured:.3g} {unit}".rstrip(), "none"
        verdict = "to compare, set guess = a number and run again"
        if guess is not None:
            guess = number("guess", guess)
            off = abs(guess - measured) / max(abs(measured), 1e-300)
            verdict = "close" if off < 0.1 else "near" if off < 0.5 else "far off: why?"
            guessed = f"{guess:g}"
        # As in a table of claims: what stands between the bars differs between runs.
        print(f"your guess {claims.BAR} {guessed}; {said} {claims.BAR} {verdict}")

    @names_checked
    def finish(self, metrics: Mapping[str, Any], headline: Sequence[str]) -> None:
        """Write results.json and print the headline metrics; as ``Run.finish``."""
        self.run.finish(metrics, headline)
        for name in headline:
            value = metrics[name]
            print(f"{name}: {value:.4g}" if is_number(value) else f"{name}: {value}")


@names_checked
def open_lab(name: str, namespace: Mapping[str, Any]) -> OpenLab:
    """Start MindSpore and open a lab with what its cell of parameters has set.

    Prints the line of ``labkit.start`` and the settings.

    Args:
        name: of the lab
        namespace: ``globals()`` of its notebook: ``preset``, ``device`` and every setting of the
            lab by its name; None is the preset's

    Raises:
        InputError: when the lab is unknown, its cell of parameters does not set a name, or a value
            is of no use.
    """
    refuse_unknown("lab", name, LABS)
    settings = [*LABS[name][PRESETS[0]]]
    for wanted in ("preset", "device", *settings):
        if wanted not in namespace:
            hint = nearest(wanted, namespace)
            raise InputError(f"expected {wanted} in the cell of parameters, got none.{hint}")
    preset = namespace["preset"]
    chosen = choose(name, preset, **{setting: namespace[setting] for setting in settings})
    runtime = start(namespace["device"], chosen.get("seed", 1))
    run = Run.open(name, preset=preset, parameters=chosen, runtime=runtime)
    print(f"preset {preset}:", ", ".join(f"{key}={value!r}" for key, value in chosen.items()))
    return OpenLab(run, chosen)
