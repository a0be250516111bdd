"""Checks that compute with MindSpore, in separate processes, which may crash or hang."""

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from labkit.labs.run import installed_version
from labkit.tools.doctor import probes
from labkit.tools.doctor.check import INSTALL, Finding
from labkit.tools.doctor.installed import faults

Answers = Callable[[str], Any]
# Calls of functions of ``probes``, in the order in which one process makes them: the first answers
# are known even if a later call crashes.
DEVICES, ARITHMETIC, CONVOLUTION = "devices()", "arithmetic()", "convolution()"
# Called by a second process, at the same time: ``labkit.start``'s settings cannot be undone.
WITHOUT_START = "convolution(started=False)"

_SECONDS = 120.0  # for all calls of a process; on a busy machine an import alone took 80
# Measured with 8 images: 0.7-1.6 with the fast kernel, 60-260 with the slow one, two processes at
# once on two cores; 10 allows for a busy machine.
_SLOWEST_CONVOLUTION = 10.0
# According to the plugins in its packages, libmindspore_gpu.so.11.1 and .11.6.
_GPU = "MindSpore 2.10.0's GPU plugins are for CUDA 11.1 and 11.6, and no other"


def start(calls: Collection[str]) -> Answers:
    """Start to measure; return a function that waits for the answer to one of ``calls``.

    An import of MindSpore takes 3 s of a core, so at most two processes answer all calls. The
    returned function raises ``RuntimeError`` with what the call raised, or why there is no answer.
    """
    pool = ThreadPoolExecutor(2)
    pending: dict[str, Future] = {}
    for process, without in (
        ((DEVICES, ARITHMETIC, CONVOLUTION), ()),
        ((WITHOUT_START,), ("ONEDNN_MAX_CPU_ISA",)),
    ):
        if wanted := [call for call in process if call in calls]:
            pending |= dict.fromkeys(wanted, pool.submit(ask, wanted, without))
    pool.shutdown(wait=False)

    def answer(call: str) -> Any:
        reply = pending[call].result()[call]
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply["answer"]

    return answer


def ask(
    calls: Sequence[str], without: Sequence[str] = (), seconds: float = _SECONDS
) -> dict[str, dict[str, Any]]:
    """Call functions of ``probes`` in one fresh Python process.

    Args:
        calls: the calls, made in this order
        without: environment variables to remove; those that the check of the environment reports
            are removed as well, since their effects would be blamed on the packages too
        seconds: time limit for all calls, seconds

    Returns:
        Call -> {"answer": its result} or {"error": what it raised, or why there is no answer}.
    """
    from labkit.ranks.processes import child_environment  # imported here: psutil may be missing

    gone = {*faults(), *without}
    environment = {name: text for name, text in child_environment().items() if name not in gone}
    program = "from labkit.tools.doctor import probes\n"
    program += "\n".join(f"probes.report({call!r}, lambda: probes.{call})" for call in calls)
    # A compiler that fails leaves files in its working folder.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-c", program],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=seconds,
                check=False,
            )
            output, silent = done.stdout, f"the process ended with exit code {done.returncode}"
        except subprocess.TimeoutExpired as error:
            output, silent = error.stdout or b"", f"no answer within {seconds:.0f} s"
    printed = output.decode(errors="replace").splitlines()
    lines = [line for line in printed if line.startswith(probes.MARK)]
    replies = dict(json.loads(line.removeprefix(probes.MARK)) for line in lines)
    return {call: replies.get(call, {"error": silent}) for call in calls}


def numpy(answers: Answers) -> Finding:
    """Check which NumPy MindSpore imports, and that it can add 1 and 1 with it."""
    version = installed_version("numpy")
    try:
        answer = answers(ARITHMETIC)
    except RuntimeError as error:
        fault = f"numpy {version or 'none'} is installed; Tensor(1.0) + 1 fails: {error}"
        return Finding(False, fault)
    total = f"Tensor(1.0) + 1 = {answer['sum']:g}"
    if answer["numpy"] != version:
        stranger = f"numpy {answer['numpy']} comes from {answer['place']}; {total}"
        return Finding(False, stranger, "take that folder out of PYTHONPATH: unset PYTHONPATH")
    ok = answer["numpy"].startswith("1.") and answer["sum"] == 2.0
    return Finding(ok, f"numpy {answer['numpy']}, MindSpore {answer['mindspore']}; {total}")


def devices(answers: Answers) -> Finding:
    """List the device plugins that came with MindSpore and the devices that can be used."""
    try:
        usable = answers(DEVICES)
    except RuntimeError as error:
        return Finding(False, f"cannot be asked: {error}")
    listed = (
        f"plugins: {', '.join(plugins()) or 'none'} ({_GPU}); "
        f"can be used: {', '.join(usable) or 'none'}"
    )
    return Finding("CPU" in usable, listed)


def plugins() -> list[str]:
    """Return the file names of the installed MindSpore's device plugins, without importing it."""
    package = importlib.util.find_spec("mindspore")
    if package is None or package.origin is None:
        return []
    folder = Path(package.origin).parent / "lib" / "plugin"
    return sorted(path.name for path in folder.glob("libmindspore_*.so*"))


def convolution(answers: Answers) -> Finding:
    """Compare the time of a convolution with that of an equal matrix product, as `start` sets up.

    The same ratio without `start` shows whether this machine needs the workaround.
    """
    try:
        ours, theirs = answers(CONVOLUTION), answers(WITHOUT_START)
    except RuntimeError as error:
        return Finding(False, f"cannot be measured: {error}", INSTALL)
    ratio = ours["convolution"] / ours["matmul"]
    without = theirs["convolution"] / theirs["matmul"]
    need = "needs" if without > _SLOWEST_CONVOLUTION else "does not need"
    figures = (
        f"{1000 * ours['convolution']:.1f} ms, matrix product {1000 * ours['matmul']:.1f} ms, "
        f"ratio {ratio:.1f} (at most {_SLOWEST_CONVOLUTION:g}), "
        f"backward {1000 * ours['backward']:.0f} ms, "
        f"ONEDNN_MAX_CPU_ISA={ours['onednn'] or 'not set'}; "
        f"without the variable ratio {without:.1f}: this machine {need} the workaround"
    )
    return Finding(ratio <= _SLOWEST_CONVOLUTION, figures)
