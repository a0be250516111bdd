"""The command line of the recipes; ``labkit train|eval RECIPE ...`` is the same.

    python -m labkit.recipes train RECIPE --dataset_path FOLDER [--SETTING VALUE ...] [--ranks N]
    python -m labkit.recipes eval RECIPE --dataset_path FOLDER --checkpoint_path FILE

With ``--ranks N`` or Ascend's ``--rank_table FILE`` it starts itself on so many ranks, through
``labkit.launch``. Ranks that mpirun, msrun or a script has started get ``--run_distribute True``.
"""

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from labkit import runtime
from labkit.base.arguments import Parser, flag, integer, local_path, parse
from labkit.errors import InputError, WorkerFailed
from labkit.ranks import rank_table
from labkit.ranks.launch import launch
from labkit.recipes import RECIPES, recipe, settings


def main(arguments: Sequence[str], program: str) -> int:
    """Run ``COMMAND RECIPE [OPTION ...]``; return 0, 1 if a rank failed, or 2 for bad input.

    A checkpoint in its run folder is evaluated with the settings of its training.
    """
    top = Parser(prog=program, usage=f"{program} train|eval RECIPE [OPTION ...]")
    top.add_argument("command", choices=("train", "eval"), help="train, or evaluate a checkpoint")
    top.add_argument("recipe", choices=RECIPES, help="its options: RECIPE --help")
    top.parse_args(arguments[:2])
    command, name, *rest = arguments
    chosen = recipe(name)
    options = _parser(chosen, command, f"{program} {command} {name}").parse_args(rest)
    # As Ctrl-C: the training closes its files and its lock.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        options.dataset_path = str(local_path("--data_path", options.dataset_path))
        if not Path(options.dataset_path).is_dir():
            raise InputError(f"expected a folder of data, got {options.dataset_path}")
        config = chosen.named[options.settings]
        if command == "eval":
            own = settings.beside(options.checkpoint_path, settings.CONFIG)
            config = settings.read(config, own)
        changes = {name: value for name, value in vars(options).items() if name in asdict(config)}
        config = settings.read(config, options.config, **changes)
        if options.ranks is not None or options.rank_table is not None or options.dry_run:
            return _start(config, options, arguments)
        machine = {"device": options.device_target, "device_num": options.device_num}
        machine["distribute"] = flag("run_distribute", options.run_distribute)
        if command == "train":
            chosen.train(config, options.dataset_path, resume=options.resume, **machine)
        else:
            checkpoint = str(local_path("--checkpoint_path", options.checkpoint_path))
            chosen.evaluate_checkpoint(config, options.dataset_path, checkpoint, **machine)
    except (InputError, WorkerFailed) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2 if getattr(error, "exit_code", 2) == 2 else 1
    return 0


def _parser(chosen: Any, command: str, program: str) -> argparse.ArgumentParser:
    """Return the parser of a command's options."""
    parser = Parser(
        prog=program,
        usage=f"{program} --dataset_path FOLDER [OPTION ...] [--SETTING VALUE ...]",
        description=chosen.description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[_rank_options()],
    )
    add = parser.add_argument
    words = "train/ and val/ (or the tutorials' names), or one folder a class, read without EXIF's "
    words += "orientation; or MNIST's"
    names = ("--data_path", "--dataset_path")
    add(*names, dest="dataset_path", required=True, metavar="FOLDER", help=words)
    add("--run_distribute", type=parse, default=False, metavar="BOOL", help="a rank of several")
    add("--device_num", type=int, metavar="N", help="ranks there must be")
    if command == "train":
        words = "from the newest checkpoint; anyway: with other settings than its own"
        add("--resume", nargs="?", const=True, default=False, choices=("anyway",), help=words)
    else:
        add("--checkpoint_path", required=True, metavar="FILE", help="of a training")
    add("--device_target", default="auto", choices=runtime.DEVICES, help="(%(default)s)")
    add("--config", metavar="FILE", help="YAML file of settings")
    named = list(chosen.named)
    add("--settings", choices=named, default=named[0], help="to start from (%(default)s)")
    settings.add_options(parser, chosen.named)
    return parser


def _rank_options() -> argparse.ArgumentParser:
    """Return a parser of the options that say which ranks are started."""
    parser = Parser(add_help=False)
    add = parser.add_argument_group("several ranks").add_argument
    add("--ranks", type=int, metavar="N", help="start N ranks on this machine, one device each")
    words = "Ascend's rank table: start the ranks of server $SERVER_ID (0) of it"
    add("--rank_table", metavar="FILE", help=words)
    words = "print the command and the micro-batches of an epoch; start nothing"
    add("--dry-run", action="store_true", help=words)
    return parser


def _start(config: Any, options: argparse.Namespace, given: Sequence[str]) -> int:
    """Start this command on several ranks, or show it; each rank gets the recipe's own options."""
    command = ["-m", "labkit.recipes", *_rank_options().parse_known_args(given)[1]]
    ranks, count, who = {}, 1, "one process"
    if options.ranks is not None or options.rank_table is not None:
        ranks = ranks_of(options)
        count = ranks["workers"] * ranks["nodes"]
        command += ["--run_distribute", "True", "--device_num", str(count)]
        end = "-eval-log" if given[0] == "eval" else "-log"
        logs = config.save_checkpoint_path.rstrip("/") + end
        if ranks["nodes"] > 1:
            logs += f"/server{ranks['node_rank']}"
        who = f"{ranks['workers']} of {count} ranks by msrun, logs in {logs}"
    print(f"labkit: {who}", flush=True)
    if options.dry_run:
        print(shlex.join(["python", *command]), flush=True)
        if given[0] == "train":
            from labkit.recipes.training import datasets

            size = datasets(config, options.dataset_path, 0, count)[0].get_dataset_size()
            print(f"labkit: {size} micro-batches of {config.batch_size} an epoch on each rank")
        return 0
    launch(*command, timeout=None, log_dir=logs, show=True, **ranks)
    return 0


def ranks_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of ``launch`` for --ranks or --rank_table."""
    if options.run_distribute is not False or options.device_num is not None:
        raise InputError(
            "expected no --run_distribute or --device_num, which are for a rank that was started, "
            "beside --ranks or --rank_table"
        )
    if options.rank_table is None:
        return {"workers": options.ranks, "nodes": 1}
    if options.ranks is not None:
        raise InputError("--rank_table says how many ranks; expected no --ranks")
    file = local_path("--rank_table", options.rank_table).absolute()
    table = rank_table.read(file)
    servers, devices = table["server_list"], rank_table.devices(table)
    each = len(devices) // len(servers)
    held = [(int(device["device_id"]), int(device["rank_id"])) for device in devices]
    expected = [(rank % each, rank) for rank in range(len(devices))]
    if held != expected:
        raise InputError(
            f"the rank table has (device, rank) {held}; expected {expected}: msrun numbers both "
            "through, with as many on each server"
        )
    env = {"RANK_TABLE_FILE": str(file)}
    ranks: dict[str, Any] = {"workers": each, "nodes": len(servers), "env": env}
    if len(servers) > 1:
        number = parse(os.environ.get("SERVER_ID") or "0")
        ranks["node_rank"] = integer("SERVER_ID", number, 0, len(servers) - 1)
        ranks["master"] = f"{servers[0]['server_id']}:{os.environ.get('MASTER_PORT', 8118)}"
        ranks["cluster_timeout"] = 600  # seconds: the servers are started by hand
    return ranks


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], "python -m labkit.recipes"))
