"""The project around a folder, and labkit's version."""

import os
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path

from labkit.errors import InputError

DISTRIBUTION = "mindspore-labs"
# Notebooks, pages, translations and data in an installed labkit; setup.py puts them there, with a
# record of their version.
_WHEELS = Path(__file__).resolve().parents[1] / "project"
_RECORD = ".mindspore-labs"


def own_checkout() -> Path | None:
    """Return the checkout that this labkit is imported from; None for an installed copy."""
    root = Path(__file__).resolve().parents[2]
    return root if _is_project(root) else None


def version() -> str:
    """Return labkit's version: its checkout's, else the installed one, else "unknown"."""
    if root := own_checkout():
        return tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    from importlib import metadata  # takes 40 ms, and only an installed copy needs it

    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"


def project_root() -> Path | None:
    """Return the nearest folder from the working folder up that is labkit's project, or None.

    ``mindspore-labs`` in the working folder comes before the parents.
    """
    here = Path.cwd()
    return next(filter(_is_project, (here, here / DISTRIBUTION, *here.parents)), None)


def labs_source() -> Path:
    """Return the folder with notebooks, pages and their translations, or raise InputError.

    It is the project around the working folder, labkit's own checkout, or what its wheel holds.
    """
    root = project_root() or own_checkout() or _WHEELS
    if not root.is_dir():
        raise InputError(f"no labs here: {Path.cwd()} is in no checkout. Change into the clone")
    return root


def find_project() -> Path:
    """Return the project around the working folder, else labkit's own checkout.

    Where labkit is installed from a wheel, its labs and data go to a new folder of the working
    folder first. After another version was installed they are replaced; what was there goes to a
    folder ``before-...`` beside them.

    Raises:
        InputError: if there is no project, or the folder is somebody else's or cannot be written.
    """
    root = labs_source()
    if root == _WHEELS:
        root = Path.cwd() / DISTRIBUTION
        if root.exists():
            raise InputError(f"{root} is there, and not labkit's: expected a new folder")
    elif not (root / _RECORD).exists() or not _WHEELS.is_dir():
        return root
    elif (root / _RECORD).read_text("utf-8") == (_WHEELS / _RECORD).read_text("utf-8"):
        return root
    try:
        _bring(root)
    except OSError as error:
        raise InputError(f"the labs cannot be copied to {root}: {error}") from error
    print(f"{DISTRIBUTION} {version()}: labs and data are now in {root}", file=sys.stderr)
    return root


def _bring(root: Path) -> None:
    """Copy the wheel's labs to ``root``, whole or not at all, and put aside what they replace."""
    new = root.with_name(f".{root.name}.new")
    shutil.rmtree(new, ignore_errors=True)  # of a process that was killed
    shutil.copytree(_WHEELS, new, ignore=shutil.ignore_patterns("__pycache__"))
    if not root.exists():
        new.rename(root)
        return
    before = Path(tempfile.mkdtemp(prefix="before-", dir=root))
    for each in sorted(new.iterdir(), key=lambda path: path.name == _RECORD):  # the record last
        if each.name != _RECORD and (root / each.name).exists():
            (root / each.name).rename(before / each.name)
        each.replace(root / each.name)  # a record is there at every moment
    new.rmdir()


def _is_project(folder: Path) -> bool:
    if os.path.exists(folder / _RECORD):  # False, too, where it may not be looked at
        return True
    try:
        settings = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return settings.get("project", {}).get("name") == DISTRIBUTION
