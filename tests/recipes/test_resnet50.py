"""The ResNet-50 recipe: how it writes, resumes, evaluates, and refuses wrong input.

The network is a small ResNet-18: four convolutions of 4 to 16 channels on images of 32 pixels.
"""

import shutil
import traceback
from dataclasses import replace

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from mindspore.train import Callback

from labkit.errors import InputError
from labkit.nets import resnet
from labkit.recipes import training
from labkit.recipes.resnet50 import RECIPE
from labkit.steps import schedules
from labkit.training import checkpoint
from tests.support.recipes import kept, newest, settings
from tests.support.step_cells import assert_bit_equal, snapshot

pytestmark = pytest.mark.usefixtures("runtime", "small")


def train(config, data, **options):
    """Train; return (the result of ``train``, the network)."""
    with kept() as networks:
        return RECIPE.train(config, data, device="CPU", **options), networks[-1]


def evaluated(config, data, path):
    return RECIPE.evaluate_checkpoint(config, data, path, device="CPU")


@pytest.fixture
def done(trained):
    """A training of three epochs."""
    return trained("resnet50")


def checkpoints(folder):
    return sorted(int(path.stem[-9:]) for path in (folder / "checkpoint").iterdir())


class TestTrain:
    def test_losses_rates_and_checkpoints(self, done):
        """The loss falls, the rates follow the schedule, and at most two checkpoints are kept."""
        losses = done.result.records.column("loss")
        assert len(losses) == 12 and np.mean(losses[-3:]) < np.mean(losses[:3]) - 0.02
        rates = np.float32(done.result.records.column("learning_rate"))
        np.testing.assert_array_equal(rates, schedules.cosine(0.05, 0.0, 3, 4, 1))
        assert checkpoints(done.folder) == [8, 12]

    @pytest.mark.filterwarnings("ignore:the network holds a trainable BatchNorm")
    def test_a_folder_of_classes_without_evaluation_nor_checkpoints(self, data, tmp_path):
        """The folder is the document's own --dataset_path; ``resume`` finds no checkpoint."""
        changed = dict(epoch_size=1, micro_steps=3, save_checkpoint=False)
        config = settings("resnet50", tmp_path, **changed)
        result, _ = train(config, data / "train", resume=True)
        assert result.evaluation is None and result.records.column("images") == [30, 10]
        names = {path.name for path in (tmp_path / "resnet50").iterdir()}
        assert names == {"config.json", "classes.json", "records.csv"}


class Stop(Callback):
    """Ends a training as a kill would, after 7 micro-batches."""

    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num == 7:
            raise KeyboardInterrupt


class TestResume:
    def test_killed_within_an_epoch_it_is_the_uninterrupted_one(self, done, data, tmp_path):
        """Checkpoints: every 5 steps and 2 epochs; the document's train.py configures neither."""
        often = dict(save_checkpoint_steps=5, save_checkpoint_epochs=2, keep_checkpoint_max=9)
        config, fit = settings("resnet50", tmp_path, **often), training.fit
        with pytest.MonkeyPatch.context() as patch:

            def interrupted(*given, callbacks, **options):
                return fit(*given, callbacks=[*callbacks, Stop()], **options)

            patch.setattr(training, "fit", interrupted)
            with pytest.raises(KeyboardInterrupt):
                train(config, data)
        assert checkpoints(tmp_path / "resnet50") == [5]
        result, network = train(config, data, resume=True)
        assert_bit_equal(snapshot(network), snapshot(done.network))
        assert result.records.column("loss") == done.result.records.column("loss")
        assert result.evaluation == done.result.evaluation
        assert checkpoints(tmp_path / "resnet50") == [5, 8, 10, 12]

    def test_a_finished_training_is_evaluated_again_and_another_refused(self, done, data):
        result, network = train(done.config, data, resume=True)
        assert result.evaluation == done.result.evaluation
        assert_bit_equal(snapshot(network), snapshot(done.network))
        before = (done.folder / "config.json").read_text()
        for changed, message in (
            ({"lr": 0.06}, "recipe.lr: expected 0.05, as in the checkpoint, got 0.06"),
            ({"initialiser": "seed"}, "recipe.initialiser: expected torchvision"),
        ):
            with pytest.raises(InputError, match=f"cannot resume: {message}"):
                train(replace(done.config, **changed), data, resume=True)
        assert (done.folder / "config.json").read_text() == before

    def test_other_classes_are_refused(self, done, data, tmp_path):
        """Training refuses a renamed class; evaluation refuses a missing class."""
        other = shutil.copytree(data, tmp_path / "data")
        for usage in ("train", "val"):
            (other / usage / "3").rename(other / usage / "three")
        with pytest.raises(InputError, match="classes.3: expected 3, as in the checkpoint, got 4"):
            train(done.config, other, resume=True)
        (other / "val" / "three").rename(other / "val" / "3")
        shutil.rmtree(other / "val" / "9")
        with pytest.raises(InputError, match="has 9 classes .* the same, got 9 on one side only$"):
            evaluated(done.config, other / "val", newest(done.folder))


class TestEvaluate:
    def test_it_is_over_every_image(self, done, data):
        """Other batches change nothing but rounding."""
        expected = done.result.evaluation
        assert list(expected) == ["top_1_accuracy", "top_5_accuracy", "loss"]
        for name in ("top_1_accuracy", "top_5_accuracy"):
            assert (20 * expected[name]) == pytest.approx(round(20 * expected[name]), abs=1e-9)
        assert 0 < expected["top_1_accuracy"] < expected["top_5_accuracy"] < 1
        other = replace(done.config, batch_size=7)
        again = evaluated(other, data / "val", newest(done.folder))
        assert again["top_1_accuracy"] == expected["top_1_accuracy"]
        assert again["loss"] == pytest.approx(expected["loss"], rel=1e-5)

    def test_a_checkpoint_of_the_network_alone(self, done, data, tmp_path):
        checkpoint.write(done.network, tmp_path / "net.ckpt")
        assert evaluated(done.config, data, tmp_path / "net.ckpt") == done.result.evaluation

    def test_another_network_is_refused_and_nothing_loaded(self, done):
        path, network, classes = newest(done.folder), resnet.resnet(18, 11), "0123456789"
        before = snapshot(network)
        with pytest.raises(InputError, match=r"fc.weight: .*\(11, 16\), got .*\(10, 16\)"):
            training.load(network, path, classes)
        assert_bit_equal(snapshot(network), before)
        with pytest.raises(InputError, match="another network or step: .* in all"):
            training.load(resnet.resnet(50, 10), path, classes)


def test_a_class_called_train_is_a_class(data, tmp_path):
    for name in ("train", "plane"):
        shutil.copytree(data / "val" / "1", tmp_path / name)
    config = settings("resnet50", tmp_path, batch_size=2)
    train_set, val_set, classes = training.datasets(config, tmp_path, 0, 1)
    assert classes == ("plane", "train") and val_set is None
    assert train_set.get_dataset_size() == 2


def test_augmentation_can_be_turned_off(data, tmp_path):
    images = []
    for augment in (False, True):
        ms.dataset.config.set_seed(1)
        config = settings("resnet50", tmp_path, augment=augment)
        train_set, *_ = training.datasets(config, data, 0, 1)
        images.append(next(train_set.create_tuple_iterator(output_numpy=True))[0])
    assert images[0].shape == images[1].shape == (10, 3, 32, 32)
    assert np.abs(images[0] - images[1]).max() > 0.5


class Hungry(nn.Cell):
    """Images -> logits, through an intermediate tensor of 36 TB."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Dense(1, 10)

    def construct(self, images):
        rows = ms.ops.broadcast_to(images[0, 0, 0, 0], (3_000_000, 1))
        product = ms.ops.matmul(rows, ms.ops.transpose(rows, (1, 0)))
        return self.fc(images[:, 0, 0, :1]) + ms.ops.reduce_sum(product)


def test_where_memory_is_not_enough_the_answers_are_named(data, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "build_network", lambda config: Hungry())
    with pytest.raises(RuntimeError, match="Memory isn't enough and alloc failed") as caught:
        RECIPE.train(settings("resnet50", tmp_path), data, device="CPU")
    shown = "".join(traceback.format_exception(caught.value))
    assert "memory was not enough for micro-batches of 10 images; half, with twice" in shown
