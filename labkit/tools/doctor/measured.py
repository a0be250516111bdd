"""Checks that compute with MindSpore: in processes of their own, which may crash or hang.

Importing MindSpore alone takes 2 s of a core, and the slow convolution that is looked for up to 2 s
a call. So there are two such processes, not one a check, and they run while the other checks do.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit.labs.run import installed_version
from labkit.tools.doctor.check import INSTALL, Check
from labkit.tools.doctor.environment import faults
from labkit.tools.doctor.probes import Child

# Measured with 8 images: 0.7-1.6 with the fast kernel, 60-260 with the slow one, two processes at
# once on two cores; 10 allows for a busy machine.
_SLOWEST_CONVOLUTION = 10.0

# By the plugins in its packages, libmindspore_gpu.so.11.1 and .11.6.
_GPU = "MindSpore 2.10.0's GPU plugins are for CUDA 11.1 and 11.6, and no other"


class Measurements:
    """The two processes: with what ``labkit.start`` sets, and as MindSpore is installed."""

    def __init__(self) -> None:
        self._children: dict[bool, Child] = {}

    def begin(self, bare: bool = False) -> Child:
        """Start one of the processes, once, and return it.

        Variables that the check of the environment names are taken away: what they break would
        be said of the packages too.
        """
        if bare not in self._children:
            without = dict.fromkeys(fault.variable for fault in faults())
            if bare:
                without["ONEDNN_MAX_CPU_ISA"] = None
                probes = ("start_bare", ("convolution", False))
            else:
                probes = ("start", "devices", "arithmetic", "convolution")
            self._children[bare] = Child(*probes, **without)
        return self._children[bare]

    def answer(self, probe: str, bare: bool = False) -> Any:
        """Return what ``probe`` found; ``RuntimeError`` says why it found nothing.

        bare  in the process without what ``labkit.start`` sets
        """
        return self.begin(bare).answer(probe)


class Measured:
    """A check that waits for measurements; ``begin`` starts them, calling it waits.

    both  whether it needs both processes
    """

    def __init__(
        self, measurements: Measurements, check: Callable[[Measurements], Check], both: bool = False
    ) -> None:
        self._measurements, self._check, self._both = measurements, check, both

    def begin(self) -> None:
        """Start what is measured."""
        self._measurements.begin()
        if self._both:
            self._measurements.begin(bare=True)

    def __call__(self) -> Check:
        """Wait, and return the finding."""
        return self._check(self._measurements)


def numpy(measurements: Measurements) -> Check:
    """Check the NumPy that MindSpore gets, and that it can add 1 and 1 with it."""
    found = f"numpy {installed_version('numpy') or 'none'} is installed"
    try:
        came = measurements.answer("arithmetic")
    except RuntimeError as error:
        return Check("NumPy", False, f"{found}; Tensor(1.0) + 1 fails: {error}", INSTALL)
    ok = came["numpy"].startswith("1.") and came["sum"] == 2.0
    found = f"numpy {came['numpy']}, MindSpore {came['mindspore']}; Tensor(1.0) + 1"
    remedy = INSTALL
    if came["numpy"] != installed_version("numpy"):
        ok, found = False, f"numpy {came['numpy']} comes from {came['place']}; Tensor(1.0) + 1"
        remedy = "take that folder out of PYTHONPATH: unset PYTHONPATH"
    return Check("NumPy", ok, f"{found} = {came['sum']:g}", remedy)


def devices(measurements: Measurements) -> Check:
    """List the device plugins that came with MindSpore and the devices that can really be used."""
    name = "Devices"
    try:
        usable = measurements.answer("devices")
    except RuntimeError as error:
        return Check(name, False, f"cannot be asked: {error}", INSTALL)
    found = (
        f"plugins: {', '.join(plugins()) or 'none'} ({_GPU}); "
        f"can be used: {', '.join(usable) or 'none'}"
    )
    return Check(name, "CPU" in usable, found, INSTALL)


def plugins() -> list[str]:
    """Return the file names of the installed MindSpore's device plugins, without importing it."""
    package = importlib.util.find_spec("mindspore")
    if package is None or package.origin is None:
        return []
    folder = Path(package.origin).parent / "lib" / "plugin"
    return sorted(path.name for path in folder.glob("libmindspore_*.so*"))


def convolution(measurements: Measurements) -> Check:
    """Time a convolution against a matrix product of the same arithmetic, as `start` sets things.

    Beside it, the same as MindSpore is installed says whether this machine needs the workaround.
    """
    name = "Convolution"
    remedy = (
        "take ONEDNN_MAX_CPU_ISA out of the environment (unset ONEDNN_MAX_CPU_ISA), or set it to "
        "AVX2, before the first convolution (labkit.start does so where it is not set)"
    )
    try:
        ours = measurements.answer("convolution")
        theirs = measurements.answer("convolution", bare=True)
    except RuntimeError as error:
        return Check(name, False, f"cannot be measured: {error}", INSTALL)
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
    return Check(name, ratio <= _SLOWEST_CONVOLUTION, found, remedy)
