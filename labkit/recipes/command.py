"""The command line of the recipes; ``labkit train|eval RECIPE ...`` is the same.

python -m labkit.recipes train RECIPE --dataset_path FOLDER [--SETTING VALUE ...] [--ranks N]
python -m labkit.recipes eval RECIPE --dataset_path FOLDER --checkpoint_path FILE
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from labkit import runtime
from labkit.base.arguments import Parser
from labkit.errors import InputError, nearest
from labkit.recipes import RECIPES, ranks, recipe, run_folder, settings

if TYPE_CHECKING:
    from labkit.recipes.training import Recipe

COMMANDS = {"train": "train, and evaluate", "eval": "evaluate a checkpoint"}
USAGE = f"usage: {{}} {'|'.join(COMMANDS)} RECIPE [OPTION ...]\n"


def _end(number: int, frame: object) -> NoReturn:
    """End as after Ctrl-C: the training closes its files and its lock.

    Once: a shell that passes the signal on to its group sends a second one during the cleanup.
    """
    signal.signal(number, lambda *_: None)
    sys.exit(128 + number)


def main(arguments: Sequence[str], program: str) -> int:
    """Run ``COMMAND RECIPE [OPTION ...]``; return 0, 1 if a rank failed, or 2 for bad input.

    A checkpoint in its run folder is evaluated with the settings of its training.
    """
    given = list(arguments)
    if not given or given[0] in ("-h", "--help") or given[1:2] in (["-h"], ["--help"]):
        what = "\n".join(f"  {name:8} {words}" for name, words in COMMANDS.items())
        text = f"{USAGE.format(program)}\n{what}\n\nRECIPE: {', '.join(RECIPES)}"
        print(text, file=sys.stdout if given else sys.stderr)
        return 0 if given else 2
    kinds = {"command": list(COMMANDS), "recipe": list(RECIPES)}
    for place, (kind, known) in enumerate(kinds.items()):
        name = given[place] if len(given) > place else ""
        if name not in known:
            hint = nearest(name, known)
            print(USAGE.format(program), end="", file=sys.stderr)
            words = f"{kind}: expected one of {', '.join(known)}, got {name!r}.{hint}"
            print(f"{program}: {words}", file=sys.stderr)
            return 2
    command, name, *rest = given
    chosen = recipe(name)
    options = _parser(chosen, command, f"{program} {command} {name}").parse_args(rest)
    signal.signal(signal.SIGTERM, _end)
    try:
        base = chosen.named[options.settings]
        if command == "eval":
            own = run_folder.beside(options.checkpoint_path, run_folder.CONFIG)
            base = base if own is None else settings.read(type(base), own)
        config = settings.read(type(base), options.config, options.set, base)
        if ranks.asked(options) or options.dry_run:
            return _start(chosen, config, options, given)
        machine = {
            "device": options.device_target,
            "distribute": options.run_distribute,
            "device_num": options.device_num,
        }
        data = options.dataset_path
        if command == "train":
            chosen.train(config, data, resume=options.resume, **machine)
        else:
            chosen.evaluate_checkpoint(config, data, options.checkpoint_path, **machine)
    except InputError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    return 0


def _start(chosen: Recipe, config: Any, options: argparse.Namespace, given: list[str]) -> int:
    """Start this command on several ranks, or show it; each rank gets the recipe's own options."""
    command = ["labkit.recipes", *ranks.without_options(given)]
    folder = config.save_checkpoint_path + ("-eval" if given[0] == "eval" else "")
    made = ranks.prepare(options, command, folder) if ranks.asked(options) else None
    if options.dry_run:
        ranks.show(command if made is None else made)
        if given[0] == "train":
            count = 1 if made is None else made.ranks * made.nodes
            print(chosen.steps(config, options.dataset_path, count))
        return 0
    assert made is not None
    return ranks.run(made, chosen.name)


def _parser(chosen: Recipe, command: str, program: str) -> argparse.ArgumentParser:
    """Return the parser of a command's options."""
    parser = Parser(
        prog=program,
        usage=f"{program} --dataset_path FOLDER [OPTION ...] [--SETTING VALUE ...]",
        description=chosen.description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    names = ("--data_path", "--dataset_path")
    add(*names, dest="dataset_path", required=True, metavar="FOLDER", help=chosen.data)
    add("--run_distribute", type=_flag, default=False, metavar="BOOL", help="a rank of several")
    add("--device_num", type=int, metavar="N", help="ranks there must be")
    ranks.add_options(parser)
    if command == "train":
        add("--resume", action="store_true", help="from the newest checkpoint")
    else:
        add("--checkpoint_path", required=True, metavar="FILE", help="of a training")
    add("--device_target", default="auto", choices=runtime.DEVICES, help="(%(default)s)")
    add("--config", metavar="FILE", help="YAML file of settings, also of the models repository")
    words = "the same as --NAME VALUE"
    add("--set", metavar="NAME=VALUE", action="append", default=[], help=words)
    parser.set_defaults(settings=next(iter(chosen.named)))
    if len(chosen.named) > 1:
        add("--settings", choices=list(chosen.named), help="named settings to start from")
    settings.add_options(parser, chosen.named)
    return parser


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"expected True or False, got {text!r}")
    return text.lower() == "true"
