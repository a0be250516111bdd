"""Checks that compute with MindSpore: each in a process of its own, which may crash or hang."""

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from labkit.labs.run import installed_version
from labkit.tools.doctor import probes
from labkit.tools.doctor.check import INSTALL, Finding
from labkit.tools.doctor.environment import faults

_SECONDS = 60.0
# Measured with 8 images: 0.7-1.6 with the fast kernel, 60-260 with the slow one, two processes at
# once on two cores; 10 allows for a busy machine.
_SLOWEST_CONVOLUTION = 10.0
# By the plugins in its packages, libmindspore_gpu.so.11.1 and .11.6.
_GPU = "MindSpore 2.10.0's GPU plugins are for CUDA 11.1 and 11.6, and no other"


def ask(
    function: str, *arguments: object, without: tuple[str, ...] = (), seconds: float = _SECONDS
) -> Any:
    """Return what a function of ``probes`` returns in a fresh Python process.

    Args:
        function: its name
        arguments: for the function
        without: variables to take away; those that the check of the environment names go as well,
            since what they break would be said of the packages too
        seconds: how long it may take

    Raises:
        RuntimeError: with the exception that it raised, or why there is no answer
    """
    from labkit.ranks.processes import child_environment  # here: psutil may be missing

    call = f"probes.report(lambda: probes.{function}(*{arguments!r}))"
    gone = {*faults(), *without}
    environment = {name: text for name, text in child_environment().items() if name not in gone}
    # A compiler that fails leaves files in its working folder.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-c", f"from labkit.tools.doctor import probes; {call}"],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"no answer within {seconds:.0f} s") from error
    lines = [line for line in done.stdout.splitlines() if line.startswith(probes.MARK)]
    if not lines:
        raise RuntimeError(f"the process ended with exit code {done.returncode}")
    answer = json.loads(lines[-1].removeprefix(probes.MARK))
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer["answer"]


def numpy(root: Path) -> Finding:
    """Check the NumPy that MindSpore gets, and that it can add 1 and 1 with it."""
    version = installed_version("numpy")
    try:
        answer = ask("arithmetic")
    except RuntimeError as error:
        found = f"numpy {version or 'none'} is installed; Tensor(1.0) + 1 fails: {error}"
        return Finding(False, found)
    total = f"Tensor(1.0) + 1 = {answer['sum']:g}"
    if answer["numpy"] != version:
        found = f"numpy {answer['numpy']} comes from {answer['place']}; {total}"
        return Finding(False, found, "take that folder out of PYTHONPATH: unset PYTHONPATH")
    ok = answer["numpy"].startswith("1.") and answer["sum"] == 2.0
    return Finding(ok, f"numpy {answer['numpy']}, MindSpore {answer['mindspore']}; {total}")


def devices(root: Path) -> Finding:
    """List the device plugins that came with MindSpore and the devices that can really be used."""
    try:
        usable = ask("devices")
    except RuntimeError as error:
        return Finding(False, f"cannot be asked: {error}")
    found = (
        f"plugins: {', '.join(plugins()) or 'none'} ({_GPU}); "
        f"can be used: {', '.join(usable) or 'none'}"
    )
    return Finding("CPU" in usable, found)


def plugins() -> list[str]:
    """Return the file names of the installed MindSpore's device plugins, without importing it."""
    package = importlib.util.find_spec("mindspore")
    if package is None or package.origin is None:
        return []
    folder = Path(package.origin).parent / "lib" / "plugin"
    return sorted(path.name for path in folder.glob("libmindspore_*.so*"))


def convolution(root: Path) -> Finding:
    """Time a convolution against a matrix product of the same arithmetic, as `start` sets things.

    Beside it, the same as MindSpore is installed says whether this machine needs the workaround.
    """
    try:
        ours = ask("convolution")
        theirs = ask("convolution", False, without=("ONEDNN_MAX_CPU_ISA",))
    except RuntimeError as error:
        return Finding(False, f"cannot be measured: {error}", INSTALL)
    ratio = ours["convolution"] / ours["matmul"]
    without = theirs["convolution"] / theirs["matmul"]
    need = "needs" if without > _SLOWEST_CONVOLUTION else "does not need"
    found = (
        f"{1000 * ours['convolution']:.1f} ms, matrix product {1000 * ours['matmul']:.1f} ms, "
        f"ratio {ratio:.1f} (at most {_SLOWEST_CONVOLUTION:g}), "
        f"backward {1000 * ours['backward']:.0f} ms, "
        f"ONEDNN_MAX_CPU_ISA={ours['onednn'] or 'not set'}; "
        f"without the variable ratio {without:.1f}: this machine {need} the workaround"
    )
    return Finding(ratio <= _SLOWEST_CONVOLUTION, found)
