"""Both stages of dimension reduction on two ranks."""

import json

import numpy as np
import pytest

from tests.recipes import subspace_on_ranks
from tests.support.msrun import msrun

pytestmark = [pytest.mark.usefixtures("runtime"), pytest.mark.slow]


@pytest.fixture(scope="module")
def ranks(digits, root, tmp_path_factory):
    """What both ranks said, their Parameters, and the folder they wrote to."""
    out = tmp_path_factory.mktemp("ranks")
    code, logs = msrun(out, subspace_on_ranks.__file__, digits(40, 20), out, root=root)
    assert code == 0, logs
    said = [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(2)]
    return said, [dict(np.load(out / f"rank{rank}.npz")) for rank in range(2)], out


@pytest.mark.parametrize("stage", ["stage_1", "stage_2"])
def test_both_ranks_end_with_the_same_weights(ranks, stage):
    first, second = ranks[1]
    names = [name for name in first if name.startswith(stage)]
    assert names and first.keys() == second.keys()
    for name in names:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
    assert ranks[0][0][stage] == ranks[0][1][stage]
    assert ranks[0][0][f"{stage} evaluation"] == ranks[0][1][f"{stage} evaluation"]


def test_the_first_rank_alone_writes_and_prints(ranks):
    out = ranks[2]
    for stage, more in (("stage_1", {"checkpoint_pca"}), ("stage_2", set())):
        names = {path.name for path in (out / stage).iterdir()}
        assert names == {"checkpoint", "records.csv", "config.json", "classes.json"} | more
    names = sorted(path.name for path in (out / "stage_1" / "checkpoint_pca").iterdir())
    # 20 images a rank: two steps an epoch, a snapshot after each, the newest five kept.
    snapshots = [f"step-{number:09d}.safetensors" for number in range(2, 7)]
    assert names == ["pca_mat.json", "pca_mat.npy", *snapshots]
    logs = [(out / "log" / f"worker_{rank}.log").read_text() for rank in range(2)]
    for words in ("= Starting Training =", "= Starting Testing =", "{'Accuracy': ", "loss is  "):
        assert logs[0].count(words) >= 2 and words not in logs[1]


def test_the_search_has_taken_steps(ranks):
    """Two epochs of two steps: the weights are not those that the stage has started from."""
    first = ranks[1][0]
    moved = [
        np.abs(first[name] - first[name.replace("stage_2/", "stage_1/")]).max()
        for name in first
        if name.startswith("stage_2/")
    ]
    assert len(ranks[0][0]["stage_2"]) == 4 and max(moved) > 1e-3
