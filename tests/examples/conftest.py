import importlib

import pytest


@pytest.fixture
def example(root, monkeypatch):
    """Name -> module of an example; by its name, where MindSpore's compiler looks up a Cell's."""
    monkeypatch.syspath_prepend(root / "examples")
    return importlib.import_module
