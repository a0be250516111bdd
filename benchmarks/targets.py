"""Measurements of `make bench` beside their targets, as a Markdown table.

    python benchmarks/targets.py PROGRAM...

It reads runs/bench/PROGRAM.json.
"""

import json
import sys

from side_by_side import RESULTS, Target, verdict


def main():
    """Print the machine and the table, if anything has a target."""
    paths = [RESULTS / f"{name}.json" for name in sys.argv[1:]]
    results = [json.loads(path.read_text()) for path in paths if path.exists()]
    targets = [Target(**row) for result in results for row in result["targets"]]
    if not targets:
        return
    machine = results[0]["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    print(f"{machine['time']}, {machine['cores']} cores, {machine['processor']}, {versions}\n")
    print("| what | measured | at most | |\n|---|---|---|---|")
    for what, measured, most in targets:
        print(f"| {what} | {measured:.3g} | {most:.3g} | {verdict(measured <= most)} |")


if __name__ == "__main__":
    main()
