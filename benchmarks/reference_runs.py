"""Write labkit/tools/reports/labs.json: the stored run with which reports compare headline metrics.

    labkit run --preset smoke --out runs/smoke-1
    labkit run --preset smoke --out runs/smoke-2 -p seed=2 01 02 03 04 05
    python benchmarks/reference_runs.py runs/smoke-1 runs/smoke-2 ... [--out FOLDER]

Without a RUN it prints what is stored.

For each lab and preset the first RUN is stored; the others, which may differ from it only in the
seed, show how much the numbers vary from run to run. The tolerances are those of
_lab_tolerances.py: a tolerance that does not cover all RUNs is refused, and so is a headline metric
without one. Entries of labs and presets without a RUN stay as they are.
"""

import os
import sys
from datetime import date
from pathlib import Path

from _lab_tolerances import ANY_SEED, TOLERANCES
from labkit.tools.reports import reference
from labkit.tools.reports.read import LabRun, read_all

from labkit.base.command_line import Parser
from labkit.base.files import write_json
from labkit.errors import InputError


def main(arguments=None) -> int:
    """Read the RUNs and write labs.json; return the exit code."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", metavar="RUN", type=Path)
    parser.add_argument("--out", type=Path, default=reference.FOLDER, help="folder of labs.json")
    options = parser.parse_args(arguments)
    try:
        if not options.runs:
            show(reference.load(options.out))
            return 0
        made = entries([lab for run in read_all(options.runs) for lab in run.labs])
        place = options.out / reference.NAME
        kept = reference.load(options.out) if place.exists() else {}
        merged = {**kept, **{name: {**kept.get(name, {}), **labs} for name, labs in made.items()}}
        ordered = {name: dict(sorted(merged[name].items())) for name in sorted(merged)}
        write_json(place, ordered, "the stored runs")
    except InputError as error:
        print(f"reference_runs: {error}", file=sys.stderr)
        return 2
    for preset, labs in made.items():
        for lab, entry in labs.items():
            print(f"{preset} {lab}: {len(entry['metrics'])} metrics of {entry['runs']} runs")
    return 0


def show(stored: dict[str, dict]) -> None:
    """Print a row for every stored metric."""
    for preset, labs in stored.items():
        for lab, entry in labs.items():
            for metric, row in entry["metrics"].items():
                tolerance = reference.tolerance_text(row)
                print(f"{preset:6}{lab:25}{metric:54}{row['value']!s:24}{tolerance}")


def entries(labs: list[LabRun]) -> dict[str, dict[str, dict]]:
    """Return preset -> lab -> stored entry; raise ``InputError`` if a run cannot be stored."""
    groups: dict[tuple[str, str], list[LabRun]] = {}
    for lab in labs:
        if lab.status != "passed" or lab.problems:
            raise InputError(f"{lab.folder} is {lab.status}: {lab.problems or 'expected passed'}")
        groups.setdefault((lab.results.get("preset", "?"), lab.lab), []).append(lab)
    made: dict[str, dict[str, dict]] = {}
    for (preset, name), runs in sorted(groups.items()):
        made.setdefault(preset, {})[name] = entry(preset, name, runs)
    return made


def entry(preset: str, name: str, runs: list[LabRun]) -> dict:
    """Return the stored entry of one lab and preset; the first of ``runs`` is the reference."""
    results = runs[0].results
    tolerances = TOLERANCES.get(preset, {}).get(name)
    if tolerances is None:
        raise InputError(f"_lab_tolerances.py has no tolerances for {name} at preset {preset}")
    missing = [metric for metric in results["headline"] if metric not in tolerances]
    missing += [metric for metric in tolerances if metric not in results["metrics"]]
    if missing:
        raise InputError(f"{name}, {preset}: no metric, or no tolerance for it: {missing}")
    parameters, any_seed = results["parameters"], ANY_SEED[preset]
    for run in runs:
        _same_but_seed(parameters, run)
    # If seeds are not compared, values of other seeds do not count for the tolerance.
    shown = [run for run in runs if any_seed or _seed(run) == _seed(runs[0])]
    return {
        "command": f"labkit run {name} --preset {preset}",
        "date": date.today().isoformat(),
        "device": results.get("device"),
        "cores": os.cpu_count(),
        "git": results.get("git"),
        "versions": results.get("versions"),
        "parameters": parameters,
        "any_seed": any_seed,
        "runs": len(shown),
        "metrics": {
            metric: _metric(f"{name}, {preset}, {metric}", metric, tolerance, shown)
            for metric, tolerance in tolerances.items()
        },
    }


def _metric(where: str, metric: str, tolerance: tuple, runs: list[LabRun]) -> dict:
    kind, amount, reason = tolerance
    values = [[_seed(run), run.results["metrics"].get(metric)] for run in runs]
    stored = values[0][1]
    outside = [pair for pair in values if not reference.is_within(pair[1], stored, kind, amount)]
    if outside:
        raise InputError(f"{where}: {kind} {amount} around {stored} does not cover {outside}")
    row = {"value": stored, "kind": kind, "amount": amount, "reason": reason}
    return row | {"measured": values}


def _seed(run: LabRun):
    return run.results.get("parameters", {}).get("seed")


def _same_but_seed(parameters: dict, run: LabRun) -> None:
    other = run.results.get("parameters", {})
    differ = [name for name in {**parameters, **other} if name != "seed"
              and parameters.get(name) != other.get(name)]  # fmt: skip
    if differ:
        raise InputError(f"{run.folder}: {differ} differ from the first run's; expected the seed")


if __name__ == "__main__":
    sys.exit(main())
