"""Checks of what is installed: Python, labkit itself, packages, msrun, the notebooks' kernel."""

import os
import shutil
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path

import labkit
from labkit.tools.doctor.check import INSTALL, Check

_PYTHONS = ((3, 11), (3, 12))
_MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"


def python(version: tuple[int, ...] | None = None) -> Check:
    """Check that this is a Python that MindSpore's packages are made for."""
    version = tuple(sys.version_info[:3]) if version is None else version
    return Check(
        "Python",
        tuple(version[:2]) in _PYTHONS,
        f"{'.'.join(map(str, version))} at {sys.executable}",
        "use Python 3.11 or 3.12: make distclean; make run PYTHON=/path/to/python3.12",
    )


def checkout(root: Path) -> Check:
    """Check that ``labkit`` is the one beside the notebooks, and that no other one is installed."""
    if other := _old_name():
        # Up to 0.1.0 ours was called so; on the package index it is somebody else's.
        return Check(
            "labkit",
            False,
            f"the distribution labkit {other} is installed, which owns the command labkit as well",
            f"{sys.executable} -m pip uninstall labkit, and then in {root}: {INSTALL}",
        )
    came = Path(labkit.__file__).resolve().parent
    here = (root / "labkit").resolve()
    ok = came == here or not (here / "__init__.py").exists()
    found = f"{came}" if ok else f"{came} is imported; the notebooks here belong to {here}"
    paths = (os.environ.get("PYTHONPATH") or "").split(os.pathsep)
    named = next((path for path in paths if path and Path(path).resolve() == came.parent), None)
    if named:
        remedy = f"take {named} out of PYTHONPATH (unset PYTHONPATH)"
    else:
        remedy = f"in {root}: {INSTALL}"
    return Check("labkit", ok, found, remedy)


def _old_name() -> str | None:
    """Return the version of an installed distribution labkit; a build's leftovers are none."""
    for one in metadata.distributions(name="labkit"):
        if Path(one.locate_file("")).resolve() != Path(labkit.__file__).resolve().parents[1]:
            return one.version
    return None


def packages(root: Path) -> Check:
    """Check that what labkit needs is installed, in the versions of ``constraints.txt``."""
    name = "Packages"
    try:
        pins = _pins((root / "constraints.txt").read_text(encoding="utf-8"))
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    except FileNotFoundError as error:
        return Check(name, True, f"nothing to compare with: no {error.filename}", INSTALL)
    needed = sorted(_closure(project["dependencies"]))
    wrong = [text for text in (_differs(one, pins) for one in needed) if text]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        return Check(name, False, "; ".join(wrong[:5]) + more, INSTALL)
    return Check(name, True, f"{len(needed)} as in constraints.txt", INSTALL)


def _pins(text: str) -> dict[str, str]:
    from packaging.requirements import Requirement

    pins = {}
    for line in text.splitlines():
        stated = line.split("#")[0].strip()
        if stated:
            requirement = Requirement(stated)
            if requirement.marker is None or requirement.marker.evaluate():
                pins[_normal(requirement.name)] = next(iter(requirement.specifier)).version
    return pins


def _closure(dependencies: list[str]) -> set[str]:
    """Return the names of all packages that are needed, through those that are installed."""
    from packaging.requirements import Requirement

    seen: set[tuple[str, str]] = set()
    waiting = [(Requirement(text), "") for text in dependencies]
    while waiting:
        requirement, asked = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": asked}):
            continue
        for extra in ("", *requirement.extras):
            key = (_normal(requirement.name), extra)
            if key not in seen:
                seen.add(key)
                waiting += [(Requirement(text), extra) for text in _requires(requirement.name)]
    return {name for name, _ in seen}


def _requires(name: str) -> Iterator[str]:
    try:
        yield from metadata.requires(name) or ()
    except metadata.PackageNotFoundError:
        return


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _differs(name: str, pins: dict[str, str]) -> str:
    version = (_installed(name) or "").split("+")[0]  # PyTorch's "+cpu"
    if not version:
        return f"{name} is not installed; expected {pins.get(name, 'any version')}"
    expected = pins.get(name, version)
    return "" if version == expected else f"{name} is {version}; expected {expected}"


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def msrun(folder: Path | None = None) -> Check:
    """Check that MindSpore's launcher is there: beside this Python, or on PATH."""
    beside = (folder or Path(sys.executable).parent) / "msrun"
    found = str(beside) if beside.is_file() else shutil.which("msrun")
    remedy = f"it comes with MindSpore: {INSTALL}"
    return Check("msrun", found is not None, found or "not found", remedy)


def kernel() -> Check:
    """Check that the notebooks' kernel ``python3`` starts this Python and not another one."""
    name = "Kernel"
    missing = [one for one in ("ipykernel", "jupyter_client") if util.find_spec(one) is None]
    if missing:
        return Check(name, False, f"{' and '.join(missing)} cannot be imported", INSTALL)
    from jupyter_client.kernelspec import KernelSpecManager

    manager = KernelSpecManager()
    place = manager.find_kernel_specs().get("python3", "")
    remedy = f"remove it: rm -r '{place}' (JupyterLab then takes this Python's own)"
    try:
        program = manager.get_kernel_spec("python3").argv[0]
    except Exception as error:  # a kernel.json that is no JSON, or has no program
        return Check(name, False, f"{place} cannot be read: {error}".splitlines()[0], remedy)
    # jupyter_client puts its own Python where one of these stands.
    own = program in ("python", "python3", f"python{_MINOR}")
    ok = own or Path(program).parent.resolve() == Path(sys.executable).parent.resolve()
    found = f"python3 starts {sys.executable if own else program}"
    found += "" if ok else f", another environment than {sys.executable}: {place} says so"
    return Check(name, ok, found, remedy)
