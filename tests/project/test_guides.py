"""docs/guides: the blocks of each guide run one after the other, and print what the guide shows."""

import re
import runpy
from pathlib import Path

import pytest

GUIDES = sorted((Path(__file__).parents[2] / "docs" / "guides").glob("*.md"))


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_the_guide_runs(guide, runtime, tmp_path, monkeypatch, capsys):
    page = guide.read_text("utf-8")
    program = tmp_path / "guide.py"  # a file: MindSpore reads the source of what it compiles
    program.write_text("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), "utf-8")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(program))
    printed = capsys.readouterr().out.splitlines()
    shown = "".join(re.findall(r"```text\n(.*?)```", page, re.DOTALL)).splitlines()
    assert shown and [line for line in shown if line not in printed] == []
    assert page.count("\nassert ") + page.count("\n    assert ") >= 2  # numbers that it states
