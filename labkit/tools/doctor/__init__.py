"""`labkit doctor`: common problems on a new machine, each with its remedy."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from labkit.base.project import project_root
from labkit.errors import refuse_unknown
from labkit.tools.doctor import installed, machine, measured
from labkit.tools.doctor.check import INSTALL, Finding


@dataclass(frozen=True)
class Check:
    """One finished check: its name, whether it passed, what was found, and the remedy."""

    name: str
    ok: bool
    found: str
    remedy: str


class Row(NamedTuple):
    """A check: its name, its function ``look``, the remedy, and the measurements that it needs.

    ``look`` receives the project's folder or, with ``probes``, the answers of ``measured.start``.
    """

    name: str
    look: Callable[[Any], Finding]
    remedy: str
    probes: tuple[str, ...] = ()


_TABLE = (
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
    Row("Environment", installed.environment, "unset what is named"),
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
    Row("Data", machine.data, "git checkout -- data_scripts brings the bundled files back"),
    Row("NumPy", measured.numpy, INSTALL, (measured.ARITHMETIC,)),
    Row("Devices", measured.devices, INSTALL, (measured.DEVICES,)),
    Row(
        "Convolution",
        measured.convolution,
        "take ONEDNN_MAX_CPU_ISA out of the environment (unset ONEDNN_MAX_CPU_ISA), or set it to "
        "AVX2, before the first convolution (labkit.start does so where it is not set)",
        (measured.CONVOLUTION, measured.WITHOUT_START),
    ),
)
# By the name as a user types it: temp-folder.
_ROWS = {row.name.lower().replace(" ", "-"): row for row in _TABLE}


def run(root: Path | None = None) -> list[Check]:
    """Run all checks of the project ``root`` (default: the one around here); takes under 10 s."""
    return [check() for check in checks(root)]


def checks(root: Path | None = None, names: Sequence[str] = ()) -> list[Callable[[], Check]]:
    """Return the checks as functions to be called, the quick ones first.

    Measurements start at once and run while the other checks are called.

    Args:
        root: folder of the project; by default the one around the working folder
        names: names of the checks, spelled as ``known`` returns them; if empty, all

    Raises:
        InputError: if a name is unknown
    """
    for name in names:
        refuse_unknown("check", name, known())
    rows = [_ROWS[name] for name in (dict.fromkeys(names) if names else _ROWS)]
    folder = root or project_root() or Path.cwd()
    answers = measured.start([probe for row in rows for probe in row.probes])
    return [functools.partial(_look, row, answers if row.probes else folder) for row in rows]


def known() -> list[str]:
    """Return the names of all checks, as the command takes them."""
    return list(_ROWS)


def _look(row: Row, place: Any) -> Check:
    """Return the finished check; one that raises (a package is missing) has failed."""
    try:
        finding = row.look(place)
    except Exception as error:  # whatever a broken installation raises
        finding = Finding(False, f"cannot be looked at: {type(error).__name__}: {error}", INSTALL)
    return Check(row.name, finding.ok, finding.found, finding.remedy or row.remedy)
