"""Start a program on local ranks, and leave none of its processes behind."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil

SECONDS = 170


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def msrun(out, *program, root, ranks=2):
    """Run a program on two or more ranks; return (exit code, what the logs end with)."""
    programs = Path(sys.executable).parent
    command = [
        *(programs / "msrun", "--worker_num", ranks, "--local_worker_num", ranks, "--join", "True"),
        *("--cluster_time_out", "60", "--log_dir", out / "log", "--master_port", free_port()),
        *program,
    ]
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    with (out / "msrun.log").open("w") as log:
        child = subprocess.Popen(
            [str(part) for part in command],
            cwd=out,
            env=os.environ | {"PATH": path, "PYTHONPATH": str(root)},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        code = child.wait(SECONDS)
    finally:
        left = processes_about(out)
        if left:
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    assert not left, f"still running: {left}"
    return code, "\n".join(log.read_text(errors="replace")[-3000:] for log in out.rglob("*.log"))


def processes_about(folder):
    """Command lines of the processes that name a folder, this one aside."""
    lines = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if str(folder) in line and process.info["pid"] != os.getpid():
            lines.append(line)
    return lines
