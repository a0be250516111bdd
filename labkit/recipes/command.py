"""The command line of a recipe: ``python -m labkit.recipes.NAME train|eval --dataset_path ...``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labkit import runtime
from labkit.base.signals import ended_by_sigterm
from labkit.errors import InputError
from labkit.recipes import run_folder, settings

if TYPE_CHECKING:
    from labkit.recipes.recipe import Recipe


def run(recipe: Recipe, arguments: Sequence[str] | None) -> int:
    """Run ``train`` or ``eval``; return 0, or 2 for bad input with its message on stderr.

    A checkpoint in its run folder is evaluated with the settings of its training.
    """
    options = _parser(recipe).parse_args(arguments)
    try:
        with ended_by_sigterm():
            _run(recipe, options)
    except InputError as error:
        print(f"{recipe.name}: {error}", file=sys.stderr)
        return 2
    return 0


def _run(recipe: Recipe, options: argparse.Namespace) -> None:
    base = recipe.named[options.settings]
    shared = {
        "device": options.device_target,
        "distribute": options.run_distribute,
        "device_num": options.device_num,
    }
    if options.command == "train":
        config = settings.read(type(base), options.config, options.set, base)
        recipe.train(config, options.dataset_path, resume=options.resume, **shared)
        return
    own = run_folder.beside(options.checkpoint_path, run_folder.CONFIG)
    if own is not None:
        base = settings.read(type(base), own)
    config = settings.read(type(base), options.config, options.set, base)
    recipe.evaluate_checkpoint(config, options.dataset_path, options.checkpoint_path, **shared)


def _parser(recipe: Recipe) -> argparse.ArgumentParser:
    form: dict[str, Any] = {
        "epilog": f"settings, for --set and --config:\n{settings.overview(recipe.named)}",
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }
    parser = argparse.ArgumentParser(
        prog=f"python -m labkit.recipes.{recipe.name}", description=recipe.description, **form
    )
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train", help="train and evaluate", allow_abbrev=False, **form)
    train.add_argument("--resume", action="store_true", help="from the newest checkpoint")
    evaluate = commands.add_parser("eval", help="evaluate a checkpoint", allow_abbrev=False, **form)
    evaluate.add_argument("--checkpoint_path", required=True)
    for each in (train, evaluate):
        each.add_argument("--dataset_path", required=True, help="train/ and val/, or class folders")
        each.add_argument("--run_distribute", type=_flag, default=False, help="True or False")
        each.add_argument("--device_num", type=int, help="ranks there must be")
        each.add_argument("--device_target", default="auto", choices=runtime.DEVICES)
        each.add_argument("--config", metavar="FILE", help="YAML file of settings")
        words = "one of the settings below, as often as needed"
        each.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help=words)
        each.set_defaults(settings=next(iter(recipe.named)))
        if len(recipe.named) > 1:
            words = "named settings to start from"
            each.add_argument("--settings", choices=list(recipe.named), help=words)
    return parser


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r}; expected True or False")
    return text.lower() == "true"
