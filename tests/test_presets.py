"""The settings of the labs."""

import pytest

from labkit.errors import InputError
from labkit.labs.presets import LABS, PRESETS, choose
from labkit.recipes.adasum_config import NAMED as ADASUM
from labkit.recipes.resnet50_config import Config
from labkit.recipes.subspace_config import STAGE_TWO, StageOneConfig
from labkit.recipes.thor_config import NAMED

LAB = "01_gradient_accumulation"


def test_every_lab_has_every_preset_with_the_same_names():
    for lab, presets in LABS.items():
        assert tuple(sorted(presets)) == tuple(sorted(PRESETS)), lab
        assert len({tuple(sorted(settings)) for settings in presets.values()}) == 1, lab


def test_lab_and_paper_are_the_source_documents_setting():
    for preset in ("lab", "paper"):
        settings = choose(LAB, preset)
        source = {"epochs": 3, "batch_size": 32, "micro_steps": 4, "train_images": 60_000}
        assert source.items() <= settings.items()
        assert (settings["learning_rate"], settings["momentum"]) == (0.01, 0.9)


def test_smoke_is_smaller_and_holds_a_tail():
    smoke, lab = choose(LAB, "smoke"), choose(LAB, "lab")
    assert smoke["epochs"] < lab["epochs"] and smoke["train_images"] < lab["train_images"] / 10
    # What the notebook says of an epoch's last group needs one that is not full, as in the source.
    for settings in (smoke, lab):
        assert settings["train_images"] // settings["batch_size"] % settings["micro_steps"]


def test_a_named_value_beats_the_preset_and_none_does_not():
    settings = choose(LAB, "smoke", epochs=7, batch_size=None, seed=0)
    assert settings == {**choose(LAB, "smoke"), "epochs": 7, "seed": 0}


def test_what_is_chosen_is_a_copy():
    choose(LAB, "lab")["epochs"] = 99
    assert choose(LAB, "lab")["epochs"] == 3
    choose(LAB, "lab", epochs=5)
    assert choose(LAB, "lab")["epochs"] == 3


def test_the_paper_preset_of_the_migration_is_resnet50_on_imagenet():
    settings = choose("02_resnet50_migration", "paper", data="ImageNet")
    recipe = Config()
    assert (settings["depth"], settings["image_size"], settings["width"]) == (50, 224, 1)
    assert settings["epochs"] == recipe.epoch_size == 90
    assert settings["batch_size"] == recipe.batch_size and settings["learning_rate"] == recipe.lr
    assert settings["momentum"] == recipe.momentum and settings["warmup_epochs"] == recipe.warmup
    assert settings["weight_decay"] == recipe.weight_decay
    assert settings["smoothing"] == recipe.label_smooth_factor


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("depth", 20), ("depth", "50"), ("image_size", 30), ("image_size", 33), ("data", 3),
        ("smoothing", 1.0), ("smoothing", -0.1), ("weight_decay", -1e-4), ("weight_decay", "1"),
        ("warmup_epochs", -1), ("warmup_epochs", 0.5), ("val_images", 0), ("val_images", 10_001),
    ],
)  # fmt: skip
def test_values_that_a_migration_cannot_run_with_are_refused(name, value):
    with pytest.raises(InputError, match=f"{name} is {value!r}; expected"):
        choose("02_resnet50_migration", "lab", **{name: value})
    choose("02_resnet50_migration", "lab", depth=34, image_size=64, data="x", smoothing=0.0)


def test_the_paper_preset_of_thor_is_the_recipes():
    settings, recipe = choose("03_thor", "paper", data="ImageNet"), NAMED["ascend"]
    assert settings["thor_epochs"] == recipe.epoch_size == 45
    assert (settings["learning_rate"], settings["damping"]) == (recipe.lr_init, recipe.damping_init)
    for name in ("frequency", "batch_size", "momentum", "weight_decay", "seed"):
        assert settings[name] == getattr(recipe, name), name


def test_the_smoke_race_of_thor_refreshes_twice_and_is_judged_twice():
    settings = choose("03_thor", "smoke")
    updates = settings["train_images"] // settings["batch_size"] * settings["thor_epochs"]
    assert updates > settings["frequency"] and updates >= 2 * settings["evaluate_every"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("damping", 0), ("damping", -1.0), ("damping", "0.3"), ("frequency", 0), ("frequency", 1.5),
        ("thor_epochs", 0), ("momentum_epochs", "2"), ("momentum_learning_rate", 0.0),
        ("evaluate_every", 0),
    ],
)  # fmt: skip
def test_values_that_the_race_cannot_run_with_are_refused(name, value):
    with pytest.raises(InputError, match=f"{name} is {value!r}; expected"):
        choose("03_thor", "lab", **{name: value})
    choose("03_thor", "lab", thor_epochs=1.5, damping=1, frequency=1)


def test_the_paper_preset_of_adasum_is_the_recipe_on_one_device():
    settings, recipe = choose("04_adasum", "paper", data="ImageNet"), ADASUM["one_device"]
    assert (settings["learning_rate"], settings["epochs"]) == (recipe.lr_max, recipe.epoch_size)
    for name in ("workers", "batch_size", "momentum", "seed"):
        assert settings[name] == getattr(recipe, name), name


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"workers": 1}, "and 1 workers came; expected at least 2"),
        ({"workers": 6}, "40 micro-batches and 6 workers came; expected .* 8 updates"),
        ({"mean_learning_rate": 0}, "mean_learning_rate is 0; expected"),
    ],
)
def test_a_race_of_adasum_that_is_none_is_refused(named, said):
    with pytest.raises(InputError, match=said):
        choose("04_adasum", "smoke", **named)
    choose("04_adasum", "smoke", workers=5)


def test_the_paper_preset_of_dimension_reduction_is_the_recipes_two_stages():
    settings = choose("05_dimension_reduction", "paper", data="ImageNet")
    one, two = StageOneConfig(), STAGE_TWO["tutorial"]
    assert (settings["learning_rate"], settings["epochs"]) == (one.lr_max, one.epoch_size)
    for name in ("batch_size", "momentum", "seed"):
        assert settings[name] == getattr(one, name), name
    # The 40 newest of one snapshot an epoch are those from epoch 31 on.
    assert settings["saves_per_epoch"] == one.snapshots_per_epoch
    assert settings["epochs"] - settings["start_epoch"] + 1 == one.snapshot_max
    assert (settings["components"], settings["trials"]) == (two.n_components, two.trials)
    assert settings["second_batch_size"] == two.batch_size
    assert settings["second_epochs"] == two.epoch_size


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"components": 12}, "make 12 snapshots; 12 components need at least 13"),
        ({"start_epoch": 3}, "start_epoch 3 and .* make 0 snapshots; 4 components"),
        ({"saves_per_epoch": 101}, "saves_per_epoch is 101, and an epoch has 100 updates"),
        ({"second_batch_size": 801}, "second_batch_size 801 is larger than the data"),
        ({"trials": 0}, "trials is 0; expected an integer >= 1"),
        ({"components": 2.0}, "components is 2.0; expected an integer >= 2"),
        ({"components": 1}, "components is 1; expected an integer >= 2"),
        ({"second_batch_size": 201}, "in batches of 201 are 3 updates; expected 4"),
    ],
)
def test_two_stages_that_cannot_be_are_refused(named, said):
    with pytest.raises(InputError, match=said):
        choose("05_dimension_reduction", "smoke", **named)
    choose("05_dimension_reduction", "smoke", components=11, second_batch_size=200)
    choose("05_dimension_reduction", "smoke", saves_per_epoch=100)


@pytest.mark.parametrize(
    ("arguments", "named", "words"),
    [
        (("01_gradient_acumulation", "lab"), {}, f"unknown lab .*Did you mean '{LAB}'"),
        ((LAB, "labb"), {}, "unknown preset 'labb'; expected one of: smoke, lab, paper. Did you"),
        ((LAB, None), {}, "unknown preset None"),
        ((LAB, "lab"), {"epoch": 1}, "unknown parameter 'epoch'.*Did you mean 'epochs'"),
        ((LAB, "lab"), {"epoch": None}, "unknown parameter 'epoch'"),
        (("00_start_here", "lab"), {"epochs": 1}, "unknown parameter 'epochs'; expected .*: none"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(arguments, named, words):
    with pytest.raises(InputError, match=words):
        choose(*arguments, **named)


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        *[
            (name, (0, -1, 2.5, "4", True), "expected an integer >= 1")
            for name in ("epochs", "batch_size", "micro_steps", "workers")
        ],
        ("train_images", (0, 60_001, 1e4), "expected an integer from 1 to 60000"),
        ("seed", (-1, 2**32, 1.0, False), r"expected an integer from 0 to 2\*\*32 - 1"),
        ("learning_rate", (0, -0.1, float("nan"), float("inf"), "0.1"), "expected a finite number"),
        ("momentum", (-0.1, 1, 1.5, float("nan")), "expected a number from 0 to below 1"),
    ],
)
def test_values_a_lab_cannot_run_with_are_refused(name, values, words):
    for value in values:
        with pytest.raises(InputError, match=f"{name} is .*; {words}"):
            choose(LAB, "lab", **{name: value})


def test_values_at_the_limits_are_taken():
    for name, values in {
        "train_images": (32, 60_000),
        "seed": (0, 2**32 - 1),
        "momentum": (0, 0.999),
        "learning_rate": (1, 1e-9),
        "micro_steps": (1, 10**6),
    }.items():
        for value in values:
            assert choose(LAB, "lab", **{name: value})[name] == value


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(InputError, match="batch_size 64 is larger than the data: train_images 63"):
        choose(LAB, "lab", batch_size=64, train_images=63)
    assert choose(LAB, "lab", batch_size=64, train_images=64)["batch_size"] == 64
