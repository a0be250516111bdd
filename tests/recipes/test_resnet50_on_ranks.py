"""The recipe on two ranks: bit-equal to each other, and to one process as far as that can be.

With GroupNorm, which does not look at the other images, two ranks with half of the images each are
one process with all of them: an update here takes all 20 images, whatever their order. BatchNorm
normalises each rank's images by themselves.
"""

import json

import numpy as np
import pytest

from labkit.recipes import resnet50
from tests.recipes import resnet50_on_ranks
from tests.recipes.resnet50_on_ranks import Kept, group_norm, settings, shrink
from tests.support.msrun import msrun
from tests.support.tolerances import TOLERANCE

pytestmark = [pytest.mark.usefixtures("runtime"), pytest.mark.slow]


@pytest.fixture(scope="module")
def data(digits):
    """20 + 19 images, so that the ranks evaluate 9 and 10."""
    folder = digits(20, 20)
    next((folder / "val" / "3").iterdir()).unlink()
    return folder


@pytest.fixture(scope="module")
def ranks(data, root, tmp_path_factory):
    """What both ranks said, their parameters, and the folder they wrote to."""
    out = tmp_path_factory.mktemp("ranks")
    code, logs = msrun(out, resnet50_on_ranks.__file__, data, out, root=root)
    assert code == 0, logs
    said = [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(2)]
    return said, [dict(np.load(out / f"rank{rank}.npz")) for rank in range(2)], out


def of(arrays, training, statistics=True):
    """Parameters of one training by name."""
    found = {
        name.partition("/")[2]: value
        for name, value in arrays.items()
        if name.startswith(f"{training}/") and (statistics or "moving" not in name)
    }
    assert found
    return found


@pytest.mark.parametrize("training", ["whole", "resumed", "groups", "micro"])
def test_both_ranks_end_with_the_same_weights(ranks, training):
    first, second = (of(arrays, training) for arrays in ranks[1])
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


def test_a_resumed_training_is_the_uninterrupted_one(ranks):
    whole, resumed = (of(ranks[1][0], name) for name in ("whole", "resumed"))
    for name in whole:
        np.testing.assert_array_equal(resumed[name], whole[name], err_msg=name)


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    """One process with the images of both ranks in each update, with GroupNorm."""
    with pytest.MonkeyPatch.context() as patch:
        tiny(patch)
        shrink(group_norm)
        kept = Kept()
        config = settings(tmp_path_factory.mktemp("alone") / "run", batch_size=20)
        trained = resnet50.train(config, data, device="CPU")
        return kept.parameters("alone"), trained


def tiny(patch):
    """Let ``shrink`` change what it changes, until the patch is undone."""
    from labkit.nets import resnet

    patch.setattr(resnet, "_DEPTHS", dict(resnet._DEPTHS))
    for name in ("_bn", "_bn_last"):
        patch.setattr(resnet, name, getattr(resnet, name))
    patch.setattr(resnet50, "build_network", resnet50.build_network)


@pytest.mark.parametrize("training", ["groups", "micro"])
def test_two_ranks_are_one_process_without_batch_norm(ranks, alone, training):
    expected = of(alone[0], "alone")
    came = of(ranks[1][0], training)
    assert came.keys() == expected.keys()
    for name in expected:
        tolerance = TOLERANCE["float32, many updates"]
        np.testing.assert_allclose(came[name], expected[name], **tolerance, err_msg=name)


def test_three_updates_of_all_images_were_made(alone):
    assert alone[1].records.column("images") == [20, 20, 20]


def test_evaluation_over_ranks_is_that_of_the_checkpoint(ranks, data, monkeypatch):
    """Also with BatchNorm, whose running statistics differ from rank to rank in training."""
    said, _, out = ranks
    assert said[0]["evaluation"] == said[1]["evaluation"]
    tiny(monkeypatch)
    shrink()
    newest = max((out / "run" / "checkpoint").iterdir())
    config = settings(out / "run")
    found = resnet50.evaluate_checkpoint(config, data, newest, device="CPU")
    came = said[0]["evaluation"]
    assert came["top_1_accuracy"] == found["top_1_accuracy"]
    assert came["top_5_accuracy"] == found["top_5_accuracy"]
    assert (came["top_5_accuracy"] * 19) % 1 == pytest.approx(0, abs=1e-9)
    assert came["loss"] == pytest.approx(found["loss"], rel=1e-5)


def test_only_one_rank_writes(ranks):
    said, _, out = ranks
    assert said[0]["rows"] == said[1]["rows"] and len(said[0]["rows"]) == 3
    lines = (out / "run" / "records.csv").read_text().splitlines()
    assert len(lines) == 4
    folders = {"run", "groups", "micro", "log"}
    assert {path.name for path in out.iterdir() if path.is_dir()} - {"rank_0", "rank_1"} == folders
    assert len(list((out / "run" / "checkpoint").iterdir())) == 3


def test_an_earlier_training_is_refused_on_both(ranks):
    for said in ranks[0]:
        assert "holds an earlier training" in said["again"]


@pytest.mark.parametrize(
    ("which", "name"), [("disagree", "number"), ("config", "config"), ("weights", "weights")]
)
def test_ranks_that_disagree_are_told_so(ranks, which, name):
    for said in ranks[0]:
        assert said[which].startswith(f"rank 1 has another {name} than rank 0")
    assert not (ranks[2] / "none").exists()


def test_what_is_gathered_is_bit_exact(ranks):
    for said in ranks[0]:
        assert said["gathered"] == [[1 / 3, -1e300, 0.0], [4 / 3, -1e300, 0.0]]
        assert all(str(row[2]) == "-0.0" for row in said["gathered"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--device_num", "3"), "device_num is 3, and 2 ranks were started"),
        (("--set", "save_checkpoint_steps=2", "--set", "micro_steps=2"), "on several ranks"),
    ],
)
def test_what_does_not_fit_ends_all_ranks(root, data, tmp_path, options, message):
    program = ("python", "-m", "labkit.recipes.resnet50", "train", "--dataset_path", data)
    code, logs = msrun(tmp_path, *program, "--run_distribute", "True", *options, root=root)
    assert code != 0 and message in logs
    assert not (tmp_path / "runs").exists()
