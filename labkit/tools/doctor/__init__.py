"""`labkit doctor`: what bites people on a new machine, each with the remedy."""

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from labkit.base.project import project_root
from labkit.errors import refuse_unknown
from labkit.tools.doctor import data, environment, installed, machine, measured
from labkit.tools.doctor.check import INSTALL, Finding
from labkit.tools.doctor.check import Check as Check


class Row(NamedTuple):
    """A check: its name, what looks at the project's folder, and the remedy."""

    name: str
    look: Callable[[Path], Finding]
    remedy: str

    @property
    def key(self) -> str:
        """The name as it is typed: ``temp-folder``."""
        return self.name.lower().replace(" ", "-")


_QUICK = (
    Row("Platform", machine.platform, machine.OTHER_PLATFORM.format("on such a machine")),
    Row(
        "Python",
        installed.python,
        "use Python 3.11 or 3.12: make distclean; make run PYTHON=/path/to/python3.12",
    ),
    Row("labkit", installed.checkout, INSTALL),
    Row("Packages", installed.packages, INSTALL),
    Row("msrun", installed.msrun, f"it comes with MindSpore: {INSTALL}"),
    Row("Kernel", installed.kernel, INSTALL),
    Row("Environment", environment.environment, "unset what is named"),
    Row(
        "Disk",
        machine.disk,
        "free some space: make clean removes runs and caches; "
        f"{machine.FREE_DISK:g} GiB are needed",
    ),
    Row(
        "Folders",
        machine.folders,
        "give yourself the right to write there (chown, chmod), or remove what is in the way",
    ),
    Row("Temp folder", machine.temporary, "set TMPDIR to a folder that can be written to"),
    Row(
        "Memory",
        machine.memory,
        f"close other programs (old notebook kernels?); {machine.FREE_MEMORY:g} GiB are needed",
    ),
    Row(
        "Loopback",
        machine.loopback,
        "bring the loopback interface up (ip link set lo up), or leave the sandbox: notebooks and "
        "their kernels, and ranks, talk over it",
    ),
    Row(
        "msrun port",
        machine.msrun_port,
        "stop the other msrun (ps shows it), or give msrun another --master_port than "
        f"{machine.MSRUN_PORT}",
    ),
    Row(
        "Jupyter port",
        machine.jupyter_port,
        "close old JupyterLab servers (jupyter server list; jupyter server stop PORT), or: "
        "make lab ARGS=--ServerApp.port=PORT",
    ),
    Row("Data", data.data, "git checkout -- data_scripts brings the bundled files back"),
)
# In processes of their own, which start before the quick ones are looked at.
_MEASURED = (
    Row("NumPy", measured.numpy, INSTALL),
    Row("Devices", measured.devices, INSTALL),
    Row(
        "Convolution",
        measured.convolution,
        "take ONEDNN_MAX_CPU_ISA out of the environment (unset ONEDNN_MAX_CPU_ISA), or set it to "
        "AVX2, before the first convolution (labkit.start does so where it is not set)",
    ),
)
_ROWS = {row.key: row for row in (*_QUICK, *_MEASURED)}


def run(root: Path | None = None) -> list[Check]:
    """Return all checks for the project ``root`` (default: around here); takes under 10 s."""
    return [check() for check in checks(root)]


def checks(root: Path | None = None, names: Sequence[str] = ()) -> list[Callable[[], Check]]:
    """Return the checks as functions still to be called, the quick ones first.

    What is measured starts now and runs while the others are called.

    Args:
        root: folder of the project; by default the one around here
        names: which ones, spelled as ``known`` returns them; none: all

    Raises:
        InputError: for an unknown name
    """
    for name in names:
        refuse_unknown("check", name, known())
    root = root or project_root() or Path.cwd()
    pool = ThreadPoolExecutor(len(_MEASURED))
    calls: list[Callable[[], Check]] = []
    for row in (_ROWS[key] for key in (dict.fromkeys(names) if names else _ROWS)):
        look = functools.partial(_look, row, root)
        calls.append(pool.submit(look).result if row in _MEASURED else look)
    pool.shutdown(wait=False)
    return calls


def known() -> list[str]:
    """Return the names of all checks, as the command takes them."""
    return list(_ROWS)


def _look(row: Row, root: Path) -> Check:
    """Return the finished check; one that cannot be made (a package is missing) has failed."""
    try:
        finding = row.look(root)
    except Exception as error:  # whatever a broken installation raises
        finding = Finding(False, f"cannot be looked at: {type(error).__name__}: {error}", INSTALL)
    return Check(row.name, finding.ok, finding.found, finding.remedy or row.remedy)
