"""The THOR recipe on two ranks: bit-equal to each other, and one process with all the images.

With GroupNorm, which does not look at the other images: an update takes all 20 of them.
"""

import json

import numpy as np
import pytest

from labkit.nets import resnet
from labkit.recipes import resnet50, thor
from tests.recipes import thor_on_ranks
from tests.recipes.resnet50_on_ranks import Kept, group_norm, shrink
from tests.recipes.thor_on_ranks import settings
from tests.support.msrun import msrun
from tests.support.tolerances import TOLERANCE

pytestmark = [pytest.mark.usefixtures("runtime"), pytest.mark.slow]


@pytest.fixture(scope="module")
def data(digits):
    return digits(20, 20)


@pytest.fixture(scope="module")
def ranks(data, root, tmp_path_factory):
    """What both ranks said, their Parameters, and the folder they wrote to."""
    out = tmp_path_factory.mktemp("ranks")
    code, logs = msrun(out, thor_on_ranks.__file__, data, out, root=root)
    assert code == 0, logs
    said = [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(2)]
    return said, [dict(np.load(out / f"rank{rank}.npz")) for rank in range(2)], out


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resnet, "_DEPTHS", dict(resnet._DEPTHS))
        for name in ("_bn", "_bn_last"):
            patch.setattr(resnet, name, getattr(resnet, name))
        patch.setattr(resnet50, "build_network", resnet50.build_network)
        shrink(group_norm)
        kept = Kept()
        config = settings(tmp_path_factory.mktemp("alone") / "run", batch_size=20)
        trained = thor.train(config, data, device="CPU")
        return kept.parameters("thor"), trained


def test_both_ranks_end_with_the_same_weights(ranks):
    first, second = ranks[1]
    assert first and first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


def test_two_ranks_are_one_process(ranks, alone):
    assert ranks[1][0].keys() == alone[0].keys()
    for name, expected in alone[0].items():
        tolerance = TOLERANCE["float32, many updates"]
        np.testing.assert_allclose(ranks[1][0][name], expected, **tolerance, err_msg=name)
    losses = alone[1].records.column("loss")
    assert len(losses) == 2 and ranks[0][0]["losses"] == pytest.approx(losses, rel=1e-4)


def test_the_first_rank_writes_and_prints(ranks):
    out = ranks[2]
    names = {path.name for path in (out / "run" / "ckpt_0").glob("*.ckpt")}
    assert names == {"resnet-1_1.ckpt", "resnet-2_1.ckpt"}
    assert not (out / "run" / "ckpt_1").exists()
    logs = [(out / "log" / f"worker_{rank}.log").read_text() for rank in range(2)]
    assert sum("epoch: 2 step: 1, loss is" in log for log in logs) == 1
    assert ranks[0][0]["evaluation"] == ranks[0][1]["evaluation"]
