"""The command line of the recipes; ``labkit train|eval|predict|plan RECIPE ...`` is the same.

python -m labkit.recipes train RECIPE --data_path FOLDER [--SETTING VALUE ...] [--ranks N]
python -m labkit.recipes eval RECIPE --data_path FOLDER --checkpoint_path FILE
python -m labkit.recipes predict RECIPE --checkpoint_path FILE IMAGE ...
python -m labkit.recipes plan RECIPE [--devices N] [--SETTING VALUE ...] [--measured RUN]
python -m labkit.recipes.NAME train ...    for one recipe, by the name of its module
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labkit import runtime
from labkit.base.command_line import Parser
from labkit.base.signals import ended_by_sigterm
from labkit.errors import InputError, nearest
from labkit.recipes import RECIPES, run_folder, settings, start

if TYPE_CHECKING:
    from labkit.recipes.recipe import Recipe

COMMANDS = {
    "train": "train, and evaluate",
    "eval": "evaluate a checkpoint",
    "predict": "say which classes images are of",
    "plan": "steps, memory, traffic and hours of a training, which is not started",
}
USAGE = f"usage: {{}} {'|'.join(COMMANDS)} RECIPE [OPTION ...]\n"


def main(arguments: Sequence[str], program: str) -> int:
    """Run ``COMMAND RECIPE [OPTION ...]``; return 0, 1 if a rank failed, or 2 for bad input."""
    given = list(arguments)
    if not given or given[0] in ("-h", "--help"):
        what = "\n".join(f"  {name:8} {words}" for name, words in COMMANDS.items())
        text = f"{USAGE.format(program)}\n{what}\n\nRECIPE: {', '.join(RECIPES)}"
        print(text, file=sys.stdout if given else sys.stderr)
        return 0 if given else 2
    for place, (kind, known) in enumerate((("command", COMMANDS), ("recipe", RECIPES))):
        name = given[place] if len(given) > place else ""
        if place == 1 and name in ("-h", "--help"):
            return main(["--help"], program)
        if name not in known:
            hint = nearest(name, known)
            print(USAGE.format(program), end="", file=sys.stderr)
            words = f"{kind}: expected one of {', '.join(known)}, got {name!r}.{hint}"
            print(f"{program}: {words}", file=sys.stderr)
            return 2
    command, name, *rest = given
    recipe = importlib.import_module(f"labkit.recipes.{RECIPES[name]}").RECIPE
    return run(recipe, [command, *rest], f"{program} {command} {name}")


def run(recipe: Recipe, arguments: Sequence[str] | None, program: str | None = None) -> int:
    """Run a command of one recipe.

    A checkpoint in its run folder is evaluated with the settings of its training.

    Args:
        recipe: the recipe.
        arguments: the command and its options; None: those of this process.
        program: name of the program in usage lines.

    Returns:
        0 on success; 2 for bad input and 1 if a rank failed, with the message on standard error.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    options = _parse(recipe, arguments, program)
    try:
        with ended_by_sigterm():
            return _DOES[options.command](recipe, options, arguments)
    except InputError as error:
        print(f"{recipe.name}: {error}", file=sys.stderr)
        return 2


def _train(recipe: Recipe, options: argparse.Namespace, arguments: list[str]) -> int:
    base = recipe.named[options.settings]
    config = settings.read(type(base), options.config, options.set, base)
    if start.asked(options) or options.dry_run:
        return _start(recipe, options, arguments, config.save_checkpoint_path)
    recipe.train(config, options.dataset_path, resume=options.resume, **_machine(options))
    return 0


def _evaluate(recipe: Recipe, options: argparse.Namespace, arguments: list[str]) -> int:
    config = _of_checkpoint(recipe, options)
    if start.asked(options) or options.dry_run:
        return _start(recipe, options, arguments, f"{config.save_checkpoint_path}-eval")
    path = options.checkpoint_path
    recipe.evaluate_checkpoint(config, options.dataset_path, path, **_machine(options))
    return 0


def _predict(recipe: Recipe, options: argparse.Namespace, arguments: list[str]) -> int:
    from labkit.recipes.prediction import predict

    config = _of_checkpoint(recipe, options)
    predict(
        recipe,
        config,
        options.checkpoint_path,
        options.images,
        device=options.device_target,
        top=options.top,
        picture=options.picture,
    )
    return 0


def _plan(recipe: Recipe, options: argparse.Namespace, arguments: list[str]) -> int:
    from labkit.recipes import plan

    base = recipe.named[options.settings]
    config = settings.read(type(base), options.config, options.set, base)
    # What a step prints when it is built is not part of the plan.
    with contextlib.redirect_stdout(sys.stderr):
        made = plan.make(
            recipe,
            config,
            recipe.devices if options.devices is None else options.devices,
            dataset_path=options.dataset_path,
            images=options.images,
            step_time=options.step_time,
            measured=options.measured,
        )
    print(json.dumps(made, indent=2) if options.json else plan.text(made))
    return 0


_DOES = {"train": _train, "eval": _evaluate, "predict": _predict, "plan": _plan}


def _start(
    recipe: Recipe, options: argparse.Namespace, arguments: list[str], run_folder: str
) -> int:
    """Start this command on several ranks, or show it; each rank gets the recipe's own options."""
    command = [f"labkit.recipes.{recipe.name}", *start.without_options(arguments)]
    if not start.asked(options):
        start.show(command)
        return 0
    made = start.prepare(options, command, run_folder)
    if options.dry_run:
        start.show(made)
        return 0
    return start.run(made, recipe.name)


def _of_checkpoint(recipe: Recipe, options: argparse.Namespace) -> Any:
    base = recipe.named[options.settings]
    own = run_folder.beside(options.checkpoint_path, run_folder.CONFIG)
    if own is not None:
        base = settings.read(type(base), own)
    return settings.read(type(base), options.config, options.set, base)


def _machine(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "device": options.device_target,
        "distribute": options.run_distribute,
        "device_num": options.device_num,
    }


class _Parser(Parser):
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        known, rest = super().parse_known_args(args, namespace)
        # Refused here, not by the parser of all commands, which has no options.
        if rest and self.get_default("settings"):
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return known, rest


def _parse(recipe: Recipe, arguments: list[str], program: str | None) -> argparse.Namespace:
    prog = f"python -m labkit.recipes.{recipe.name}"
    form: dict[str, Any] = {
        "description": recipe.description,
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }
    parser = argparse.ArgumentParser(prog=prog, **form)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    for name, words in COMMANDS.items():
        prog = program or f"{parser.prog} {name}"
        needs = {"predict": " --checkpoint_path FILE IMAGE ...", "plan": ""}
        usage = f"{prog}{needs.get(name, ' --data_path FOLDER')} [OPTION ...] [--SETTING VALUE ...]"
        each = commands.add_parser(name, prog=prog, usage=usage, help=words, **form)
        _add(recipe, name, each)
    return parser.parse_args(arguments)


def _add(recipe: Recipe, command: str, parser: argparse.ArgumentParser) -> None:
    """Add a command's options."""
    add = parser.add_argument
    if command == "predict":
        add("images", nargs="+", metavar="IMAGE", help="files of images")
        add("--top", type=int, default=5, metavar="K", help="classes shown of each (%(default)s)")
        add("--picture", metavar="FILE.png", help="draw the images with their classes")
    else:
        names, needed = ("--data_path", "--dataset_path"), command != "plan"
        add(*names, dest="dataset_path", required=needed, metavar="FOLDER", help=recipe.data)
    if command == "plan":
        _add_plan(recipe, parser)
    if command in ("train", "eval"):
        add("--run_distribute", type=_flag, default=False, metavar="BOOL", help="a rank of several")
        add("--device_num", type=int, metavar="N", help="ranks there must be")
        start.add_options(parser)
    if command == "train":
        add("--resume", action="store_true", help="from the newest checkpoint")
    elif command != "plan":
        add("--checkpoint_path", required=True, metavar="FILE", help="of a training")
    if command != "plan":
        add("--device_target", default="auto", choices=runtime.DEVICES, help="(%(default)s)")
    add("--config", metavar="FILE", help="YAML file of settings, also of the models repository")
    words = "the same as --NAME VALUE"
    add("--set", metavar="NAME=VALUE", action="append", default=[], help=words)
    parser.set_defaults(settings=next(iter(recipe.named)))
    if len(recipe.named) > 1:
        add("--settings", choices=list(recipe.named), help="named settings to start from")
    settings.add_options(parser, recipe.named)


def _add_plan(recipe: Recipe, parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    words = f"that train together ({recipe.devices}, the source's)"
    add("--devices", type=int, metavar="N", help=words)
    words = "of the training set, in place of --data_path's; without either, the source's"
    add("--images", type=int, metavar="N", help=words)
    add("--step-time", type=float, metavar="SECONDS", help="of one micro-batch: gives the hours")
    words = "run folder of a short training with these settings: its updates give the hours"
    add("--measured", metavar="RUN", help=words)
    add("--json", action="store_true", help="print one JSON object")


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"expected True or False, got {text!r}")
    return text.lower() == "true"
