"""Rank tables: the JSON file that names an Ascend cluster's servers, devices and rank numbers.

The form is HCCL's 1.0, as the tutorials print it for 8 devices of one server and 16 of two; every
value is a string. The environment variable ``RANK_TABLE_FILE`` points a program to it.
"""

import ipaddress
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.base import arguments
from labkit.base.arguments import wrong
from labkit.base.files import write_json
from labkit.errors import InputError, nearest

_VERSION, _STATUS, _RESERVE = "1.0", "completed", "reserve"
# Required and optional keys of the table, of a server and of a device.
_LEVELS = (
    (("version", "server_count", "server_list", "status"), ()),
    (("server_id", "device"), ("host_nic_ip",)),
    (("device_id", "device_ip", "rank_id"), ()),
)
_LISTS = (("server_list", "servers"), ("device", "devices"))
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
# An address with parts starred out, as in published tables: 10.*.*.*
_MASKED = re.compile(r"(\d{1,3}|\*)(\.(\d{1,3}|\*)){3}")
_SHOWN = 5
_CONF = re.compile(r"address_(\d+)\s*=\s*(\S+)", re.ASCII)


class RankTableError(InputError):
    """An invalid rank table; ``problems`` has one sentence for each thing that is wrong."""

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        more = f"; and {len(self.problems) - _SHOWN} more" if len(self.problems) > _SHOWN else ""
        shown = "; ".join(self.problems[:_SHOWN])
        super().__init__(f"{source} is not a usable rank table: {shown}{more}")


def make(
    server: str, device_ips: Sequence[str], device_ids: Sequence[int] | None = None
) -> dict[str, Any]:
    """Return the table of one server; its ranks are 0, 1, ... in the order of the devices.

    Args:
        server: IP address of the server.
        device_ips: IP address of each device's network card.
        device_ids: number of each device on the server; 0, 1, ... if None.

    Raises:
        RankTableError: as for ``check``.
        InputError: if the lengths differ.
    """
    if isinstance(device_ips, str) or not isinstance(device_ips, Iterable):
        raise wrong("device_ips", device_ips, "a list of addresses")
    device_ips = list(device_ips)
    device_ids = list(range(len(device_ips)) if device_ids is None else device_ids)
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
        RankTableError: if one of the tables is invalid, or two have the same server or device
            address.
    """
    if not tables:
        raise InputError("expected at least one rank table, got none")
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


def check(table: Any, source: str = "this", masked: bool = False) -> dict[str, Any]:
    """Return ``table`` if a cluster can be started with it.

    It must have HCCL's keys and no others, correct counts, valid addresses, no server, device or
    rank twice, ranks 0 to n - 1 without a gap, and status "completed".

    Args:
        table: the value read from JSON.
        source: name of the table in error messages.
        masked: accept server addresses that are starred out (10.*.*.*), as in published tables,
            each as a distinct address.

    Raises:
        RankTableError: if the table is invalid.
    """
    # Values can be checked only if keys and kinds are right.
    problems = list(_form_problems(table)) or list(_value_problems(table, masked))
    if problems:
        raise RankTableError(source, problems)
    return table


def read(path: str | os.PathLike, masked: bool = False) -> dict[str, Any]:
    """Return the table in a file; raise ``InputError`` if it is missing or invalid."""
    try:
        table = json.loads(Path(path).read_text("utf-8"), object_pairs_hook=_once)
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror}); expected a rank table") from error
    except ValueError as error:
        raise InputError(f"{path} is not a JSON file ({error}); expected a rank table") from error
    return check(table, source=str(path), masked=masked)


def write(table: Mapping[str, Any], path: str | os.PathLike) -> Path:
    """Check a table and write it to a file, completely or not at all; return the path.

    Raises:
        InputError: if its folder does not exist: it may be misspelt.
    """
    check(table)
    path = arguments.path("path", path)
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: expected a folder, got {path.parent}")
    write_json(path, table, "the rank table", indent=4)
    return path


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


def _table(servers: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "version": _VERSION,
        "server_count": str(len(servers)),
        "server_list": servers,
        "status": _STATUS,
    }


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        name = Counter(names).most_common(1)[0][0]
        raise ValueError(f"{name!r} appears twice in one object")
    return dict(pairs)


def _form_problems(value: Any, place: str = "", level: int = 0) -> Iterator[str]:
    """Yield what is wrong with keys and kinds of values of a table, its servers and devices."""
    own = list(_key_problems(place or "the table", value, *_LEVELS[level]))
    yield from own
    if own or level == len(_LISTS):
        return
    key, what = _LISTS[level]
    parts = value[key]
    if not isinstance(parts, list) or not parts:
        yield f"{place and place + ': '}{key}: expected a list of {what}, got {_short(parts)}"
        return
    for number, part in enumerate(parts):
        yield from _form_problems(part, f"{place and place + '.'}{key}[{number}]", level + 1)


def _key_problems(
    name: str, value: object, required: Sequence[str], optional: Sequence[str]
) -> Iterator[str]:
    """Yield what is wrong with one object: missing or extra keys, values that are not strings."""
    if not isinstance(value, Mapping):
        yield f"{name}: expected an object with {', '.join(required)}, got {_short(value)}"
        return
    known = (*required, *optional)
    for key in required:
        if key not in value:
            yield f"{name} has no {key}"
    for key, held in value.items():
        if key not in known:
            yield f"{name} has {key!r}; expected one of: {', '.join(known)}.{nearest(key, known)}"
        elif key not in dict(_LISTS) and not isinstance(held, str):
            yield f"{name}: {key}: expected a text, in quotation marks, got {_short(held)}"


def _value_problems(table: Mapping[str, Any], masked: bool) -> Iterator[str]:
    """Yield what is wrong with the values of a table of the right form."""
    servers = table["server_list"]
    for key, expected in (("version", _VERSION), ("status", _STATUS)):
        if table[key] != expected:
            yield f"{key}: expected {expected!r}, got {table[key]!r}"
    if table["server_count"] != str(len(servers)):
        yield f"server_count is {table['server_count']!r}, and server_list has {len(servers)}"
    for at, server in enumerate(servers):
        yield from _server_problems(f"server_list[{at}]", server, masked)
    devices = [device for server in servers for device in server["device"]]
    numbers = [device["rank_id"] for device in devices]
    known = [server["server_id"] for server in servers if not _is_masked(server["server_id"])]
    yield from _twice("server_id", known)
    yield from _twice("device_ip", [device["device_ip"] for device in devices])
    yield from _twice("rank_id", numbers)
    ranks = {int(rank) for rank in numbers if _NUMBER.fullmatch(rank)}
    if missing := sorted(set(range(len(numbers))) - ranks):
        yield (
            f"rank_id {', '.join(map(str, missing))} is missing; expected 0 to {len(numbers) - 1}, "
            f"one for each of {len(numbers)} devices"
        )


def _server_problems(name: str, server: Mapping[str, Any], masked: bool) -> Iterator[str]:
    if not (masked and _is_masked(server["server_id"])):
        yield from _address_problems(f"{name}: server_id", server["server_id"])
    if server.get("host_nic_ip", _RESERVE) != _RESERVE:
        yield from _address_problems(f"{name}: host_nic_ip", server["host_nic_ip"])
    for number, device in enumerate(server["device"]):
        yield from _address_problems(f"{name}.device[{number}]: device_ip", device["device_ip"])
        for key in ("device_id", "rank_id"):
            if not _NUMBER.fullmatch(device[key]):
                yield f"{name}.device[{number}]: {key}: expected a number, got {device[key]!r}"
    yield from _twice(f"{name}: device_id", [device["device_id"] for device in server["device"]])


def _address_problems(name: str, text: str) -> Iterator[str]:
    if _is_masked(text):
        yield f"{name}: expected the server's own address, got {text!r}, starred out"
        return
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        yield f"{name}: expected an IP address, got {text!r}"
        return
    if address.is_unspecified or address.is_multicast:
        yield f"{name}: expected the address of one machine, got {text}"


def _twice(name: str, values: Iterable[str]) -> Iterator[str]:
    for value, count in Counter(map(_plain, values)).items():
        if count > 1:
            yield f"{name} {value} is there {count} times; expected once"


def _plain(value: str) -> str:
    """Return an address in its shortest spelling (IPv6 has several), any other text unchanged."""
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        return value


def _is_masked(text: str) -> bool:
    return "*" in text and _MASKED.fullmatch(text) is not None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
