"""A training needs the base dependencies alone: no Jupyter, no matplotlib, no typer."""

import json
import subprocess
import sys
import tomllib
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROGRAM = """
import importlib.abc, json, sys

BLOCKED = set(json.loads(sys.argv[1]))

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
import own_network
print("accuracy", own_network.main(sys.argv[2], sys.argv[3]))
try:
    import labkit.tools.cli
except SystemExit as end:
    print("command:", end)
"""


def outside_of_base(root):
    """Return the top-level modules of all distributions outside the base dependencies."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    base = _closure(project["dependencies"]) | {"mindspore-labs"}
    owners = metadata.packages_distributions()
    return sorted(
        module
        for module, names in owners.items()
        if not base & {str(canonicalize_name(name)) for name in names}
    )


def _closure(dependencies):
    """Return the names of all packages that ``dependencies`` need, as installed here."""
    seen, waiting = set(), [Requirement(text) for text in dependencies]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in seen and (not requirement.marker or requirement.marker.evaluate()):
            seen.add(name)
            needed = [Requirement(text) for text in metadata.requires(name) or ()]
            waiting += [each for each in needed if "extra" not in str(each.marker)]
    return seen


def test_a_training_with_the_base_dependencies_alone(root, tmp_path):
    blocked = outside_of_base(root)
    assert {"matplotlib", "typer", "IPython", "torch", "hypothesis"} <= set(blocked)
    assert not {"mindspore", "numpy", "tqdm", "yaml", "safetensors"} & set(blocked)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(blocked), str(tmp_path), "accumulation"],
        cwd=root / "examples",
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(root), "HOME": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    accuracy, command = done.stdout.splitlines()[-2:]
    assert float(accuracy.split()[1]) > 0.9
    assert "extra labs" in command and "pip install" in command
