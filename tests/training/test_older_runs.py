"""What labkit wrote at commit 05d87d6 can be resumed, compared and reported today.

``fixtures/run_05d87d6.tar.gz`` holds five trainings of one epoch, with the steps of that commit,
their state after an uninterrupted second epoch (``NAME-2.npz``), and a run of lab 01 at preset
smoke.
"""

import shutil
import tarfile
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from labkit import AccumulatedStep, AdasumStep, LossNet, PlainStep, SubspaceStep, ThorStep
from labkit.algorithms.subspace import Basis, basis_of
from labkit.errors import InputError
from labkit.training.fit import fit
from labkit.training.records import read_records

FIXTURE = Path(__file__).parents[1] / "fixtures" / "run_05d87d6.tar.gz"
STEPS = ("plain", "accumulated", "thor", "adasum", "subspace")

pytestmark = pytest.mark.usefixtures("runtime")


@pytest.fixture(autouse=True)
def seeded():
    """Set the trainings' seed; another test in this process may have set its own."""
    ms.dataset.config.set_seed(1)


@pytest.fixture(scope="module")
def older(tmp_path_factory):
    folder = tmp_path_factory.mktemp("older")
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def batches():
    import mindspore.dataset as ds

    random = np.random.default_rng(5)
    x = random.normal(size=(24, 3)).astype(np.float32)
    y = random.normal(size=(24, 2)).astype(np.float32)
    return ds.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(4)


def build(name, folder, clip_norm=0.5):
    random = np.random.default_rng(1)
    network = nn.Dense(3, 2)
    network.weight.set_data(Tensor(random.normal(size=(2, 3)).astype(np.float32)))
    network.bias.set_data(Tensor(random.normal(size=2).astype(np.float32)))
    loss_net = LossNet(network, nn.MSELoss())
    momentum = nn.Momentum(network.trainable_params(), 0.05, 0.9)
    if name == "plain":
        return PlainStep(loss_net, momentum)
    if name == "accumulated":
        return AccumulatedStep(loss_net, momentum, 4, clip_norm=clip_norm, tail="carry")
    if name == "thor":
        return ThorStep(loss_net, momentum, [0.3] * 20, frequency=4, loss="sample mean")
    if name == "adasum":
        return AdasumStep(loss_net, momentum, workers=2)
    sgd = nn.SGD(network.trainable_params(), 1.0)
    basis = basis_of(folder / "basis.npy", folder / "plain" / "snapshots", network, 2, report=print)
    return SubspaceStep(loss_net, sgd, basis, micro_steps=2)


@pytest.mark.parametrize("name", STEPS)
def test_a_training_goes_on_to_the_same_bits(name, older, tmp_path, capsys):
    shutil.copytree(older, tmp_path, dirs_exist_ok=True)
    step = build(name, tmp_path)
    records = fit(step, batches(), 2, folder=tmp_path / name, resume=True, progress=None)
    said = capsys.readouterr().out
    assert "resumed after micro-batch 6" in said
    assert name != "subspace" or "basis loaded from" in said
    with np.load(tmp_path / f"{name}-2.npz") as expected:
        state = {parameter.name: parameter.asnumpy() for parameter in step.get_parameters()}
        assert set(expected.files) == set(state)
        for parameter in expected.files:
            np.testing.assert_array_equal(state[parameter], expected[parameter], parameter)
    rows = read_records(tmp_path / name / "records.csv").rows
    assert len(rows) == len(records) == int(step.updates.asnumpy())
    assert ("step_size" in rows[0]) == (name == "subspace")


def test_another_setting_is_refused(older, tmp_path):
    shutil.copytree(older / "accumulated", tmp_path / "accumulated")
    other = build("accumulated", tmp_path, clip_norm=0.6)
    with pytest.raises(InputError, match="clip_norm"):
        fit(other, batches(), 2, folder=tmp_path / "accumulated", resume=True, progress=None)


def test_its_basis_is_read(older):
    assert Basis.load(older / "basis.npy").matrix.shape == (2, 8)


def test_its_lab_is_reported_and_compared(older, tmp_path, capsys):
    from labkit.tools.cli import app

    run = older / "run"
    page = tmp_path / "page.html"
    shutil.copytree(run, tmp_path / "again")
    for command in (["compare", run, tmp_path / "again"], ["report", run, "--out", page]):
        with pytest.raises(SystemExit) as end:
            app([str(word) for word in command])
        assert end.value.code == 0, capsys.readouterr()
    assert "no differences" in capsys.readouterr().out
    text = page.read_text()
    assert "01_gradient_accumulation" in text and "passed" in text
