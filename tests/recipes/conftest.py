"""Fixtures for the tests of the recipes."""

import contextlib
import io
from types import SimpleNamespace

import pytest

from labkit.recipes.__main__ import main
from labkit.recipes.training import Recipe
from tests.support.recipes import arguments, kept, settings, shrink


@pytest.fixture(scope="session")
def data(digits):
    """40 + 20 images: four batches per epoch."""
    return digits(40, 20)


@pytest.fixture(scope="module")
def small():
    """Make ResNet-18 a network of four small stages, with no ranks in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        for name in ("RANK_SIZE", "MS_WORKER_NUM", "OMPI_COMM_WORLD_SIZE"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def trained(data, tmp_path_factory):
    """A function: recipe -> ``out``, the folder of all run folders, and this training's ``config``,
    ``folder``, ``printed`` output, ``result`` and ``network``.

    Each recipe is trained once, by its command line; tests read the results and do not change them.
    """
    out, done, train = tmp_path_factory.mktemp("recipes"), {}, Recipe.train

    def get(name):
        if name == "subspace-2":
            get("subspace-1")
        if name not in done:
            shown, results, patched = io.StringIO(), [], pytest.MonkeyPatch.context()
            with patched as patch, contextlib.redirect_stdout(shown), kept() as networks:
                patch.setattr(Recipe, "train", lambda *a, **o: results.append(train(*a, **o)))
                assert main(arguments(name, out, data), "labkit") == 0
            own = {"config": settings(name, out), "out": out, "folder": out / name}
            own |= {"printed": shown.getvalue(), "result": results[0], "network": networks[-1]}
            done[name] = SimpleNamespace(**own)
        return done[name]

    return get
