"""Fixtures for the tests of the recipes."""

import contextlib
import io
from types import SimpleNamespace

import pytest

from labkit.recipes.training import Recipe
from tests.support.recipes import Kept, main, shrink, values


@pytest.fixture(scope="session")
def data(digits):
    """40 + 20 images: four batches per epoch."""
    return digits(40, 20)


@pytest.fixture(scope="module")
def small():
    """Make ResNet-18 a network of four small stages, with no ranks in the environment."""
    from labkit.nets import resnet

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resnet, "_DEPTHS", dict(resnet._DEPTHS))
        shrink()
        for name in ("RANK_SIZE", "MS_WORKER_NUM", "OMPI_COMM_WORLD_SIZE"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def trained(data, tmp_path_factory):
    """A function: recipe -> ``out``, the folder of all run folders, and this training's
    ``printed`` output, ``result`` and ``network``.

    Each recipe is trained once, by its command line; tests read the results and do not change them.
    """
    out, done, train = tmp_path_factory.mktemp("recipes"), {}, Recipe.train

    def get(name):
        if name == "subspace-2":
            get("subspace-1")
        if name not in done:
            arguments = ["train", "--dataset_path", str(data), "--device_target", "CPU"]
            for setting, value in values(name, out).items():
                arguments += [f"--{setting}", str(value)]
            shown, results, kept = io.StringIO(), [], Kept()
            with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(shown):
                patch.setattr(Recipe, "train", lambda *a, **o: results.append(train(*a, **o)))
                assert main(name, arguments) == 0
            kept.undo()
            done[name] = SimpleNamespace(
                out=out, printed=shown.getvalue(), result=results[0], network=kept.networks[-1]
            )
        return done[name]

    return get
