"""docs/migrating.md: its blocks run one after the other, and print what the page shows."""

import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("tests.support.torchvision_on_cpu", reason="`make test ALL=1` installs it")


@pytest.mark.long
def test_the_page_on_migrating_runs(root, tmp_path):
    page = (root / "docs" / "migrating.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    program = tmp_path / "page.py"
    program.write_text("import tests.support.torchvision_on_cpu\n" + "".join(blocks), "utf-8")
    search = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": search},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    outputs = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    # Digits of measurements may differ from one machine to another, and the place of the largest in
    # a stage that agrees; words and counts not.
    shown = [_words(line) for output in outputs for line in output.splitlines()]
    lacking = [line for line in shown if line not in _words(done.stdout)]
    assert len(outputs) > 5 and not lacking, done.stdout


def _words(line):
    line = re.sub(r"^(\w+ +\d+ +0) .*", r"\1", line, flags=re.MULTILINE)
    return re.sub(r"-?\d\.\d+(e-?\+?\d+)?| *\.\.\.|\de-\d\d| {2,}", " ", line).strip()
