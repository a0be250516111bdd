"""Shared by the tests of the scripts in scripts/."""

import os
import re
import signal
import subprocess

from tests.support.living import MARK, kill_marked, marked, wait_until

# Stands in for python, and records how it was called.
FAKE = """#!/bin/sh
echo "$(basename "$0") $*" >>"$CALLS"
exit ${CODE:-0}
"""

# Stands in for python and msrun: starts processes in this session and in others, with and without
# a parent, and reports it; then waits for them, or exits with CODE and leaves them behind.
PARENT = """#!/bin/sh
sleep 777 &
setsid sleep 777 &
(setsid sh -c 'trap "" TERM HUP INT; sleep 777 & wait' &)
echo started >"$STARTED"
[ -z "${CODE-}" ] || exit "$CODE"
wait
"""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def assert_nothing_stays(script, arguments, folder, by=None, code=0, **environment):
    """Start a script on stand-ins that leave processes; end it; assert that they are gone.

    by    signal that ends the script; None: its program exits with ``code``
    """
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    for name in ("python", "msrun"):
        (programs / name).write_text(PARENT)
        (programs / name).chmod(0o755)
    own = {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHON": str(programs / "python"),
        "STARTED": str(folder / "started"),
        MARK: str(folder),
    }
    own |= {} if by else {"CODE": str(code)}
    process = subprocess.Popen(
        ["sh", script, *map(str, arguments)],
        cwd=folder,
        env=own | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # If the tests run in the background, SIGINT is ignored, which a shell cannot undo.
        preexec_fn=lambda: [signal.signal(number, signal.SIG_DFL) for number in SIGNALS],
    )
    try:
        wait_until((folder / "started").exists)
        if by:
            # The program has just started and may not have exec'ed all its processes yet.
            wait_until(lambda: len(marked(folder)) > 4)
            process.send_signal(by)
        assert process.wait(60) == (-by if by else code)
        assert marked(folder) == []
    finally:
        kill_marked(folder)


def assert_executable_and_posix(path):
    """Assert that a recipe's script is executable, and that any sh can run it."""
    assert os.access(path, os.X_OK)
    text = path.read_text() + (path.parents[1] / "common.sh").read_text()
    assert text.startswith("#!/bin/sh\n")
    assert not re.search(r"\[\[|function |source |\blocal\b|&>|<<<", text)
    subprocess.run(["sh", "-n", path], check=True)
