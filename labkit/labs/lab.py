"""The interface of a lab's notebook: settings, run folder, figures and claims in one object."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from labkit.base.arguments import is_number, number
from labkit.errors import InputError, nearest, refuse_unknown
from labkit.labs import claims
from labkit.labs.presets import LABS, PRESETS, choose
from labkit.labs.run import Run
from labkit.runtime import start


@dataclass(frozen=True)
class OpenLab:
    """What ``open_lab`` returns: the run folder, and the lab's settings by name."""

    run: Run
    settings: Mapping[str, Any]

    def value(self, *, smoke: Any, lab: Any) -> Any:
        """Return ``smoke`` at preset smoke, else ``lab``: the amount of work in a cell."""
        return smoke if self.run.preset == "smoke" else lab

    check = staticmethod(claims.check)

    def check_text(self, *rows: claims.Claim) -> None:
        """Call ``check`` at the settings of preset lab, with any seed; else say it is not."""
        if dict(self.settings) | {"seed": 1} == choose(self.run.lab, "lab") | {"seed": 1}:
            claims.check(*rows)
        else:
            print(f"not compared with the text, which speaks of preset lab: {len(rows)} claims")

    def show(self, figure: Any, name: str, alt: str) -> None:
        """Display a matplotlib figure, with a text that describes it, and keep it as a file."""
        from labkit.labs.figures import common as plots  # needs the extra labs

        self.run.figure(figure, name)
        plots.show(figure, alt)

    def interactive(
        self,
        draw: Callable[..., object],
        name: str,
        alt: str,
        stills: Sequence[Mapping[str, float]],
        size: tuple[float, float] = (4.6, 3.2),
        **sliders: tuple[str, float, float, float],
    ) -> None:
        """Display a picture with sliders and keep its stills as a file; as ``plots.interactive``.

        Preset smoke draws the first two stills.
        """
        from labkit.labs.figures import common as plots

        drawn = self.value(smoke=stills[:2], lab=stills)
        plots.interactive(draw, alt, drawn, partial(self.run.figure, name=name), size, **sliders)

    def compare_guess(self, guess: float | None, measured: float, unit: str = "") -> None:
        """Print one line with the learner's guess, None for none yet, and the measured value."""
        guessed, verdict = "none", "to compare, set guess = a number and run again"
        if guess is not None:
            off, most = abs(number("guess", guess) - measured), abs(measured)
            verdict = "close" if off < most / 10 else "near" if off < most / 2 else "far off: why?"
            guessed = f"{guess:g}"
        # As in a table of claims, the text between the bars differs between runs.
        said = f"{guessed}; measured {measured:.3g} {unit}".rstrip()
        print(f"your guess {claims.BAR} {said} {claims.BAR} {verdict}")

    def finish(self, metrics: Mapping[str, Any], headline: Sequence[str]) -> None:
        """Write results.json and print the headline metrics; as ``Run.finish``."""
        self.run.finish(metrics, headline)
        for name in headline:
            value = metrics[name]
            print(f"{name}: {value:.4g}" if is_number(value) else f"{name}: {value}")


def open_lab(name: str, namespace: Mapping[str, Any]) -> OpenLab:
    """Start MindSpore and open a lab with the values that its cell of parameters sets.

    Prints the line of ``labkit.start`` and the settings. ``namespace`` is ``globals()`` of the
    lab's notebook: ``preset``, ``device`` and every setting by its name; None: the preset's value.

    Raises:
        InputError: if the lab is unknown, its cell of parameters does not set a name, or a value
            is invalid.
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
