"""Fixtures that every test may ask for."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's root folder."""
    return ROOT


@pytest.fixture(scope="session")
def runtime():
    """MindSpore started as every lab starts it, on CPU with seed 1."""
    from labkit.runtime import start

    return start(device="CPU", seed=1)


@pytest.fixture(scope="session")
def mnist(tmp_path_factory) -> Path:
    """The bundled MNIST, unpacked: a folder with train/ and test/."""
    spec = importlib.util.spec_from_file_location(
        "data_scripts_mnist", ROOT / "data_scripts/mnist.py"
    )
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script.prepare(out=tmp_path_factory.mktemp("datasets") / "MNIST_Data")
