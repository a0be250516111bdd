"""Nothing from a run's folder controls the terminal that shows it."""

import json
import sys

import pytest

from labkit.tools import console
from tests.support import run_folders as folders
from tests.support.command import labkit
from tests.support.escape_sequences import BAD, EVIL


@pytest.fixture
def run(tmp_path):
    """A run in which every text holds escape sequences."""
    lab = folders.write_lab(
        tmp_path / f"run{EVIL.replace('/', '')}",
        lab=f"lab{EVIL}",
        preset=EVIL,
        device=EVIL,
        metrics={f"m{EVIL}": EVIL},
        headline=[f"m{EVIL}"],
        parameters={EVIL: EVIL},
        status="failed",
        error={"name": EVIL, "message": EVIL, "cell": 1, "cause": "exception", "log": [EVIL]},
    )
    (lab / "log.txt").write_text(f"line {EVIL}\nlast {EVIL}\n")
    return lab


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_compare(run, tmp_path, options):
    other = folders.write_lab(tmp_path / "other")
    done = labkit("compare", run, other, *options)
    assert done.exit_code == 1 and "\\u001b]52" in done.output
    assert not BAD & set(done.output)
    if options:
        assert json.loads(done.stdout)["left"] == str(run)


def test_attach_and_report(run, tmp_path):
    looked = labkit("attach", run, "--once")
    assert "\\u001b]0;title" in looked.output
    wrote = labkit("report", run, "--out", run / "r.html")
    gone = labkit("attach", f"{tmp_path}/{EVIL}")
    assert (looked.exit_code, wrote.exit_code, gone.exit_code) == (1, 0, 2)
    for done in (looked, wrote, gone):
        assert not BAD & set(done.output), done.output


def test_a_table_in_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    console.table((f"a{EVIL}",), [(f"b{EVIL}",)])
    console.line(EVIL)
    said = capsys.readouterr().out
    assert "]0;title\x07" not in said and "\x9b" not in said and "\u202e" not in said
