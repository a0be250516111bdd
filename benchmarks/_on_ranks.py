"""Run a benchmark's child on several ranks of this machine, through msrun."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

_SECONDS = 300


def on_ranks(ranks: int, program: str, *arguments: str) -> dict:
    """Run ``program ... --out FILE`` on so many ranks; return the JSON that rank 0 leaves in FILE.

    Raises ``RuntimeError`` with the end of rank 0's log where a rank fails or takes 5 minutes; no
    process is left behind.
    """
    programs = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [
            *(str(programs / "msrun"), f"--worker_num={ranks}", f"--local_worker_num={ranks}"),
            *("--join=True", "--cluster_time_out=60", f"--log_dir={folder}/log"),
            *(f"--master_port={_free_port()}", program, *arguments, f"--out={out}"),
        ]
        root = Path(__file__).resolve().parent.parent
        search = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        child = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | {"PATH": path, "PYTHONPATH": search},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            child.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _end(child)
        if child.returncode or not out.exists():
            log = Path(folder) / "log" / "worker_0.log"
            said = log.read_text(errors="replace")[-2000:] if log.exists() else "no log"
            raise RuntimeError(f"{program} on {ranks} ranks ended with {child.returncode}:\n{said}")
        return json.loads(out.read_text())


def _end(child):
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
