"""Waiting times: for the first line of a command, and for all labs, run by `labkit run`.

    python benchmarks/waiting.py [--preset smoke] [--preset lab] [--rounds 5] [--jobs N]

The commands are started in turn; medians over rounds. A run of all labs takes minutes and is
therefore made only once per preset.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _side_by_side import Target, look_at_machine, write_results

from labkit.base.command_line import Parser

LABKIT = [str(Path(sys.executable).parent / "labkit")]
# Upper limits in seconds: to the first line of output, and for a run of all labs.
COMMANDS = {"labkit --help": (["--help"], 0.3), "labkit run": (["run", "--preset", "smoke"], 1.0)}
PRESETS = {"smoke": 100.0, "lab": 720.0}


def main():
    """Measure and print."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", choices=PRESETS, action="append", help="both by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", help="of labkit run: 1 for one lab after another")
    options = parser.parse_args()
    machine = look_at_machine()
    taken = {name: [] for name in COMMANDS}
    for _ in range(options.rounds):
        for name, (arguments, _) in COMMANDS.items():
            taken[name].append(first_line(arguments))
    first = {name: statistics.median(times) for name, times in taken.items()}
    runs = {preset: whole_run(preset, options.jobs) for preset in options.preset or PRESETS}
    targets = [
        *(Target(f"first line of {name}, s", first[name], COMMANDS[name][1]) for name in first),
        *(Target(f"all labs, preset {name}, s", runs[name], PRESETS[name]) for name in runs),
    ]
    write_results("waiting", {"first_line": first, "runs": runs}, machine, targets)


def first_line(arguments: list[str]) -> float:
    """Return the seconds until a command prints its first line; then end the command."""
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
    """Return the seconds of a run of all labs; raise RuntimeError if the run fails."""
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
