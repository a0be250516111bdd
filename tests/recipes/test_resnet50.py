"""The ResNet-50 recipe: how it writes, resumes, evaluates, and refuses what does not fit.

The network is ResNet-18 made small: four convolutions of 4 to 16 channels on images of 32 pixels.
"""

import json
import shutil
import warnings

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from mindspore.train import Callback

from labkit.errors import InputError
from labkit.nets import resnet
from labkit.recipes import recipe, resnet50
from labkit.recipes import resnet50_parts as parts
from labkit.recipes.resnet50_config import Config
from labkit.runtime import start
from labkit.steps import schedules
from labkit.training import checkpoint
from labkit.training import fit as training
from labkit.training.evaluation import evaluate
from tests.support.recipes import SETTINGS, Kept
from tests.support.step_cells import assert_bit_equal, snapshot

pytestmark = pytest.mark.usefixtures("runtime", "small")

EPOCHS, BATCH = 3, 20


@pytest.fixture(scope="module")
def data(digits):
    return digits(60, 30)


def settings(folder, **changed):
    given = SETTINGS["resnet50"] | {"batch_size": BATCH, "keep_checkpoint_max": 2}
    return Config(**given | {"save_checkpoint_path": str(folder)} | changed)


def train(config, data, **options):
    """Train; return (what ``train`` returned, the network)."""
    kept = Kept()
    try:
        return resnet50.train(config, data, device="CPU", **options), kept.networks[-1]
    finally:
        kept.undo()


@pytest.fixture(scope="module")
def done(data, tmp_path_factory):
    """One training of three epochs, which later tests look at and leave as it is."""
    config = settings(tmp_path_factory.mktemp("done") / "run")
    trained, network = train(config, data)
    return config, trained, network


class TestTrain:
    def test_the_loss_falls(self, done):
        losses = done[1].records.column("loss")
        assert len(losses) == EPOCHS * 3
        assert np.mean(losses[-3:]) < np.mean(losses[:3]) - 0.02

    def test_at_most_so_many_checkpoints_are_kept(self, done):
        names = sorted(path.name for path in (done[1].folder / "checkpoint").iterdir())
        assert names == ["step-000000006.ckpt", "step-000000009.ckpt"]

    def test_the_rates_are_those_of_the_schedule(self, done):
        rates = done[1].records.column("learning_rate")
        expected = schedules.cosine(0.05, 0.0, EPOCHS, 3, 1)
        np.testing.assert_array_equal(np.float32(rates), expected)

    def test_evaluation_is_over_every_image_of_val(self, done):
        found = done[1].evaluation
        assert list(found) == ["top_1_accuracy", "top_5_accuracy", "loss"]
        for name in ("top_1_accuracy", "top_5_accuracy"):
            assert (30 * found[name]) == pytest.approx(round(30 * found[name]), abs=1e-9)
        assert 0 < found["top_1_accuracy"] < found["top_5_accuracy"] < 1

    def test_a_folder_of_classes_is_trained_on_without_evaluation(self, data, tmp_path):
        """The document's own --dataset_path."""
        config = settings(tmp_path / "run", epoch_size=1)
        trained, network = train(config, data / "train")
        assert trained.evaluation is None and len(trained.records) == 3

    def test_no_checkpoint_where_none_is_wanted(self, data, tmp_path):
        train(settings(tmp_path / "run", epoch_size=1, save_checkpoint=False), data)
        names = {path.name for path in (tmp_path / "run").iterdir()}
        assert names == {"config.json", "classes.json", "records.csv"}

    def test_checkpoints_every_so_many_epochs_and_steps(self, data, tmp_path):
        """The document's train.py writes every 5 steps whatever is configured."""
        changed = dict(save_checkpoint_epochs=2, save_checkpoint_steps=2, keep_checkpoint_max=9)
        train(settings(tmp_path / "run", **changed), data)
        names = sorted(path.stem for path in (tmp_path / "run" / "checkpoint").iterdir())
        assert [int(name[-9:]) for name in names] == [2, 4, 6, 8, 9]


class Stop(Callback):
    """Ends a training like a kill would, after so many micro-batches."""

    def __init__(self, after):
        super().__init__()
        self.left = after

    def on_train_step_end(self, run_context):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


class TestResume:
    @pytest.mark.parametrize("after", [4, 6])
    def test_a_resumed_training_is_the_uninterrupted_one(self, done, data, tmp_path, after):
        config = settings(tmp_path / "run", save_checkpoint_steps=2)
        with pytest.MonkeyPatch.context() as patch:
            fit = training.fit

            def interrupted(*given, callbacks, **options):
                return fit(*given, callbacks=[*callbacks, Stop(after)], **options)

            patch.setattr(training, "fit", interrupted)
            with pytest.raises(KeyboardInterrupt):
                train(config, data)
        assert checkpoint.checkpoints(tmp_path / "run" / "checkpoint")
        trained, network = train(config, data, resume=True)
        assert_bit_equal(snapshot(network), snapshot(done[2]))
        assert trained.records.column("loss") == done[1].records.column("loss")
        assert trained.evaluation == done[1].evaluation

    def test_a_finished_training_is_evaluated_again(self, done, data):
        trained, network = train(done[0], data, resume=True)
        assert trained.evaluation == done[1].evaluation
        assert_bit_equal(snapshot(network), snapshot(done[2]))

    def test_where_and_how_often_it_writes_may_change(self, done, data, tmp_path):
        moved = shutil.copytree(done[1].folder, tmp_path / "moved")
        (moved / "checkpoint" / "step-000000009.ckpt").unlink()
        changed = dict(save_checkpoint_epochs=2, save_checkpoint_steps=8, keep_checkpoint_max=9)
        _, network = train(settings(moved, **changed), data, resume=True)
        assert_bit_equal(snapshot(network), snapshot(done[2]))
        names = sorted(path.stem for path in (moved / "checkpoint").iterdir())
        assert [int(name[-9:]) for name in names] == [6, 8, 9]
        assert json.loads((moved / "config.json").read_text())["keep_checkpoint_max"] == 9

    def test_without_a_checkpoint_it_starts_anew(self, data, tmp_path):
        trained, _ = train(settings(tmp_path / "run", epoch_size=1), data, resume=True)
        assert len(trained.records) == 3

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"lr": 0.06}, "lr is 0.06, the training in .* has 0.05"),
            ({"epoch_size": 4}, "epoch_size is 4"),
            ({"initialiser": "seed"}, "initialiser is seed"),
        ],
    )
    def test_another_training_is_refused(self, done, data, changed, message):
        before = (done[1].folder / "config.json").read_text()
        config = settings(done[1].folder, **changed)
        with pytest.raises(InputError, match=f"cannot resume: {message}"):
            train(config, data, resume=True)
        assert (done[1].folder / "config.json").read_text() == before

    def test_other_classes_are_refused(self, done, data, tmp_path):
        other = shutil.copytree(data, tmp_path / "data")
        for usage in ("train", "val"):
            (other / usage / "3").rename(other / usage / "three")
        with pytest.raises(InputError, match="the same. only here: three; only there: 3$"):
            train(done[0], other, resume=True)

    def test_a_damaged_config_is_named(self, data, tmp_path):
        (tmp_path / "config.json").write_text("{")
        with pytest.raises(InputError, match="config.json cannot be read"):
            train(settings(tmp_path), data, resume=True)


class TestEvaluate:
    def test_in_other_batches_it_is_the_same_but_for_rounding(self, done, data):
        path = done[1].folder / "checkpoint" / "step-000000009.ckpt"
        config = settings(done[1].folder, batch_size=7)
        found = resnet50.evaluate_checkpoint(config, data / "val", path, device="CPU")
        expected = done[1].evaluation
        assert found["top_1_accuracy"] == expected["top_1_accuracy"]
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)

    def test_the_one_before_is_another(self, done, data):
        path = done[1].folder / "checkpoint" / "step-000000006.ckpt"
        found = resnet50.evaluate_checkpoint(done[0], data, path, device="CPU")
        assert found["loss"] != done[1].evaluation["loss"]

    def test_a_checkpoint_of_the_network_alone(self, done, data, tmp_path):
        checkpoint.write(done[2], tmp_path / "net.ckpt")
        path = tmp_path / "net.ckpt"
        found = resnet50.evaluate_checkpoint(done[0], data, path, device="CPU")
        assert found == done[1].evaluation

    def test_it_agrees_with_labkits_evaluate(self, done, data):
        _, val_set, _ = parts.datasets(done[0], data, 0, 1)
        config = parts.with_classes(done[0], "0123456789")
        found = evaluate(done[2], parts.build_loss(config), val_set, top=(5,))
        assert found["accuracy"] == done[1].evaluation["top_1_accuracy"]
        assert found["top_5_accuracy"] == done[1].evaluation["top_5_accuracy"]

    def test_another_network_is_refused_and_nothing_loaded(self, done):
        path = done[1].folder / "checkpoint" / "step-000000009.ckpt"
        network = resnet.resnet(18, 11)
        before = snapshot(network)
        with pytest.raises(InputError, match=r"fc.weight is .*\(10, 16\), expected .*\(11, 16\)"):
            parts.load_network(network, path)
        assert_bit_equal(snapshot(network), before)
        with pytest.raises(InputError, match="it lacks layer1.0.bn2.beta"):
            parts.load_network(resnet.resnet(50, 10), path)

    def test_other_classes_are_refused(self, done, data, tmp_path):
        other = shutil.copytree(data / "val", tmp_path / "val")
        shutil.rmtree(other / "9")
        path = done[1].folder / "checkpoint" / "step-000000009.ckpt"
        with pytest.raises(InputError, match="has 9 classes .* only there: 9$"):
            resnet50.evaluate_checkpoint(done[0], other, path, device="CPU")

    def test_no_checkpoint(self, done, data, tmp_path):
        with pytest.raises(InputError, match="no checkpoint at"):
            resnet50.evaluate_checkpoint(done[0], data, tmp_path / "none.ckpt", device="CPU")


class TestParts:
    def test_micro_steps_make_an_accumulated_step_whose_schedule_counts_updates(self):
        config = Config(depth=18, class_num=10, epoch_size=2, micro_steps=4)
        network = parts.build_network(config)
        with pytest.warns(UserWarning, match="BatchNorm"):
            step = resnet50.build_step(config, network, 9)
        assert type(step).__name__ == "AccumulatedStep"
        (rates,) = {p.name: p for p in step.get_parameters() if p.name == "learning_rate"}.values()
        assert rates.shape == (2 * 3,)

    def test_micro_steps_train(self, data, tmp_path):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = settings(tmp_path / "run", batch_size=10, micro_steps=4, epoch_size=1)
            trained, _ = train(config, data)
        assert trained.records.column("images") == [40, 20]

    def test_the_optimizer_decays_weights_alone(self):
        config = Config(depth=18, class_num=10, weight_decay=1e-3, momentum=0.8)
        network = parts.build_network(config)
        optimizer = resnet50.build_step(config, network, 3).optimizer
        assert isinstance(optimizer, nn.Momentum)
        assert float(optimizer.momentum.asnumpy()) == pytest.approx(0.8)
        decays = dict(
            zip(
                [p.name for p in optimizer.parameters],
                [
                    float(decay.asnumpy()) if hasattr(decay, "asnumpy") else decay
                    for decay in optimizer.weight_decay
                ],
                strict=True,
            )
        )
        assert list(decays) == [p.name for p in network.trainable_params()]
        for name, decay in decays.items():
            is_weight = name.endswith("weight")
            assert decay == pytest.approx(1e-3 if is_weight else 0), name

    @pytest.mark.parametrize("convention", ["mindspore", "pytorch"])
    def test_the_loss_has_the_convention_asked_for(self, convention):
        config = Config(class_num=10, label_smooth_convention=convention)
        off = float(parts.build_loss(config).off_value.asnumpy())
        assert off == pytest.approx(0.1 / 9 if convention == "mindspore" else 0.01, rel=1e-6)

    @pytest.mark.parametrize("name", ["cosine", "cosine_as_in_the_blog"])
    def test_the_schedule_asked_for(self, name):
        config = Config(depth=18, class_num=10, epoch_size=4, warmup=2, lr_schedule=name)
        step = resnet50.build_step(config, parts.build_network(config), 3)
        rates = {p.name: p for p in step.get_parameters()}["learning_rate"].asnumpy()
        np.testing.assert_array_equal(rates, getattr(schedules, name)(0.256, 0.0, 4, 3, 2))

    def test_weights_are_those_of_the_seed_and_scheme(self):
        def weights(**given):
            start("CPU", seed=1)  # of the biases that the document leaves to MindSpore
            return snapshot(parts.build_network(Config(depth=18, class_num=10, **given)))

        assert_bit_equal(weights(), weights())
        for other in ({"seed": 2}, {"initialiser": "torchvision"}):
            assert (weights()["conv1.weight"] != weights(**other)["conv1.weight"]).any()

    @pytest.mark.parametrize(("given", "expected"), [(None, 3), (3, 3), (1001, 1001)])
    def test_class_num(self, given, expected):
        assert parts.with_classes(Config(class_num=given), "abc").class_num == expected

    def test_too_few_classes(self):
        with pytest.raises(InputError, match="class_num is 2, and the data has 3"):
            parts.with_classes(Config(class_num=2), "abc")

    def test_half_a_dataset_is_named(self, data, tmp_path):
        shutil.copytree(data / "train", tmp_path / "train")
        with pytest.raises(InputError, match="holds train/ alone"):
            parts.datasets(settings(tmp_path), tmp_path, 0, 1)

    def test_a_class_called_train_is_a_class(self, data, tmp_path):
        for name in ("train", "plane"):
            shutil.copytree(data / "val" / "1", tmp_path / name)
        config = settings(tmp_path, batch_size=2)
        train_set, val_set, classes = parts.datasets(config, tmp_path, 0, 1)
        assert classes == ("plane", "train") and val_set is None
        assert train_set.get_dataset_size() == 3

    @pytest.mark.parametrize("inside", [".", "train"])
    def test_augmentation_can_be_turned_off(self, data, inside):
        images = {}
        for augment in (False, True):
            ms.dataset.config.set_seed(1)
            config = settings("none", augment=augment)
            train_set, val_set, _ = parts.datasets(config, data / inside, 0, 1)
            batches = train_set.create_tuple_iterator(num_epochs=1, output_numpy=True)
            images[augment] = next(batches)[0]
        assert images[True].shape == images[False].shape == (BATCH, 3, 32, 32)
        assert np.abs(images[True] - images[False]).max() > 0.5


class TestRanks:
    """What can be refused before any rank is met; the rest is in test_on_ranks.py."""

    @pytest.mark.parametrize(
        ("started", "options", "message"),
        [
            ("8", {}, "8 ranks were started and device_num is None, with run_distribute False"),
            ("1", {"device_num": 2}, "1 ranks were started and device_num is 2"),
            ("2", {"device_num": 8, "distribute": True}, "device_num is 8, and 2 ranks were"),
            ("1", {"device_num": 8, "distribute": True}, "device_num is 8, and 1 ranks were"),
            ("1", {"device_num": 0}, "device_num is 0, and 1 ranks were"),
            ("", {"distribute": True}, "was started alone"),
        ],
    )
    def test_numbers_that_do_not_fit(self, data, tmp_path, monkeypatch, started, options, message):
        monkeypatch.setenv("RANK_SIZE", started)
        with pytest.raises(InputError, match=message):
            train(settings(tmp_path / "run"), data, **options)
        assert not (tmp_path / "run").exists()

    def test_fewer_ranks_than_the_environment_says(self, tmp_path, monkeypatch):
        monkeypatch.setenv("RANK_SIZE", "2")
        monkeypatch.setattr("mindspore.communication.init", lambda: None)
        with pytest.raises(InputError, match="1 ranks have met; the environment speaks of 2"):
            recipe.start(settings(tmp_path), "CPU", True, 2)


class Hungry(nn.Cell):
    """Images -> logits, by way of 36 TB."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Dense(1, 10)

    def construct(self, images):
        rows = ms.ops.broadcast_to(images[0, 0, 0, 0], (3_000_000, 1))
        product = ms.ops.matmul(rows, ms.ops.transpose(rows, (1, 0)))
        return self.fc(images[:, 0, 0, :1]) + ms.ops.reduce_sum(product)


def test_where_memory_is_not_enough_the_answers_are_named(data, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "build_network", lambda config: Hungry())
    with pytest.raises(RuntimeError, match="Memory isn't enough and alloc failed") as caught:
        resnet50.train(settings(tmp_path / "run"), data, device="CPU")
    (note,) = caught.value.__notes__
    assert "--set batch_size=10 --set micro_steps=2: 20 images in an update" in note
