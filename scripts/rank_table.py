"""Make, merge and check the rank tables of an Ascend cluster.

    python scripts/rank_table.py make SERVER_IP DEVICE_IP ... [--out FILE]
    python scripts/rank_table.py make SERVER_IP --hccn /etc/hccn.conf [--out FILE]
    python scripts/rank_table.py merge node0.json node1.json [--out FILE]
    python scripts/rank_table.py check rank_table_8pcs.json

Ranks are numbered consecutively, in the order of the devices and of the files. Exit code 2 for
addresses that are missing and tables that cannot be used.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from labkit.base.arguments import Parser
from labkit.errors import InputError
from labkit.ranks import rank_table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = Parser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("make", help="the table of one server")
    make.add_argument("server", help="IP address of the server")
    make.add_argument("device_ip", nargs="*", help="IP address of each device, in order of ranks")
    make.add_argument("--hccn", help="take the addresses from this file: /etc/hccn.conf")
    merge = commands.add_parser("merge", help="one table of several servers")
    check = commands.add_parser("check", help="say what is wrong with tables")
    for each in (merge, check):
        each.add_argument("files", nargs="+")
    for each in (make, merge):
        each.add_argument("--out", help="file to write; its usual name if not given")
    options = parser.parse_args(arguments)
    try:
        if options.command == "check":
            for path in options.files:
                say(path, rank_table.read(path))
        elif options.command == "merge":
            table = rank_table.merge(*map(rank_table.read, options.files))
            name = f"hccl_{table['server_count']}s_{len(rank_table.devices(table))}p.json"
            say(rank_table.write(table, options.out or name), table)
        else:
            table = made(options)
            ids = [device["device_id"] for device in rank_table.devices(table)]
            name = f"hccl_{len(ids)}p_{''.join(ids)}_{options.server}.json"
            say(rank_table.write(table, options.out or name), table)
    except InputError as error:
        print(f"rank_table: {error}", file=sys.stderr)
        return 2
    return 0


def made(options: argparse.Namespace) -> dict:
    """Return the table of one server."""
    if (options.hccn is None) == (not options.device_ip):
        raise InputError("expected the devices' addresses, or --hccn with a file that has them")
    if options.hccn is None:
        return rank_table.make(options.server, options.device_ip)
    known = rank_table.read_addresses(options.hccn)
    return rank_table.make(options.server, list(known.values()), list(known))


def say(path: str | Path, table: dict) -> None:
    """Print what a file holds."""
    count = len(rank_table.devices(table))
    print(f"{path}: servers: {table['server_count']}, devices: {count}, ranks 0 to {count - 1}")


if __name__ == "__main__":
    sys.exit(main())
