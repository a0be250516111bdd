"""The same weights as MindSpore's own dimension reduction, where that works as written.

It works with two trials, on one rank, without a loss scale, and if ``Model`` is given metrics.
"""

import json

import numpy as np
import pytest
from mindspore import nn

from labkit.algorithms.subspace import SubspaceStep
from tests.support.boost_child import CONSTANTS
from tests.support.programs import run_code
from tests.support.step_cells import snapshot, tensors
from tests.support.subspace_cells import basis_of, parts_of, small, small_rows, small_weights

pytestmark = [pytest.mark.usefixtures("runtime"), pytest.mark.slow]

COMPONENTS, STEPS = 5, 5
# The second case requires more decrease than most steps give; its residual moves the weights too.
CASES = {
    "as the source": CONSTANTS,
    "asking for more": {"rho": 0.55, "gamma": 0.7, "alpha": 0.3, "sigma": 0.95},
}


def theirs(folder, constants):
    """Return the weights of each step, by name, of MindSpore's Model and its boost."""
    network, _ = small()
    names = [p.name for p in network.trainable_params()]
    batches = [small_rows(16, seed=step) for step in range(STEPS)]
    images, labels = (np.stack(part) for part in zip(*batches, strict=True))
    given = dict(zip(names, parts_of(small_weights()), strict=True))
    given |= {"images": images, "labels": labels, "components": np.int64(COMPONENTS)}
    np.savez(folder / "given.npz", **given)
    np.save(folder / "pca_mat.npy", basis_of(network.trainable_params(), COMPONENTS).matrix)
    (folder / "constants.json").write_text(json.dumps(constants))
    code = "import sys, pathlib; from tests.support.boost_child import main; "
    done = run_code(code + "main(pathlib.Path(sys.argv[1]))", folder)
    assert done.returncode == 0, done.stderr
    return dict(np.load(folder / "weights.npz"))


@pytest.mark.parametrize("constants", CASES.values(), ids=CASES)
def test_five_steps_are_those_of_mindspore_boost(constants, tmp_path):
    network, loss_net = small()
    sgd = nn.SGD(network.trainable_params(), 1.0)
    basis = basis_of(sgd.parameters, COMPONENTS)
    step = SubspaceStep(loss_net, sgd, basis, **constants, trials=2, failure="rollback")
    reached, searches = [], []
    for number in range(STEPS):
        step(*tensors(*small_rows(16, seed=number)))
        reached.append(snapshot(network))
        searches.append(step.last_search)
    expected = theirs(tmp_path, constants)
    assert reached[0].keys() == expected.keys() and len(expected) == 4
    for name, values in expected.items():
        assert len(values) == STEPS and np.abs(np.diff(values, axis=0)).max() > 1e-3
        actual = np.stack([weights[name] for weights in reached])
        np.testing.assert_allclose(actual, values, rtol=1e-5, atol=1e-5, err_msg=name)
    # There are searches of one and of two trials, and a failed one that others followed.
    assert {search.trials for search in searches} == {1, 2}
    assert 0 < searches[-2].failures < STEPS - 1
