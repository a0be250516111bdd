"""The project around a folder: which checkout is meant, whose it is, and labkit's version."""

import os
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from shlex import quote

from labkit.base.input_files import read_text
from labkit.errors import InputError

# The name in pyproject.toml: the current one, and the one up to version 0.1.0.
_DISTRIBUTIONS = ("mindspore-labs", "labkit")


def own_checkout() -> Path | None:
    """Return the checkout that this labkit is imported from; None for an installed copy.

    Code is executed from no other checkout: one in a folder above may be anybody's.
    """
    root = Path(__file__).resolve().parents[2]
    return root if _names_labkit(root) else None


def version() -> str:
    """Return labkit's version: its checkout's, installed or not, else the installed one.

    "unknown" for a mere copy of the package, without pyproject.toml and never installed.
    """
    root = own_checkout()
    if root is not None:
        return tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    from importlib import metadata  # takes 40 ms, and only an installed copy needs it

    try:
        return metadata.version(_DISTRIBUTIONS[0])
    except metadata.PackageNotFoundError:
        return "unknown"


def project_root(start: Path | None = None) -> Path | None:
    """Return the nearest folder, from ``start`` (default: here) up, with labkit's pyproject.toml.

    Projects of other users are skipped, as git does with repositories: on a shared machine anybody
    may put one into a folder above. Trusted besides the user's own are the project that the
    variable ``LABKIT_PROJECT`` names and, for root, those of the user who called sudo.
    """
    here = Path(start or Path.cwd()).resolve()
    return next((root for root in _roots(here) if _is_trusted(root)), None)


def find_project(start: Path | None = None) -> Path:
    """Return the checkout with the labs: around ``start`` (default: here), else labkit's own.

    Raises:
        InputError: outside a checkout, or if the only one is another user's
    """
    for place in (start or Path.cwd(), Path(__file__).parent):
        root = project_root(place)
        if root is not None and (root / "notebooks").is_dir():
            return root
    here = Path(start or Path.cwd()).resolve()
    others = [root for root in _roots(here) if not _is_trusted(root)]
    if others:
        raise InputError(
            f"{others[0]} is another user's checkout, whose notebooks are not read or executed: "
            "anybody may have put it there; expected one of your own (git clone), or labkit "
            f"installed from it. If you trust it: export LABKIT_PROJECT={quote(str(others[0]))}"
        )
    raise InputError(
        f"no labs here: neither {here} nor the installed labkit is "
        "inside a checkout (a folder with notebooks/ and labkit's pyproject.toml). "
        "Change into the cloned project first"
    )


def _roots(here: Path) -> Iterable[Path]:
    return (folder for folder in (here, *here.parents) if _names_labkit(folder))


def _is_trusted(root: Path) -> bool:
    """Return whether a project is labkit's own checkout, the user's, or named as trusted."""
    if root == own_checkout() or not hasattr(os, "geteuid"):
        return True
    named = os.environ.get("LABKIT_PROJECT", "")
    # A relative path would trust any folder that the user changes into.
    if os.path.isabs(named) and Path(os.path.realpath(named)) == root:
        return True
    owners = {os.geteuid()}
    caller = os.environ.get("SUDO_UID", "")
    if os.geteuid() == 0 and re.fullmatch(r"[0-9]{1,10}", caller):
        owners.add(int(caller))
    parts = (root, root / "pyproject.toml", root / "notebooks")
    # For a link, the owner of the link itself counts.
    return all(part.lstat().st_uid in owners for part in parts if os.path.lexists(part))


def _names_labkit(folder: Path) -> bool:
    try:
        # The file may be anybody's: read_text neither waits for a pipe nor reads without end.
        settings = tomllib.loads(read_text(folder / "pyproject.toml"))
    except (OSError, ValueError, RecursionError):
        # The file is missing or cannot be judged: look further up.
        return False
    project = settings.get("project")
    return isinstance(project, dict) and project.get("name") in _DISTRIBUTIONS
