"""Checks of the installation: Python, labkit, packages, the kernel; environment variables."""

import os
import shutil
import sys
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import metadata, util
from pathlib import Path

import labkit
from labkit.labs.presets import PRESETS
from labkit.labs.run import installed_version
from labkit.tools.doctor.check import INSTALL, Finding

_PYTHONS = ((3, 11), (3, 12))
_MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"
# Backends that draw into the notebook. ipykernel names "module://matplotlib_inline.backend_inline".
_BACKENDS = ("inline", "ipympl", "nbagg", "notebook", "widget")
_LEVELS = ("0", "1", "2", "3", "4")
_NO_LEVEL = "MindSpore refuses to be imported: the level is 0 to 4"
# variable: (whether a value is right, what happens otherwise), as seen with MindSpore 2.10.0
_RULES: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "PYTHONOPTIMIZE": (
        lambda value: value == "0",
        "Python leaves out every assert, and with them the labs' proofs",
    ),
    "PYTHONIOENCODING": (
        lambda value: value.lower().replace("-", "").startswith(("utf8", ":")),
        "Python cannot print the characters of the labs' lines",
    ),
    "MPLBACKEND": (
        lambda value: value.lower() in _BACKENDS or value.startswith("module://"),
        "JupyterLab shows no figures",
    ),
    "GLOG_v": (_LEVELS.__contains__, _NO_LEVEL),
    "GLOG_stderrthreshold": (_LEVELS.__contains__, _NO_LEVEL),
    "MINDSPORE_DUMP_CONFIG": (
        os.path.isfile,
        "MindSpore looks for that file in every computation, and stops",
    ),
    "MS_SIMULATION_LEVEL": (
        lambda value: False,
        "MindSpore simulates: nothing is computed",
    ),
    "MS_DEV_PRECOMPILE_ONLY": (
        lambda value: value == "0",
        "MindSpore compiles only: nothing is computed",
    ),
    "LABKIT_PRESET": (
        lambda value: value in PRESETS,
        f"no preset of that name: {', '.join(PRESETS)}",
    ),
}


def python(root: Path) -> Finding:
    """Check that MindSpore has packages for this version of Python."""
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding(tuple(sys.version_info[:2]) in _PYTHONS, f"{version} at {sys.executable}")


def checkout(root: Path) -> Finding:
    """Check that ``labkit`` is the one beside the notebooks, and that no other is installed."""
    if other := _old_name():
        # Up to 0.1.0 ours had this name; on the package index it belongs to somebody else.
        return Finding(
            False,
            f"the distribution labkit {other} is installed, which owns the command labkit as well",
            f"{sys.executable} -m pip uninstall labkit, and then in {root}: {INSTALL}",
        )
    imported = Path(labkit.__file__).resolve().parent
    here = (root / "labkit").resolve()
    if imported == here or not (here / "__init__.py").exists():
        return Finding(True, f"{imported}")
    mismatch = f"{imported} is imported; the notebooks here belong to {here}"
    for path in filter(None, (os.environ.get("PYTHONPATH") or "").split(os.pathsep)):
        if Path(path).resolve() == imported.parent:
            return Finding(False, mismatch, f"take {path} out of PYTHONPATH (unset PYTHONPATH)")
    return Finding(False, mismatch, f"in {root}: {INSTALL}")


def _old_name() -> str | None:
    """Return the version of an installed distribution "labkit", ignoring a build's leftovers."""
    for distribution in metadata.distributions(name="labkit"):
        place = Path(str(distribution.locate_file(""))).resolve()
        if place != Path(labkit.__file__).resolve().parents[1]:
            return distribution.version
    return None


def packages(root: Path) -> Finding:
    """Check that all packages labkit needs are installed in the versions of ``constraints.txt``."""
    try:
        pins = _pins((root / "constraints.txt").read_text(encoding="utf-8"))
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    except FileNotFoundError as error:
        return Finding(True, f"nothing to compare with: no {error.filename}")
    extras = project.get("optional-dependencies", {})
    needed = sorted(_closure([*project["dependencies"], *extras.get("labs", [])]))
    wrong = [text for text in (_differs(name, pins) for name in needed) if text]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        return Finding(False, "; ".join(wrong[:5]) + more)
    return Finding(True, f"{len(needed)} as in constraints.txt")


def _pins(text: str) -> dict[str, str]:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    pins: dict[str, str] = {}
    for line in text.splitlines():
        stated = line.split("#")[0].strip()
        if stated:
            requirement = Requirement(stated)
            if requirement.marker is None or requirement.marker.evaluate():
                (pin,) = requirement.specifier
                pins[canonicalize_name(requirement.name)] = pin.version
    return pins


def _closure(dependencies: list[str]) -> set[str]:
    """Return the names of all needed packages, following the requirements of installed ones."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    seen: set[tuple[str, str]] = set()
    waiting = [(Requirement(text), "") for text in dependencies]
    while waiting:
        requirement, asked = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": asked}):
            continue
        for extra in ("", *requirement.extras):
            key = (canonicalize_name(requirement.name), extra)
            if key not in seen:
                seen.add(key)
                with suppress(metadata.PackageNotFoundError):
                    needed = metadata.requires(requirement.name) or ()
                    waiting += [(Requirement(text), extra) for text in needed]
    return {name for name, _ in seen}


def _differs(name: str, pins: dict[str, str]) -> str:
    version = (installed_version(name) or "").split("+")[0]  # PyTorch's "+cpu"
    if not version:
        return f"{name} is not installed; expected {pins.get(name, 'any version')}"
    expected = pins.get(name, version)
    return "" if version == expected else f"{name} is {version}; expected {expected}"


def msrun(root: Path) -> Finding:
    """Check that MindSpore's launcher exists beside this Python or on PATH."""
    beside = Path(sys.executable).parent / "msrun"
    place = str(beside) if beside.is_file() else shutil.which("msrun")
    return Finding(place is not None, place or "not found")


def kernel(root: Path) -> Finding:
    """Check that the notebooks' kernel ``python3`` starts this Python and not a different one."""
    missing = [name for name in ("ipykernel", "jupyter_client") if util.find_spec(name) is None]
    if missing:
        return Finding(False, f"{' and '.join(missing)} cannot be imported")
    from jupyter_client.kernelspec import KernelSpecManager

    manager = KernelSpecManager()
    place = manager.find_kernel_specs().get("python3", "")
    remedy = f"remove it: rm -r '{place}' (JupyterLab then takes this Python's own)"
    try:
        program = manager.get_kernel_spec("python3").argv[0]
    except Exception as error:  # a kernel.json that is not JSON, or has no program
        return Finding(False, f"{place} cannot be read: {error}".splitlines()[0], remedy)
    # jupyter_client replaces each of these with its own Python.
    if program in ("python", "python3", f"python{_MINOR}"):
        return Finding(True, f"python3 starts {sys.executable}")
    starts = f"python3 starts {program}"
    if Path(program).parent.resolve() == Path(sys.executable).parent.resolve():
        return Finding(True, starts)
    other = f"{starts}, another environment than {sys.executable}: {place} says so"
    return Finding(False, other, remedy)


def faults() -> dict[str, str]:
    """Return variable -> consequence for each variable that is set to a wrong value."""
    return {
        name: reason
        for name, (is_right, reason) in _RULES.items()
        if os.environ.get(name) and not is_right(os.environ[name])
    }


def environment(root: Path) -> Finding:
    """Check the variables that are known to break something."""
    if not (broken := faults()):
        return Finding(True, "no variable that breaks something")
    listed = "; ".join(f"{name}={os.environ[name]}: {why}" for name, why in broken.items())
    return Finding(False, listed, f"unset {' '.join(broken)}")
