"""The recipes on two ranks: both end bit-equal, and equal to one process where that is possible.

GroupNorm normalises each image by itself, so two ranks with half of the images each are equivalent
to one process with all of them: an update in these tests takes all 20 images, whatever their order.
BatchNorm normalises over each rank's own images.
"""

import json

import numpy as np
import pytest

from tests.support import recipes_on_ranks
from tests.support.rank_programs import rank_results
from tests.support.recipes import group_norm, interpret, kept, newest, recipe, settings, shrink
from tests.support.step_cells import assert_bit_equal, assert_close, snapshot
from tests.support.tolerances import TOLERANCE

pytestmark = [pytest.mark.usefixtures("runtime"), pytest.mark.slow]

STAGES = ("subspace-1", "subspace-2")
LABELS = ("whole", "resumed", "micro", "thor", "adasum", "adasum resumed", *STAGES)


@pytest.fixture(scope="module")
def data(digits):
    """20 + 19 images, so that one rank evaluates 9 and the other 10."""
    folder = digits(20, 20)
    next((folder / "val" / "3").iterdir()).unlink()
    return folder


@pytest.fixture(scope="module")
def ranks(data, root, tmp_path_factory):
    """The reports of both ranks, their Parameters, and the folder that they wrote to."""
    out = tmp_path_factory.mktemp("ranks")
    arrays = rank_results(out, recipes_on_ranks.__file__, data, out, root=root)
    said = [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(2)]
    return said, arrays, out


def of(arrays, label):
    """Return the Parameters of one training by name."""
    own = {n.partition("/")[2]: v for n, v in arrays.items() if n.startswith(f"{label}/")}
    assert own
    return own


@pytest.mark.parametrize("label", LABELS)
def test_both_ranks_end_with_the_same_weights(ranks, label):
    """Resumed ones, with those of the uninterrupted; a rank of Adasum has its own moments."""
    uninterrupted = {"resumed": "whole", "adasum resumed": "adasum"}.get(label, label)
    expected = of(ranks[1][0], uninterrupted)
    for arrays in ranks[1]:
        assert_bit_equal(of(arrays, label), expected)
    assert ranks[0][0][label] == ranks[0][1][label]


@pytest.mark.parametrize(("name", "label"), [("resnet50", "micro"), ("thor", "thor")])
def test_two_ranks_are_one_process_without_batch_norm(
    ranks, data, tmp_path, monkeypatch, eager, name, label
):
    interpret(monkeypatch)
    shrink(monkeypatch, group_norm)
    with kept() as networks:
        result = recipe(name).train(settings(name, tmp_path, batch_size=20), data, device="CPU")
    assert set(result.records.column("images")) == {20}
    assert_close(
        of(ranks[1][0], label), snapshot(networks[-1]), **TOLERANCE["float32, many updates"]
    )
    losses = ranks[0][0][label]["loss"]
    assert losses == pytest.approx(result.records.column("loss"), rel=1e-4)


def test_evaluation_over_ranks_is_that_of_the_checkpoint(ranks, data, monkeypatch):
    """This includes BatchNorm, whose running statistics differ between ranks in training."""
    said, _, out = ranks
    shrink(monkeypatch)
    config = settings("resnet50", out)
    path = newest(out / "resnet50")
    alone = recipe("resnet50").evaluate_checkpoint(config, data, path, device="CPU")
    over_ranks = said[0]["resumed"]["evaluation"]
    assert over_ranks["top_1_accuracy"] == alone["top_1_accuracy"]
    assert over_ranks["top_5_accuracy"] == alone["top_5_accuracy"]
    assert (over_ranks["top_5_accuracy"] * 19) % 1 == pytest.approx(0, abs=1e-9)
    assert over_ranks["loss"] == pytest.approx(alone["loss"], rel=1e-5)


SECOND = {"checkpoint", "records.csv"}  # of the second rank, in rank_1
DESCRIBED = {*SECOND, "config.json", "classes.json", "rank_1"}
WRITTEN = {
    "resnet50": DESCRIBED | {"resnet-2_1.ckpt", "resnet-3_1.ckpt"},
    "micro/resnet50": DESCRIBED | {"resnet-2_2.ckpt", "resnet-3_2.ckpt"},
    "thor": DESCRIBED | {"train_parallel0", "train_parallel1"},
    "adasum": DESCRIBED | {"device0", "device1"},
    "subspace-1": DESCRIBED | {"device0_stage_1", "device1_stage_1"},
    "subspace-2": DESCRIBED | {"device0_stage_2", "device1_stage_2"},
}


def test_what_is_written(ranks):
    said, _, out = ranks
    for folder, names in WRITTEN.items():
        assert {path.name for path in (out / folder).iterdir()} == names, folder
        assert {path.name for path in (out / folder / "rank_1").iterdir()} == SECOND, folder
    assert not (out / "none").exists()
    assert len((out / "resnet50" / "records.csv").read_text().splitlines()) == 4
    assert len(list((out / "resnet50" / "checkpoint").iterdir())) == 2
    names = {path.name for path in (out / "thor/train_parallel1/ckpt_0").glob("*.ckpt")}
    assert names == {"resnet-1_1.ckpt", "resnet-2_1.ckpt"}
    # 10 images per rank: one step per epoch, a snapshot after each, and their basis.
    (path,) = out.glob("*/*/*/checkpoint_pca/pca_mat.safetensors")
    assert len([*path.parent.glob("step-*")]) == 5


def test_what_is_printed(ranks):
    """Only the first rank prints; an update counts the images of both ranks."""
    logs = [(ranks[2] / "log" / f"worker_{rank}.log").read_text() for rank in range(2)]
    counts = {"= Starting Training =": 4, "= Starting Testing =": 2, "{'Accuracy': ": 2}
    counts |= {"loss is  ": 7, "step: 1, loss is ": 2, "step: 1 loss is ": 10}
    for words, count in (counts | {"20 images in an update": 9}).items():
        assert (logs[0].count(words), logs[1].count(words)) == (count, 0), words
    assert "adasum over 2 workers (1 in each process" in logs[0]


def test_the_search_has_taken_steps(ranks):
    """The weights differ from those that the stage started from."""
    before, after = (of(ranks[1][0], stage) for stage in STAGES)
    assert max(np.abs(after[name] - before[name]).max() for name in after) > 1e-3


def test_both_ranks_refuse(ranks):
    for which, message in {
        "again": "holds an earlier training",
        "disagree": "rank 1 differs from rank 0 in number",
        "config": "rank 1 differs from rank 0 in config",
        "weights": "rank 1 differs from rank 0 in weights",
        "servers": "node_size is 8 and there are 2 ranks; expected a divisor",
    }.items():
        assert all(message in said[which] for said in ranks[0]), which


def test_what_is_gathered_is_bit_exact(ranks):
    for said in ranks[0]:
        assert said["gathered"] == [[1 / 3, -1e300, 0.0], [4 / 3, -1e300, 0.0]]
        assert all(str(row[2]) == "-0.0" for row in said["gathered"])
