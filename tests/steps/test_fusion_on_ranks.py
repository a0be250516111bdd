"""Two ranks that send gradients in messages of several train as with a message for each."""

import numpy as np
import pytest

from tests.support.fusion_on_ranks import INDICES, STEPS
from tests.support.msrun import msrun

pytestmark = [pytest.mark.usefixtures("runtime"), pytest.mark.slow]


@pytest.fixture(scope="module")
def ranks(root, tmp_path_factory):
    out = tmp_path_factory.mktemp("ranks")
    code, logs = msrun(out, root / "tests" / "support" / "fusion_on_ranks.py", out, root=root)
    assert code == 0, logs
    return [dict(np.load(out / f"rank{rank}.npz")) for rank in range(2)]


@pytest.mark.parametrize("kind", STEPS)
def test_weights_are_the_same_to_the_bit(ranks, kind):
    expected = ranks[0][f"{kind}/single"]
    assert np.isfinite(expected).all()
    for name in INDICES:
        for results in ranks:
            np.testing.assert_array_equal(results[f"{kind}/{name}"], expected)


def test_the_steps_do_not_train_alike(ranks):
    weights = [ranks[0][f"{kind}/single"] for kind in STEPS]
    assert all(np.abs(a - b).max() > 1e-4 for a, b in zip(weights, weights[1:], strict=False))
