"""The Adasum recipe on two ranks: bit-equal to each other, after a resume too."""

import json

import numpy as np
import pytest

from tests.recipes import adasum_on_ranks
from tests.support.msrun import msrun

pytestmark = [pytest.mark.usefixtures("runtime"), pytest.mark.slow]


@pytest.fixture(scope="module")
def ranks(digits, root, tmp_path_factory):
    """What both ranks said, their Parameters, and the folder they wrote to."""
    out = tmp_path_factory.mktemp("ranks")
    code, logs = msrun(out, adasum_on_ranks.__file__, digits(40, 20), out, root=root)
    assert code == 0, logs
    said = [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(2)]
    return said, [dict(np.load(out / f"rank{rank}.npz")) for rank in range(2)], out


def of(arrays, name):
    return {key.split("/", 1)[1]: v for key, v in arrays.items() if key.startswith(f"{name}/")}


def test_both_ranks_end_with_the_same_weights(ranks):
    first, second = (of(arrays, "adasum") for arrays in ranks[1])
    assert first and first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


def test_a_resumed_training_is_the_uninterrupted_one(ranks):
    """Each rank has moments of its own, and takes them from a folder of its own."""
    for arrays in ranks[1]:
        whole, resumed = of(arrays, "adasum"), of(arrays, "resumed")
        assert whole and whole.keys() == resumed.keys()
        for name in whole:
            np.testing.assert_array_equal(resumed[name], whole[name], err_msg=name)


def test_what_is_written(ranks):
    said, _, out = ranks
    assert [one["folder"] for one in said] == ["rank_0", "rank_1"]
    for rank in range(2):
        folder = out / "run" / f"rank_{rank}"
        names = {path.name for path in folder.iterdir()}
        assert names == {"checkpoint", "records.csv", "config.json", "classes.json"}
    assert said[0]["images"] == [20] * 4 and said[0]["losses"] == said[1]["losses"]
    assert said[0]["evaluation"] == said[1]["evaluation"]
    log = (out / "log" / "worker_0.log").read_text()
    assert "20 images in an update" in log and "adasum over 2 workers (1 in each process" in log


def test_the_tutorials_servers_need_their_ranks(ranks):
    for one in ranks[0]:
        assert one["servers"] == "node_size is 8 and there are 2 ranks; expected a divisor"
