"""scripts/configs holds the settings of every recipe as YAML files, and nothing else."""

from pathlib import Path

import pytest

from labkit.errors import InputError
from labkit.recipes import adasum, settings, thor
from tests.support import modules
from tests.support.recipes import NAMES, recipe

SCRIPT = Path(__file__).parents[2] / "scripts" / "write_configs.py"
NAMED = [(module, name) for module in NAMES for name in recipe(module).named]


@pytest.mark.parametrize(("module", "name"), NAMED)
def test_a_file_is_the_named_settings(module, name):
    expected = recipe(module).named[name]
    path = SCRIPT.parent / "configs" / f"{module}_{name}.yaml"
    assert settings.read(type(expected), path) == expected


def test_the_files_are_those_that_the_program_writes():
    program = modules.load(SCRIPT, "write_configs")
    there = {path.name: path.read_text() for path in (SCRIPT.parent / "configs").iterdir()}
    assert there == program.texts()


def test_the_bare_word_on_is_a_setting(tmp_path):
    """YAML 1.1 reads it as True; a recipe without this setting refuses it as unknown."""
    path = tmp_path / "a.yaml"
    path.write_text("on: gradients\n")
    assert settings.read(adasum.AdasumConfig, path).on == "gradients"
    with pytest.raises(InputError, match="unknown setting 'on'"):
        settings.read(thor.ThorConfig, path)
