"""How long the updates of the two-stage race take: every kind in turns, in one process."""

import json
import statistics
from pathlib import Path

from _race import Images
from _subspace_plan import TIMED
from _subspace_training import train
from _trainings import load_json

from labkit.labs.results.subspace_race import setting_of


def kept_ms(plan: dict, data: Images, folder: Path) -> dict[str, dict[str, float]]:
    """Return ``update_ms``, kept in ``folder`` from an earlier call with the same stages one."""
    path, of = folder / "times.json", {name: plan[name] for name in ("settings", "rounds")}
    kept = load_json(path)
    if kept is None or kept["of"] != of:
        kept = {"of": of, "times": update_ms(plan, data, folder)}
        path.write_text(json.dumps(kept))
    return kept["times"]


def update_ms(plan: dict, data: Images, folder: Path) -> dict[str, dict[str, float]]:
    """Return setting -> method of ``TIMED`` -> milliseconds of an update.

    The median over the plan's rounds, each of which makes every training of two epochs once, of the
    first seed and without noise. What others do on the machine then falls on all alike. ``folder``
    is that of the stages one.
    """
    planned = {(c.get("setting", "batch 8"), c["method"]) for c in plan["compare"]}
    settings = [
        setting_of(plan, method, setting)
        for setting in plan["settings"]
        for method in TIMED
        if (setting, method) in planned
    ]
    found = {}
    for _ in range(plan["rounds"]):
        for setting in settings:
            one = plan["settings"][setting["setting"]]
            limits = {"stage_one": one, "epochs": plan["epochs"], "points": plan["epochs"]}
            outcome = train(setting, data, plan["seeds"][0], folder=folder, **limits)
            ms = outcome["seconds"] / outcome["curve"][-1]["update"] * 1e3
            found.setdefault((setting["setting"], setting["method"]), []).append(ms)
    times = {name: {} for name in plan["settings"]}
    for (setting, method), taken in found.items():
        times[setting][method] = round(statistics.median(taken), 3)
    return times
