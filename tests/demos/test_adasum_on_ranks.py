"""The program that lab 04 starts: real ranks get the weights of virtual workers in a process."""

import numpy as np
import pytest

import labkit
from labkit.data.mnist import load_arrays
from labkit.data.prepare import prepare
from labkit.demos import adasum_on_ranks as demo
from labkit.labs.compare import parameter_values
from labkit.runtime import pynative


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3])
def test_two_ranks_hold_the_weights_of_two_virtual_workers(runtime, tmp_path, seed):
    updates = 2
    images, labels = load_arrays(prepare("mnist"), "train", updates * 2 * demo.BATCH)
    module = "labkit.demos.adasum_on_ranks"
    labkit.launch(
        "-m", module, tmp_path, "--updates", updates, "--seed", seed, workers=2, timeout=300
    )
    first, second = (np.load(tmp_path / f"rank_{rank}.npz") for rank in range(2))

    step = demo.make_step(seed, workers=2)
    before = parameter_values(step.gradient.loss_net)
    with pynative():
        assert demo.train([step], images, labels, updates)[0] > 0
    values = parameter_values(step.gradient.loss_net)
    assert set(values) | {"ms_mean", "ms_adasum"} == set(first) and len(values) == 8
    for name, value in values.items():
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
        np.testing.assert_allclose(first[name], value, rtol=0, atol=1e-6, err_msg=name)
        assert np.abs(value - before[name]).max() > 1e-5, name
