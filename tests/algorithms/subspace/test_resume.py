"""What a search does not resume: the middle of a group, another basis, other constants.

That a resumed one ends as the uninterrupted one is in tests/training/test_resume.py.
"""

import pytest
from mindspore import nn

from labkit.algorithms.subspace import SubspaceStep
from labkit.errors import InputError
from labkit.steps.losses import LossNet
from labkit.training import checkpoint
from labkit.training.resume import differing
from tests.support.step_cells import assert_bit_equal, snapshot, tensors
from tests.support.subspace_cells import basis_of
from tests.support.trainings import images_and_labels, loss_fn, network

pytestmark = [
    pytest.mark.usefixtures("eager"),
    pytest.mark.filterwarnings("ignore:the network holds a trainable BatchNorm"),
]


def make(seed=0, **options):
    """A search with everything that has a state: B, residual, Adam's moments, BatchNorm."""
    net = network(norm=True)
    parameters = net.trainable_params()
    adam = nn.Adam(parameters, nn.ExponentialDecayLR(0.02, 0.9, 1))
    basis = basis_of(parameters, 6, seed=seed)
    return SubspaceStep(LossNet(net, loss_fn()), adam, basis, alpha=0.5, **options)


def test_in_the_middle_of_a_group_it_refuses_to_go_on(tmp_path):
    """A checkpoint of another hand's making lacks the group's rows: nothing is guessed."""
    step = make(micro_steps=2)
    images, labels = images_and_labels(4)
    batch = tensors(images.reshape(4, 1, 4, 4) / 60, labels)
    assert step.can_be_saved
    step(*batch)
    assert not step.can_be_saved
    checkpoint.write(step, tmp_path / "middle.ckpt")
    step(*batch)
    assert step.can_be_saved and step.last_update.number == 1
    checkpoint.load_into(step, checkpoint.read(tmp_path / "middle.ckpt"))
    before = snapshot(step)
    for go_on in (lambda: step(*batch), step.end_epoch):
        with pytest.raises(InputError, match="the sums of 1 micro-batches and not their rows"):
            go_on()
    assert_bit_equal(snapshot(step), before)


DIFFERENT = {
    "seed": 1,
    "rho": 0.5,
    "sigma": 0.3,
    "trials": 2,
    "gamma": 0.8,
    "curvature": 0.1,
    "start": "scaled",
    "failure": "rollback",
    "micro_steps": 2,
    "tail": "drop",
}


def test_another_basis_and_other_constants_are_not_resumed():
    """Their settings differ, which ``fit`` compares before it touches anything."""
    settings = make().settings
    for name, value in DIFFERENT.items():
        here, _ = differing(make(**{name: value}).settings, settings)
        assert list(here) == ["basis" if name == "seed" else name]
