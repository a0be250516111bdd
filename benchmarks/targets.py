"""Measurements of `make bench` beside their targets, as a Markdown table.

    python benchmarks/targets.py [--before FOLDER] PROGRAM...

It reads runs/bench/PROGRAM.json. FOLDER is the runs/bench of another state of the project, measured
on the same machine; its figures get a column of their own.
"""

import json
from pathlib import Path

from _side_by_side import RESULTS, Target, verdict

from labkit.base.arguments import Parser


def main():
    """Print the machine and the table, if anything has a target."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, metavar="FOLDER")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM")
    options = parser.parse_args()
    now = results(RESULTS, options.programs)
    before = results(options.before, options.programs) if options.before else {}
    rows = targets(now)
    if rows:
        print(described(next(iter(now.values()))["machine"]), end="\n\n")
        print("\n".join(table(rows, targets(before))))


def results(folder: Path, programs: list[str]) -> dict[str, dict]:
    """Return program -> its results in ``folder``, for the programs that have some."""
    paths = {name: folder / f"{name}.json" for name in programs}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}


def described(machine: dict) -> str:
    """Return a line that says when and on which machine a program ran."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return f"{machine['time']}, {machine['cores']} cores, {machine['processor']}, {versions}"


def targets(results: dict[str, dict]) -> dict[str, Target]:
    """Return name of the measurement -> its target, over all programs."""
    rows = [Target(**row) for result in results.values() for row in result["targets"]]
    return {row.what: row for row in rows}


def table(now: dict[str, Target], before: dict[str, Target]) -> list[str]:
    """Return the lines of the table, with a column for ``before`` if it has targets."""
    lines = [["what", "before", "now", "at most", ""], ["---"] * 5]
    for what, (_, measured, most) in now.items():
        earlier = _number(before[what].measured) if what in before else ""
        met = verdict(measured <= most)
        lines.append([what, earlier, _number(measured), f"{most:.3g}", met])
    if not before:
        lines = [[line[0], *line[2:]] for line in lines]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _number(value: float) -> str:
    decimals = 0 if value >= 100 else 2 if value >= 1 else 3
    return f"{value:.{decimals}f}"


if __name__ == "__main__":
    main()
