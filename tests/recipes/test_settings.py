"""Settings: defaults, files, assignments, their precedence, and what is refused."""

import argparse
import json
import re
from argparse import HelpFormatter
from dataclasses import asdict, dataclass, fields

import pytest

from labkit import nets
from labkit.errors import InputError
from labkit.nets import initialisers, resnet
from labkit.recipes import settings as rules
from labkit.recipes.accumulation import AccumulationConfig
from labkit.recipes.adasum import NAMED as ADASUM
from labkit.recipes.adasum import AdasumConfig
from labkit.recipes.resnet50 import SCHEDULES, Config
from labkit.recipes.settings import add_options, read
from labkit.recipes.subspace import STAGE_TWO, StageOneConfig, StageTwoConfig
from labkit.recipes.thor import NAMED as THOR
from labkit.recipes.thor import ThorConfig
from labkit.steps import schedules


@dataclass(frozen=True)
class Base:
    count: int = rules.count(2, "how many")
    rate: float = rules.rate(0.5, "how fast")

    def __post_init__(self):
        rules.check(self)


@dataclass(frozen=True)
class Small(Base):
    count: int = 3
    name: str = rules.path("x", "a name", "a name")
    on: bool = rules.flag(True, "whether")
    most: int | None = rules.count(None, "at most")
    size: int = rules.one_of(1, (1, 2), "how large")
    word: str = rules.one_of("last", ("last", "first"), "which")
    inside: float = rules.inside(0.5, "of all")


def test_texts_become_the_type_of_their_field():
    assert read(Small) == Small()
    given = ["count=7", "rate=1e-4", "name=7", "on=False", "most=5", "size=2", "word=first"]
    expected = Small(7, 1e-4, "7", False, 5, 2, "first")
    assert read(Small, None, given) == expected
    assert read(Small, None, ["most=5", "most=None"]).most is None
    assert read(Small, None, [" rate = 2 ", "name=a=b"]) == Small(rate=2.0, name="a=b")


def test_an_assignment_beats_the_file_beats_the_base(tmp_path):
    path = tmp_path / "some.yaml"
    path.write_text("count: 4\nrate: 1e-4\non: false\n")
    base = Small(count=9, name="base")
    assert read(Small, path, ["count=5"], base) == Small(5, 1e-4, "base", False)
    path.write_text(json.dumps(asdict(Small(most=2))))  # as a run folder keeps them
    assert read(Small, path) == Small(most=2)
    path.write_text("# nothing\n")
    assert read(Small, path, [], base) == base


REFUSED = {
    "cuont=1": "unknown setting 'cuont'. Did you mean 'count'? The settings are: count,",
    "count": "--set: expected name=value, got count",
    "count=1.0": "count: expected an integer >= 1, got 1.0",
    "count=None": "count: expected an integer >= 1, got None",
    "rate=inf": "rate: expected a finite number >= 0, got 'inf'",
    "name=": "name: expected a name, got ''",
    "on=1": "on: expected True or False, got 1",
    "most=x": "most: expected an integer >= 1 or None, got 'x'",
    "size=3": "size: expected one of 1, 2, got 3",
    "size=True": "size: expected one of 1, 2, got True",
    "word=lats": "word: expected one of 'last', 'first', got 'lats'. Did you mean 'last'?",
    "inside=0": "inside: expected a finite number > 0 and < 1, got 0",
    "FILE - count": "expected name: value lines, got a list",
    "FILE count: [1": "cannot be read",
    "FILE count: true": "count: expected an integer >= 1, got True",
    "FILE rate: true": "rate: expected a finite number >= 0, got True",
    "FILE 2: 1": "bad.yaml. The settings are: count",
}


@pytest.mark.parametrize("given", REFUSED)
def test_what_is_refused(tmp_path, given):
    file, _, text = given.partition("FILE ")
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(InputError, match=re.escape(REFUSED[given])):
        read(Small, tmp_path / "bad.yaml" if text else None, [file] if file else [])


@pytest.mark.parametrize("text", ["85,160", "[85, 160]", "(85, 160)"])
def test_numbers_with_commas(text):
    config = read(Config, assignments=[f"all_reduce_fusion_config={text}"])
    assert config.all_reduce_fusion_config == (85, 160)
    for wrong in ("85;160", "160,85", "x"):
        with pytest.raises(InputError, match="all_reduce_fusion_config: expected integers >= 0"):
            read(Config, assignments=[f"all_reduce_fusion_config={wrong}"])


def test_a_subclass_inherits_rule_and_meaning_with_its_own_default():
    assert Small().count == 3 and Base().count == 2
    parser = argparse.ArgumentParser(formatter_class=lambda prog: HelpFormatter(prog, width=200))
    parser.add_argument("--set", action="append", default=[])
    add_options(parser, {"a": Small(), "b": Small(count=5), "c": Small(count=7)})
    text = parser.format_help()
    assert "how many (3; b: 5; c: 7; an integer >= 1)" in text
    assert "at most (None; an integer >= 1 or None)" in text
    assert parser.parse_args(["--set", "x=1", "--count", "4"]).set == ["x=1", "count=4"]


def test_the_words_of_the_networks_are_theirs():
    assert resnet.DEPTHS == nets.DEPTHS
    assert tuple(initialisers.SCHEMES) == nets.INITIALISERS
    assert all(callable(getattr(schedules, name)) for name in SCHEDULES)


@dataclass(frozen=True)
class OfResNet(AccumulationConfig):
    """Accumulation with a ResNet; with LeNet, settings of the ResNet are refused."""

    network: str = "resnet"


KINDS = (Config, OfResNet, ThorConfig, AdasumConfig, StageOneConfig, StageTwoConfig)
TOGETHER = [
    (Config, {"lr_end": 0.3}, "lr_end is 0.3, lr 0.256; expected lr_end <= lr"),
    (Config, {"warmup": 91}, "warmup is 91 and epoch_size 90; expected at most as many"),
    (Config, {"lr_schedule": SCHEDULES[1], "warmup": 0}, "needs warmup >= 1"),
    (Config, {"lr_schedule": SCHEDULES[1], "lr_end": 0.256}, "needs warmup >= 1"),
    (ThorConfig, {"epoch_size": 54}, "epoch_size is 54 and lr_end_epoch 53"),
    (AccumulationConfig, {"depth": 18}, "depth is 18 with network lenet, which has none"),
    (AccumulationConfig, {"network": "resnet", "rescale": "seed"}, "with network resnet"),
    (AdasumConfig, {"lr_init": 1}, "lr_init is 1.0, lr_end 0.0 and lr_max 0.8; expected none"),
    (AdasumConfig, {"lr_end": 1}, "lr_end 1.0 and lr_max 0.8"),
    (AdasumConfig, {"warmup_epochs": 91}, "warmup_epochs is 91 and epoch_size 90"),
    (StageOneConfig, {"epoch_size": 91}, "epoch_size is 91 and total_epochs 90"),
    (StageOneConfig, {"warmup_epochs": 91}, "warmup_epochs is 91 and total_epochs 90"),
    (StageOneConfig, {"lr_init": 1}, "lr_init is 1.0, lr_end 0.0 and lr_max 0.8"),
    (StageOneConfig, {"snapshot_start_epoch": 71}, "snapshot_start_epoch is 71 and epoch_size 70"),
    (ThorConfig, {"dataset_sink_mode": True}, "expected False, got True: THOR has a graph that"),
    (AdasumConfig, {"dataset_sink_mode": True}, "expected False, got True: Adasum has a second"),
    (StageTwoConfig, {"dataset_sink_mode": True}, "got True: an update in the subspace is several"),
    (
        StageOneConfig,
        {"dataset_sink_mode": True, "snapshots_per_epoch": 2},
        "snapshots_per_epoch: expected 1 with dataset_sink_mode True, got 2",
    ),
    (
        Config,
        {"dataset_sink_mode": True, "save_checkpoint_steps": 5},
        "save_checkpoint_steps: expected None with dataset_sink_mode True, got 5",
    ),
    (
        Config,
        {"save_checkpoint": False, "save_checkpoint_steps": 5},
        "save_checkpoint_steps: expected None with save_checkpoint False, got 5",
    ),
]


@pytest.mark.parametrize(("kind", "given", "message"), TOGETHER)
def test_values_that_do_not_go_together(kind, given, message):
    with pytest.raises(InputError, match=re.escape(message)):
        kind(**given)


# (nearest invalid value, nearest valid value) -> settings.
ENDS = {
    (0, 1): "batch_size micro_steps save_checkpoint_epochs save_checkpoint_steps "
    "keep_checkpoint_max cache_session_id num_parallel_workers decay_epochs frequency split "
    "node_size workers snapshots_per_epoch snapshot_max n_components trials",
    (-1, 0): "warmup warmup_epochs",
    (0, 1e-9): "lr lr_max loss_scale learning_rate damping_init damping_decay sigma",
    (-1e-9, 0): "weight_decay lr_decay alpha",
    (1, 0): "label_smooth_factor momentum gamma",
    ("", "x"): "save_checkpoint_path stage_1 pretrained_weight_path weight_load_dir pca_mat_path",
    (None, False): "save_checkpoint augment drop_overflow_update",
    (None, True): "dataset_sink_mode keep_batchnorm_fp32 use_label_smooth",
    # Settings with another setting as the other bound.
    (0, 5): "epoch_size",
    (0, 45): "lr_end_epoch",
    (0, 70): "total_epochs snapshot_start_epoch",
    (-1e-9, 0.256): "lr_end",
}
SINGLE = {
    "class_num": (1, 2),
    "image_size": (31, 32),
    "seed": (2**32, 2**32 - 1),
    "rho": (1, 0.999),
    "all_reduce_fusion_config": ((2, 2), (1, 2)),
    "depth": (20, 152),
    "initialiser": ("kaiming", "pytorch"),
    "dataset": ("imagenet", "cifar10"),
    "lr_schedule": ("linear", "cosine_as_in_the_blog"),
    "lr_decay_mode": ("exp", "cosine"),
    "precision": ("O1", "O3"),
    "network": ("mlp", "resnet"),
    "rescale": ("wrong", "correct"),
    "reduction": ("max", "sum"),
    "on": ("weights", "gradients"),
    "scope": ("all", "network"),
    "method": ("newton", "sgd"),
    "failure": ("stop", "rollback"),
}
WARM_UP = {"lr_init": (-1e-9, 0.8), "lr_end": (-1e-9, 0.8)}
NOT_SUNK = {"dataset_sink_mode": (True, False)}  # the step is not a single graph
OWN = {
    Config: {},
    OfResNet: {"tail": ("keep", "carry")},
    ThorConfig: NOT_SUNK | {"lr_init": (0, 1e-9)},
    AdasumConfig: WARM_UP | NOT_SUNK | {"tail": ("carry", "drop")},
    StageOneConfig: WARM_UP,
    StageTwoConfig: NOT_SUNK,
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_ends_of_every_range(kind):
    shared = {name: ends for ends, names in ENDS.items() for name in names.split()}
    table = shared | SINGLE | OWN[kind]
    for each in fields(kind):
        wrong, right = table[each.name]
        # Neither a number nor None is a flag.
        for value in (0, 1, None) if wrong is None else (wrong,):
            with pytest.raises(InputError, match=f"^{each.name}: expected "):
                kind(**{each.name: value})
        assert getattr(kind(**{each.name: right}), each.name) == right


# Values in the sources; ImageNet has 1 281 167 images.
SOURCES = {
    "resnet50": (
        Config(),
        "batch_size 256 epoch_size 90 warmup 1 lr 0.256 lr_end 0.0 momentum 0.875 depth 50 "
        "label_smooth_factor 0.1 save_checkpoint True save_checkpoint_epochs 5 "
        "keep_checkpoint_max 10 save_checkpoint_steps None seed 1",
    ),
    "thor ascend": (
        THOR["ascend"],
        "lr_init 0.05803 lr_decay 4.0839 lr_end_epoch 53 damping_init 0.03 damping_decay 0.50036 "
        "epoch_size 45 frequency 834 batch_size 32 loss_scale 128.0 momentum 0.9 weight_decay "
        "0.0005 label_smooth_factor 0.1 class_num 1001 depth 50 image_size 224 decay_epochs 39 "
        "precision O2 use_label_smooth True",
    ),
    "thor gpu": (
        THOR["gpu"],
        "lr_init 0.05672 lr_decay 4.9687 lr_end_epoch 50 damping_init 0.02345 damping_decay 0.5467 "
        "epoch_size 40 frequency 834 batch_size 32 loss_scale 128.0",
    ),
    "adasum servers": (
        ADASUM["servers"],
        "batch_size 256 epoch_size 90 class_num 1001 lr_init 0.0 lr_end 0.0 lr_max 0.8 "
        "warmup_epochs 5 lr_decay_mode linear momentum 0.9 weight_decay 0.0001 loss_scale 1024.0 "
        "precision O2 label_smooth_factor 0.1 depth 50 reduction adasum on updates scope layer "
        "node_size 8 workers 1 tail flush",
    ),
    "adasum one_device": (ADASUM["one_device"], "node_size 8 workers 2 tail drop batch_size 256"),
    "subspace one": (
        StageOneConfig(),
        "batch_size 256 class_num 1001 depth 50 label_smooth_factor 0.1 loss_scale 1024.0 "
        "precision O2 image_size 224 epoch_size 70 total_epochs 90 warmup_epochs 5 lr_init 0.0 "
        "lr_end 0.0 lr_max 0.8 lr_decay_mode linear momentum 0.9 weight_decay 0.0001 "
        "save_checkpoint_epochs 10 keep_checkpoint_max 10 snapshots_per_epoch 1 snapshot_max 40",
    ),
    "subspace two": (
        STAGE_TWO["tutorial"],
        "epoch_size 2 learning_rate 1.0 rho 0.55 gamma 0.9 alpha 0.001 sigma 0.4 "
        "n_components 32 method bfgs trials 20 failure reset weight_decay 0.0 loss_scale 1024.0 "
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


def test_the_weight_decay_of_the_migration_document():
    assert Config().weight_decay == 1 / 32768


def test_workers_whose_vectors_are_averaged_may_be_sunk():
    assert AdasumConfig(reduction="mean", dataset_sink_mode=True).dataset_sink_mode


def test_label_smoothing_may_be_switched_off():
    assert ThorConfig(use_label_smooth=False).label_smooth_factor == 0


def test_batch_norm_in_float16_is_o3():
    assert ThorConfig(keep_batchnorm_fp32=False).precision == "O3"
    assert ThorConfig(keep_batchnorm_fp32=False, precision="O0").precision == "O0"
    assert ThorConfig().precision == "O2"
