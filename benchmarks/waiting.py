"""How long one waits: for the first line of a command, and for all labs, one by one or not.

    python benchmarks/waiting.py [--preset smoke] [--rounds 5] [--no-runs]

The commands are started in turns, medians over rounds. A run of all labs takes minutes, so that it
is made once each way; both ways are the same labs at the same preset.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _side_by_side import look_at_machine, print_table, verdict, write_results

LABKIT = [str(Path(sys.executable).parent / "labkit")]
# Seconds to the first line of output, at most.
COMMANDS = {"labkit --help": (["--help"], 0.3), "labkit run": (["run", "--preset", "smoke"], 1.0)}


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", choices=("smoke", "lab"), default="smoke")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-runs", action="store_true", help="only the commands' first lines")
    options = parser.parse_args()
    machine = look_at_machine()
    taken = {name: [] for name in COMMANDS}
    for _ in range(options.rounds):
        for name, (arguments, _) in COMMANDS.items():
            taken[name].append(first_line(arguments))
    first = {name: statistics.median(times) for name, times in taken.items()}
    rows = [[n, first[n], most, verdict(first[n] <= most)] for n, (_, most) in COMMANDS.items()]
    print_table(["first line of", "seconds", "at most", ""], rows)
    runs = {}
    if not options.no_runs:
        runs = {jobs: whole_run(options.preset, jobs) for jobs in ("1", None)}
        print()
        names = {"1": "one by one (--jobs 1)", None: "side by side"}
        table = [[names[jobs], seconds] for jobs, seconds in runs.items()]
        print_table([f"all labs at preset {options.preset}", "seconds"], table)
        runs = {"one_by_one": runs["1"], "side_by_side": runs[None]}
    write_results("waiting", {"first_line": first, "preset": options.preset, "runs": runs}, machine)


def first_line(arguments: list[str]) -> float:
    """Return the seconds until a command has printed a line; then it is ended."""
    with tempfile.TemporaryDirectory() as folder:
        more = ["--out", folder + "/out"] if arguments[0] == "run" else []
        begin = time.perf_counter()
        with subprocess.Popen([*LABKIT, *arguments, *more], stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            seconds = time.perf_counter() - begin
            process.terminate()
            process.communicate()
    return seconds


def whole_run(preset: str, jobs: str | None) -> float:
    """Return the seconds of a run of all labs; raise RuntimeError where one has failed."""
    more = [] if jobs is None else ["--jobs", jobs]
    with tempfile.TemporaryDirectory() as folder:
        command = [*LABKIT, "run", "--preset", preset, "--out", folder + "/out", "-q", *more]
        begin = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - begin
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} exited with {done.returncode}:\n{done.stderr}")
    return seconds


if __name__ == "__main__":
    main()
