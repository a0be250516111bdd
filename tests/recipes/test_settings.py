"""Settings: defaults, files, options, their precedence, and what is refused."""

import argparse
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from labkit.errors import InputError
from labkit.nets import initialisers, resnet
from labkit.recipes import RECIPES, recipe
from labkit.recipes.accumulation import AccumulationConfig
from labkit.recipes.adasum import NAMED as ADASUM
from labkit.recipes.adasum import AdasumConfig
from labkit.recipes.resnet50 import Config
from labkit.recipes.settings import DEPTHS, SCHEMES, TrainingConfig, add_options, read, setting
from labkit.recipes.subspace import STAGE_TWO, StageOneConfig, StageTwoConfig
from labkit.recipes.thor import NAMED as THOR
from labkit.recipes.thor import ThorConfig
from tests.support import modules

SCRIPT = Path(__file__).parents[2] / "scripts" / "write_configs.py"
NAMED = [(line, name) for line in RECIPES for name in recipe(line).named]


@dataclass(frozen=True)
class Small(TrainingConfig):
    batch_size: int = 3
    on: bool = setting(True, "whether")
    most: int | None = setting(None, "at most")
    word: str = setting("last", "which")


def options(*words):
    """Return what a parser with the options of ``Small`` makes of words."""
    parser = argparse.ArgumentParser()
    add_options(parser, {"a": Small(), "b": Small(batch_size=5)})
    return vars(parser.parse_args(words))


def test_texts_become_the_type_of_their_setting():
    given = "--batch_size 7 --weight_decay 1e-4 --on False --most 5 --word 7 --seed 0"
    changed = {"batch_size": 7, "weight_decay": 1e-4, "on": False, "most": 5, "word": "7"}
    assert options(*given.split()) == changed | {"seed": 0}
    assert read(Small(), None, **changed) == Small(**changed)
    assert options("--most", "5", "--most", "None") == {"most": None}


def test_an_option_beats_the_file_beats_the_base(tmp_path):
    path = tmp_path / "some.yaml"
    path.write_text("batch_size: 4\nweight_decay: 1e-2\non: false\n")
    base = Small(batch_size=9, word="base")
    expected = Small(batch_size=5, weight_decay=1e-2, word="base", on=False)
    assert read(base, path, batch_size=5) == expected
    path.write_text(json.dumps(asdict(Small(most=2))))  # as a run folder keeps them
    assert read(base, path) == Small(most=2)
    path.write_text("# nothing\n")
    assert read(base, path) == base


@pytest.mark.parametrize("text", ["85,160", "[85, 160]"])
def test_numbers_with_commas(text):
    assert options("--all_reduce_fusion_config", text) == {"all_reduce_fusion_config": [85, 160]}


REFUSED = {
    "- count": "expected name: value lines, got a list",
    "batch_size: [1": "cannot be read",
    "batchsize: 3": "Did you mean 'batch_size'?",
    "batch_size: 0": "batch_size: expected an integer >= 1, got 0",
    "batch_size: true": "batch_size: expected an integer >= 1, got True",
    "batch_size: null": "batch_size: expected an integer >= 1, got None",
    "weight_decay: x": "weight_decay: expected a finite number >= 0, got 'x'",
    "label_smooth_factor: 1": "label_smooth_factor: expected a finite number >= 0 and < 1, got 1",
    "image_size: 3": "image_size: expected an integer >= 32, got 3",
    "{save_checkpoint: false, save_checkpoint_steps: 2}": "save_checkpoint_steps: expected None",
    "seed: -1": "seed: expected an integer >= 0, got -1",
    "on: 1": "on: expected True or False, got 1",
    "most: 0": "most: expected an integer >= 1, got 0",
    "word: ''": "word: expected a text, got ''",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_refused(tmp_path, text):
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(InputError, match=re.escape(REFUSED[text])):
        read(Small(), tmp_path / "bad.yaml")


@pytest.mark.parametrize(
    ("kind", "changed", "message"),
    [
        (StageOneConfig, {"snapshot_start_epoch": 71}, "expected at most 70, the epoch_size, got"),
        (StageOneConfig, {"total_epochs": 69}, "epoch_size: expected at most 69, the total_epochs"),
        (ThorConfig, {"epoch_size": 54}, "epoch_size: expected at most 53, the lr_end_epoch"),
        (ThorConfig, {"damping_init": 0}, "damping_init: expected a finite number > 0, got 0"),
        (Config, {"warmup": 91}, "warmup: expected at most 90, the epoch_size, got 91"),
        (Config, {"depth": 19}, "depth: expected one of 18, 34, 50, 101, 152, got 19"),
        (Config, {"precision": "O1"}, "precision: expected one of 'O0', 'O2', 'O3', got 'O1'"),
        (AdasumConfig, {"tail": "carry"}, "tail: expected one of flush, drop, got 'carry'"),
        (StageTwoConfig, {"rho": 1}, "rho: expected a finite number > 0 and < 1, got 1"),
    ],
)
def test_what_fits_no_data_is_refused_before_any_is_read(kind, changed, message):
    with pytest.raises(InputError, match=re.escape(message)):
        kind(**changed)
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
    "accumulation": (
        AccumulationConfig(),
        "batch_size 32 micro_steps 4 epoch_size 3 learning_rate 0.01 momentum 0.9 depth None",
    ),
    "resnet50": (
        Config(),
        "batch_size 256 epoch_size 90 warmup 1 lr 0.256 lr_end 0.0 momentum 0.875 depth 50 "
        "label_smooth_factor 0.1 save_checkpoint True save_checkpoint_epochs 5 "
        f"keep_checkpoint_max 10 save_checkpoint_steps None seed 1 weight_decay {1 / 32768}",
    ),
    "thor ascend": (
        THOR["ascend"],
        "lr_init 0.05803 lr_decay 4.0839 lr_end_epoch 53 damping_init 0.03 damping_decay 0.50036 "
        "epoch_size 45 frequency 834 batch_size 32 loss_scale 128.0 momentum 0.9 weight_decay "
        "0.0005 label_smooth_factor 0.1 class_num 1001 depth 50 image_size 224 decay_epochs 39 "
        "precision O2",
    ),
    "thor gpu": (
        THOR["gpu"],
        "lr_init 0.05672 lr_decay 4.9687 lr_end_epoch 50 damping_init 0.02345 damping_decay 0.5467 "
        "epoch_size 40 frequency 834 batch_size 32 loss_scale 128.0",
    ),
    "adasum servers": (
        ADASUM["servers"],
        "batch_size 256 epoch_size 90 class_num 1001 lr_init 0.0 lr_end 0.0 lr_max 0.8 "
        "warmup_epochs 5 momentum 0.9 weight_decay 0.0001 loss_scale 1024.0 precision O2 "
        "label_smooth_factor 0.1 depth 50 reduction adasum node_size 8 workers 1 tail flush",
    ),
    "adasum one_device": (ADASUM["one_device"], "node_size 8 workers 2 tail drop batch_size 256"),
    "subspace one": (
        StageOneConfig(),
        "batch_size 256 class_num 1001 depth 50 label_smooth_factor 0.1 loss_scale 1024.0 "
        "precision O2 image_size 224 epoch_size 70 total_epochs 90 warmup_epochs 5 lr_init 0.0 "
        "lr_end 0.0 lr_max 0.8 momentum 0.9 weight_decay 0.0001 save_checkpoint_epochs 10 "
        "keep_checkpoint_max 10 snapshots_per_epoch 1 snapshot_max 40",
    ),
    "subspace two": (
        STAGE_TWO["tutorial"],
        "epoch_size 2 learning_rate 1.0 rho 0.55 gamma 0.9 alpha 0.001 sigma 0.4 "
        "n_components 32 trials 20 failure reset weight_decay 0.0 loss_scale 1024.0 "
        "save_checkpoint_epochs 1 keep_checkpoint_max 2",
    ),
    # Two trials; the loss scale stays in the residual, so that alpha is 1024 times 0.001.
    "subspace as it ran": (STAGE_TWO["as_it_ran"], "trials 2 failure rollback alpha 1.024"),
}


@pytest.mark.parametrize("source", SOURCES)
def test_the_values_of_the_source(source):
    config, text = SOURCES[source]
    pairs = text.split()
    expected = dict(zip(pairs[::2], pairs[1::2], strict=True))
    assert {name: str(getattr(config, name)) for name in expected} == expected
