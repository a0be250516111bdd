"""Check of the data files: the bundled ones, and those that the labs have prepared."""

import gzip
import hashlib
import importlib.util
import zlib
from pathlib import Path

from labkit.base.project import own_checkout
from labkit.tools.doctor.check import Check


def data(root: Path) -> Check:
    """Check MNIST and Fashion-MNIST in the checkout ``root`` against their official SHA-256.

    These are in data_scripts/mnist.py, of the checkout that this labkit is imported from: that of
    ``root`` may be anybody's, and is not executed.
    """
    name = "Data"
    own = own_checkout()
    program = own / "data_scripts" / "mnist.py" if own else None
    if program is None or not program.exists():
        return Check(name, True, "nothing to compare with: labkit is not from a checkout", "")
    if not (root / "data_scripts").is_dir():
        return Check(name, True, f"nothing to look at: no {root / 'data_scripts'}", "")
    known = _load(program)
    bundled = root / "data_scripts" / "bundled" / "mnist"
    broken, seen = [], 0
    for file, expected in known.DATASETS["mnist"].sha256.items():
        seen += 1
        if fault := _fault(bundled / f"{file}.gz", expected):
            broken.append(f"{bundled / file}.gz {fault}")
    if broken:
        remedy = f"git checkout -- {bundled} brings the bundled files back"
        return Check(name, False, "; ".join(broken), remedy)
    for dataset in known.DATASETS.values():
        folder = root / "datasets" / dataset.folder
        for file, expected in dataset.sha256.items():
            place = folder / known.FILES[file] / file
            if place.exists():
                seen += 1
                if fault := _fault(place, expected):
                    remedy = f"rm -r '{folder}': the labs prepare it again"
                    return Check(name, False, f"{place} {fault}", remedy)
    return Check(name, True, f"{seen} files as published", "")


def _load(program: Path):
    spec = importlib.util.spec_from_file_location("labkit_data_scripts_mnist", program)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _fault(path: Path, expected: str) -> str:
    """Return what is wrong with a file, unpacked if it is gzip; empty if nothing."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return "is missing"
    except (OSError, EOFError, zlib.error) as error:
        return f"is damaged: {error}"
    return "" if digest == expected else f"is damaged: its SHA-256 begins {digest[:12]}"
