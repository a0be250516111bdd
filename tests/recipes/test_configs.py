"""scripts/configs holds the settings of every recipe as YAML files, and nothing else."""

from pathlib import Path

import pytest

from labkit.recipes import settings
from tests.support import modules
from tests.support.recipes import NAMES, recipe

SCRIPT = Path(__file__).parents[2] / "scripts" / "write_configs.py"
NAMED = [(module, name) for module in NAMES for name in recipe(module).named]


@pytest.mark.parametrize(("module", "name"), NAMED)
def test_a_file_is_the_named_settings(module, name):
    """It is also what the program writes."""
    expected, file = recipe(module).named[name], f"{module}_{name}.yaml"
    path = SCRIPT.parent / "configs" / file
    assert settings.read(type(expected), path) == expected
    assert path.read_text() == modules.load(SCRIPT, "write_configs").texts()[file]
    assert len(list(path.parent.iterdir())) == len(NAMED)
