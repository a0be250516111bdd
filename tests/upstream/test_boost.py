"""``boost_step``: what each dictionary builds, beside what MindSpore makes of the same words."""

import copy
import json
import shutil
import warnings

import numpy as np
import pytest
from mindspore import Tensor, nn
from mindspore.dataset import GeneratorDataset
from mindspore.train import Callback, Model

from labkit import AccumulatedStep, AdasumStep, EndOfEpoch, PlainStep, boost_step
from labkit.algorithms.subspace import Basis, SubspaceStep
from labkit.algorithms.subspace.snapshots import write_snapshot
from labkit.errors import InputError
from labkit.steps.gradients import set_state
from labkit.upstream import basis as basis_module
from labkit.upstream import boost
from tests.support.boost_words import ACCUMULATION, ADASUM, DIM_REDUCE, manual
from tests.support.programs import run_code
from tests.support.step_cells import (
    assert_bit_equal,
    momentum,
    regression,
    rows,
    snapshot,
    split,
)
from tests.support.subspace_cells import basis_of

pytestmark = pytest.mark.usefixtures("runtime")

BATCHES = split(rows(32), [4] * 8)


def parts():
    network, loss_net = regression()
    return network, loss_net, momentum(network)


def assert_same_step(step, other):
    """Check that the steps have equal classes, settings, constants and Parameters."""
    assert type(step) is type(other) and step.settings == other.settings
    assert step.micro_batches == other.micro_batches
    assert_bit_equal(snapshot(step), snapshot(other))
    if isinstance(step, SubspaceStep):
        assert step.update.constants == other.update.constants
    assert type(step.update) is type(other.update)


SAME = {
    "O1": (("O1", None, {}), PlainStep, {}),
    "O2": (("O2", None, {"workers": 2}), AdasumStep, {"workers": 2}),
    "nothing": (("O0", None, {}), PlainStep, {}),
    "disabled": (("O2", {"boost": {"mode": "disable_all"}}, {}), PlainStep, {}),
    "accumulation": (("O1", ACCUMULATION, {}), AccumulatedStep, {"micro_steps": 4}),
    "adasum": (("O2", ADASUM, {"workers": 2}), AdasumStep, {"workers": 2}),
    "both": (
        (
            "O1",
            manual("adasum", "grad_accumulation", common={"grad_accumulation_step": 2}),
            {"workers": 2, "loss_scale": 8.0},
        ),
        AdasumStep,
        {"workers": 2, "micro_steps": 2, "loss_scale": 8.0},
    ),
    "server": (
        ("O2", ADASUM | {"common": {"device_num": 2}}, {"workers": 2, "scope": "network"}),
        AdasumStep,
        {"workers": 2, "node_size": 2, "scope": "network"},
    ),
}


@pytest.mark.filterwarnings("ignore:boost_step")
@pytest.mark.parametrize("name", SAME)
def test_it_is_the_step_that_the_words_mean(name):
    (level, dictionary, options), kind, arguments = SAME[name]
    step = boost_step(*parts()[1:], level, dictionary, **options)
    assert type(step) is kind
    assert_same_step(step, kind(*parts()[1:], **arguments))


def basis():
    """Return three random components of the eight weights."""
    return basis_of(regression()[0].trainable_params(), 3)


CHANGED = {"rho": 0.3, "sigma": 0.2, "gamma": 0.5, "alpha": 0.02}


@pytest.mark.filterwarnings("ignore:boost_step")
class TestDimReduce:
    def test_it_is_the_subspace_step_with_the_users_optimizer(self):
        """Accumulation, a loss scale and a number of trials all reach the step."""
        sections = {"dim_reduce": CHANGED, "common": {"grad_accumulation_step": 2}}
        words = manual("dim_reduce", "grad_accumulation", **sections)
        options = dict(trials=5, loss_scale=16.0)
        _, loss_net, optimizer = parts()
        step = boost_step(loss_net, optimizer, "O1", words, basis=basis(), **options)
        assert type(step) is SubspaceStep and step.optimizer is optimizer
        expected = SubspaceStep(*parts()[1:], basis(), **options, **CHANGED, micro_steps=2)
        assert_same_step(step, expected)

    def test_the_basis_comes_from_one_place(self):
        _, loss_net, optimizer = parts()
        for name in ("pca_mat_path", "weight_load_dir"):
            words = manual("dim_reduce", dim_reduce={name: "somewhere"})
            with pytest.raises(InputError, match=f"basis: expected None where {name} is said, got"):
                boost_step(loss_net, optimizer, "O1", words, basis=basis())

    @pytest.mark.parametrize("name", ["n_components", "n_component"])
    def test_the_dictionary_says_no_other_number_of_components(self, name):
        _, loss_net, optimizer = parts()
        words = manual("dim_reduce", dim_reduce={name: 5})
        message = "n_components: expected 3, the number in the basis, got 5"
        with pytest.raises(InputError, match=message):
            boost_step(loss_net, optimizer, "O1", words, basis=basis())
        words["dim_reduce"][name] = 3
        step = boost_step(loss_net, optimizer, "O1", words, basis=basis())
        assert step.settings["basis"] == basis().checksum


@pytest.mark.filterwarnings("ignore:boost_step")
class TestTheBasisOfTheDictionary:
    """The tutorial's dictionary with its own keys, on snapshots of the network."""

    @pytest.fixture
    def folder(self, tmp_path):
        network, _ = regression()
        for number in range(6):
            for parameter in network.trainable_params():
                moved = np.random.default_rng(number).normal(size=parameter.shape)
                set_state(parameter, moved.astype(np.float32))
            path = tmp_path / "checkpoint_pca" / f"step-{number:09d}.safetensors"
            path.parent.mkdir(exist_ok=True)
            write_snapshot(path, network.trainable_params(), {"micro_batch": number})
        return path.parent

    def step(self, **changed):
        _, loss_net, optimizer = parts()
        words = copy.deepcopy(DIM_REDUCE)
        words["dim_reduce"] |= {"n_component": 3} | {n: str(v) for n, v in changed.items()}
        before = copy.deepcopy(words)
        step = boost_step(loss_net, optimizer, "O1", words)
        assert words == before
        return step

    def test_it_is_made_of_the_snapshots_and_kept_beside_them(self, folder, capsys):
        step = self.step(weight_load_dir=folder)
        parameters = regression()[0].trainable_params()
        assert step.settings["basis"] == Basis.of(folder, parameters, 3).checksum
        kept = Basis.load(folder / "pca_mat.safetensors", parameters)
        assert kept.matrix.shape == (3, 8) and kept.checksum == step.settings["basis"]
        assert "n_components 3" in capsys.readouterr().out
        # Other snapshots make another basis.
        (folder / "step-000000000.safetensors").unlink()
        assert self.step(weight_load_dir=folder).settings["basis"] != step.settings["basis"]

    def test_a_file_that_is_there_is_taken_and_the_snapshots_may_be_gone(
        self, folder, tmp_path, capsys
    ):
        step = self.step(weight_load_dir=folder)
        moved = tmp_path / "moved"
        shutil.move(folder, moved)
        again = self.step(pca_mat_path=moved / "pca_mat.safetensors", weight_load_dir=folder)
        assert (
            f"basis loaded from {moved}/pca_mat.safetensors, nothing computed"
            in capsys.readouterr().out
        )
        assert again.settings["basis"] == step.settings["basis"]
        # A file that the dictionary names is never overwritten, whatever the folder holds.
        before = (moved / "pca_mat.safetensors").read_bytes()
        (moved / "step-000000000.safetensors").unlink()
        again = self.step(pca_mat_path=moved / "pca_mat.safetensors", weight_load_dir=moved)
        assert again.settings["basis"] == step.settings["basis"]
        assert (moved / "pca_mat.safetensors").read_bytes() == before

    def test_a_file_that_is_not_there_is_made(self, folder, tmp_path):
        path = tmp_path / "own.npy"
        step = self.step(pca_mat_path=path, weight_load_dir=folder)
        parameters = regression()[0].trainable_params()
        assert Basis.load(path, parameters).checksum == step.settings["basis"]
        assert not (folder / "pca_mat.safetensors").exists()

    def test_all_ranks_do_what_the_first_one_sees(self, folder, monkeypatch):
        """A slow rank may find the file that the first has just made, and must still join it."""
        self.step(weight_load_dir=folder)
        path = folder / "pca_mat.safetensors"
        parameters, calls = regression()[0].trainable_params(), []
        monkeypatch.setattr(basis_module, "gather", lambda values: np.array([[0.0], values]))
        monkeypatch.setattr(basis_module, "basis_of", lambda *given: calls.append(given))
        basis_module.basis_from(path, folder, parameters, 3)
        assert [call[:4] for call in calls] == [(path, folder, parameters, 3)]

    def test_what_is_refused(self, folder, tmp_path):
        self.step(weight_load_dir=folder)
        _, loss_net, optimizer = parts()
        words = manual("dim_reduce", dim_reduce={"pca_mat_path": folder / "pca_mat.safetensors"})
        message = (
            r"n_components: expected 3, the number in the basis in .*pca_mat\.safetensors, got 32"
        )
        with pytest.raises(InputError, match=message):
            boost_step(loss_net, optimizer, "O1", words)
        with pytest.raises(InputError, match="no folder of snapshots at"):
            self.step(weight_load_dir=tmp_path / "none")
        with pytest.raises(InputError, match=r"pca_mat_path .*none\.npy is not a file"):
            words["dim_reduce"]["pca_mat_path"] = tmp_path / "none.npy"
            boost_step(loss_net, optimizer, "O1", words)


class TestWhatIsSaid:
    def said(self, capsys, *arguments, **options):
        _, loss_net, optimizer = parts()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            boost_step(loss_net, optimizer, *arguments, **options)
        notes = [str(each.message) for each in caught if "boost_step" in str(each.message)]
        lines = [line for line in capsys.readouterr().out.splitlines() if "boost_level" in line]
        assert len(lines) == 1 and len(notes) <= 1
        return lines[0], notes

    def test_one_line_says_what_is_on_and_one_what_is_left_off(self, capsys):
        line, notes = self.said(capsys, "O1", manual("adasum"), workers=2)
        assert line == "labkit: boost_level O1, mode manual: adasum (node_size 1)" and not notes
        line, notes = self.said(capsys)
        assert line == "labkit: boost_level O0, mode auto: nothing is turned on, a plain step"
        assert not notes
        line, notes = self.said(capsys, "O2", workers=2)
        assert line == "labkit: boost_level O2, mode auto: adasum (node_size 1)"
        assert notes == [
            "boost_step: MindSpore's O2 also turns on less_bn and grad_freeze, which are not part "
            "of labkit"
        ]
        words = manual("adasum", "grad_accumulation", common={"grad_accumulation_step": 3})
        line, _ = self.said(capsys, "O2", words, workers=2)
        assert line.endswith(
            "mode manual: adasum and grad_accumulation (micro_steps 3, node_size 1)"
        )

    def test_dim_reduce_says_its_values_and_whose_optimizer_it_is(self, capsys):
        words = manual("dim_reduce", dim_reduce=CHANGED | {"timeout": 5})
        line, notes = self.said(capsys, "O1", words, basis=basis())
        assert line == (
            "labkit: boost_level O1, mode manual: dim_reduce (rho 0.3, sigma 0.2, gamma 0.5, "
            "alpha 0.02, n_components 3, trials 20)"
        )
        assert notes == [
            "boost_step: without effect here: timeout (no rank waits for a file); the optimizer "
            "stays your Momentum; for dim_reduce MindSpore puts SGD(learning_rate=1) in its place"
        ]
        network, loss_net = regression()
        words = manual("dim_reduce")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            same, other = (nn.SGD(network.trainable_params(), rate) for rate in (1.0, 0.5))
            boost_step(loss_net, same, "O1", words, basis=basis())
            with pytest.raises(UserWarning, match="the optimizer stays your SGD"):
                boost_step(loss_net, other, "O1", words, basis=basis())


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        (ACCUMULATION, {"workers": 2}, "unknown option of AccumulatedStep 'workers'; expected one"),
        (ACCUMULATION, {"trials": 2}, "unknown option of AccumulatedStep 'trials'"),
        (None, {"tail": "drop"}, "unknown option of PlainStep 'tail'"),
        (ADASUM, {"workers": 2, "node_size": 2}, "unknown option of AdasumStep 'node_size'"),
        (manual("dim_reduce"), {"trails": 3}, "SubspaceStep 'trails'.*Did you mean 'trials'"),
        (manual("loss_scale_group"), {}, "turns on loss_scale_group, not part of labkit"),
        (manual("grad_freeze"), {}, "turns on grad_freeze, not part of labkit"),
        (ADASUM, {}, "nothing to combine: 1 worker"),
        (ACCUMULATION, {"optimizer": "SGD"}, "optimizer: expected an nn.Optimizer, got a str"),
        (ACCUMULATION, {"basis": object()}, "basis: expected None where dim_reduce is off"),
        (manual("dim_reduce"), {}, "weight_load_dir is None, and pca_mat_path None is no"),
    ],
)
def test_what_does_not_fit(words, options, message):
    _, loss_net, optimizer = parts()
    given = {"loss_net": loss_net, "optimizer": optimizer, "boost_level": "O1"} | options
    with pytest.raises(InputError, match=message):
        boost_step(**given, boost_config_dict=words)


@pytest.mark.parametrize(
    ("ranks", "words", "expected"),
    [
        (8, {}, 1),
        (20, {}, 1),
        (16, {}, 8),
        (16, {"device_num": 4}, 4),
        (1, {"device_number": 8}, 8),
    ],
)
def test_a_server_has_8_devices_where_mindspore_has_adasum(monkeypatch, ranks, words, expected):
    """The tutorial's dictionary lacks device_number; MindSpore takes 8 from 16 ranks on."""
    monkeypatch.setattr(boost.cluster, "rank_and_size", lambda: (0, ranks))
    assert boost._node_size(boost.read_boost("O2", ADASUM | {"common": words})) == expected


@pytest.mark.filterwarnings("ignore:boost_step")
def test_model_trains_it_and_sees_a_loss_and_an_epochs_tail():
    """MindSpore's own cell returns None without a loss scale, and keeps the tail for later."""
    network, loss_net, optimizer = parts()
    inputs, targets = rows(28)
    batches = list(zip(np.split(inputs, 7), np.split(targets, 7), strict=True))
    data = GeneratorDataset(batches, ["x", "y"], shuffle=False)
    step, losses = boost_step(loss_net, optimizer, "O1", ACCUMULATION), []

    class Losses(Callback):
        def on_train_step_end(self, run_context):
            losses.append(run_context.original_args().net_outputs)

    Model(step).train(1, data, callbacks=[EndOfEpoch(step), Losses()], dataset_sink_mode=False)
    assert len(losses) == 7
    assert all(isinstance(loss, Tensor) and float(loss.asnumpy()) > 0 for loss in losses)
    assert step.last_update.number == 2 and int(step.micro_step.asnumpy()) == 0


UPSTREAM = """
import json, sys
from mindspore.boost import AutoBoost
from mindspore.boost import boost
words, second = json.loads(sys.argv[1])
first = AutoBoost("O1", words)
result = {
    "n_components": first.n_components,
    "device_number": first.device_number,
    "rho": first.rho,
    "table": boost._boost_config_level["O1"],
}
again = AutoBoost("O2", second)
result["again"] = [again is first, again.level, again.boost_config, again.grad_accumulation_step]
print(json.dumps(result))
"""


def test_mindspore_ignores_the_tutorials_keys_and_every_dictionary_but_the_first():
    """D-01, D-02, D-03 of MindSpore 2.10.0, in a separate process; and labkit beside it."""
    words = copy.deepcopy(DIM_REDUCE)
    words["common"]["device_num"], words["dim_reduce"]["n_component"] = 4, 5
    words["dim_reduce"]["rho"] = 0.3
    done = run_code(UPSTREAM, json.dumps([words, ACCUMULATION]))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    # The tutorial's keys have no effect, except the one whose name is still valid.
    assert (result["n_components"], result["device_number"], result["rho"]) == (32, 8, 0.3)
    # MindSpore has written into the module's own table.
    assert result["table"]["dim_reduce"] is True
    # The second dictionary, for another level, is not read at all.
    is_first, level, config, steps = result["again"]
    assert is_first and level == "O1" and steps == 1
    assert config["dim_reduce"] and not config["grad_accumulation"]

    ours, second = boost.read_boost("O1", words), boost.read_boost("O2", ACCUMULATION)
    assert ours.values["n_components"] == 5 and ours.values["rho"] == 0.3
    with_adasum = copy.deepcopy(ADASUM) | {"common": words["common"]}
    assert boost.read_boost("O2", with_adasum).values["device_number"] == 4
    assert (second.level, second.on) == ("O2", ("grad_accumulation",))
    assert second.values["grad_accumulation_step"] == 4
