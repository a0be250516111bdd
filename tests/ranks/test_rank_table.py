"""Rank tables equal the two that the tutorials print, and every kind of error is named."""

import copy
import itertools
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.errors import InputError
from labkit.ranks import rank_table as ranktable
from tests.support import modules

SCRIPT = Path(__file__).parents[2] / "scripts" / "rank_table.py"

NODE_0 = [f"192.{card}.27.{block}" for block in (6, 7) for card in (1, 2, 3, 4)]
NODE_1 = [f"192.{card}.27.{block}" for block in (8, 9) for card in (1, 2, 3, 4)]
# rank_table_8pcs.json exactly as the tutorial on two-stage training prints it.
EIGHT = """{
    "version": "1.0",
    "server_count": "1",
    "server_list": [
        {
            "server_id": "10.155.111.140",
            "device": [
                {"device_id": "0","device_ip": "192.1.27.6","rank_id": "0"},
                {"device_id": "1","device_ip": "192.2.27.6","rank_id": "1"},
                {"device_id": "2","device_ip": "192.3.27.6","rank_id": "2"},
                {"device_id": "3","device_ip": "192.4.27.6","rank_id": "3"},
                {"device_id": "4","device_ip": "192.1.27.7","rank_id": "4"},
                {"device_id": "5","device_ip": "192.2.27.7","rank_id": "5"},
                {"device_id": "6","device_ip": "192.3.27.7","rank_id": "6"},
                {"device_id": "7","device_ip": "192.4.27.7","rank_id": "7"}],
             "host_nic_ip": "reserve"
        }
    ],
    "status": "completed"
}"""


SERVERS = ("10.155.111.140", "10.155.111.141")


def table_of(*servers):
    """Return the table of (address, [(device, address, rank)]) of each server."""
    names = ("device_id", "device_ip", "rank_id")
    server_list = []
    for server, devices in servers:
        device = [dict(zip(names, map(str, each), strict=True)) for each in devices]
        server_list.append({"server_id": server, "device": device, "host_nic_ip": "reserve"})
    count = {"version": "1.0", "server_count": str(len(servers))}
    return {**count, "server_list": server_list, "status": "completed"}


def sixteen():
    """rank_table_16pcs.json as the tutorial on Adasum prints it; its servers are starred there."""
    first = [(n, address, n) for n, address in enumerate(NODE_0)]
    second = [(n, address, 8 + n) for n, address in enumerate(NODE_1)]
    return table_of((SERVERS[0], first), (SERVERS[1], second))


# A key of a table of 16 devices ("key"), of a server ("0.key") or of a device ("0.7.key"), its new
# value, and what is said of it.
WRONG = [
    ("version", "1.2", "version: expected '1.0', got '1.2'"),
    ("status", "initializing", "status: expected 'completed', got 'initializing'"),
    ("server_count", "1", "server_count: expected '2', got '1'"),
    ("0.device", [{"device_id": "0"}], "no key 'device_ip'"),
    ("0.2.rank_id", 2, "rank_id: expected a text, in quotation marks, got 2"),
    ("0.server_id", 10, "server_id: expected a text, in quotation marks, got 10"),
    ("0.3.device_id", "three", "device_id: expected a text, in quotation marks, got 'three'"),
    ("1.1.rank_id", "8", "rank_id: expected 0, 1, ... one for each of the devices, got [0, 1"),
    ("1.4.device_id", "3", "device_id: (1, 3) is there 2 times; expected once"),
    ("1.0.device_ip", NODE_0[0], "device_ip: 192.1.27.6 is there 2 times; expected once"),
    ("1.server_id", SERVERS[0], "server_id: 10.155.111.140 is there 2 times; expected once"),
    ("0.5.device_ip", "192.1.27.256", "'192.1.27.256' does not appear to be an IPv4"),
    ("0.server_id", "10.*.*.*", "'10.*.*.*' does not appear to be an IPv4"),
]


@pytest.mark.parametrize(("path", "value", "message"), WRONG)
def test_what_is_wrong_is_said(path, value, message, tmp_path):
    """Such a table is not written either."""
    table = node = sixteen()
    *places, key = path.split(".")
    for name, place in zip(("server_list", "device"), places, strict=False):
        node = node[name][int(place)]
    node[key] = value
    start = re.escape("t.json is not a usable rank table: ") + ".*" + re.escape(message)
    with pytest.raises(InputError, match=start):
        ranktable.check(table, source="t.json")
    with pytest.raises(InputError, match=re.escape(message)):
        ranktable.write(table, tmp_path / "table.json")
    assert list(tmp_path.iterdir()) == []


@st.composite
def tables(draw):
    """Draw one to four valid tables of one to three servers, with ranks in any order in a table."""
    result, numbers = [], itertools.count(1)
    for counts in draw(
        st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=4)
    ):
        ranks, servers = iter(draw(st.permutations(range(sum(counts))))), []
        for count in counts:
            ids = draw(st.permutations(range(count)))
            device = [(each, f"192.0.0.{next(numbers)}", next(ranks)) for each in ids]
            servers.append((f"10.0.0.{next(numbers)}", device))
        result.append(table_of(*servers))
    return result


@settings(max_examples=100)
@given(tables())
def test_in_a_merged_table_ranks_go_on_and_all_else_stays(given):
    before, expected, first = copy.deepcopy(given), [], 0
    for table in copy.deepcopy(given):
        expected += table["server_list"]
        devices = ranktable.devices(table)
        for device in devices:
            device["rank_id"] = str(first + int(device["rank_id"]))
        first += len(devices)
    merged = ranktable.merge(*given)
    assert given == before  # the arguments are not changed
    assert merged["server_list"] == expected
    assert merged["server_count"] == str(len(expected))
    # Merging again changes nothing, and merging in two steps gives the same table.
    assert ranktable.merge(merged) == merged
    assert ranktable.merge(ranktable.merge(*given[:1]), *given[1:]) == merged


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """A function that calls the program in a folder and returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    program = modules.load(SCRIPT, "rank_table_program")

    def invoke(*arguments):
        return program.main(arguments), *capsys.readouterr()

    return invoke


def test_two_servers_from_their_files_to_the_tutorials_table(tmp_path, call):
    for node, addresses in enumerate((NODE_0, NODE_1)):
        lines = [f"address_{n} = {address}\n" for n, address in enumerate(addresses)]
        text = "".join(["netmask_0=255.255.255.0\n", *reversed(lines)])
        (tmp_path / f"hccn{node}.conf").write_text(text)
        name = f"hccl_8p_01234567_{SERVERS[node]}.json"
        said = f"{name}: servers: 1, devices: 8, ranks 0 to 7\n"
        assert call("make", SERVERS[node], "--hccn", f"hccn{node}.conf") == (0, said, "")
    first = json.loads((tmp_path / f"hccl_8p_01234567_{SERVERS[0]}.json").read_text())
    assert json.dumps(first) == json.dumps(json.loads(EIGHT))  # in key order too
    said = "hccl_2s_16p.json: servers: 2, devices: 16, ranks 0 to 15\n"
    merged = call("merge", *(f"hccl_8p_01234567_{server}.json" for server in SERVERS))
    assert merged == (0, said, "")
    both = json.loads((tmp_path / "hccl_2s_16p.json").read_text())
    assert json.dumps(both) == json.dumps(sixteen())
    assert call("check", "hccl_2s_16p.json") == (0, said, "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["make", "10.0.0.1"], "expected the devices' addresses, or --hccn"),
        (["make", "10.0.0.1", "--hccn", "right.json"], "right.json has no line such as"),
        (["check", "nowhere.json"], "cannot read nowhere.json"),
        (["merge", "right.json", "right.json"], "together is not a usable rank table: server"),
    ],
)
def test_bad_usage_is_exit_2_and_nothing_is_written(tmp_path, call, arguments, said):
    (tmp_path / "right.json").write_text(EIGHT)
    code, out, errors = call(*arguments)
    assert (code, out) == (2, "") and said in errors
    assert [path.name for path in tmp_path.iterdir()] == ["right.json"]
