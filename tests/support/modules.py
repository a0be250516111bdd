"""Python files outside packages, as modules."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load(path: Path, name: str) -> ModuleType:
    """Import the file at ``path`` anew; ``name`` is that of no module that can be imported."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # MindSpore looks there for what it compiles
    spec.loader.exec_module(module)
    return module
