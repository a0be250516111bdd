"""The two stages of dimension reduction: the tutorial's settings, outputs, and a small training."""

import contextlib
import io
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from mindspore import nn

import labkit.algorithms.subspace.step as step_module
from labkit.algorithms.subspace import search
from labkit.algorithms.subspace.basis import Basis
from labkit.algorithms.subspace.snapshots import SnapshotFolder
from labkit.errors import InputError
from labkit.nets import resnet
from labkit.recipes import (
    resnet50,
    subspace_config,
    subspace_stage_1,
    subspace_stage_2,
)
from labkit.recipes.subspace_config import STAGE_TWO, StageOneConfig, StageTwoConfig
from labkit.steps import gradients, schedules
from labkit.steps.accumulation import AccumulatedStep
from labkit.steps.plain import PlainStep
from labkit.training import checkpoint
from tests.recipes.subspace_on_ranks import STAGE_1, STAGE_2, stage_1, stage_2
from tests.support.step_cells import assert_bit_equal, snapshot

pytestmark = pytest.mark.usefixtures("runtime", "small")

EPOCHS, STEPS = 3, 4


@pytest.fixture(scope="module")
def data(digits):
    return digits(40, 20)


def run(recipe, data, settings):
    """What a recipe's command line prints."""
    arguments = ["train", "--dataset_path", str(data), "--device_target", "CPU"]
    for name, value in settings.items():
        arguments += ["--set", f"{name}={value}"]
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        assert recipe.main(arguments) == 0
    return shown.getvalue()


@pytest.fixture(scope="module")
def first(data, tmp_path_factory):
    """(folder that holds stage_1/, what was printed)."""
    out = tmp_path_factory.mktemp("stages")
    given = STAGE_1 | {"save_checkpoint_path": str(out / "stage_1")}
    return out, run(subspace_stage_1, data, given)


@pytest.fixture(scope="module")
def second(first, data):
    """(folder that holds stage_1/ and stage_2/, what the second stage printed)."""
    out = first[0]
    folders = {"stage_1": str(out / "stage_1"), "save_checkpoint_path": str(out / "stage_2")}
    return out, run(subspace_stage_2, data, STAGE_2 | folders)


class TestBothStages:
    @pytest.mark.parametrize(("stage", "epochs"), [("first", EPOCHS), ("second", 2)])
    def test_what_is_printed_is_the_tutorials(self, request, stage, epochs):
        """The lines of its output, in its order, with the accuracy that is also returned."""
        printed = request.getfixturevalue(stage)[1].splitlines()
        lines = [line for line in printed if line.startswith(("epoch:", "====="))]
        assert lines[0] == "============== Starting Training =============="
        for epoch in range(1, epochs + 1):
            form = rf"epoch: {epoch} step: {STEPS} loss is  \d\.\d+"
            assert re.fullmatch(form, lines[epoch]), lines[epoch]
        assert lines[epochs + 1] == "============== Starting Testing =============="
        accuracy = re.fullmatch(r"=+ \{'Accuracy': (\d\.\d+)\} =+", lines[epochs + 2])
        assert accuracy and len(lines) == epochs + 3
        (summary,) = [line for line in printed if "top_1_accuracy" in line]
        assert f"top_1_accuracy {float(accuracy[1]):.4f}" in summary

    @pytest.mark.parametrize(("stage", "rows"), [("stage_1", EPOCHS), ("stage_2", 2)])
    def test_the_run_folder_says_what_was_trained(self, second, stage, rows):
        found = json.loads((second[0] / stage / "config.json").read_text())
        config = stage_1(second[0]) if stage == "stage_1" else stage_2(second[0])
        assert found == json.loads(json.dumps(vars(config)))
        records = (second[0] / stage / "records.csv").read_text().splitlines()
        assert len(records) == 1 + rows * STEPS
        assert len(list((second[0] / stage / "checkpoint").iterdir())) == 2

    def test_evaluating_a_checkpoint_gives_the_same_line(self, second, data, capsys):
        newest = max((second[0] / "stage_2" / "checkpoint").iterdir())
        arguments = ["eval", "--dataset_path", str(data), "--device_target", "CPU"]
        assert subspace_stage_2.main([*arguments, "--checkpoint_path", str(newest)]) == 0
        (line,) = [x for x in capsys.readouterr().out.splitlines() if "'Accuracy'" in x]
        assert line in second[1]


class TestFirstStage:
    def test_snapshots_are_the_newest_and_the_last_is_the_end(self, first):
        network = resnet.resnet(18, 12)
        with SnapshotFolder(first[0] / "stage_1" / "checkpoint_pca", network) as found:
            names = [path.name for path in found.paths]
            last = found.load(-1)
        # Two in an epoch of 4 steps: after steps 2, 4, .. 12; the first has gone.
        assert names == [f"step-{2 * n:09d}.safetensors" for n in range(2, 7)]
        end = checkpoint.read(max((first[0] / "stage_1" / "checkpoint").iterdir()))
        assert last.keys() == {p.name for p in network.trainable_params()}
        for name, value in last.items():
            np.testing.assert_array_equal(value, end[name].asnumpy(), err_msg=name)

    @pytest.mark.parametrize("left", [1, 0])
    def test_a_resumed_training_is_the_uninterrupted_one(self, first, data, tmp_path, capsys, left):
        """Also where it was killed before its first checkpoint, with snapshots there already."""
        moved = shutil.copytree(first[0] / "stage_1", tmp_path / "stage_1")
        oldest, newest = sorted((moved / "checkpoint").iterdir())
        whole = checkpoint.read(newest)
        for path in (newest, oldest)[: 2 - left]:
            path.unlink()
        before = {p.name: p.read_bytes() for p in (moved / "checkpoint_pca").iterdir()}
        assert any(name.startswith("step-") for name in before)
        config = stage_1(tmp_path)
        trained = subspace_stage_1.train(config, data, device="CPU", resume=True)
        assert len(trained.records) == EPOCHS * STEPS
        resumed = checkpoint.read(max((moved / "checkpoint").iterdir()))
        assert_state_equal(resumed, whole)
        after = {p.name: p.read_bytes() for p in (moved / "checkpoint_pca").iterdir()}
        assert after == before
        lines = [line for line in first[1].splitlines() if line.startswith("epoch:")]
        again = [x for x in capsys.readouterr().out.splitlines() if x.startswith("epoch:")]
        assert again == (lines[-1:] if left else lines)

    def test_the_rate_stops_where_it_is(self):
        """70 of the 90 epochs that the schedule is made for: 0.188 is left."""
        config = StageOneConfig(depth=18)
        step = subspace_stage_1.build_step(config, resnet50.build_network(config), 5)
        rates = {p.name: p for p in step.get_parameters()}["learning_rate"].asnumpy()
        np.testing.assert_array_equal(rates, schedules.get_lr(0, 0, 0.8, 5, 90, 5))
        assert rates[70 * 5] == pytest.approx(0.188, abs=5e-4)
        assert type(step) is PlainStep and isinstance(step.optimizer, nn.Momentum)
        step.check_length(70 * 5)

    def test_settings_reach_the_step(self):
        config = StageOneConfig(depth=18, weight_decay=0.25, momentum=0.5, loss_scale=64)
        step = subspace_stage_1.build_step(config, resnet50.build_network(config), 5)
        assert float(step.gradient.loss_scale.asnumpy()) == 64
        assert step.settings["precision"] == "'O2'"
        assert float(step.optimizer.momentum.asnumpy()) == 0.5
        decays = [float(one.asnumpy()) for one in step.optimizer.weight_decay]
        for parameter, decay in zip(step.optimizer.parameters, decays, strict=True):
            assert decay == (0.25 if parameter.ndim > 1 else 0.0), parameter.name

    def test_accumulation_counts_updates(self):
        config = StageOneConfig(depth=18, micro_steps=2)
        with pytest.warns(UserWarning, match="BatchNorm"):
            step = subspace_stage_1.build_step(config, resnet50.build_network(config), 5)
        assert type(step) is AccumulatedStep
        rates = {p.name: p for p in step.get_parameters()}["learning_rate"]
        assert rates.shape == (90 * 3,)


class TestSecondStage:
    def test_it_starts_where_the_first_has_ended(self, second):
        newest = max((second[0] / "stage_1" / "checkpoint").iterdir())
        assert f"labkit: starts from {newest}\n" in second[1]
        network = resnet.resnet(18, 12)
        subspace_stage_2.load_start(stage_2(second[0]), network)
        assert_state_equal(snapshot(network), checkpoint.read(newest), of=snapshot(network))

    def test_or_where_a_snapshot_is(self, second, capsys):
        network, plain = resnet.resnet(18, 12), resnet.resnet(18, 12)
        subspace_stage_2.load_start(stage_2(second[0]), plain)
        subspace_stage_2.load_start(stage_2(second[0], start_from="first"), network)
        assert "with the weights of the first snapshot in" in capsys.readouterr().out
        with SnapshotFolder(second[0] / "stage_1" / "checkpoint_pca", network) as found:
            weights = found.load(0)
        expected = snapshot(plain) | weights
        assert_bit_equal(snapshot(network), expected)
        assert any((snapshot(plain)[name] != value).any() for name, value in weights.items())

    def test_where_the_snapshots_are(self, second, tmp_path):
        """Beside a checkpoint, wherever that is; else in stage_1, or where the settings say."""
        run = second[0] / "stage_1"
        newest = max((run / "checkpoint").iterdir())
        moved = shutil.copy(newest, tmp_path / "alone.ckpt")
        folder = subspace_stage_2.snapshot_folder
        assert folder(stage_2(second[0])) == run / "checkpoint_pca"
        assert folder(stage_2(tmp_path, pretrained_weight_path=str(newest))) == (
            run / "checkpoint_pca"
        )
        elsewhere = stage_2(second[0], pretrained_weight_path=str(moved))
        assert folder(elsewhere) == run / "checkpoint_pca"
        said = stage_2(second[0], weight_load_dir=str(tmp_path / "own"))
        assert folder(said) == tmp_path / "own"

    def test_the_basis_is_kept_and_loaded_again(self, second, monkeypatch):
        """The tutorial's third argument: with a pca_mat.npy nothing is computed."""
        path = second[0] / "stage_1" / "checkpoint_pca" / "pca_mat.npy"
        network = resnet.resnet(18, 12)
        parameters = network.trainable_params()
        kept = path.read_bytes()
        monkeypatch.setattr(Basis, "of", lambda *a, **o: pytest.fail("computed again"))
        found = subspace_stage_2.find_basis(stage_2(second[0]), parameters)
        assert found.matrix.shape == (3, sum(p.size for p in parameters))
        assert path.read_bytes() == kept
        np.testing.assert_array_equal(np.asarray(found.matrix), np.load(path))

    def test_a_basis_elsewhere_needs_no_snapshots(self, second, data, tmp_path):
        source = second[0] / "stage_1" / "checkpoint_pca"
        for name in ("pca_mat.npy", "pca_mat.json"):
            shutil.copy(source / name, tmp_path / name)
        newest = max((second[0] / "stage_1" / "checkpoint").iterdir())
        config = stage_2(
            tmp_path,
            pretrained_weight_path=str(newest),
            pca_mat_path=str(tmp_path / "pca_mat.npy"),
            method="sgd",
            epoch_size=1,
            save_checkpoint=False,
        )
        trained = subspace_stage_2.train(config, data, device="CPU")
        assert len(trained.records) == STEPS

    def test_the_weights_move_by_search_and_residual(self, second):
        start = checkpoint.read(max((second[0] / "stage_1" / "checkpoint").iterdir()))
        end = checkpoint.read(max((second[0] / "stage_2" / "checkpoint").iterdir()))
        names = [p.name for p in resnet.resnet(18, 12).trainable_params()]
        moved = np.concatenate([(end[n].asnumpy() - start[n].asnumpy()).ravel() for n in names])
        basis = np.load(second[0] / "stage_1" / "checkpoint_pca" / "pca_mat.npy")
        inside = basis.T @ (basis @ moved)
        # The residual's rate is a thousandth: measured 0.017. Of a loss scale of 1024 that stays in
        # it, as in MindSpore, nearly everything would lie outside.
        outside = np.linalg.norm(moved - inside) / np.linalg.norm(moved)
        assert 0.001 < outside < 0.1, outside

    def test_a_resumed_training_is_the_uninterrupted_one(self, second, data, tmp_path):
        shutil.copytree(second[0] / "stage_1", tmp_path / "stage_1")
        moved = shutil.copytree(second[0] / "stage_2", tmp_path / "stage_2")
        # The run folder says where the first stage was; it has moved with it.
        text = (moved / "config.json").read_text().replace(str(second[0]), str(tmp_path))
        (moved / "config.json").write_text(text)
        newest = max((moved / "checkpoint").iterdir())
        whole = checkpoint.read(newest)
        newest.unlink()
        trained = subspace_stage_2.train(stage_2(tmp_path), data, device="CPU", resume=True)
        assert len(trained.records) == 2 * STEPS
        assert_state_equal(checkpoint.read(max((moved / "checkpoint").iterdir())), whole)

    def test_settings_reach_the_step(self, second):
        changed = dict(rho=0.3, sigma=0.2, trials=7, gamma=0.5, alpha=0.02, failure="rollback")
        config = stage_2(second[0], loss_scale=64, learning_rate=0.5, weight_decay=0.25, **changed)
        step = subspace_stage_2.build_step(config, resnet50.build_network(config), STEPS)
        assert step.update.constants == search.Constants(**changed)
        assert float(step.gradient.loss_scale.asnumpy()) == 64 and step.micro_batches == 1
        assert isinstance(step.optimizer, nn.SGD)
        assert step.last_update.learning_rate == (0.5,)
        decays = {float(one.asnumpy()) for one in step.optimizer.weight_decay}
        assert decays == {0.25, 0.0}

    def test_no_checkpoint_to_start_from(self, data, tmp_path):
        with pytest.raises(InputError, match="stage_1 holds no checkpoint; expected stage_1 to be"):
            subspace_stage_2.train(stage_2(tmp_path), data, device="CPU")
        config = stage_2(tmp_path, pretrained_weight_path=str(tmp_path / "no.ckpt"))
        with pytest.raises(
            InputError, match=r"pretrained_weight_path is .*no\.ckpt, which is no f"
        ):
            subspace_stage_2.train(config, data, device="CPU")
        assert list(tmp_path.iterdir()) == []

    def test_data_of_other_classes(self, second, data, tmp_path):
        other = shutil.copytree(data, tmp_path / "data")
        for part in ("train", "val"):
            (other / part / "0").rename(other / part / "another")
        with pytest.raises(InputError, match="only here: another; only there: 0"):
            subspace_stage_2.train(stage_2(second[0]), other, device="CPU")

    def test_too_few_snapshots(self, second, data, tmp_path):
        shutil.copytree(second[0] / "stage_1", tmp_path / "stage_1")
        config = stage_2(tmp_path, n_components=5, pca_mat_path=str(tmp_path / "other.npy"))
        with pytest.raises(InputError, match="holds 5 snapshots; 5 components need at least 6"):
            subspace_stage_2.train(config, data, device="CPU")
        assert not (tmp_path / "stage_2").exists() and not (tmp_path / "other.npy").exists()


class TestData:
    def test_the_folder_of_the_tutorials_text(self, data, tmp_path):
        """Its text has validation_preprocess, its code val."""
        other = shutil.copytree(data, tmp_path / "data")
        (other / "val").rename(other / "validation_preprocess")
        config = stage_1(tmp_path)
        _, val_set, classes = resnet50.datasets(config, other, 0, 1)
        _, expected, names = resnet50.datasets(config, data, 0, 1)
        assert classes == names
        assert val_set.get_dataset_size() == expected.get_dataset_size() == 2
        rows = [x.asnumpy() for x in next(val_set.create_tuple_iterator(num_epochs=1))]
        same = [x.asnumpy() for x in next(expected.create_tuple_iterator(num_epochs=1))]
        np.testing.assert_array_equal(rows[0], same[0])
        np.testing.assert_array_equal(rows[1], same[1])
        shutil.copytree(data / "val", other / "val")
        with pytest.raises(InputError, match="holds val and validation_preprocess; expected one"):
            resnet50.datasets(config, other, 0, 1)

    def test_nothing_to_evaluate_is_said_in_the_tutorials_words(self):
        class Empty:
            def get_dataset_size(self):
                return 0

        words = re.escape("Please check dataset size > 0 and batch_size <= dataset size")
        with pytest.raises(ValueError, match=words):
            subspace_stage_1.evaluation(None, None, Empty(), 1)


class TestConfig:
    def test_the_tutorials_values(self):
        one, two = StageOneConfig(), STAGE_TWO["tutorial"]
        assert list(STAGE_TWO)[0] == "tutorial"
        for config in (one, two):
            assert (config.batch_size, config.class_num, config.depth) == (256, 1001, 50)
            assert (config.label_smooth_factor, config.loss_scale) == (0.1, 1024)
            assert (config.precision, config.image_size) == ("O2", 224)
        assert (one.epoch_size, one.total_epochs, one.warmup_epochs) == (70, 90, 5)
        assert (one.lr_init, one.lr_end, one.lr_max) == (0, 0, 0.8)
        assert (one.lr_decay_mode, one.momentum, one.weight_decay) == ("linear", 0.9, 1e-4)
        assert (one.save_checkpoint_epochs, one.keep_checkpoint_max) == (10, 10)
        assert (one.snapshots_per_epoch, one.snapshot_max) == (1, 40)
        assert (two.epoch_size, two.learning_rate, two.start_from) == (2, 1, "last")
        assert (two.rho, two.gamma, two.alpha, two.sigma) == (0.55, 0.9, 0.001, 0.4)
        assert (two.n_components, two.method) == (32, "bfgs")
        assert (two.save_checkpoint_epochs, two.keep_checkpoint_max) == (1, 2)
        assert 1_281_167 // (256 * 8) == 625

    def test_what_mindspore_made_of_it(self):
        """Two trials, and a loss scale that stays in the residual."""
        ran = STAGE_TWO["as_it_ran"]
        assert (ran.trials, ran.failure) == (2, "rollback")
        assert ran.alpha == pytest.approx(ran.loss_scale * StageTwoConfig().alpha)

    def test_names_are_those_of_the_modules(self):
        assert subspace_config.METHODS == step_module.METHODS
        assert subspace_config.FAILURES == search.FAILURES
        assert subspace_config.PRECISIONS == gradients.PRECISION
        assert subspace_config.LR_DECAY_MODES == schedules.LR_DECAY_MODES
        defaults, config = search.Constants(), StageTwoConfig()
        for name in ("rho", "sigma", "trials", "gamma", "alpha", "failure"):
            assert getattr(config, name) == getattr(defaults, name), name

    @pytest.mark.parametrize(
        ("kind", "given", "message"),
        [
            (StageOneConfig, {"epoch_size": 91}, "epoch_size is 91 and total_epochs, where the le"),
            (StageOneConfig, {"warmup_epochs": 91}, "warmup_epochs is 91, total_epochs 90"),
            (StageOneConfig, {"lr_max": 0}, "lr_max is 0.0; expected a finite number > 0"),
            (StageOneConfig, {"lr_init": 1}, "lr_init is 1.0, lr_end 0.0 and lr_max 0.8"),
            (StageOneConfig, {"lr_end": 1}, "expected none above lr_max"),
            (StageOneConfig, {"lr_decay_mode": "exp"}, "lr_decay_mode is 'exp'"),
            (StageOneConfig, {"momentum": 1}, "momentum is 1.0"),
            (StageOneConfig, {"snapshot_start_epoch": 71}, "snapshot_start_epoch is 71, epoch_siz"),
            (StageOneConfig, {"snapshots_per_epoch": 0}, "snapshots_per_epoch is 0"),
            (StageOneConfig, {"snapshot_max": 0}, "snapshot_max is 0; expected a whole number >="),
            (StageOneConfig, {"save_checkpoint_path": ""}, "expected the path of a folder"),
            (StageTwoConfig, {"rho": 1}, "rho is 1.0; expected a number between 0 and 1"),
            (StageTwoConfig, {"sigma": 0}, "sigma is 0.0"),
            (StageTwoConfig, {"gamma": 1}, "gamma is 1.0"),
            (StageTwoConfig, {"alpha": -1}, "alpha is -1.0; expected a finite number >= 0"),
            (StageTwoConfig, {"trials": 0}, "trials is 0"),
            (StageTwoConfig, {"n_components": 0}, "n_components is 0"),
            (StageTwoConfig, {"method": "newton"}, "method is 'newton'; expected one of bfgs, sgd"),
            (StageTwoConfig, {"failure": "stop"}, "failure is 'stop'"),
            (StageTwoConfig, {"start_from": "best"}, "start_from is 'best'; expected one of last"),
            (StageTwoConfig, {"learning_rate": 0}, "learning_rate is 0.0"),
            (StageTwoConfig, {"pca_mat_path": ""}, "pca_mat_path is ''; expected a path or None"),
            (StageTwoConfig, {"loss_scale": 0}, "loss_scale is 0.0"),
            (
                StageTwoConfig,
                {"save_checkpoint": False, "save_checkpoint_steps": 5},
                "save_checkpoint False",
            ),
        ],
    )
    def test_values_that_are_refused(self, kind, given, message):
        with pytest.raises(InputError, match=re.escape(message)):
            kind(**given)

    def test_the_ends_of_ranges_are_right(self):
        StageOneConfig(epoch_size=90, warmup_epochs=90, lr_init=0.8, snapshot_max=None)
        StageTwoConfig(gamma=0, alpha=0, trials=1, n_components=1, class_num=None)


@pytest.mark.parametrize("recipe", [subspace_stage_1, subspace_stage_2])
def test_the_command(recipe, monkeypatch, capsys):
    came = []
    monkeypatch.setattr(recipe, "train", lambda config, path, **options: came.append(config))
    arguments = ["train", "--dataset_path", "x"]
    assert recipe.main(arguments) == 0 and recipe.main([*arguments, "--set", "seed=5"]) == 0
    assert came[0] == {"1": StageOneConfig, "2": StageTwoConfig}[recipe.__name__[-1]]()
    assert came[1].seed == 5
    assert recipe.main([*arguments, "--set", "epochsize=4"]) == 2
    name = recipe.__name__.rsplit(".", 1)[1]
    assert capsys.readouterr().err.startswith(f"{name}: unknown setting 'epochsize'. Did you mean")


@pytest.mark.parametrize("recipe", ["subspace_stage_1", "subspace_stage_2"])
def test_mindspore_is_not_there_before_labkit_has_started(recipe, data):
    """``start`` sets what MindSpore reads when it is imported, the level of its log for one."""
    code = (
        "import sys; from labkit.recipes import resnet50, " + recipe + " as recipe; "
        "resnet50.start = lambda *given: sys.exit(7 if 'mindspore' in sys.modules else 5); "
        f"recipe.main(['train', '--dataset_path', {str(data)!r}])"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 5


def assert_state_equal(came, expected, of=None):
    """Two checkpoints hold the same bits but for the position; or those that ``of`` names."""
    names = {n for n in expected if not n.startswith("labkit_")} if of is None else set(of)
    assert names and names <= came.keys() and names <= expected.keys()
    for name in names:
        one, other = (x[name] for x in (came, expected))
        one, other = (x if isinstance(x, np.ndarray) else x.asnumpy() for x in (one, other))
        np.testing.assert_array_equal(one, other, err_msg=name)
