"""Fixtures of the recipes' tests."""

import importlib.util

import pytest


@pytest.fixture(scope="session")
def digits(root, tmp_path_factory):
    """A function of (training images, validation images) that draws colour digits of 32 pixels."""
    path = root / "data_scripts" / "color_digits.py"
    spec = importlib.util.spec_from_file_location("data_scripts_color_digits_recipes", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    def make(train, val):
        out = tmp_path_factory.mktemp("digits") / "colour"
        return script.prepare(32, train, val, out=out, say=lambda line: None)

    return make
