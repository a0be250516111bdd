"""Python files outside packages, as modules."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load(path: Path, name: str) -> ModuleType:
    """Import the file at ``path`` as a new module; no importable module may be called ``name``."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # MindSpore looks here for what it compiles
    spec.loader.exec_module(module)
    return module
