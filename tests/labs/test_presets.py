"""The settings of the labs."""

import pytest

from labkit.labs.presets import LABS, PRESETS, choose
from labkit.recipes.adasum import NAMED as ADASUM
from labkit.recipes.subspace import STAGE_TWO, StageOneConfig
from labkit.recipes.thor import NAMED as THOR

LAB = "01_gradient_accumulation"


def test_every_lab_can_run_with_every_preset():
    for lab, presets in LABS.items():
        for preset in PRESETS:
            assert choose(lab, preset) == presets[preset]


def test_paper_is_the_setting_of_the_document_on_accumulation():
    settings = choose(LAB, "paper")
    source = {"epochs": 3, "micro_batch": 32, "micro_steps": 4, "train_images": 60_000}
    assert settings == source | {"learning_rate": 0.01, "momentum": 0.9, "seed": 1}


FIRST, SECOND = StageOneConfig(), STAGE_TWO["tutorial"]
PAPER = [
    ("03_thor_in_depth", THOR["ascend"], {
        "thor_epochs": "epoch_size", "learning_rate": "lr_init", "damping": "damping_init",
        "frequency": "frequency", "batch_size": "batch_size", "momentum": "momentum",
        "weight_decay": "weight_decay", "seed": "seed"}),
    ("04_adasum_in_depth", ADASUM["one_device"], {
        "learning_rate": "lr_max", "epochs": "epoch_size", "workers": "workers",
        "batch_size": "batch_size", "momentum": "momentum", "seed": "seed"}),
    ("05_dimension_reduction_in_depth", FIRST, {
        "learning_rate": "lr_max", "epochs": "epoch_size", "batch_size": "batch_size",
        "momentum": "momentum", "seed": "seed", "saves_per_epoch": "snapshots_per_epoch"}),
    ("05_dimension_reduction_in_depth", SECOND, {
        "components": "n_components", "trials": "trials", "second_batch_size": "batch_size",
        "second_epochs": "epoch_size"}),
]  # fmt: skip


@pytest.mark.parametrize(("lab", "recipe", "names"), PAPER)
def test_paper_is_what_the_recipe_trains(lab, recipe, names):
    settings = choose(lab, "paper", data="ImageNet")
    assert {own: settings[own] for own in names} == {
        own: getattr(recipe, its) for own, its in names.items()
    }


def test_paper_takes_the_sources_40_snapshots():
    settings = choose("05_dimension_reduction_in_depth", "paper")
    # The 40 newest of one snapshot an epoch are those from epoch 31 on.
    assert settings["epochs"] - settings["start_epoch"] + 1 == FIRST.snapshot_max
