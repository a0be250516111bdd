"""The progress display: lines in a log, a bar where somebody watches."""

import re
import sys
import time

import pytest

from labkit import progress
from labkit.progress import Progress, is_headless


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves by hand, in seconds."""

    class Clock:
        now = 100.0

    monkeypatch.setattr(progress.time, "monotonic", lambda: Clock.now)
    assert time.monotonic() == 100.0
    return Clock


def test_headless_lines_come_at_most_every_five_seconds_and_at_the_end(clock, capsys):
    with Progress("training", 100, headless=True) as display:
        for second in range(1, 101):
            clock.now = 100.0 + 0.9 * second
            display.advance(f"at {second}")
    lines = capsys.readouterr().out.splitlines()
    # 0.9 s a step: due after six steps, 5.4 s.
    counts = [int(re.match(r"training (\d+)/100 at \1 (\d+) s$", line)[1]) for line in lines]
    assert counts == [*range(6, 100, 6), 100]
    assert lines[-1] == "training 100/100 at 100 90 s"


def test_a_fast_run_says_one_line(clock, capsys):
    with Progress("training", 50, headless=True) as display:
        for _ in range(50):
            display.advance("done")
    assert capsys.readouterr().out == "training 50/50 done 0 s\n"


def test_text_is_made_only_when_shown(clock, capsys):
    made = []
    with Progress("training", 10, headless=True) as display:
        for _ in range(10):
            display.advance(lambda: made.append(1) or "now")
    assert made == [1]


def test_a_resumed_run_counts_on(capsys):
    with Progress("training", 10, done=8, headless=True) as display:
        display.advance()
        display.advance()
    assert capsys.readouterr().out.startswith("training 10/10 ")


def test_a_bar_stands_on_one_line_and_prints_nothing(clock, capsys):
    with Progress("training", 4, done=1, headless=False) as display:
        for _ in range(3):
            clock.now += 1.0
            display.advance("loss 0.5")
        assert (display._bar.n, display._bar.total) == (4, 4)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "training: 100%" in shown.err and "4/4" in shown.err and "loss 0.5" in shown.err
    assert shown.err.strip("\n").count("\n") == 0


@pytest.mark.parametrize(
    ("variable", "kernel", "terminal", "expected"),
    [
        ("1", True, True, True),
        (None, True, False, False),
        (None, False, True, False),
        (None, False, False, True),
    ],
)
def test_lines_where_nobody_watches(monkeypatch, variable, kernel, terminal, expected):
    monkeypatch.delenv("LABKIT_HEADLESS", raising=False)
    if variable:
        monkeypatch.setenv("LABKIT_HEADLESS", variable)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    if kernel:
        monkeypatch.setitem(sys.modules, "ipykernel", progress)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert is_headless() is expected
