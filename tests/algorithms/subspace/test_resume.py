"""A search does not resume in the middle of a group.

tests/training/test_resume.py shows that a resumed search ends as the uninterrupted one does, and
../test_other_options.py that another basis and other constants are refused.
"""

import pytest

from labkit.errors import InputError
from labkit.training import checkpoint
from tests.support.resuming import subspace
from tests.support.step_cells import tensors, unchanged
from tests.support.trainings import images_and_labels

pytestmark = [
    pytest.mark.usefixtures("eager"),
    pytest.mark.filterwarnings("ignore:the network holds a trainable BatchNorm"),
]


def test_in_the_middle_of_a_group_it_refuses_to_go_on(tmp_path):
    """A checkpoint from other code lacks the group's rows, and the step does not guess them."""
    step = subspace(micro_steps=2)
    images, labels = images_and_labels(4)
    batch = tensors(images.reshape(4, 1, 4, 4) / 60, labels)
    assert step.update.can_be_saved
    step(*batch)
    assert not step.update.can_be_saved
    checkpoint.write(step, tmp_path / "middle.ckpt")
    step(*batch)
    assert step.update.can_be_saved and step.last_update.number == 1
    checkpoint.load_into(step, checkpoint.read(tmp_path / "middle.ckpt"))
    with unchanged(step):
        for go_on in (lambda: step(*batch), step.end_epoch):
            with pytest.raises(InputError, match="the sums of 1 micro-batches and not their rows"):
                go_on()
