"""Tests that are slow by their measured time: tests/slow.txt, in addition to the marked ones.

    make test ALL=1 ARGS='--durations=0 -vv' | tee log
    python -m tests.support.slow_tests log

rewrites the file. One test in sixteen took four tenths of the time, mostly compiling graphs.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

LIST = Path(__file__).resolve().parents[1] / "slow.txt"
LEAST = 1.5  # seconds, on two cores
FIXTURE = 5.0  # seconds of a fixture; a class or file whose tests share it is slow
# What `make test` runs however long it takes, and what is fast in a file that is slow because of a
# fixture.
_EXERCISES = "tests/labs/exercises/test_exercises.py"
_WRONG = f"{_EXERCISES}::test_a_wrong_solution_gets_its_hint_which_gives_nothing_away"
_LAUNCH = "tests/ranks/test_launch.py"
KEPT = {
    f"{_EXERCISES}::test_a_right_solution_passes",
    f"{_WRONG}[lenet_adasum]",
    f"{_WRONG}[lenet_gradient]",
    "tests/migration/test_trace.py::test_one_training_step_is_pytorchs",  # marked itself
    "tests/notebooks/test_sanitizer.py::test_nothing_is_masked_in_the_notebooks",
    "tests/project/test_packaging.py",
    f"{_LAUNCH}::test_an_error_names_the_rank_and_shows_its_lines",
    f"{_LAUNCH}::test_output_arguments_folder_and_variables_of_ranks_that_end_well",
    "tests/steps/test_step.py::TestEveryStep",
    "tests/steps/test_step.py::TestNonfinite",
    "tests/training/test_resume.py::test_from_any_checkpoint[plain]",
}
_LINE = re.compile(r"^([\d.]+)s (setup|call) +(tests/\S.*?)\s*$", re.MULTILINE)


def is_slow(name, listed):
    """Return whether a test's id, function, class or file is among ``listed``; not if in KEPT."""
    parts = name.split("::")
    names = {"::".join(parts[:count]) for count in range(1, len(parts) + 1)}
    names.add(name.partition("[")[0])
    return bool(names & listed) and not names & KEPT


def slow_in(log):
    """Return the ids of tests that took ``LEAST`` or longer, and of files and classes as above."""
    names, seconds = set(), defaultdict(float)
    for took, when, name in _LINE.findall(log):
        seconds[name] += float(took)
        if when == "setup" and float(took) >= FIXTURE:
            names.add(name.partition("[")[0].rpartition("::")[0])
    alone = {name for name, took in seconds.items() if took >= LEAST and not is_slow(name, names)}
    return {name for name in names | alone if is_slow(name, {name}) and "on_ranks.py" not in name}


if __name__ == "__main__":
    LIST.write_text("".join(f"{name}\n" for name in sorted(slow_in(Path(sys.argv[1]).read_text()))))
