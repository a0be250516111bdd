"""The interface of a lab's notebook: settings, run folder, figures and claims in one object."""

import ast
import os
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.base.arguments import is_number
from labkit.errors import InputError, nearest, refuse_unknown
from labkit.labs import claims
from labkit.labs.presets import LABS, choose
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

    def finish(self, metrics: Mapping[str, Any], headline: Sequence[str]) -> None:
        """Write results.json and print the headline metrics; as ``Run.finish``."""
        self.run.finish(metrics, headline)
        for name in headline:
            value = metrics[name]
            print(f"{name}: {value:.4g}" if is_number(value) else f"{name}: {value}")


def open_lab(name: str, namespace: MutableMapping[str, Any]) -> OpenLab:
    """Start MindSpore and open a lab with the values that its cell of parameters sets.

    The cell shows the values of preset lab. Another preset, asked for there or by $LABKIT_PRESET,
    replaces those that are still lab's, in ``namespace`` too; a value that was changed there, or
    set by papermill (``labkit run -p NAME=VALUE``), stays. Prints the line of ``labkit.start`` and
    the settings.

    Args:
        name: of the lab.
        namespace: ``globals()`` of the lab's notebook: ``preset``, ``device`` and every setting.

    Raises:
        InputError: if the lab is unknown, its cell of parameters does not set a name, or a value
            is invalid.
    """
    # The labs' colours, for every figure.
    import labkit.labs.figures.common  # noqa: F401

    refuse_unknown("lab", name, LABS)
    shown, injected = LABS[name]["lab"], _injected(namespace)
    for wanted in ("preset", "device", *shown):
        if wanted not in namespace:
            hint = nearest(wanted, namespace)
            raise InputError(f"expected {wanted} in the cell of parameters, got none.{hint}")
    preset = namespace["preset"]
    if preset == "lab" and "preset" not in injected:
        preset = os.environ.get("LABKIT_PRESET", preset)
    named = {s: namespace[s] for s in shown if s in injected or namespace[s] != shown[s]}
    chosen = choose(name, preset, **named)
    runtime = start(namespace["device"], chosen.get("seed", 1))
    run = Run.open(name, preset=preset, parameters=chosen, runtime=runtime)
    namespace.update(chosen)
    print(f"preset {preset}:", ", ".join(f"{key}={value!r}" for key, value in chosen.items()))
    return OpenLab(run, chosen)


def _injected(namespace: Mapping[str, Any]) -> set[str]:
    """Return the names that papermill's own cell sets, which begins with "# Parameters"."""
    cells = [cell for cell in namespace.get("In", ()) if cell.startswith("# Parameters\n")]
    assigned = [line for cell in cells for line in ast.parse(cell).body]
    return {
        target.id
        for line in assigned
        if isinstance(line, ast.Assign)
        for target in line.targets
        if isinstance(target, ast.Name)
    }
