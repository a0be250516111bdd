"""Nothing out of a run's folder commands the terminal that shows it."""

import json
import sys

import pytest
from typer.testing import CliRunner

from labkit.base.printable import printable
from labkit.tools import cli, console
from tests.support import run_folders as folders

EVIL = "\x1b]0;title\x07 \x1b]52;c;aGk=\x07 \x1b[2J \x9b31m \u202egnp.exe \x08\x08 \r hidden \x7f"
BAD = set("\x1b\x07\x9b\u202e\x08\r\x7f")


def test_control_characters_are_written_out():
    assert printable("a\x1b[2J\n\tb\x9b") == "a\\u001b[2J\n\tb\\u009b"
    plain = "Größe 梯度 🙂 ─│ −1 % \n\t"
    assert printable(plain) == plain
    record = {"name": EVIL, "more": "\\"}
    assert json.loads(printable(json.dumps(record, ensure_ascii=False))) == record
    assert not BAD & set(printable(EVIL))


@pytest.fixture
def run(tmp_path):
    """A run whose every text holds escape sequences."""
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
    done = CliRunner().invoke(cli.app, ["compare", str(run), str(other), *options])
    assert done.exit_code == 1 and "\\u001b]52" in done.output
    assert not BAD & set(done.output)
    if options:
        assert json.loads(done.stdout)["left"] == str(run)


def test_attach_and_report(run, tmp_path):
    looked = CliRunner().invoke(cli.app, ["attach", str(run), "--once"])
    assert "\\u001b]0;title" in looked.output
    wrote = CliRunner().invoke(cli.app, ["report", str(run), "--out", str(run / "r.html")])
    gone = CliRunner().invoke(cli.app, ["attach", f"{tmp_path}/{EVIL}"])
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
