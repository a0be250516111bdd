"""The command: settings and options, what it refuses, how it starts ranks, and how it ends."""

import json
import re
import shlex
import subprocess
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from labkit.errors import WorkerFailed
from labkit.nets import initialisers, resnet
from labkit.ranks import rank_table
from labkit.recipes import __main__ as start
from labkit.recipes import training
from labkit.recipes.__main__ import main
from labkit.recipes.settings import DEPTHS, SCHEMES, read
from tests.support import modules
from tests.support.recipes import NAMES, arguments, recipe

pytestmark = pytest.mark.usefixtures("runtime", "small")
BASE = recipe("subspace-1").named["tutorial"]
NAMED = [(line, name) for line in NAMES for name in recipe(line).named]


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    for name in ("SERVER_ID", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


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


# Of the documents: name and value of each setting in turn.
SOURCES = {
    ("accumulation", "tutorial"): (
        "batch_size 32 micro_steps 4 epoch_size 3 learning_rate 0.01 momentum 0.9 depth None"
    ),
    ("resnet50", "default"): (
        "batch_size 256 epoch_size 90 warmup 1 lr 0.256 lr_end 0.0 momentum 0.875 depth 50 "
        "label_smooth_factor 0.1 save_checkpoint True save_checkpoint_epochs 5 "
        f"keep_checkpoint_max 10 save_checkpoint_steps None seed 1 weight_decay {1 / 32768}"
    ),
    ("thor", "ascend"): (
        "lr_init 0.05803 lr_decay 4.0839 lr_end_epoch 53 damping_init 0.03 damping_decay 0.50036 "
        "epoch_size 45 frequency 834 batch_size 32 loss_scale 128.0 momentum 0.9 weight_decay "
        "0.0005 label_smooth_factor 0.1 class_num 1001 depth 50 image_size 224 decay_epochs 39 "
        "precision O2"
    ),
    ("thor", "gpu"): (
        "lr_init 0.05672 lr_decay 4.9687 lr_end_epoch 50 damping_init 0.02345 damping_decay 0.5467 "
        "epoch_size 40 frequency 834 batch_size 32 loss_scale 128.0"
    ),
    ("adasum", "servers"): (
        "batch_size 256 epoch_size 90 class_num 1001 lr_init 0.0 lr_end 0.0 lr_max 0.8 "
        "warmup_epochs 5 momentum 0.9 weight_decay 0.0001 loss_scale 1024.0 precision O2 "
        "label_smooth_factor 0.1 depth 50 reduction adasum node_size 8 workers 1 tail flush"
    ),
    ("adasum", "one_device"): "node_size 8 workers 2 tail drop batch_size 256",
    ("subspace-1", "tutorial"): (
        "batch_size 256 class_num 1001 depth 50 label_smooth_factor 0.1 loss_scale 1024.0 "
        "precision O2 image_size 224 epoch_size 70 total_epochs 90 warmup_epochs 5 lr_init 0.0 "
        "lr_end 0.0 lr_max 0.8 momentum 0.9 weight_decay 0.0001 save_checkpoint_epochs 10 "
        "keep_checkpoint_max 10 snapshots_per_epoch 1 snapshot_max 40"
    ),
    ("subspace-2", "tutorial"): (
        "epoch_size 2 learning_rate 1.0 rho 0.55 gamma 0.9 alpha 0.001 sigma 0.4 "
        "n_components 32 trials 20 failure reset weight_decay 0.0 loss_scale 1024.0 "
        "save_checkpoint_epochs 1 keep_checkpoint_max 2"
    ),
    # Two trials; the loss scale stays in the residual, so that alpha is 1024 times 0.001.
    ("subspace-2", "as_it_ran"): "trials 2 failure rollback alpha 1.024",
}


@pytest.mark.parametrize(("line", "name"), NAMED)
def test_a_file_holds_the_values_of_the_source(root, line, name):
    """They are those of the named settings, and what the program writes."""
    expected, file = recipe(line).named[name], f"{line}_{name}.yaml"
    words = SOURCES[line, name].split()
    values = dict(zip(words[::2], words[1::2], strict=True))
    assert {own: str(getattr(expected, own)) for own in values} == values
    script = modules.load(root / "scripts/write_configs.py", "write_configs")
    assert read(expected, script.FOLDER / file) == expected
    assert (script.FOLDER / file).read_text() == script.texts()[file]
    assert len(list(script.FOLDER.iterdir())) == len(NAMED)


def table(path, *servers, ids=None):
    """Write the rank table of servers with the given numbers of devices."""
    made = [
        rank_table.make(f"10.0.0.{n}", [f"192.{n}.1.{d}" for d in range(count)], ids)
        for n, count in enumerate(servers, 1)
    ]
    return str(rank_table.write(rank_table.merge(*made), path))


@pytest.fixture
def calls(monkeypatch):
    """The arguments of each call of ``Recipe.train``, which does not train."""
    made = []
    monkeypatch.setattr(training.Recipe, "train", lambda self, *a, **o: made.append((a, o)))
    return made


TEXTS = {
    "--batch_size 7 --weight_decay 1e-4": {"batch_size": 7, "weight_decay": 1e-4},
    "--augment False --class_num 5 --seed 0": {"augment": False, "class_num": 5, "seed": 0},
    "--class_num 5 --class_num None": {"class_num": None},
    "--save_checkpoint_path 7 --seed 010": {"save_checkpoint_path": "7", "seed": 10},
    "--all_reduce_fusion_config 85,160": {"all_reduce_fusion_config": [85, 160]},
    "--all_reduce_fusion_config '[85, 160]'": {"all_reduce_fusion_config": [85, 160]},
}


@pytest.mark.parametrize("words", TEXTS)
def test_texts_become_the_type_of_their_setting(words, calls):
    given = ["train", "subspace-1", "--data_path", ".", *shlex.split(words)]
    assert main(given, "labkit") == 0 and calls[-1][0][0] == replace(BASE, **TEXTS[words])


@pytest.mark.parametrize("name", NAMES)
def test_a_setting_is_an_option_too(name, calls):
    """It changes the named settings, of which the first are the default."""
    named = recipe(name).named
    options = {"device": "auto", "distribute": False, "device_num": None, "resume": False}
    for given, config in named.items():
        words = f"train {name} --data_path . --seed 3 --seed 4 --batch_size 8 --settings {given}"
        assert main(words.split(), "labkit") == 0
        assert vars(calls[-1][0][0]) == vars(config) | {"seed": 4, "batch_size": 8}
    assert main(["train", name, "--dataset_path", "."], "labkit") == 0
    assert calls[-1] == ((next(iter(named.values())), "."), options)


def test_options_reach_the_training(tmp_path, calls):
    (tmp_path / "some.yaml").write_text("lr: 0.5\nbatch_size: 8\n")
    words = "train resnet50 --dataset_path . --run_distribute True --device_num 8 --device_target "
    words += "GPU --config some.yaml --lr 0.25 --resume"
    machine = {"device": "GPU", "distribute": True, "device_num": 8}
    for more, resume in (([], True), (["anyway"], "anyway")):
        assert main([*words.split(), *more], "labkit") == 0
        (config, path), options = calls[-1]
        assert (config.lr, config.batch_size, path) == (0.25, 8, ".")
        assert options == machine | {"resume": resume}


def test_a_dry_run_is_the_command_of_a_rank(capsys, monkeypatch):
    size = SimpleNamespace(get_dataset_size=lambda: 625)
    monkeypatch.setattr(training, "datasets", lambda *_: (size,))
    plain = "train thor --data_path x --seed 2"
    for ranks, said, more in (
        ("", "one process", ""),
        (" --ranks 2", "2 of 2 ranks by msrun, logs in runs/thor-log", " --run_distribute True"),
    ):
        assert main(f"{plain}{ranks} --dry-run".split(), "labkit") == 0
        more += " --device_num 2" if ranks else ""
        assert capsys.readouterr().out.splitlines() == [
            f"labkit: {said}",
            f"python -m labkit.recipes {plain}{more}",
            "labkit: 625 micro-batches of 32 an epoch on each rank",
        ]


def test_a_rank_table_says_ranks_and_master(tmp_path, monkeypatch, capsys):
    path, launched = table(tmp_path / "t.json", 2, 2), []
    monkeypatch.setattr(start, "launch", lambda *words, **given: launched.append((words, given)))
    for number in ("2", "one", "1"):
        monkeypatch.setenv("SERVER_ID", number)
        code = main(["train", "thor", "--data_path", "x", "--rank_table", path], "labkit")
        assert code == (0 if number == "1" else 2)
    assert "SERVER_ID: expected an integer >= 0 and <= 1, got 'one'" in capsys.readouterr().err
    ((words, given),) = launched
    assert words[-4:] == ("--run_distribute", "True", "--device_num", "4")
    assert given["workers"] == 2 and given["nodes"] == 2 and given["node_rank"] == 1
    assert given["master"] == "10.0.0.1:8118" and given["env"] == {"RANK_TABLE_FILE": path}
    assert given["log_dir"] == "runs/thor-log/server1"


BESIDE = "expected no --run_distribute or --device_num, which are for a rank that was started"
REFUSED = {
    "thor --rank_table t.json --ranks 3": "--rank_table says how many ranks; expected no --ranks",
    "thor --rank_table u.json": "[(0, 0), (1, 1), (0, 2)]; expected [(0, 0), (0, 1), (0, 2)]: ms",
    "thor --rank_table v.json": "(device, rank) [(4, 0), (5, 1)]; expected [(0, 0), (1, 1)]: msrun",
    "thor --ranks 2 --run_distribute True": BESIDE,
    "thor --rank_table t.json --device_num 4": BESIDE,
    "thor --ranks 0": "workers: expected an integer >= 1, got 0",
    "thor --ranks 2 --seed -1": "seed: expected an integer >= 0, got -1",
    "thor --data_path none": "expected a folder of data, got none",
    "thor --data_path ''": "--data_path: expected a path on this machine, got ''",
    "thor --rank_table file:///t.json": "--rank_table: expected a path on this machine",
    "resnet50 --config 'seed: 1\nseed: 2'": "expected each name once, got ['seed', 'seed']",
    "resnet50 --save_checkpoint_path gs://b": "path: expected a path on this machine, got 'gs://b'",
    "subspace-2 --stage_1 hf://x": "stage_1: expected a path on this machine, got 'hf://x'",
    "resnet50 --batch_size 61": "batch_size: expected at most 40, the number",
    "resnet50 --class_num 9": "class_num: expected at least 10, the data's classes, or None",
    "resnet50 --device_target GPU": "device GPU was requested but is not available",
    "resnet50 --config 'batch_size: [1'": "cannot be read",
    "resnet50 --config '- count'": "expected name: value lines, got a list",
    "resnet50 --config 'batchsize: 3'": "Did you mean 'batch_size'?",
    "resnet50 --batch_size 0": "batch_size: expected an integer >= 1, got 0",
    "resnet50 --batch_size None": "batch_size: expected an integer >= 1, got None",
    "resnet50 --weight_decay x": "weight_decay: expected a finite number >= 0, got 'x'",
    "resnet50 --save_checkpoint False --save_checkpoint_steps 2": "steps: expected None without",
    "resnet50 --augment 1": "augment: expected True or False, got 1",
    "resnet50 --save_checkpoint_path ''": "save_checkpoint_path: expected a text, got ''",
    "resnet50 --warmup 91": "warmup: expected at most 3, the epoch_size, got 91",
    "resnet50 --label_smooth_factor 1": "factor: expected a finite number >= 0 and < 1, got 1",
    "resnet50 --image_size 31": "image_size: expected an integer >= 32, got 31",
    "resnet50 --depth 19": "depth: expected one of 18, 34, 50, 101, 152, got 19",
    "resnet50 --precision O1": "precision: expected one of 'O0', 'O2', 'O3', 'auto', ",
    "thor --epoch_size 54": "epoch_size: expected at most 3, the lr_end_epoch, got 54",
    "thor --damping_init 0": "damping_init: expected a finite number > 0, got 0",
    "adasum --tail carry": "tail: expected one of flush, drop, got 'carry'",
    "subspace-1 --snapshot_start_epoch 71": "expected at most 3, the epoch_size, got 71",
    "subspace-1 --total_epochs 2": "epoch_size: expected at most 2, the total_epochs, got 3",
    "subspace-2 --rho 1": "rho: expected a finite number > 0 and < 1, got 1",
    "resnet50 --run_distribute no": "run_distribute: expected True or False, got 'no'",
    "resnet50 --run_distribute True": "was started alone",
    "RANK_SIZE=8 resnet50": "run_distribute: expected True with 8 ranks, got False",
    "RANK_SIZE=2 resnet50 --device_num 8": "device_num: expected 2, the number of ranks started",
    "adasum --workers 1": "nothing to combine: 1 worker",
    "adasum --node_size 8 --tail drop": "4 micro-batches; expected enough for an update",
    "subspace-1 --snapshots_per_epoch 5": "snapshots_per_epoch: expected at most 4",
    "subspace-2": "subspace-1 holds no checkpoint; expected stage_1 to be the run folder of the",
    "subspace-2 --pretrained_weight_path no.ckpt": "no checkpoint at no.ckpt",
}


@pytest.mark.parametrize("words", REFUSED)
@pytest.mark.filterwarnings("ignore:the network holds a trainable BatchNorm")
def test_bad_input_is_one_line_and_exit_code_2(data, tmp_path, monkeypatch, capsys, words):
    """Nothing is written. A text with a space is the content of a file."""
    table(tmp_path / "t.json", 2, 2)
    table(tmp_path / "u.json", 2, 1)
    table(tmp_path / "v.json", 2, ids=[4, 5])
    first, *rest = shlex.split(words)
    if rest and " " in rest[-1]:
        (tmp_path / "some.yaml").write_text(rest.pop())
        rest += ["some.yaml"]
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(subprocess, "Popen", None)  # no rank is started
    if first.startswith("RANK_SIZE="):
        monkeypatch.setenv("RANK_SIZE", first[-1])
        first, *rest = rest
    assert main([*arguments(first, tmp_path, data), *rest], "labkit") == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"{first}: ") and REFUSED[words] in shown and shown.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


MISSPELLED = {
    "trian thor": "Did you mean 'train'?",
    "train tohr": "Did you mean 'thor'?",
    "train thor": "required: --data_path",
    "train thor --data_path x --checkpoint_path y": "unrecognized arguments",
    "eval thor --data_path x": "required: --checkpoint_path",
    "train thor --data_path x --batchsize 3": "Did you mean '--batch_size'?",
    "train thor --data_path x --seed [1": "argument --seed: not YAML",
}


@pytest.mark.parametrize("words", MISSPELLED)
def test_wrong_words_are_named(capsys, words):
    with pytest.raises(SystemExit) as ended:
        main(words.split(), "labkit")
    shown = capsys.readouterr().err
    assert ended.value.code == 2 and MISSPELLED[words] in shown and "usage: labkit" in shown


def test_a_rank_that_refuses_is_bad_input(monkeypatch, capsys):
    for code, expected in ((2, 2), (1, 1), (None, 1)):

        def fail(*_, code=code, **options):
            raise WorkerFailed("rank 0 failed", exit_code=code)

        monkeypatch.setattr(start, "launch", fail)
        assert main(["train", "thor", "--data_path", "x", "--ranks", "2"], "labkit") == expected
    assert re.fullmatch("(thor: rank 0 failed\n){3}", capsys.readouterr().err)
