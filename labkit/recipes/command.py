"""The command line of a recipe: ``python -m labkit.recipes.NAME train|eval --dataset_path ...``."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from labkit import runtime
from labkit.base.signals import ended_by_sigterm
from labkit.errors import InputError
from labkit.recipes import run_folder, settings
from labkit.recipes.resnet50_config import Config


def run(
    arguments: Sequence[str] | None,
    *,
    name: str,
    description: str,
    named: Mapping[str, Any],
    train: Callable,
    evaluate: Callable,
) -> int:
    """Run ``train`` or ``eval``; return 0, or 2 for bad input with its message on stderr.

    named     settings by name, the first of which are those without ``--settings``
    train     (settings, dataset_path, device=, distribute=, device_num=, resume=)
    evaluate  (settings, dataset_path, checkpoint_path, device=, distribute=, device_num=)

    A checkpoint in its run folder is evaluated with the settings of its training.
    """
    given = _parser(name, description, named).parse_args(arguments)
    try:
        with ended_by_sigterm():
            _run(given, named, train, evaluate)
    except InputError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    return 0


def _run(given, named, train, evaluate):
    base = named[given.settings]
    shared = dict(
        device=given.device_target, distribute=given.run_distribute, device_num=given.device_num
    )
    if given.command == "train":
        config = settings.read(type(base), given.config, given.set, base)
        train(config, given.dataset_path, resume=given.resume, **shared)
        return
    found = run_folder.beside(given.checkpoint_path, run_folder.CONFIG)
    if found is not None:
        base = settings.read(type(base), found)
    config = settings.read(type(base), given.config, given.set, base)
    evaluate(config, given.dataset_path, given.checkpoint_path, **shared)


def _parser(name, description, named):
    parser = argparse.ArgumentParser(
        prog=f"python -m labkit.recipes.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for command, words in (("train", "train and evaluate"), ("eval", "evaluate a checkpoint")):
        one = commands.add_parser(
            command,
            help=words,
            allow_abbrev=False,
            epilog=f"settings, for --set and --config:\n{settings.overview(named, Config)}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        one.add_argument("--dataset_path", required=True, help="train/ and val/, or class folders")
        one.add_argument("--run_distribute", type=_truth, default=False, help="True or False")
        one.add_argument("--device_num", type=int, help="ranks there must be")
        one.add_argument("--device_target", default="auto", choices=runtime.DEVICES)
        one.add_argument("--config", metavar="FILE", help="YAML file of settings")
        one.add_argument(
            "--set",
            metavar="NAME=VALUE",
            action="append",
            default=[],
            help="one of the settings below, as often as needed",
        )
        one.set_defaults(settings=next(iter(named)))
        if len(named) > 1:
            one.add_argument("--settings", choices=list(named), help="named settings to start from")
        if command == "train":
            one.add_argument("--resume", action="store_true", help="from the newest checkpoint")
        else:
            one.add_argument("--checkpoint_path", required=True)
    return parser


def _truth(text):
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r}; expected True or False")
    return text.lower() == "true"
