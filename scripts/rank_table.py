"""Make, merge and check the rank tables of an Ascend cluster.

    python scripts/rank_table.py make SERVER_IP DEVICE_IP ... [--out FILE]
    python scripts/rank_table.py make SERVER_IP --hccn /etc/hccn.conf [--devices 0-7]
    python scripts/rank_table.py merge node0.json node1.json [--out FILE]
    python scripts/rank_table.py check rank_table_8pcs.json

Ranks are numbered consecutively, in the order of the devices and of the files. Exit code 2 for
addresses that are missing and tables that cannot be used.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from labkit.base.arguments import Parser, wrong
from labkit.errors import InputError
from labkit.ranks import rank_table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = Parser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("make", help="the table of one server")
    make.add_argument("server", help="IP address of the server")
    make.add_argument("device_ip", nargs="*", help="IP address of each device, in order of ranks")
    make.add_argument("--hccn", type=Path, help="take the addresses from this file: /etc/hccn.conf")
    make.add_argument("--devices", metavar="0-7", help="numbers of the devices: 0-3 or 0,2")
    merge = commands.add_parser("merge", help="one table of several servers")
    check = commands.add_parser("check", help="say what is wrong with tables")
    for each in (merge, check):
        each.add_argument("files", nargs="+", type=Path)
    for each in (make, merge):
        each.add_argument("--out", type=Path, help="file to write; its usual name if not given")
    options = parser.parse_args(arguments)
    try:
        if options.command == "make":
            table, name = made(options)
        elif options.command == "merge":
            table = rank_table.merge(*map(rank_table.read, options.files))
            servers, devices = rank_table.size(table)
            name = f"hccl_{servers}s_{devices}p.json"
        else:
            for path in options.files:
                say(path, rank_table.read(path))
            return 0
        say(rank_table.write(table, options.out or Path(name)), table)
    except InputError as error:
        print(f"rank_table: {error}", file=sys.stderr)
        return 2
    return 0


def made(options) -> tuple[dict, str]:
    """Return the table of one server, and the usual name of its file."""
    if (options.hccn is None) == (not options.device_ip):
        raise InputError("expected the devices' addresses, or --hccn with a file that has them")
    addresses = options.device_ip
    numbers = None if options.devices is None else numbers_of(options.devices)
    if options.hccn is not None:
        known = rank_table.read_addresses(options.hccn)
        numbers = list(known) if numbers is None else numbers
        if missing := [number for number in numbers if number not in known]:
            held = ", ".join(map(str, known))
            raise InputError(f"{options.hccn} has no address_{missing[0]}; it has {held}")
        addresses = [known[number] for number in numbers]
    table = rank_table.make(options.server, addresses, numbers)
    ids = [device["device_id"] for device in table["server_list"][0]["device"]]
    return table, f"hccl_{len(ids)}p_{''.join(ids)}_{options.server}.json"


def numbers_of(text: str) -> list[int]:
    """Return the numbers of ``0-3`` or ``0,2``, in the order written."""
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part)
        if not match or int(match[1]) > int(match[2] or match[1]):
            raise wrong("--devices", text, "numbers such as 0-7 or 0,2")
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return numbers


def say(path: Path, table: dict) -> None:
    """Print what a file holds."""
    servers, devices = rank_table.size(table)
    print(f"{path}: servers: {servers}, devices: {devices}, ranks 0 to {devices - 1}")


if __name__ == "__main__":
    sys.exit(main())
