"""The project around a folder, and labkit's version."""

import tomllib
from pathlib import Path

from labkit.errors import InputError

_DISTRIBUTION = "mindspore-labs"


def own_checkout() -> Path | None:
    """Return the checkout that this labkit is imported from; None for an installed copy."""
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
        return metadata.version(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"


def project_root(start: Path | None = None) -> Path | None:
    """Return the nearest folder from ``start`` (default: here) up that is labkit's project."""
    here = Path(start or Path.cwd()).resolve()
    return next((folder for folder in (here, *here.parents) if _names_labkit(folder)), None)


def find_project(start: Path | None = None) -> Path:
    """Return the checkout with the labs: around ``start`` (default: here), else labkit's own.

    Raises:
        InputError: outside a checkout.
    """
    for place in (start, Path(__file__).parent):
        root = project_root(place)
        if root is not None and (root / "notebooks").is_dir():
            return root
    raise InputError(
        f"no labs here: neither {Path(start or Path.cwd()).resolve()} nor the installed labkit is "
        "inside a checkout (a folder with notebooks/ and labkit's pyproject.toml). "
        "Change into the cloned project first"
    )


def _names_labkit(folder: Path) -> bool:
    try:
        settings = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
    except (OSError, ValueError):  # missing, or not a project's file: look further up
        return False
    return settings.get("project", {}).get("name") == _DISTRIBUTION
