"""What the tests of the scripts in scripts/ have in common."""

import os
import re
import subprocess

# Stands in for python and msrun, and writes down how it was called.
FAKE = """#!/bin/sh
echo "$(basename "$0") $*" >>"$CALLS"
exit ${CODE:-0}
"""


def assert_executable_and_posix(path):
    """A script of a folder with a common.sh can be called, and any sh can run it."""
    assert os.access(path, os.X_OK)
    text = path.read_text() + path.with_name("common.sh").read_text()
    assert text.startswith("#!/bin/sh\n")
    assert not re.search(r"\[\[|function |source |\blocal\b|&>|<<<", text)
    subprocess.run(["sh", "-n", path], check=True)
