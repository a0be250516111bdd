"""Real faults for the doctor to find: environments, projects, sockets, variables, limits."""

import json
import os
import shutil
import site
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def environment(folder: Path) -> Path:
    """Make a virtual environment with this one's packages, each a link; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    for entry in packages(Path(sys.prefix)).iterdir():
        (packages(folder) / entry.name).symlink_to(entry)
    (folder / "bin/msrun").symlink_to(Path(sys.executable).parent / "msrun")
    return folder / "bin/python"


def packages(prefix: Path) -> Path:
    """The site-packages of an environment."""
    if prefix == Path(sys.prefix):
        return Path(site.getsitepackages()[0])
    return prefix / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def take_away(prefix: Path, *names: str) -> None:
    """Uninstall packages from an environment of links: the package, and what pip knows of it."""
    for name in names:
        for entry in (name, f"{name}-{installed(name)}.dist-info"):
            (packages(prefix) / entry).unlink()


def put_back(prefix: Path, *names: str) -> None:
    """Install them again, as `pip install -c constraints.txt` does."""
    for name in names:
        for entry in (name, f"{name}-{installed(name)}.dist-info"):
            place = packages(prefix) / entry
            shutil.rmtree(place, ignore_errors=True)
            place.unlink(missing_ok=True)
            place.symlink_to(packages(Path(sys.prefix)) / entry)
        for other in packages(prefix).glob(f"{name}-*.dist-info"):
            if other.name != f"{name}-{installed(name)}.dist-info":
                shutil.rmtree(other)


def installed(name: str) -> str:
    """The version of a package here."""
    from importlib import metadata

    return metadata.version(name)


def another_version(prefix: Path, name: str, version: str) -> None:
    """Let an environment hold ``name`` in another version: in its metadata, and if asked."""
    old = packages(prefix) / f"{name}-{installed(name)}.dist-info"
    text = (old / "METADATA").read_text(encoding="utf-8")
    old.unlink()
    new = packages(prefix) / f"{name}-{version}.dist-info"
    new.mkdir()
    stated = text.replace(f"\nVersion: {installed(name)}\n", f"\nVersion: {version}\n", 1)
    assert stated != text
    (new / "METADATA").write_text(stated, encoding="utf-8")


def numpy_2(prefix: Path) -> None:
    """numpy as it is, except that it says it is 2.2.6, in its metadata and when imported."""
    another_version(prefix, "numpy", "2.2.6")
    place = packages(prefix) / "numpy"
    real = place.resolve()
    place.unlink()
    place.mkdir()
    for entry in real.iterdir():
        if entry.name != "__init__.py":
            (place / entry.name).symlink_to(entry)
    text = (real / "__init__.py").read_text(encoding="utf-8")
    (place / "__init__.py").write_text(text + '\n__version__ = "2.2.6"\n', encoding="utf-8")


def project(folder: Path) -> Path:
    """Make a checkout: labkit's code, its pins, and the bundled data, committed to git."""
    folder.mkdir()
    shutil.copytree(ROOT / "labkit", folder / "labkit", ignore=_CACHES)
    shutil.copytree(ROOT / "data_scripts", folder / "data_scripts", ignore=_CACHES)
    (folder / "notebooks").mkdir()
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    author = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    for command in (["init", "-q"], ["add", "data_scripts"], [*author, "commit", "-qm", "Data"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


_CACHES = shutil.ignore_patterns("__pycache__", "kernel_meta", "rank_[0-9]*")


@dataclass
class Shell:
    """A person's shell: where it is, whose Python it has, and its environment."""

    python: Path
    folder: Path
    labkit: Path = ROOT
    variables: dict[str, str] = field(default_factory=dict)
    before: str = "true"

    def doctor(self, *names: str, wrapped: tuple[str, ...] = ()) -> tuple[int, dict[str, dict]]:
        """Run `labkit doctor --json NAMES`; return its exit code and what it found, by name.

        wrapped  a command that runs it, such as unshare
        """
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("ONEDNN", "MS_", "PYTEST", "GLOG", "JUPYTER", "LABKIT"))
        }
        variables = {**inherited, "PYTHONPATH": str(self.labkit), **self.variables}
        # -P: labkit comes from PYTHONPATH, as an installed one would, and not from this folder.
        call = f"{self.before} && exec '{self.python}' -P -m labkit.tools.cli doctor --json"
        done = subprocess.run(
            [*wrapped, "bash", "-c", f"{call} {' '.join(names)}"],
            cwd=self.folder,
            env=variables,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert lines, done.stderr
        return done.returncode, {line["name"]: line for line in lines}
