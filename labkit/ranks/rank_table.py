"""Rank tables: the JSON file that names an Ascend cluster's servers, devices and rank numbers.

The form is HCCL's 1.0, as the tutorials print it for 8 devices of one server and 16 of two; every
value is a string. The environment variable ``RANK_TABLE_FILE`` points a program to it.
"""

import copy
import ipaddress
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.base.arguments import wrong
from labkit.base.files import write_json
from labkit.errors import InputError

_DEVICE = ("device_id", "device_ip", "rank_id")
_SERVER = ("server_id", "host_nic_ip")
_CONF = re.compile(r"address_(\d+)\s*=\s*(\S+)", re.ASCII)


def make(
    server: str, device_ips: Sequence[str], device_ids: Sequence[int] | None = None
) -> dict[str, Any]:
    """Return the table of one server; its ranks are 0, 1, ... in the order of the devices.

    Args:
        server: IP address of the server.
        device_ips: IP address of each device's network card.
        device_ids: number of each device on the server; 0, 1, ... if None.
    """
    ids = list(range(len(device_ips)) if device_ids is None else device_ids)
    if len(ids) != len(device_ips):
        raise wrong("device_ids", ids, f"{len(device_ips)} numbers, one for each address")
    device = [
        dict(zip(_DEVICE, (str(number), address, str(rank)), strict=True))
        for rank, (number, address) in enumerate(zip(ids, device_ips, strict=True))
    ]
    table = _table([{"server_id": server, "device": device, "host_nic_ip": "reserve"}])
    return check(table, f"the table of {server}")


def merge(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return one table of all servers, in order, with ranks numbered from 0 throughout."""
    together, ranks = _table([]), 0
    for number, table in enumerate(tables, start=1):
        check(table, f"table {number} of {len(tables)}")
        together["server_list"] += copy.deepcopy(table["server_list"])
        for device in devices(together)[ranks:]:
            device["rank_id"] = str(ranks + int(device["rank_id"]))
        ranks = len(devices(together))
    return check(_table(together["server_list"]), "what the tables make together")


def _table(servers: list[dict[str, Any]]) -> dict[str, Any]:
    count = {"version": "1.0", "server_count": str(len(servers))}
    return count | {"server_list": servers, "status": "completed"}


def devices(table: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the devices of all servers, in order."""
    return [device for server in table["server_list"] for device in server["device"]]


def read(path: str | os.PathLike) -> dict[str, Any]:
    """Return the table in a file; raise ``InputError`` if it is missing or invalid."""
    try:
        return check(json.loads(Path(path).read_text("utf-8")), path)
    except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}; expected a rank table") from error


def write(table: dict[str, Any], path: str | os.PathLike) -> Path:
    """Check a table and write it to a file, completely or not at all; return the path."""
    write_json(path, check(table), "the rank table", indent=4)
    return Path(path)


def read_addresses(path: str | os.PathLike) -> dict[int, str]:
    """Return device number -> address of a server's hccn.conf (``address_0=192.1.27.6``)."""
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    found = [match.groups() for line in lines if (match := _CONF.fullmatch(line.strip()))]
    addresses = {int(number): address for number, address in found}
    if not found or len(addresses) < len(found):
        raise InputError(f"{path} has no line such as address_0=192.1.27.6 for each device")
    return dict(sorted(addresses.items()))


def check(table: Any, source: object = "this") -> Any:
    """Return ``table`` if a cluster can be started with it.

    ``InputError`` names ``source`` unless every value is a text, every address an IP address, the
    counts are those of the lists, nothing is there twice, and the ranks are 0 to n - 1.
    """
    try:
        if not isinstance(table, dict) or not table["server_list"] or not devices(table):
            raise InputError("expected servers with devices, got none")
        servers, every = table["server_list"], devices(table)
        for key, expected in _table(servers).items():
            if table[key] != expected:
                raise wrong(key, table[key], repr(expected))
        texts = [(key, device[key]) for device in every for key in _DEVICE]
        texts += [(key, server.get(key, "")) for server in servers for key in _SERVER]
        for key, text in texts:
            if not isinstance(text, str) or (key == "device_id" and not text.isdigit()):
                raise wrong(key, text, "a text, in quotation marks")
        here = [(n, int(d["device_id"])) for n, s in enumerate(servers) for d in s["device"]]
        values: dict[str, list] = {
            "server_id": [ipaddress.ip_address(server["server_id"]) for server in servers],
            "device_ip": [ipaddress.ip_address(device["device_ip"]) for device in every],
            "device_id": here,
        }
        for name, held in values.items():
            value, count = Counter(map(str, held)).most_common(1)[0]
            if count > 1:
                raise InputError(f"{name}: {value} is there {count} times; expected once")
        ranks = sorted(int(device["rank_id"]) for device in every)
        if ranks != list(range(len(ranks))):
            raise wrong("rank_id", ranks, "0, 1, ... one for each of the devices")
    except KeyError as error:
        raise InputError(f"{source} is not a usable rank table: no key {error}") from error
    except (TypeError, ValueError, IndexError) as error:
        raise InputError(f"{source} is not a usable rank table: {error}") from error
    return table
