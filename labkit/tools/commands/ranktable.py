"""``labkit ranktable``: make, merge and check the rank tables of an Ascend cluster."""

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from labkit.base.arguments import wrong
from labkit.errors import InputError
from labkit.ranks import rank_table

app = typer.Typer(
    help="Rank tables: the file that names an Ascend cluster's servers, devices and ranks.",
    no_args_is_help=True,
)
_OUT = Annotated[Path | None, typer.Option(help="File to write; its usual name if not given.")]


@app.command()
def make(
    server: Annotated[str, typer.Argument(help="IP address of the server.")],
    device_ip: Annotated[
        list[str] | None, typer.Argument(help="IP address of each device, in the order of ranks.")
    ] = None,
    hccn: Annotated[
        Path | None, typer.Option(help="Take the addresses from this file: /etc/hccn.conf.")
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="0-7", help="Numbers of the devices: 0-3 or 0,2; 0, 1, ... if not given."
        ),
    ] = None,
    out: _OUT = None,
) -> None:
    """Write the rank table of one server.

    Example: labkit ranktable make 10.155.111.140 --hccn /etc/hccn.conf

    Example: labkit ranktable make 10.155.111.140 192.1.27.6 192.2.27.6 --out two.json
    """
    if (hccn is None) == (not device_ip):
        raise InputError("expected the devices' addresses, or --hccn with a file that has them")
    numbers = None if devices is None else _numbers(devices)
    if hccn is not None:
        known = rank_table.read_addresses(hccn)
        numbers = list(known) if numbers is None else numbers
        missing = [number for number in numbers if number not in known]
        if missing:
            held = ", ".join(map(str, known))
            raise InputError(f"{hccn} has no address_{missing[0]}; it has {held}")
        device_ip = [known[number] for number in numbers]
    table = rank_table.make(server, device_ip or (), numbers)
    ids = [device["device_id"] for device in table["server_list"][0]["device"]]
    _write(table, out or Path(f"hccl_{len(ids)}p_{''.join(ids)}_{server}.json"))


@app.command()
def merge(
    files: Annotated[list[Path], typer.Argument(help="Rank tables, in the order of the ranks.")],
    out: _OUT = None,
) -> None:
    """Join the rank tables of several servers; ranks are numbered consecutively in this order.

    Example: labkit ranktable merge node0.json node1.json --out rank_table_16pcs.json
    """
    table = rank_table.merge(*map(rank_table.read, files))
    servers, devices = rank_table.size(table)
    _write(table, out or Path(f"hccl_{servers}s_{devices}p.json"))


@app.command()
def check(
    files: Annotated[list[Path], typer.Argument(help="Rank tables.")],
    masked: Annotated[
        bool, typer.Option("--masked", help="Accept server addresses such as 10.*.*.*")
    ] = False,
) -> None:
    """Check rank tables: keys, counts, addresses, each rank exactly once. Exit 2 if one is bad.

    Example: labkit ranktable check rank_table_8pcs.json
    """
    bad = 0
    for path in files:
        try:
            print(_line(path, rank_table.read(path, masked=masked)))
        except rank_table.RankTableError as error:
            print(f"labkit: {path} is not a usable rank table:", file=sys.stderr)
            # As InputError, which escapes names and values from the file.
            print(*(f"  {InputError(text)}" for text in error.problems), sep="\n", file=sys.stderr)
            bad += 1
        except InputError as error:
            print(f"labkit: {error}", file=sys.stderr)
            bad += 1
    raise typer.Exit(2 if bad else 0)


def _write(table: dict, path: Path) -> None:
    print(_line(rank_table.write(table, path), table))


def _line(path: Path, table: dict) -> str:
    servers, devices = rank_table.size(table)
    counts = f"{_count(servers, 'server')}, {_count(devices, 'device')}"
    return f"{path}: {counts}, ranks 0 to {devices - 1}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _numbers(text: str) -> list[int]:
    """Return the numbers of ``0-3`` or ``0,2``, in the order written."""
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part)
        if not match or int(match[1]) > int(match[2] or match[1]):
            raise wrong("--devices", text, "numbers such as 0-7 or 0,2")
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return numbers
