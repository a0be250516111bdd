"""The project around a folder, and labkit's version."""

import tomllib
from pathlib import Path

from labkit.errors import InputError

DISTRIBUTION = "mindspore-labs"


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
    """Return the nearest folder from the working folder up that is labkit's project."""
    return next(filter(_is_project, (Path.cwd(), *Path.cwd().parents)), None)


def find_project() -> Path:
    """Return the checkout around the working folder, else labkit's own, or raise InputError."""
    if root := project_root() or own_checkout():
        return root
    raise InputError(f"no labs here: {Path.cwd()} is in no checkout. Change into the clone")


def _is_project(folder: Path) -> bool:
    try:
        settings = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return settings.get("project", {}).get("name") == DISTRIBUTION
