"""Check of the data files: the bundled ones, and those that the labs have prepared."""

import gzip
import hashlib
import importlib.util
import zlib
from pathlib import Path
from types import ModuleType

from labkit.base.project import own_checkout
from labkit.tools.doctor.check import Finding


def data(root: Path) -> Finding:
    """Check MNIST and Fashion-MNIST in the checkout ``root`` against their official SHA-256.

    These are in data_scripts/mnist.py, of the checkout that this labkit is imported from: that of
    ``root`` may be anybody's, and is not executed.
    """
    own = own_checkout()
    program = own / "data_scripts" / "mnist.py" if own else None
    if program is None or not program.exists():
        return Finding(True, "nothing to compare with: labkit is not from a checkout")
    if not (root / "data_scripts").is_dir():
        return Finding(True, f"nothing to look at: no {root / 'data_scripts'}")
    mnist = _load(program)
    bundled = root / "data_scripts" / "bundled" / "mnist"
    digests = mnist.DATASETS["mnist"].sha256
    faults = [_fault(bundled / f"{file}.gz", digest) for file, digest in digests.items()]
    if any(faults):
        remedy = f"git checkout -- {bundled} brings the bundled files back"
        return Finding(False, "; ".join(filter(None, faults)), remedy)
    count = len(faults)
    for dataset in mnist.DATASETS.values():
        folder = root / "datasets" / dataset.folder
        for file, digest in dataset.sha256.items():
            path = folder / mnist.FILES[file] / file
            if path.exists():
                count += 1
                if fault := _fault(path, digest):
                    return Finding(False, fault, f"rm -r '{folder}': the labs prepare it again")
    return Finding(True, f"{count} files as published")


def _load(program: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("labkit_data_scripts_mnist", program)
    if spec is None or spec.loader is None:
        raise ImportError(f"{program} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _fault(path: Path, expected: str) -> str:
    """Return what is wrong with a file, unpacked if it is gzip; empty if nothing."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return f"{path} is missing"
    except (OSError, EOFError, zlib.error) as error:
        return f"{path} is damaged: {error}"
    return "" if digest == expected else f"{path} is damaged: its SHA-256 begins {digest[:12]}"
