"""A plan agrees with the training itself: with its loader, its step and its records."""

import json
from dataclasses import replace

import numpy as np
import pytest

from labkit.errors import InputError
from labkit.recipes import plan, run_folder
from labkit.recipes import settings as rules
from labkit.recipes.command import main
from labkit.recipes.costs import activations_of
from tests.support.programs import run_code
from tests.support.recipes import NAMES, recipe, settings

pytestmark = pytest.mark.usefixtures("runtime", "small")

of_every_recipe = pytest.mark.parametrize("name", NAMES)
BASIS = 3
ACTIVATIONS = "activations, outputs of the layers"


def made(name, tmp_path, devices=1, **changed):
    """Return the plan of a small recipe with 40 images."""
    config = settings(name, tmp_path, **({"class_num": 12} | changed))
    return plan.make(recipe(name).RECIPE, config, devices, images=40)


def bytes_of(parameters):
    """Return the bytes of Parameters from shape and type; the plan reads ``nbytes`` instead."""
    sizes = {id(p): int(np.prod(p.shape)) * p.asnumpy().dtype.itemsize for p in parameters}
    return sum(sizes.values())


def real_step(name, config, micro_batches=4):
    """Return (network, step as the training builds it, bytes of its share of a basis)."""
    module = recipe(name)
    network = module.RECIPE.parts(config).build_network(config)
    if name != "subspace_stage_2":
        return network, module.build_step(config, network, micro_batches), 0
    from labkit.algorithms.subspace import SubspaceStep
    from labkit.algorithms.subspace.basis import Basis
    from labkit.recipes.resnet50_parts import build_loss
    from labkit.steps.losses import LossNet

    weights = network.trainable_params()
    matrix = np.eye(BASIS, sum(p.size for p in weights), dtype=np.float32)
    basis = Basis(matrix, weights, np.ones(BASIS), BASIS)
    step = SubspaceStep(
        LossNet(network, build_loss(config)),
        module.build_optimizer(config, network),
        basis,
        method=config.method,
        micro_steps=config.micro_steps,
        precision=config.precision,
    )
    return network, step, bytes_of([step.update.basis_shard.tensor])


class TestSteps:
    @pytest.mark.parametrize(
        ("name", "named", "devices", "steps", "updates"),
        [
            ("resnet50", "default", 8, 625, 625),
            ("accumulation", "resnet50", 8, 2502, 626),
            ("accumulation", "lenet", 1, 1875, 469),
            ("thor", "ascend", 8, 5004, 5004),
            ("adasum", "servers", 16, 312, 312),
            ("adasum", "one_device", 1, 5004, 312),
            ("subspace_stage_1", "tutorial", 8, 625, 625),
            ("subspace_stage_2", "tutorial", 8, 625, 625),
        ],
    )
    def test_those_of_the_documents(self, name, named, devices, steps, updates):
        source = recipe(name).RECIPE
        planned = plan.make(source, source.named[named], devices)
        assert planned["steps"]["in_an_epoch"] == steps
        assert planned["steps"]["updates_in_an_epoch"] == updates
        assert planned["steps"]["updates_in_all"] == updates * source.named[named].epoch_size
        lenet = named == "lenet"
        assert planned["images"]["count"] == (60_000 if lenet else 1_281_167)
        assert ("MNIST" if lenet else "ImageNet") in planned["images"]["source"]

    @of_every_recipe
    @pytest.mark.parametrize("ranks", [2, 3, 4])
    @pytest.mark.parametrize("batch", [3, 7])
    def test_are_those_of_every_ranks_loader(self, name, ranks, batch, data, tmp_path):
        module = recipe(name).RECIPE
        config = settings(name, tmp_path, batch_size=batch)
        planned = plan.make(module, config, ranks, dataset_path=data)
        assert planned["images"]["count"] == 40 and str(data) in planned["images"]["source"]
        for rank in range(ranks):
            train_set, _, classes = module.parts(config).datasets(config, data, rank, ranks)
            assert train_set.get_dataset_size() == planned["steps"]["in_an_epoch"]
            assert (config.class_num or len(classes)) == planned["settings"]["classes"]

    @pytest.mark.parametrize("ranks", [1, 7])
    def test_are_those_of_mnists_loader(self, mnist, ranks, tmp_path):
        source = recipe("accumulation").RECIPE
        config = source.named["lenet"]
        train_set, _, classes = source.parts(config).datasets(config, mnist, 0, ranks)
        planned = plan.make(source, config, ranks, dataset_path=mnist)
        assert planned["steps"]["in_an_epoch"] == train_set.get_dataset_size()
        assert planned["settings"]["classes"] == len(classes) == 10
        assert planned["settings"]["image_size"] == next(iter(train_set))[0].shape[-1] == 32

    @pytest.mark.parametrize("micro_steps", [1, 3])
    @of_every_recipe
    def test_updates_are_those_that_the_step_will_make(self, name, micro_steps, tmp_path):
        changed = {"micro_steps": micro_steps, "class_num": 12}
        config = settings(name, tmp_path, **changed)
        steps = made(name, tmp_path, **changed)["steps"]
        assert steps["in_an_epoch"] == 4 and steps["in_all"] == 4 * config.epoch_size
        _, step, _ = real_step(name, config)
        assert step.updates_ahead([4] * config.epoch_size) == steps["updates_in_all"]

    @pytest.mark.parametrize(
        ("name", "tail"),
        [(name, tail) for name in ("accumulation", "adasum") for tail in ("flush", "drop")]
        + [("accumulation", "carry")],
    )
    def test_of_every_tail(self, name, tail, tmp_path):
        changed = {"micro_steps": 3, "class_num": 12, "tail": tail, "batch_size": 5}
        config = settings(name, tmp_path, **changed)
        _, step, _ = real_step(name, config, 8)
        steps = made(name, tmp_path, **changed)["steps"]
        assert step.updates_ahead([8]) == steps["updates_in_an_epoch"]


class TestMemory:
    @of_every_recipe
    @pytest.mark.parametrize("precision", ["O0", "O2"])
    def test_is_that_of_the_real_steps_parameters(self, name, precision, tmp_path):
        given = {"micro_steps": 2, "class_num": 12, "batch_size": 5}
        if name != "resnet50":
            given["precision"] = precision
        network, step, basis = real_step(name, settings(name, tmp_path, **given), 8)
        held = made(name, tmp_path, **given)["memory"]["held"]
        trained = network.trainable_params() if name != "thor" else step.optimizer.parameters
        assert held["weights"] == bytes_of(trained)
        moving = [p for p in network.get_parameters() if ".moving_" in p.name]
        assert held["running statistics"] == bytes_of(moving) > 0
        states = [p for p in step.optimizer.get_parameters() if id(p) not in map(id, trained)]
        assert held["optimizer state"] == bytes_of(states)
        sums = [p for p in step.get_parameters() if p.name.startswith("grad_sum")]
        assert held["accumulated gradients"] == bytes_of(sums) >= bytes_of(trained)
        # Adasum and the subspace have a few additional scalars.
        own = 40 if name in ("adasum", "subspace_stage_2") else 0
        assert 0 <= bytes_of(step.get_parameters()) + basis - sum(held.values()) <= own

    def test_of_thors_parts(self, tmp_path):
        _, step, _ = real_step("thor", settings("thor", tmp_path))
        memory = made("thor", tmp_path)["memory"]
        held, layers = memory["held"], step.update.layers
        factors = [p for layer in layers for p in (layer.a_factor, layer.g_factor)]
        inverses = [p for layer in layers for p in (layer.a_inverse, layer.g_inverse)]
        assert held["factors"] == bytes_of(factors) and held["inverses"] == bytes_of(inverses)
        assert held["gradients that wait"] == bytes_of(step.optimizer.parameters)
        positions = [layer.positions for layer in layers]
        assert memory["during_an_update"]["new factors"] == bytes_of(factors + positions)

    @pytest.mark.parametrize("on", ["updates", "gradients"])
    @pytest.mark.parametrize("workers", [1, 2, 3])
    def test_of_adasums_parts(self, workers, on, tmp_path, monkeypatch):
        from labkit.algorithms.adasum import team, update

        class OfTwoRanks(update.Team):
            """A team of one rank with the sizes of a team of two: nothing is exchanged."""

            def __init__(self, count, node_size):
                super().__init__(2 * count, node_size)
                self.sizes = team.TeamSize(count, node_size, 2)
                self.workers = count

        monkeypatch.setattr(update, "Team", OfTwoRanks)
        config = settings("adasum", tmp_path, workers=workers, on=on)
        _, step, _ = real_step("adasum", config)
        planned = made("adasum", tmp_path, 2, workers=workers, on=on)["memory"]
        parts = {
            "adasum.rows": "workers' vectors",
            "adasum.start": "weights that workers start from",
            "adasum.bank": "workers' optimizer states",
        }
        for start, part in parts.items():
            of_step = [p for p in step.update.get_parameters() if p.name.startswith(start)]
            # start_step counts the steps of the optimizer.
            assert 0 <= bytes_of(of_step) - planned["held"].get(part, 0) <= 4
        # The other rank sends as many rows as this one holds.
        other = planned["during_an_update"]["vectors of the other ranks"]
        assert other == bytes_of([step.update.rows])

    @pytest.mark.parametrize(("devices", "rows"), [(1, 32), (3, 11), (8, 4), (64, 1)])
    def test_of_the_basis(self, devices, rows, tmp_path):
        changed = {"n_components": 32, "batch_size": 1}
        config = settings("subspace_stage_2", tmp_path, class_num=12, **changed)
        planned = plan.make(recipe("subspace_stage_2").RECIPE, config, devices, images=64)
        memory, weights = planned["memory"], planned["memory"]["held"]["weights"]
        assert memory["held"]["share of the basis"] == rows * weights
        assert planned["files"] == {"basis": 32 * weights}
        assert memory["during_an_update"]["gradient, weights and moves as vectors"] == 4 * weights

    def test_in_float16_but_for_batch_norm(self, tmp_path):
        config = settings("subspace_stage_1", tmp_path)
        parts = recipe("subspace_stage_1").RECIPE.parts(config)
        weights = parts.build_network(config).trainable_params()
        total = sum(p.size for p in weights)
        norms = sum(p.size for p in weights if p.name.endswith(("gamma", "beta")))
        during = made("subspace_stage_1", tmp_path, precision="O2")["memory"]["during_an_update"]
        half = during.pop(ACTIVATIONS)
        assert during == {
            "gradients, float32": 4 * total,
            "weights in float16": 2 * (total - norms),
        }
        during = made("subspace_stage_1", tmp_path)["memory"]["during_an_update"]
        # All outputs are halved but BatchNorm's, which are float32 in both.
        assert 0.5 < half / during.pop(ACTIVATIONS) < 0.75
        assert during == {"gradients, float32": 4 * total}

    @pytest.mark.parametrize("batch", [1, 32])
    def test_of_the_activations_of_lenet(self, batch):
        source = recipe("accumulation").RECIPE
        config = replace(source.named["lenet"], batch_size=batch)
        during = plan.make(source, config, 1)["memory"]["during_an_update"]
        # Twice convolution, pool and ReLU; then flatten; three dense layers, two with a ReLU.
        first, second = (6 * (28**2 + 2 * 14**2), 16 * (10**2 + 2 * 5**2))
        assert during[ACTIVATIONS] == 4 * batch * (first + second + 400 + 2 * (120 + 84) + 10)

    @of_every_recipe
    def test_the_activations_leave_no_trace(self, name, tmp_path):
        config = settings(name, tmp_path, class_num=12)
        module = recipe(name).RECIPE
        network, step, _ = real_step(name, config)
        before = {p.name: p.asnumpy().copy() for p in step.get_parameters()}
        shape = module.parts(config).image_shape(config)
        sizes = [activations_of(step, shape, batch) for batch in (1, 3, 1)]
        assert sizes[1] == 3 * sizes[0] == 3 * sizes[2] > 0
        for parameter in step.get_parameters():
            np.testing.assert_array_equal(parameter.asnumpy(), before[parameter.name])
        assert all(cell.training for _, cell in network.cells_and_names())

    @pytest.mark.parametrize(("most", "kept"), [(None, 4), (3, 3), (9, 4)])
    def test_of_the_snapshots_on_disk(self, most, kept, tmp_path):
        changed = {"snapshot_max": most, "snapshot_start_epoch": 2}
        planned = made("subspace_stage_1", tmp_path, **changed)
        weights = planned["memory"]["held"]["weights"]
        assert planned["files"] == {f"{kept} snapshots": kept * weights}

    @of_every_recipe
    def test_the_total_is_the_sum_and_one_device_sends_nothing(self, name, tmp_path):
        planned = made(name, tmp_path)
        memory = planned["memory"]
        parts = [*memory["held"].values(), *memory["during_an_update"].values()]
        assert memory["total"] == sum(parts) and min(parts) > 0
        nothing = {"each_update": {}, "every": None, "mean_of_an_update": 0}
        assert planned["network"] == nothing


class TestNetwork:
    def weights(self, planned):
        return planned["memory"]["held"]["weights"]

    @pytest.mark.parametrize("name", ["resnet50", "accumulation", "subspace_stage_1"])
    def test_of_the_gradients(self, name, tmp_path):
        planned = made(name, tmp_path, 4)
        network = planned["network"]
        assert network["each_update"] == {"gradients, AllReduce": 1.5 * self.weights(planned)}
        assert network["mean_of_an_update"] == 1.5 * self.weights(planned)

    def test_of_thor(self, tmp_path):
        planned = made("thor", tmp_path, 4, frequency=5)
        held, network = planned["memory"]["held"], planned["network"]
        config = settings("thor", tmp_path)
        weights = recipe("thor").RECIPE.parts(config).build_network(config).trainable_params()
        layers = sum(p.ndim > 1 for p in weights)
        seldom = network["every"]["bytes"]
        assert network["every"]["updates"] == 5
        assert seldom["inverses, AllReduce"] == 1.5 * held["inverses"]
        # With its factors a layer sends two numbers: how many positions each is a mean over.
        assert seldom["factors, AllReduce"] == 1.5 * (held["factors"] + 8 * layers)
        mean = 1.5 * self.weights(planned) + sum(seldom.values()) / 5
        assert network["mean_of_an_update"] == pytest.approx(mean, abs=1)

    @pytest.mark.parametrize(
        ("devices", "node_size", "workers"), [(4, 1, 1), (4, 2, 1), (4, 1, 3), (4, 4, 2)]
    )
    def test_of_adasum(self, devices, node_size, workers, tmp_path):
        planned = made("adasum", tmp_path, devices, node_size=node_size, workers=workers)
        weights, each = self.weights(planned), planned["network"]["each_update"]
        # Five numbers follow each vector; inside a node each worker's gradients are averaged.
        gathered = (devices - 1) * workers * (weights + 4 * 5)
        reduced = workers * 2 * (node_size - 1) / node_size * weights
        assert each["workers' vectors, AllGather"] == gathered
        assert each.get("gradients, AllReduce", 0) == reduced
        assert planned["settings"]["nodes"] == devices // node_size

    @pytest.mark.parametrize(("method", "products"), [("bfgs", 2), ("sgd", 1)])
    def test_of_the_subspace(self, method, products, tmp_path):
        planned = made("subspace_stage_2", tmp_path, 4, method=method)
        weights = self.weights(planned)
        assert planned["network"]["each_update"] == {
            "gradients, AllReduce": 1.5 * weights,
            "P g, AllReduce": 1.5 * 4 * 4,  # one component per rank; the last rank has none
            "moves in the subspace, AllReduce": products * 1.5 * weights,
        }


class TestCommand:
    SMALL = ("--depth", "18", "--image_size", "32", "--class_num", "10")

    def test_json_is_all_that_is_printed(self, capsys):
        given = ["plan", "adasum", "--workers", "2", "--json", "--step-time", "0.5", *self.SMALL]
        assert main(given, "labkit") == 0
        planned = json.loads(capsys.readouterr().out)
        assert planned["recipe"] == "adasum" and planned["settings"]["devices"] == 16
        assert planned["hours"] == 312 * 90 * 0.5 / 3600

    def test_lines_for_people(self, capsys):
        assert main(["plan", "thor", *self.SMALL], "labkit") == 0
        shown = " ".join(capsys.readouterr().out.split())
        for words in (
            "images 1,281,167 (ImageNet ILSVRC2012, since no data_path is given)",
            "in an epoch 5,004",
            "hours not estimated: give --step-time or --measured",
            "every 834 updates",
            "Not counted: batches",
        ):
            assert words in shown

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (["thro"], "Did you mean 'thor'?"),
            (["thor", "--device", "8"], "Did you mean '--devices'?"),
            (["thor", "--frequensy", "8"], "Did you mean '--frequency'?"),
            (["thor", "--set", "frequensy=8"], "Did you mean 'frequency'?"),
            (["thor", "--frequency", "0"], "frequency: expected"),
            (["thor", "--devices", "0"], "devices: expected an integer >= 1, got 0"),
            (
                ["thor", "--images", "100", "--devices", "8"],
                "batch_size: expected at most 12, the number of images of each of 8 ranks in",
            ),
            (["thor", "--images", "0"], "images: expected an integer >= 1, got 0"),
            (["thor", "--step-time", "0"], "step-time"),
            (["thor", "--step-time", "nan"], "step-time"),
            (["thor", "--step-time", "1", "--measured", "x"], "expected one of them"),
            (["thor", "--measured", "none"], "expected the run folder of a recipe, got none"),
            (["thor", "--data_path", "none"], "none"),
            (["thor", "--data_path", "DATA", "--images", "9"], "expected one of them"),
            (["thor", "--data_path", "DATA", "--class_num", "2"], "class_num is 2, and the data"),
            (["adasum", "--devices", "8"], "nothing to combine"),
            (["adasum", "--devices", "12"], "node_size is 8 and there are 12 ranks"),
            (["adasum", "--all_reduce_fusion_config", "500"], "all_reduce_fusion_config"),
            (["accumulation", "--save_checkpoint_steps", "2"], "save_checkpoint_steps with"),
        ],
    )
    def test_refusals(self, given, message, data, capsys):
        given = [str(data) if word == "DATA" else word for word in given]
        try:
            code = main(["plan", *given], "labkit")
        except SystemExit as ended:
            code = ended.code
        shown = capsys.readouterr()
        assert code == 2 and message in shown.err and shown.out == ""


class TestMeasured:
    """Seconds of an update from a training's records."""

    @pytest.fixture
    def config(self, tmp_path):
        return settings("thor", tmp_path)

    @pytest.fixture
    def run(self, config, tmp_path):
        """A function: (update, seconds) of each row -> the run folder."""

        def make(rows):
            folder = tmp_path / "run"
            folder.mkdir(exist_ok=True)
            rules.write(config, folder / run_folder.CONFIG)
            text = "".join(f"{update},{seconds}\n" for update, seconds in rows)
            (folder / "records.csv").write_text(f"update,seconds\n{text}")
            return folder

        return make

    def test_its_first_two_updates_are_left_out(self, run, config, data):
        """Eight updates predict a training of 90 epochs; in sink mode a row covers an epoch."""
        folder = run([(1, 10), (2, 15), *((n, 15 + 0.5 * (n - 2)) for n in range(3, 9))])
        planned = plan.make(
            recipe("thor").RECIPE,
            replace(config, epoch_size=90, lr_end_epoch=91),
            1,
            dataset_path=data,
            measured=folder,
        )
        assert planned["hours"] == pytest.approx(planned["steps"]["updates_in_all"] * 0.5 / 3600)
        folder = run((100 * n, 10.0 * n) for n in range(1, 6))
        assert run_folder.seconds_of_update(folder, config) == 0.1
        # On several ranks Adasum has a folder per rank.
        folder.rename(folder.parent / "rank_0")
        assert run_folder.seconds_of_update(folder.parent, config) == 0.1

    def test_of_other_settings_or_too_short_it_is_no_measure(self, run, config, tmp_path):
        folder = run((n, n) for n in range(1, 5))
        for name, value in {"batch_size": 5, "frequency": 3, "precision": "O2"}.items():
            with pytest.raises(InputError, match=f"{name} is .* in the plan"):
                run_folder.seconds_of_update(folder, replace(config, **{name: value}))
        with pytest.raises(InputError, match="at least 5 rows in records.csv, got 4"):
            run_folder.seconds_of_update(folder, config)
        with pytest.raises(InputError, match="records.csv is damaged; expected seconds"):
            run_folder.seconds_of_update(run([(7, n) for n in range(5)]), config)
        path = folder / "records.csv"
        path.write_text(path.read_text().replace("update", "epoch"))
        with pytest.raises(InputError, match="records.csv is damaged; expected seconds"):
            run_folder.seconds_of_update(folder, config)
        with pytest.raises(InputError, match="expected the run folder of a recipe"):
            run_folder.seconds_of_update(tmp_path, config)


@pytest.mark.parametrize("words", [["plan", "--help"], ["plan", "thor", "--help"]], ids=" ".join)
def test_help_needs_no_mindspore(words):
    code = (
        "import sys; from labkit.tools.cli import app\n"
        f"try: app({words!r})\n"
        "except SystemExit as ended: print(ended.code, 'mindspore' in sys.modules)"
    )
    done = run_code(code, check=True)
    assert done.stdout.splitlines()[-1] == "0 False" and "plan" in done.stdout
