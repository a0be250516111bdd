"""Rank tables: the JSON file that names an Ascend cluster's servers, devices and rank numbers.

The form is HCCL's 1.0, as the tutorials print it for 8 devices of one server and 16 of two; every
value is a string. The environment variable ``RANK_TABLE_FILE`` points a program to it.
"""

import ipaddress
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.base.arguments import wrong
from labkit.base.files import write_json
from labkit.errors import InputError, refuse_unknown

_RESERVE = "reserve"
# Required and optional keys of the table, of a server and of a device.
_TABLE = (("version", "server_count", "server_list", "status"), ())
_SERVER = (("server_id", "device"), ("host_nic_ip",))
_DEVICE = (("device_id", "device_ip", "rank_id"), ())
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
_CONF = re.compile(r"address_(\d+)\s*=\s*(\S+)", re.ASCII)


def make(
    server: str, device_ips: Sequence[str], device_ids: Sequence[int] | None = None
) -> dict[str, Any]:
    """Return the table of one server; its ranks are 0, 1, ... in the order of the devices.

    Args:
        server: IP address of the server.
        device_ips: IP address of each device's network card.
        device_ids: number of each device on the server; 0, 1, ... if None.

    Raises:
        InputError: as for ``check``, or if the lengths differ.
    """
    device_ids = range(len(device_ips)) if device_ids is None else device_ids
    if len(device_ips) != len(device_ids):
        raise InputError(
            f"{len(device_ips)} device addresses for {len(device_ids)} device numbers; expected "
            "one for each"
        )
    device = [
        {"device_id": str(number), "device_ip": address, "rank_id": str(rank)}
        for rank, (number, address) in enumerate(zip(device_ids, device_ips, strict=True))
    ]
    table = _table([{"server_id": server, "device": device, "host_nic_ip": _RESERVE}])
    return check(table, source=f"the table of {server}")


def merge(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return one table of all servers, in the given order, with ranks numbered from 0 throughout.

    Servers and devices keep their order; a single table keeps its ranks.

    Raises:
        InputError: if one of the tables is invalid, or two have the same server or device address.
    """
    servers, ranks = [], 0
    for number, table in enumerate(tables, start=1):
        check(table, source=f"table {number} of {len(tables)}")
        for server in table["server_list"]:
            device = [
                {**each, "rank_id": str(ranks + int(each["rank_id"]))} for each in server["device"]
            ]
            servers.append({**server, "device": device})
        ranks += size(table)[1]
    return check(_table(servers), source="what the tables make together")


def _table(servers: list[dict[str, Any]]) -> dict[str, Any]:
    count = {"version": "1.0", "server_count": str(len(servers))}
    return count | {"server_list": servers, "status": "completed"}


def read(path: str | os.PathLike) -> dict[str, Any]:
    """Return the table in a file; raise ``InputError`` if it is missing or invalid."""
    try:
        table = json.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror}); expected a rank table") from error
    except ValueError as error:
        raise InputError(f"{path} is not a JSON file ({error}); expected a rank table") from error
    return check(table, source=str(path))


def write(table: dict[str, Any], path: str | os.PathLike) -> Path:
    """Check a table and write it to a file, completely or not at all; return the path."""
    write_json(path, check(table), "the rank table", indent=4)
    return Path(path)


def size(table: Mapping[str, Any]) -> tuple[int, int]:
    """Return (number of servers, number of devices) of a table that was checked."""
    servers = table["server_list"]
    return len(servers), sum(len(server["device"]) for server in servers)


def read_addresses(path: str | os.PathLike) -> dict[int, str]:
    """Return device number -> address of a server's hccn.conf (``address_0=192.1.27.6``)."""
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot read {path} ({error}); expected a file as /etc/hccn.conf"
        ) from error
    pairs = [match.groups() for line in lines if (match := _CONF.fullmatch(line.strip()))]
    addresses = {int(number): address for number, address in pairs}
    if not pairs or len(addresses) < len(pairs):
        numbers = [int(number) for number, _ in pairs]
        raise InputError(f"{path} has addresses for devices {numbers}; expected one for each")
    return dict(sorted(addresses.items()))


def check(table: Any, source: str = "this") -> dict[str, Any]:
    """Return ``table`` if a cluster can be started with it.

    It must have HCCL's keys and no others, correct counts, valid addresses, no server, device or
    rank twice, ranks 0 to n - 1 without a gap, and status "completed".

    Args:
        table: the value read from JSON.
        source: name of the table in error messages.

    Raises:
        InputError: naming the first thing that is wrong.
    """
    try:
        _check(table)
    except InputError as error:
        raise InputError(f"{source} is not a usable rank table: {error}") from error
    return table


def _check(table: Any) -> None:
    servers = _parts("the table", table, _TABLE, "server_list")
    addresses, devices = [], []
    for at, server in enumerate(servers):
        place = f"server_list[{at}]"
        own = _parts(place, server, _SERVER, "device")
        addresses.append(_address(f"{place}: server_id", server["server_id"]))
        if server.get("host_nic_ip", _RESERVE) != _RESERVE:
            _address(f"{place}: host_nic_ip", server["host_nic_ip"])
        for number, device in enumerate(own):
            name = f"{place}.device[{number}]"
            _parts(name, device, _DEVICE)
            devices.append(_address(f"{name}: device_ip", device["device_ip"]))
            for key in ("device_id", "rank_id"):
                if not _NUMBER.fullmatch(device[key]):
                    raise wrong(f"{name}: {key}", device[key], "a number")
        _once(f"{place}: device_id", [int(device["device_id"]) for device in own])
    for key, expected in _table(servers).items():
        if table[key] != expected:
            raise wrong(key, table[key], repr(expected))
    _once("server_id", addresses)
    _once("device_ip", devices)
    ranks = sorted(int(each["rank_id"]) for server in servers for each in server["device"])
    if ranks != list(range(len(ranks))):
        raise wrong("rank_id", ranks, f"0 to {len(ranks) - 1}, one for each of the devices")


def _parts(name: str, value: Any, keys: tuple, inner: str | None = None) -> list[Any]:
    """Check the keys of an object, and that all but its list ``inner`` are texts; return that."""
    required, optional = keys
    if not isinstance(value, Mapping):
        raise wrong(name, value, f"an object with {', '.join(required)}")
    for key in required:
        if key not in value:
            raise InputError(f"{name} has no {key}")
    for key, held in value.items():
        refuse_unknown(f"key of {name}", key, (*required, *optional))
        if key != inner and not isinstance(held, str):
            raise wrong(f"{name}: {key}", held, "a text, in quotation marks")
    parts = value[inner] if inner else []
    if not isinstance(parts, list) or (inner and not parts):
        raise wrong(f"{name}: {inner}", parts, "a list with at least one object")
    return parts


def _address(name: str, text: str) -> Any:
    try:
        address = ipaddress.ip_address(text)
    except ValueError as error:
        raise wrong(name, text, "an IP address") from error
    if address.is_unspecified or address.is_multicast:
        raise wrong(name, text, "the address of one machine")
    return address


def _once(name: str, values: Iterable[Any]) -> None:
    value, count = Counter(values).most_common(1)[0]
    if count > 1:
        raise InputError(f"{name} {value} is there {count} times; expected once")
