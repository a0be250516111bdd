"""The command line of the recipes; ``labkit train|eval RECIPE ...`` is the same.

    python -m labkit.recipes train RECIPE --dataset_path FOLDER [--SETTING VALUE ...] [--ranks N]
    python -m labkit.recipes eval RECIPE --dataset_path FOLDER --checkpoint_path FILE

With ``--ranks N`` or Ascend's ``--rank_table FILE`` it starts itself on so many ranks, through
``labkit.launch``. Ranks that mpirun, msrun or a script has started get ``--run_distribute True``.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from labkit import runtime
from labkit.base.arguments import Parser
from labkit.errors import InputError, WorkerFailed
from labkit.ranks import rank_table
from labkit.ranks.launch import launch, plan
from labkit.recipes import RECIPES, recipe, settings, training

if TYPE_CHECKING:
    from labkit.recipes.training import Recipe

_PORT = 8118  # on a rank table's first server: msrun's default
# Seconds for the ranks of one machine to find each other, and of several, started by hand.
_TOGETHER, _NODES = 60, 600


def main(arguments: Sequence[str], program: str) -> int:
    """Run ``COMMAND RECIPE [OPTION ...]``; return 0, 1 if a rank failed, or 2 for bad input.

    A checkpoint in its run folder is evaluated with the settings of its training.
    """
    top = Parser(prog=program, usage=f"{program} train|eval RECIPE [OPTION ...]")
    top.add_argument("command", choices=("train", "eval"), help="train, or evaluate a checkpoint")
    top.add_argument("recipe", choices=tuple(RECIPES), help="its options: RECIPE --help")
    given = list(arguments)
    top.parse_args(given[:2])
    command, name, *rest = given
    chosen = recipe(name)
    options = _parser(chosen, command, f"{program} {command} {name}").parse_args(rest)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            signal.signal(number, _end)
    try:
        if not Path(options.dataset_path).is_dir():
            raise InputError(f"expected a folder of data, got {options.dataset_path}")
        base = chosen.named[options.settings]
        if command == "eval":
            own = training.beside(options.checkpoint_path, training.CONFIG)
            base = base if own is None else settings.read(type(base), own)
        config = settings.read(type(base), options.config, options.set, base)
        if _asked(options) or options.dry_run:
            return _start(chosen, config, options, given)
        machine = {
            "device": options.device_target,
            "distribute": options.run_distribute,
            "device_num": options.device_num,
        }
        if command == "train":
            chosen.train(config, options.dataset_path, resume=options.resume, **machine)
        else:
            path = options.checkpoint_path
            chosen.evaluate_checkpoint(config, options.dataset_path, path, **machine)
    except InputError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    return 0


def _end(number: int, frame: object) -> NoReturn:
    """End as after Ctrl-C: the training closes its files and its lock.

    Once: a shell that passes the signal on to its group sends a second one during the cleanup.
    """
    signal.signal(number, lambda *_: None)
    sys.exit(128 + number)


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
    _add_ranks(parser)
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


def _add_ranks(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how many ranks are started, and where."""
    add = parser.add_argument_group("several ranks").add_argument
    add("--ranks", type=int, metavar="N", help="start N ranks on this machine, one device each")
    add("--nodes", type=int, metavar="N", help="machines; call the command on each (1)")
    add("--node_rank", type=int, metavar="K", help="which of them this is, from 0 on (0)")
    add("--master", metavar="HOST:PORT", help="of machine 0, the same on all")
    words = "Ascend's rank table: gives the ranks of machine K, and is handed to them"
    add("--rank_table", metavar="FILE", help=words)
    add("--log_dir", metavar="FOLDER", help="of the ranks' logs (the run folder's name with -log)")
    words = "print the commands, their environment and the steps of an epoch; start nothing"
    add("--dry-run", action="store_true", help=words)


def _asked(options: argparse.Namespace) -> bool:
    """Return whether the options ask for ranks to be started."""
    names = ("ranks", "nodes", "node_rank", "master", "rank_table", "log_dir")
    return any(getattr(options, name) is not None for name in names)


def _start(chosen: Recipe, config: Any, options: argparse.Namespace, given: list[str]) -> int:
    """Start this command on several ranks, or show it; each rank gets the recipe's own options."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    _add_ranks(parser)
    command = ["-m", "labkit.recipes", *parser.parse_known_args(given)[1]]
    count, logs, why = 1, Path(), ""
    ranks: dict[str, Any] = {}
    if _asked(options):
        ranks, why = prepare(options)
        count = ranks["workers"] * ranks["nodes"]
        command += ["--run_distribute", "True", "--device_num", str(count)]
        folder = config.save_checkpoint_path.rstrip("/")
        evaluates = "-eval" if given[0] == "eval" else ""
        logs = Path(options.log_dir or f"{folder}{evaluates}-log")
    if options.dry_run:
        who, words = "one process", ["python", *command]
        if ranks:
            made = plan(command, logs, **ranks)
            who = f"msrun starts ranks {made.ranks[0]} to {made.ranks[-1]}"
            words = [f"{name}={value}" for name, value in made.variables.items()] + made.command
        print(f"# {who}\n{shlex.join(words)}", flush=True)
        if given[0] == "train":
            print(chosen.steps(config, options.dataset_path, count))
        return 0
    machine, nodes = ranks["workers"], ranks["nodes"]
    many = f"{machine} rank{'s' if machine > 1 else ''}"
    many += f" on each of {nodes} machines" if nodes > 1 else ""
    print(f"labkit: {many} by msrun, logs in {logs}{why}", flush=True)
    try:
        launch(*command, timeout=None, log_dir=logs, show=True, **ranks)
    except WorkerFailed as error:
        print(f"{chosen.name}: {error}", file=sys.stderr)
        return 2 if error.exit_code == 2 else 1
    return 0


def prepare(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Return the options of ``launch`` that the command's options ask for, and a remark.

    Raises:
        InputError: if options exclude each other, or the rank table does not fit.
    """
    if options.run_distribute or options.device_num is not None:
        raise InputError(
            "--run_distribute and --device_num are for a command that msrun starts; expected "
            "neither with --ranks, --nodes or --rank_table, which start the ranks"
        )
    nodes, ranks, master = options.nodes or 1, options.ranks, options.master
    variables, why = {}, ""
    if options.rank_table is not None:
        if ranks is not None or options.nodes is not None:
            raise InputError("--rank_table says how many ranks; expected no --ranks and no --nodes")
        servers = rank_table.read(options.rank_table)["server_list"]
        nodes, ranks = len(servers), _ranks_of(servers)
        if nodes > 1 and master is None:
            master = f"{servers[0]['server_id']}:{_PORT}"
        auto = options.device_target == "auto"
        device = runtime.available_devices()[0] if auto else options.device_target
        if device == "Ascend":
            variables["RANK_TABLE_FILE"] = str(Path(options.rank_table).absolute())
        else:
            why = f" (a rank table is Ascend's: on {device} it says the number of ranks alone)"
    if ranks is None:
        raise InputError("expected --ranks N, the ranks of this machine, or --rank_table FILE")
    made = {
        "workers": ranks,
        "nodes": nodes,
        "node_rank": options.node_rank or 0,
        "master": master,
        "cluster_timeout": _TOGETHER if nodes == 1 else _NODES,
        "env": variables,
    }
    return made, why


def _ranks_of(servers: list[dict[str, Any]]) -> int:
    """Return the number of ranks on each server, which must be numbered as msrun numbers them."""
    devices = [device for server in servers for device in server["device"]]
    each = len(devices) // len(servers)
    held = [(int(device["device_id"]), int(device["rank_id"])) for device in devices]
    expected = [(rank % each, rank) for rank in range(len(devices))]
    if held != expected:
        raise InputError(
            f"the rank table's servers have (device, rank) {held}; expected {expected}: msrun "
            "numbers both through, with as many on each server"
        )
    return each


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], "python -m labkit.recipes"))
