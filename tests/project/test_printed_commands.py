"""The programs accept every command that README, documents and notebooks print."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
import typer

from labkit.recipes import RECIPES, command
from labkit.tools.cli import app
from tests.support.texts import text_of

ROOT = Path(__file__).resolve().parents[2]
TEXTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").glob("**/*.md")),
    *sorted((ROOT / "benchmarks").glob("*.md")),
    *sorted((ROOT / "notebooks").glob("*.ipynb")),
]
PROGRAMS = ("labkit", "make", "python", "sh", "msrun", "bash")
FENCED = re.compile(r"^```(?:bash|sh|console|)\n(.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(rf"(?<!`)`((?:{'|'.join(PROGRAMS)}) [^`\n]+)`(?!`)")
# Placeholders for values that a reader fills in.
NUMBERS = {"N": "2", "K": "0"}


def commands():
    """Yield (file, command as a list) of all printed commands, without those with an ellipsis."""
    for path in TEXTS:
        text = text_of(path)
        blocks = [block.replace("\\\n", " ").splitlines() for block in FENCED.findall(text)]
        for line in [*sum(blocks, []), *INLINE.findall(text)]:
            line = line.strip()
            if line.split(" ")[0] not in PROGRAMS or "..." in line or "…" in line:
                continue
            words = shlex.split(line.split("&&")[0], comments=True)
            yield path.name, [NUMBERS.get(word, word) for word in words]


PRINTED = list(dict.fromkeys((name, tuple(words)) for name, words in commands()))


def by_recipe(words):
    """Parse ``train RECIPE ...`` with the recipe's own parser."""
    verb, name, *rest = words
    assert verb in command.COMMANDS
    recipe = importlib.import_module(f"labkit.recipes.{RECIPES[name]}").RECIPE
    command._parse(recipe, [verb, *rest], "labkit")


def by_labkit(words):
    """Parse with the command's own parser, including its subcommands."""
    if words and words[0] in command.COMMANDS:
        if "--help" not in words and len(words) > 2:
            by_recipe(words)
        return
    parser = typer.main.get_command(app)
    context = parser.context_class(parser)
    while words and hasattr(parser, "commands") and not words[0].startswith("-"):
        assert words[0] in parser.commands, words
        parser, words = parser.commands[words[0]], words[1:]
        context = parser.context_class(parser, parent=context)
    if "--help" not in words and words:
        try:
            parser.make_parser(context).parse_args(list(words))
        except Exception as error:  # typer has its own copy of click
            raise AssertionError(words) from error


def check(words):
    program, *rest = words
    if program == "labkit":
        by_labkit(rest)
    elif program == "make":
        targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)[1].split()
        assert {word for word in rest if "=" not in word} <= set(targets)
    elif program == "python" and rest[0] == "-m":
        module = rest[1]
        if module == "labkit.recipes":
            by_recipe(rest[2:])
        elif module.startswith("labkit.recipes."):
            recipe = importlib.import_module(module).RECIPE
            command._parse(recipe, rest[2:], None)
        else:
            assert importlib.util.find_spec(module), module
    elif program in ("python", "sh", "bash"):
        assert (ROOT / rest[0]).is_file(), rest[0]
    else:
        from mindspore.parallel.cluster import run

        parser = run.get_args
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", list(words))
            parser()


def test_there_are_some_of_every_kind():
    assert {words[0] for _, words in PRINTED} >= {"labkit", "make", "python", "sh"}
    assert len(PRINTED) > 40


@pytest.mark.parametrize(("name", "words"), PRINTED, ids=lambda each: " ".join(each)[:60])
def test_a_printed_command_is_taken(name, words):
    check(words)


@pytest.mark.parametrize(
    "line",
    [
        "labkit train thor --data_path x --rank 8",
        "labkit trian thor --data_path x",
        "labkit run 01 --presets smoke",
        "labkit eval adasum --data_path x",
        "make tests",
        "python benchmarks/none.py",
        "python -m labkit.recipes.thor train --data_path x --sett ascend",
        "msrun --worker_num=16 -m labkit.recipes.adasum train",
    ],
)
def test_a_wrong_one_is_found(line):
    with pytest.raises((AssertionError, SystemExit)):
        check(shlex.split(line))
