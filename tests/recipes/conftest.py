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


@pytest.fixture(scope="module")
def small():
    """ResNet-18 is a network of four small stages, and no environment speaks of ranks."""
    from labkit.nets import resnet
    from tests.recipes.resnet50_on_ranks import shrink

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resnet, "_DEPTHS", dict(resnet._DEPTHS))
        shrink()
        for name in ("RANK_SIZE", "MS_WORKER_NUM", "OMPI_COMM_WORLD_SIZE"):
            patch.delenv(name, raising=False)
        yield
