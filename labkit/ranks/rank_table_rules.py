"""What makes a rank table usable: one sentence for everything that is wrong with one.

``labkit.ranks.rank_table.check`` raises them; the form is HCCL's 1.0, every value a text.
"""

import ipaddress
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from labkit.errors import nearest

VERSION, STATUS, RESERVE = "1.0", "completed", "reserve"
_TOP = ("version", "server_count", "server_list", "status")
_SERVER, _OPTIONAL = ("server_id", "device"), ("host_nic_ip",)
_DEVICE = ("device_id", "device_ip", "rank_id")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
# An address of which parts are starred out, as published tables have it: 10.*.*.*
_MASKED = re.compile(r"(\d{1,3}|\*)(\.(\d{1,3}|\*)){3}")


def problems(table: Any, masked: bool = False) -> list[str]:
    """Return what is wrong with a table, read from JSON; an empty list where nothing is."""
    # Values can be looked at only where keys and kinds are right.
    return _form_problems(table) or list(_value_problems(table, masked))


def _form_problems(table: Any) -> list[str]:
    """Sentences about keys and kinds of values; where there are none, values can be looked at."""
    problems = list(_key_problems("the table", table, _TOP))
    if problems:
        return problems
    servers = table["server_list"]
    if not isinstance(servers, list) or not servers:
        return [f"server_list is {_short(servers)}; expected a list of servers"]
    for at, server in enumerate(servers):
        name = f"server_list[{at}]"
        of_server = list(_key_problems(name, server, _SERVER, _OPTIONAL))
        problems += of_server
        if of_server:
            continue
        devices = server["device"]
        if not isinstance(devices, list) or not devices:
            problems.append(f"{name}: device is {_short(devices)}; expected a list of devices")
            continue
        for number, device in enumerate(devices):
            problems += _key_problems(f"{name}.device[{number}]", device, _DEVICE)
    return problems


def _key_problems(
    name: str, value: object, required: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[str]:
    """Sentences about one object: keys that lack or are too many, values that are no texts."""
    if not isinstance(value, Mapping):
        yield f"{name} is {_short(value)}; expected an object with {', '.join(required)}"
        return
    known = (*required, *optional)
    for key in required:
        if key not in value:
            yield f"{name} has no {key}"
    for key, held in value.items():
        if key not in known:
            yield f"{name} has {key!r}; expected one of: {', '.join(known)}.{nearest(key, known)}"
        elif key not in ("server_list", "device") and not isinstance(held, str):
            yield f"{name}: {key} is {_short(held)}; expected a text, in quotation marks"


def _value_problems(table: Mapping[str, Any], masked: bool) -> Iterator[str]:
    """Sentences about a table of the right form."""
    servers = table["server_list"]
    for key, expected in (("version", VERSION), ("status", STATUS)):
        if table[key] != expected:
            yield f"{key} is {table[key]!r}; expected {expected!r}"
    if table["server_count"] != str(len(servers)):
        yield f"server_count is {table['server_count']!r}, and server_list has {len(servers)}"
    for at, server in enumerate(servers):
        name = f"server_list[{at}]"
        if not (masked and _is_masked(server["server_id"])):
            yield from _address_problems(f"{name}: server_id", server["server_id"])
        if server.get("host_nic_ip", RESERVE) != RESERVE:
            yield from _address_problems(f"{name}: host_nic_ip", server["host_nic_ip"])
        for number, device in enumerate(server["device"]):
            yield from _address_problems(f"{name}.device[{number}]: device_ip", device["device_ip"])
            for key in ("device_id", "rank_id"):
                if not _NUMBER.fullmatch(device[key]):
                    yield f"{name}.device[{number}]: {key} is {device[key]!r}; expected a number"
        yield from _twice(f"{name}: device_id", [each["device_id"] for each in server["device"]])
    devices = [device for server in servers for device in server["device"]]
    known = [server["server_id"] for server in servers if not _is_masked(server["server_id"])]
    yield from _twice("server_id", known)
    yield from _twice("device_ip", [device["device_ip"] for device in devices])
    yield from _rank_problems([device["rank_id"] for device in devices])


def _rank_problems(numbers: Sequence[str]) -> Iterator[str]:
    yield from _twice("rank_id", numbers)
    ranks = {int(rank) for rank in numbers if _NUMBER.fullmatch(rank)}
    if missing := sorted(set(range(len(numbers))) - ranks):
        yield (
            f"rank_id {', '.join(map(str, missing))} is missing; expected 0 to {len(numbers) - 1}, "
            f"one for each of {len(numbers)} devices"
        )


def _address_problems(name: str, text: str) -> Iterator[str]:
    if _is_masked(text):
        yield f"{name} is {text!r}, starred out; expected the server's own address"
        return
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        yield f"{name} is {text!r}; expected an IP address"
        return
    if address.is_unspecified or address.is_multicast:
        yield f"{name} is {text}; expected the address of one machine"


def _twice(name: str, values: Iterable[str]) -> Iterator[str]:
    # Addresses are compared as addresses: one of IPv6 can be written in several ways.
    counts = Counter(map(_plain, values))
    for value, count in counts.items():
        if count > 1:
            yield f"{name} {value} is there {count} times; expected once"


def _plain(value: str) -> str:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        return value


def _is_masked(text: str) -> bool:
    return "*" in text and _MASKED.fullmatch(text) is not None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
