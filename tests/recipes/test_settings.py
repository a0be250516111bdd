"""Settings: defaults, files, options, their precedence, and what is refused."""

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from labkit.nets import initialisers, resnet
from labkit.recipes import RECIPES, recipe
from labkit.recipes.settings import DEPTHS, SCHEMES, add_options, read
from tests.support import modules

SCRIPT = Path(__file__).parents[2] / "scripts" / "write_configs.py"
NAMED = [(line, name) for line in RECIPES for name in recipe(line).named]
BASE = recipe("subspace-1").named["tutorial"]


def options(*words):
    """Return what a parser with the options of ``BASE`` makes of words."""
    parser = argparse.ArgumentParser()
    add_options(parser, {"a": BASE, "b": replace(BASE, batch_size=5)})
    return vars(parser.parse_args(words))


def test_texts_become_the_type_of_their_setting():
    given = "--batch_size 7 --weight_decay 1e-4 --augment False --class_num 5 --seed 0"
    changed = {"batch_size": 7, "weight_decay": 1e-4, "augment": False, "class_num": 5, "seed": 0}
    assert options(*given.split()) == changed
    assert read(BASE, None, **changed) == replace(BASE, **changed)
    assert options("--save_checkpoint_path", "7") == {"save_checkpoint_path": "7"}
    assert options("--class_num", "5", "--class_num", "None") == {"class_num": None}
    for text in ("85,160", "[85, 160]"):
        given = options("--all_reduce_fusion_config", text)
        assert given == {"all_reduce_fusion_config": [85, 160]}


def test_an_option_beats_the_file_beats_the_base(tmp_path):
    path = tmp_path / "some.yaml"
    path.write_text("batch_size: 4\nweight_decay: 1e-2\naugment: false\n")
    base = replace(BASE, batch_size=9, initialiser="pytorch")
    expected = replace(base, batch_size=5, weight_decay=1e-2, augment=False)
    assert read(base, path, batch_size=5) == expected
    path.write_text(json.dumps(asdict(expected)))  # as a run folder keeps them
    assert read(BASE, path) == expected
    path.write_text("# nothing\n")
    assert read(base, path) == base


def test_depths_and_schemes_are_those_of_the_nets():
    assert (DEPTHS, SCHEMES) == (tuple(resnet._DEPTHS), tuple(initialisers.SCHEMES))


@pytest.mark.parametrize(("line", "name"), NAMED)
def test_a_file_is_the_named_settings(line, name):
    """It is also what the program writes."""
    expected, file = recipe(line).named[name], f"{line}_{name}.yaml"
    path = SCRIPT.parent / "configs" / file
    assert read(expected, path) == expected
    assert path.read_text() == modules.load(SCRIPT, "write_configs").texts()[file]
    assert len(list(path.parent.iterdir())) == len(NAMED)


# Values in the sources; ImageNet has 1 281 167 images.
SOURCES = {
    "accumulation tutorial": (
        "batch_size 32 micro_steps 4 epoch_size 3 learning_rate 0.01 momentum 0.9 depth None"
    ),
    "resnet50 default": (
        "batch_size 256 epoch_size 90 warmup 1 lr 0.256 lr_end 0.0 momentum 0.875 depth 50 "
        "label_smooth_factor 0.1 save_checkpoint True save_checkpoint_epochs 5 "
        f"keep_checkpoint_max 10 save_checkpoint_steps None seed 1 weight_decay {1 / 32768}"
    ),
    "thor ascend": (
        "lr_init 0.05803 lr_decay 4.0839 lr_end_epoch 53 damping_init 0.03 damping_decay 0.50036 "
        "epoch_size 45 frequency 834 batch_size 32 loss_scale 128.0 momentum 0.9 weight_decay "
        "0.0005 label_smooth_factor 0.1 class_num 1001 depth 50 image_size 224 decay_epochs 39 "
        "precision O2"
    ),
    "thor gpu": (
        "lr_init 0.05672 lr_decay 4.9687 lr_end_epoch 50 damping_init 0.02345 damping_decay 0.5467 "
        "epoch_size 40 frequency 834 batch_size 32 loss_scale 128.0"
    ),
    "adasum servers": (
        "batch_size 256 epoch_size 90 class_num 1001 lr_init 0.0 lr_end 0.0 lr_max 0.8 "
        "warmup_epochs 5 momentum 0.9 weight_decay 0.0001 loss_scale 1024.0 precision O2 "
        "label_smooth_factor 0.1 depth 50 reduction adasum node_size 8 workers 1 tail flush"
    ),
    "adasum one_device": "node_size 8 workers 2 tail drop batch_size 256",
    "subspace-1 tutorial": (
        "batch_size 256 class_num 1001 depth 50 label_smooth_factor 0.1 loss_scale 1024.0 "
        "precision O2 image_size 224 epoch_size 70 total_epochs 90 warmup_epochs 5 lr_init 0.0 "
        "lr_end 0.0 lr_max 0.8 momentum 0.9 weight_decay 0.0001 save_checkpoint_epochs 10 "
        "keep_checkpoint_max 10 snapshots_per_epoch 1 snapshot_max 40"
    ),
    "subspace-2 tutorial": (
        "epoch_size 2 learning_rate 1.0 rho 0.55 gamma 0.9 alpha 0.001 sigma 0.4 "
        "n_components 32 trials 20 failure reset weight_decay 0.0 loss_scale 1024.0 "
        "save_checkpoint_epochs 1 keep_checkpoint_max 2"
    ),
    # Two trials; the loss scale stays in the residual, so that alpha is 1024 times 0.001.
    "subspace-2 as_it_ran": "trials 2 failure rollback alpha 1.024",
}


@pytest.mark.parametrize("source", SOURCES)
def test_the_values_of_the_source(source):
    line, name = source.split()
    pairs, config = SOURCES[source].split(), recipe(line).named[name]
    expected = dict(zip(pairs[::2], pairs[1::2], strict=True))
    assert {name: str(getattr(config, name)) for name in expected} == expected
