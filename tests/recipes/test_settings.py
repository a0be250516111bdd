"""Settings: defaults, files, assignments, their order, and what is refused."""

import importlib
import json
from dataclasses import dataclass, fields

import pytest

from labkit.errors import InputError
from labkit.recipes.resnet50_config import CONVENTIONS, DEPTHS, INITIALISERS, SCHEDULES, Config
from labkit.recipes.settings import check, checked, lines, overview, read, write


@dataclass(frozen=True)
class Small:
    count: int = checked(3, "a whole number >= 1", lambda value: value >= 1)
    rate: float = 0.5
    name: str = "x"
    flag: bool = True
    most: int | None = None

    def __post_init__(self):
        check(self)


RECIPES = {
    "resnet50": "resnet50_config.Config",
    "thor": "thor_config.ThorConfig",
    "adasum": "adasum_config.AdasumConfig",
    "subspace_stage_1": "subspace_config.StageOneConfig",
    "subspace_stage_2": "subspace_config.StageTwoConfig",
}


class TestHelp:
    @pytest.mark.parametrize("command", ["train", "eval"])
    @pytest.mark.parametrize("recipe", RECIPES)
    def test_every_setting_is_listed_with_its_type_and_default(self, recipe, command, capsys):
        with pytest.raises(SystemExit) as ended:
            importlib.import_module(f"labkit.recipes.{recipe}").main([command, "--help"])
        assert ended.value.code == 0
        said = capsys.readouterr().out
        module, _, name = RECIPES[recipe].partition(".")
        kind = getattr(importlib.import_module(f"labkit.recipes.{module}"), name)
        listed = said[said.index("settings, for --set and --config:") :].splitlines()
        assert max(map(len, listed)) <= 110
        for one in fields(kind):
            (place,) = (n for n, line in enumerate(listed) if line.startswith(f"  {one.name}: "))
            assert f" = {one.default}" in listed[place]
            type_name = str(one.type).removeprefix("<class '").partition(" ")[0].rstrip("'>")
            assert listed[place].startswith(f"  {one.name}: {type_name} = ")
            if one.name not in ("loss_scale", "precision", "label_smooth_convention"):
                assert listed[place + 1].startswith("      "), one.name

    def test_named_settings_say_where_they_differ(self):
        text = overview({"a": Small(), "b": Small(count=5), "c": Small(count=7)})
        assert text.splitlines()[0] == "  count: int = 3 (b: 5; c: 7), a whole number >= 1"
        assert "  most: int = None, a whole number or None" in text

    def test_words_of_a_table_over_several_lines_and_names(self):
        @dataclass(frozen=True)
        class Told(Small):
            """Settings.

            count, rate,
            name      first words, and
                      second
            flag      as in Small

            most of it is told elsewhere
            """

        lines = overview({"x": Told()}).splitlines()
        words = "      first words, and second"
        assert [lines[n] for n in (1, 3, 5)] == [words] * 3
        assert lines[7] == "      as in Small" and lines[-1].startswith("  most: ")


class TestRead:
    def test_the_defaults(self):
        assert read(Small) == Small()

    def test_texts_become_the_type_of_their_field(self):
        given = ["count=7", "rate=1e-4", "name=7", "flag=False", "most=5"]
        assert read(Small, None, given) == Small(7, 1e-4, "7", False, 5)
        assert read(Small, None, ["most=5", "most=None"]).most is None
        assert read(Small, None, [" rate = 2 "]).rate == 2.0
        assert read(Small, None, ["name=a=b"]).name == "a=b"
        assert read(Small, None, ["name= x "]).name == "x"

    def test_an_assignment_beats_the_file_beats_the_base(self, tmp_path):
        path = tmp_path / "some.yaml"
        path.write_text("count: 4\nrate: 1e-4\n")
        base = Small(count=9, name="base")
        assert read(Small, path, ["count=5"], base) == Small(5, 1e-4, "base")

    def test_an_empty_file_changes_nothing(self, tmp_path):
        path = tmp_path / "empty.yaml"
        path.write_text("# nothing\n")
        assert read(Small, path) == Small()

    def test_what_is_written_is_read(self, tmp_path):
        path = tmp_path / "config.json"
        write(Small(most=2), path)
        assert read(Small, path) == Small(most=2)
        assert [entry.name for entry in tmp_path.iterdir()] == ["config.json"]

    @pytest.mark.parametrize(
        ("assignment", "message"),
        [
            ("cuont=1", "unknown setting 'cuont'. Did you mean 'count'?"),
            ("count", "--set count; expected name=value"),
            ("count=0", "count is 0; expected a whole number >= 1"),
            ("count=1.0", "count is '1.0'"),
            ("count=", "count is ''"),
            ("count=None", "count is 'None'"),
            ("rate=fast", "rate is 'fast'"),
            ("flag=1", "flag is '1'; expected True or False"),
            ("most=x", "most is 'x'; expected a whole number or None"),
        ],
    )
    def test_what_is_refused(self, assignment, message):
        with pytest.raises(InputError) as caught:
            read(Small, None, [assignment])
        assert message in str(caught.value)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"- count\n", "holds a list; expected name: value lines"),
            (b"count: [1\n", "cannot be read"),
            (b"\xff\xfe\x00", "cannot be read"),
            (b"count: true\n", "count is True"),
            (b"count: 1.5\n", "count is 1.5"),
            (b"flag: 1\n", "flag is 1"),
            (b"2: 1\n", "unknown setting 2"),
            (b"count: [1]\n", r"count is [1]"),
        ],
    )
    def test_files_that_are_refused(self, tmp_path, content, message):
        path = tmp_path / "bad.yaml"
        path.write_bytes(content)
        with pytest.raises(InputError) as caught:
            read(Small, path)
        assert message in str(caught.value)

    def test_no_file(self, tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            read(Small, tmp_path / "none.yaml")


def test_whole_numbers_are_rates_too_and_truths_are_not():
    assert type(Small(rate=1).rate) is float
    for value in (True, "0.5", None):
        with pytest.raises(InputError, match="rate is"):
            Small(rate=value)


def test_lines_show_every_setting():
    assert lines(Small()).splitlines()[0] == "  count  3" and len(lines(Small()).splitlines()) == 5


class TestConfigOfResNet50:
    def test_the_defaults_are_those_of_the_sample(self):
        """docs/sample_code/migration_sample/src/config.py of MindSpore's docs."""
        config = Config()
        assert (config.batch_size, config.epoch_size, config.warmup) == (256, 90, 1)
        assert (config.lr, config.lr_end, config.momentum) == (0.256, 0.0, 0.875)
        assert (config.weight_decay, config.label_smooth_factor) == (1 / 32768, 0.1)
        assert (config.save_checkpoint_epochs, config.keep_checkpoint_max) == (5, 10)
        assert config.save_checkpoint and config.seed == 1 and config.depth == 50
        assert config.save_checkpoint_steps is None

    def test_every_name_of_the_document_is_there(self):
        names = (
            "batch_size class_num lr lr_end warmup epoch_size weight_decay momentum "
            "label_smooth_factor save_checkpoint save_checkpoint_epochs keep_checkpoint_max "
            "save_checkpoint_path"
        )
        assert set(names.split()) < set(Config.__dataclass_fields__)

    def test_names_are_those_of_the_modules(self):
        from labkit.nets import initialisers, resnet
        from labkit.steps import losses, schedules

        assert DEPTHS == resnet.DEPTHS and CONVENTIONS == losses.CONVENTIONS
        assert INITIALISERS == tuple(initialisers.SCHEMES)
        assert all(callable(getattr(schedules, name)) for name in SCHEDULES)

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"batch_size": 0}, "batch_size is 0"),
            ({"class_num": 1}, "class_num is 1"),
            ({"lr": 0}, "lr is 0.0; expected a finite number > 0"),
            ({"lr": float("inf")}, "lr is inf"),
            ({"lr_end": -1e-9}, "lr_end is -1e-09"),
            ({"lr_end": 0.3}, "lr_end is 0.3, lr 0.256"),
            ({"warmup": -1}, "warmup is -1"),
            ({"warmup": 91}, "warmup is 91 epochs of epoch_size 90"),
            ({"epoch_size": 0}, "epoch_size is 0"),
            ({"weight_decay": -1}, "weight_decay is -1.0"),
            ({"momentum": 1}, "momentum is 1.0"),
            ({"label_smooth_factor": 1}, "label_smooth_factor is 1.0"),
            ({"save_checkpoint": 1}, "save_checkpoint is 1"),
            ({"save_checkpoint_epochs": 0}, "save_checkpoint_epochs is 0"),
            ({"save_checkpoint_steps": 0}, "save_checkpoint_steps is 0"),
            ({"keep_checkpoint_max": 0}, "keep_checkpoint_max is 0"),
            ({"save_checkpoint_path": ""}, "save_checkpoint_path is ''"),
            ({"depth": 20}, "depth is 20; expected one of 18, 34, 50, 101, 152"),
            ({"image_size": 31}, "image_size is 31"),
            ({"seed": 2**32}, "seed is 4294967296"),
            ({"seed": True}, "seed is True"),
            ({"initialiser": "kaiming"}, "initialiser is 'kaiming'; expected one of seed,"),
            ({"label_smooth_convention": "torch"}, "label_smooth_convention is 'torch'"),
            ({"lr_schedule": "linear"}, "lr_schedule is 'linear'"),
            ({"micro_steps": 0}, "micro_steps is 0"),
            ({"augment": "no"}, "augment is 'no'"),
            ({"num_parallel_workers": 0}, "num_parallel_workers is 0"),
            ({"lr_schedule": "cosine_as_in_the_blog", "warmup": 0}, "needs warmup >= 1"),
            ({"lr_schedule": "cosine_as_in_the_blog", "lr_end": 0.256}, "needs warmup >= 1"),
            ({"save_checkpoint": False, "save_checkpoint_steps": 5}, "save_checkpoint False"),
        ],
    )
    def test_values_that_are_refused(self, given, message):
        with pytest.raises(InputError) as caught:
            Config(**given)
        assert message in str(caught.value)

    def test_the_ends_of_ranges_are_right(self):
        Config(batch_size=1, class_num=2, warmup=0, epoch_size=1, momentum=0, lr_end=0.256)
        Config(warmup=90, label_smooth_factor=0, weight_decay=0, seed=0, image_size=32)
        Config(seed=2**32 - 1, save_checkpoint_steps=1, keep_checkpoint_max=1, micro_steps=1)

    def test_json_holds_every_setting(self, tmp_path):
        write(Config(class_num=10), tmp_path / "config.json")
        found = json.loads((tmp_path / "config.json").read_text())
        assert list(found) == list(Config.__dataclass_fields__) and found["class_num"] == 10
