"""A training needs the base dependencies alone: no Jupyter, no matplotlib, no typer."""

import json
import subprocess
import sys
import tomllib
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROGRAM = """
import json, sys

sys.modules |= dict.fromkeys(json.loads(sys.argv[1]))  # an import of these raises
import inspect, own_network, labkit
from labkit import *
inspect.getmembers(labkit)  # as help(labkit) does
print("accuracy", own_network.main(sys.argv[2], sys.argv[3]))
try:
    import labkit.tools.cli
except SystemExit as end:
    print("command:", end)
"""


def test_a_training_with_the_base_dependencies_alone(root, tmp_path):
    """Nothing that only an extra of pyproject.toml names can be imported."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    extras = {
        canonicalize_name(Requirement(text).name)
        for texts in project["optional-dependencies"].values()
        for text in texts
    } - {"scipy"}  # MindSpore itself needs it
    owners = metadata.packages_distributions().items()
    blocked = [module for module, names in owners if {*map(canonicalize_name, names)} <= extras]
    assert {"matplotlib", "typer", "torch", "hypothesis"} <= set(blocked)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(blocked), str(tmp_path), "accumulation"],
        cwd=root / "examples",
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(root), "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "later version" not in done.stdout + done.stderr  # MindSpore's word for deprecated
    accuracy, command = done.stdout.splitlines()[-2:]
    assert float(accuracy.split()[1]) > 0.9
    assert "extra labs" in command and "pip install" in command
