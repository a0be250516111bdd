"""Rank tables equal the two that the tutorials print, and every kind of error is named."""

import copy
import itertools
import json
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


def table_of(*servers, **more):
    """Return the table of (address, [(device, address, rank)]) of each server."""
    names = ("device_id", "device_ip", "rank_id")
    server_list = [
        {
            "server_id": server,
            "device": [dict(zip(names, map(str, each), strict=True)) for each in devices],
            **more,
        }
        for server, devices in servers
    ]
    count = {"version": "1.0", "server_count": str(len(servers))}
    return {**count, "server_list": server_list, "status": "completed"}


# rank_table_16pcs.json as the tutorial on Adasum prints it, with its servers starred out.
def sixteen(servers=("10.*.*.*", "10.*.*.*")):
    nodes = [
        (server, [(n, address, 8 * node + n) for n, address in enumerate(addresses)])
        for node, (server, addresses) in enumerate(zip(servers, (NODE_0, NODE_1), strict=True))
    ]
    return table_of(*nodes, host_nic_ip="reserve")


SERVERS = ("10.155.111.140", "10.155.111.141")


class TestForms:
    def test_eight_devices(self):
        table = json.loads(EIGHT)
        assert ranktable.check(table) is table
        made = ranktable.make("10.155.111.140", NODE_0)
        assert made == table and json.dumps(made) == json.dumps(table)  # in key order too
        assert ranktable.size(table) == (1, 8)

    def test_sixteen_devices(self):
        nodes = [ranktable.make(*node) for node in zip(SERVERS, (NODE_0, NODE_1), strict=True)]
        merged = ranktable.merge(*nodes)
        assert json.dumps(merged) == json.dumps(sixteen(SERVERS))
        assert ranktable.size(merged) == (2, 16)

    def test_servers_starred_out(self):
        with pytest.raises(InputError, match=r"got '10\.\*\.\*\.\*', starred out"):
            ranktable.check(sixteen())
        ranktable.check(sixteen(), masked=True)
        wrong = sixteen()
        put(wrong, "1.7.rank_id", "14")
        put(wrong, "0.0.device_ip", "192.*.*.*")  # a device may not be starred out
        with pytest.raises(ranktable.RankTableError) as caught:
            ranktable.check(wrong, masked=True)
        assert "device_ip: expected the server's own address, got '192.*.*.*'" in str(caught.value)
        assert len(caught.value.problems) == 3  # the starred server is not among them


def put(table, path, value):
    """Set a key of the table ("key"), of a server ("0.key") or of a device ("0.7.key")."""
    *places, key = path.split(".")
    node = table
    for name, place in zip(("server_list", "device"), places, strict=False):
        node = node[name][int(place)]
    node[key] = value


MISSING = "rank_id {} is missing; expected 0 to 15, one for each of 16 devices"
# Changes to a valid table of 16 devices, and all problems that the table then has.
WRONG = [
    ({"version": "1.2"}, ["version: expected '1.0', got '1.2'"]),
    ({"status": "initializing"}, ["status: expected 'completed', got 'initializing'"]),
    ({"server_count": "1"}, ["server_count is '1', and server_list has 2"]),
    (
        {"sever_list": []},
        [
            "the table has 'sever_list'; expected one of: version, server_count, server_list, "
            "status. Did you mean 'server_list'?"
        ],
    ),
    ({"server_list": []}, ["server_list: expected a list of servers, got []"]),
    (
        {"server_list": ["10.0.0.1"]},
        ["server_list[0]: expected an object with server_id, device, got '10.0.0.1'"],
    ),
    ({"1.device": []}, ["server_list[1]: device: expected a list of devices, got []"]),
    (
        {"0.device": [{"device_id": "0", "device_ip": "192.1.27.6", "rank": "0"}]},
        [
            "server_list[0].device[0] has no rank_id",
            "server_list[0].device[0] has 'rank'; expected one of: device_id, device_ip, "
            "rank_id. Did you mean 'rank_id'?",
        ],
    ),
    (
        {"0.2.rank_id": 2},
        ["server_list[0].device[2]: rank_id: expected a text, in quotation marks, got 2"],
    ),
    ({"1.1.rank_id": "8"}, ["rank_id 8 is there 2 times; expected once", MISSING.format(9)]),
    ({"1.7.rank_id": "16"}, [MISSING.format(15)]),
    (
        {"0.0.rank_id": "-1"},
        ["server_list[0].device[0]: rank_id: expected a number, got '-1'", MISSING.format(0)],
    ),
    (
        {"0.0.device_id": "9" * 5000},
        [f"server_list[0].device[0]: device_id: expected a number, got {'9' * 5000!r}"],
    ),
    ({"1.4.device_id": "3"}, ["server_list[1]: device_id 3 is there 2 times; expected once"]),
    ({"1.0.device_ip": "192.1.27.6"}, ["device_ip 192.1.27.6 is there 2 times; expected once"]),
    (
        {"0.0.device_ip": "fd00::1", "0.1.device_ip": "fd00:0::1"},
        ["device_ip fd00::1 is there 2 times; expected once"],
    ),
    ({"1.server_id": SERVERS[0]}, ["server_id 10.155.111.140 is there 2 times; expected once"]),
    (
        {"0.5.device_ip": "192.1.27.256"},
        ["server_list[0].device[5]: device_ip: expected an IP address, got '192.1.27.256'"],
    ),
    ({"0.server_id": "node0"}, ["server_list[0]: server_id: expected an IP address, got 'node0'"]),
    (
        {"0.5.device_ip": "0.0.0.0"},
        ["server_list[0].device[5]: device_ip: expected the address of one machine, got 0.0.0.0"],
    ),
    (
        {"0.host_nic_ip": "reserved"},
        ["server_list[0]: host_nic_ip: expected an IP address, got 'reserved'"],
    ),
]


@pytest.mark.parametrize(("changes", "expected"), WRONG, ids=lambda value: str(value)[:50])
def test_what_is_wrong_is_said(changes, expected):
    table = ranktable.check(sixteen(SERVERS))
    for path, value in changes.items():
        put(table, path, value)
    with pytest.raises(ranktable.RankTableError) as caught:
        ranktable.check(table, source="table.json")
    assert list(caught.value.problems) == expected
    assert str(caught.value).startswith(
        f"table.json is not a usable rank table: {expected[0]}"[:500]
    )


def test_host_nic_ip_may_be_left_out_or_be_an_address():
    table = sixteen(SERVERS)
    del table["server_list"][0]["host_nic_ip"]
    table["server_list"][1]["host_nic_ip"] = "10.0.0.1"
    ranktable.check(table)


class TestMake:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("10.0.0.1", ["192.0.0.1"], [0, 1]), "1 device addresses for 2 device numbers"),
            (("10.0.0.1", []), "expected a list of devices"),
            ((None, ["192.0.0.1"]), "server_id: expected a text, in quotation marks, got None"),
            (("10.0.0.1", "192.0.0.1"), "device_ips: expected a list"),
            (("10.0.0.1", None), "device_ips: expected a list of addresses, got None"),
        ],
    )
    def test_what_cannot_be_made(self, arguments, message):
        with pytest.raises(InputError, match=message):
            ranktable.make(*arguments)

    @pytest.mark.parametrize(
        "text",
        ["", "netmask_0=255.0.0.0", "address_0=a\naddress_0=b", None],
    )
    def test_a_file_without_addresses(self, tmp_path, text):
        if text is not None:
            (tmp_path / "hccn.conf").write_text(text)
        with pytest.raises(InputError, match="hccn.conf"):
            ranktable.read_addresses(tmp_path / "hccn.conf")


@st.composite
def tables(draw):
    """Draw one to four valid tables of one to three servers, with ranks in any order in a table."""
    result, numbers = [], itertools.count(1)
    addresses = (f"192.0.0.{number}" for number in itertools.count(1))
    for _ in range(draw(st.integers(1, 4))):
        counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
        ranks = iter(draw(st.permutations(range(sum(counts)))))
        servers = []
        for count in counts:
            device = [
                (number, next(addresses), next(ranks))
                for number in draw(st.permutations(range(count)))
            ]
            servers.append((f"10.0.0.{next(numbers)}", device))
        result.append(table_of(*servers))
    return result


def devices(table):
    return [entry for server in table["server_list"] for entry in server["device"]]


class TestMerge:
    @settings(max_examples=100)
    @given(tables())
    def test_ranks_go_on_and_all_else_stays(self, given):
        before = copy.deepcopy(given)
        merged = ranktable.merge(*given)
        assert given == before  # the arguments are not changed
        ranks = [int(entry["rank_id"]) for entry in devices(merged)]
        assert sorted(ranks) == list(range(len(ranks)))
        first = 0
        for table in given:
            own = [int(entry["rank_id"]) for entry in devices(table)]
            assert ranks[first : first + len(own)] == [first + rank for rank in own]
            first += len(own)
        assert first == len(ranks)
        kept = [(entry["device_id"], entry["device_ip"]) for t in given for entry in devices(t)]
        assert [(entry["device_id"], entry["device_ip"]) for entry in devices(merged)] == kept
        names = [server["server_id"] for t in given for server in t["server_list"]]
        assert [server["server_id"] for server in merged["server_list"]] == names
        assert merged["server_count"] == str(len(names))
        ranktable.check(merged)
        # Merging again changes nothing, and merging in two steps gives the same table.
        assert ranktable.merge(merged) == merged
        assert ranktable.merge(ranktable.merge(*given[:1]), *given[1:]) == merged
        assert ranktable.merge(given[0]) == given[0]

    def test_what_cannot_be_merged(self):
        table = json.loads(EIGHT)
        for tables, message in (
            ((table, table), "make together .*: server_id 10.155.111.140 is th"),
            (
                (table, table | {"status": "failed"}),
                "^table 2 of 2 .*: status: expected 'completed', got 'failed'",
            ),
            ((), "expected at least one rank table"),
        ):
            with pytest.raises(InputError, match=message):
                ranktable.merge(*tables)


class TestFiles:
    def test_written_and_read(self, tmp_path):
        table = sixteen(SERVERS)
        path = ranktable.write(table, tmp_path / "table.json")
        assert ranktable.read(path) == table
        assert [entry.name for entry in tmp_path.iterdir()] == ["table.json"]

    def test_a_wrong_table_is_not_written(self, tmp_path):
        (tmp_path / "table.json").write_text("of before")
        with pytest.raises(InputError, match="status"):
            ranktable.write(sixteen(SERVERS) | {"status": ""}, tmp_path / "table.json")
        assert (tmp_path / "table.json").read_text() == "of before"

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (None, "cannot read .*No such file"),
            ("{", "is not a JSON file"),
            (b"\xff\xfe", "is not a JSON file"),
            ('{"a": 1, "b": 2, "a": 3}', "'a' appears twice in one object"),
        ],
    )
    def test_what_cannot_be_read(self, tmp_path, text, message):
        path = tmp_path / "table.json"
        if text is not None:
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(InputError, match=message):
            ranktable.read(path)


class TestProgram:
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        return tmp_path

    @pytest.fixture
    def call(self, capsys):
        """A function that calls the program and returns (exit code, stdout, stderr)."""
        program = modules.load(SCRIPT, "rank_table_program")

        def invoke(*arguments):
            try:
                code = program.main(arguments)
            except SystemExit as exit:
                code = exit.code
            return code, *capsys.readouterr()

        return invoke

    def test_two_servers_from_their_files_to_the_tutorials_table(self, folder, call):
        for node, addresses in enumerate((NODE_0, NODE_1)):
            lines = [f"address_{n}={address}\n" for n, address in enumerate(addresses)]
            (folder / f"hccn{node}.conf").write_text("".join(lines))
            name = f"hccl_8p_01234567_{SERVERS[node]}.json"
            said = f"{name}: servers: 1, devices: 8, ranks 0 to 7\n"
            assert call("make", SERVERS[node], "--hccn", f"hccn{node}.conf") == (0, said, "")
        first = json.loads((folder / f"hccl_8p_01234567_{SERVERS[0]}.json").read_text())
        assert first == json.loads(EIGHT)
        said = "hccl_2s_16p.json: servers: 2, devices: 16, ranks 0 to 15\n"
        merged = call("merge", *(f"hccl_8p_01234567_{server}.json" for server in SERVERS))
        assert merged == (0, said, "")
        assert json.loads((folder / "hccl_2s_16p.json").read_text()) == sixteen(SERVERS)
        assert call("check", "hccl_2s_16p.json") == (0, said, "")

    def test_some_devices_by_number(self, folder, call):
        (folder / "hccn.conf").write_text(
            "address_1=1.1.1.2\nnetmask_1=255.255.255.0\naddress_0 = 1.1.1.1\naddress_5=1.1.1.3"
        )
        assert call("make", "10.0.0.1", "--hccn", "hccn.conf", "--devices", "5,0-1")[0] == 0
        table = ranktable.read("hccl_3p_501_10.0.0.1.json")
        assert [list(entry.values()) for entry in devices(table)] == [
            ["5", "1.1.1.3", "0"],
            ["0", "1.1.1.1", "1"],
            ["1", "1.1.1.2", "2"],
        ]

    def test_addresses_that_are_starred_out_need_a_word(self, folder, call):
        (folder / "16.json").write_text(json.dumps(sixteen()))
        code, _, said = call("check", "16.json")
        assert code == 2 and "starred out" in said
        assert call("check", "--masked", "16.json")[0] == 0

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["make", "10.0.0.1"], "expected the devices' addresses, or --hccn"),
            (["make", "10.0.0.1", "1.1.1.1", "--hccn", "right.json"], "expected the devices'"),
            (["make", "10.0.0.1", "--hccn", "one.conf", "--devices", "0-1"], "no address_1"),
            (["make", "10.0.0.1", "1.1.1.1", "--devices", "1-0"], "got '1-0'"),
            (["merge", "right.json", "right.json"], "server_id 10.155.111.140 is there 2 times"),
            (["check", "nowhere.json"], "cannot read nowhere.json"),
            (["check"], "the following arguments are required"),
        ],
    )
    def test_bad_usage_is_exit_2_and_nothing_is_written(self, folder, call, arguments, said):
        (folder / "right.json").write_text(EIGHT)
        (folder / "one.conf").write_text("address_0=1.1.1.1\n")
        before = sorted(folder.iterdir())
        code, out, errors = call(*arguments)
        assert (code, out) == (2, "") and said in errors
        assert sorted(folder.iterdir()) == before


def test_twenty_thousand_keys_take_no_time_and_one_line(tmp_path):
    # Counting every name among all of them took more than 30 s for 209 kB.
    path = tmp_path / "table.json"
    path.write_text(json.dumps({str(number): number for number in range(20_000)}))
    with pytest.raises(ranktable.RankTableError, match="the table has no version") as raised:
        ranktable.read(path)
    assert len(str(raised.value).splitlines()) == 1 and "; and 19999 more" in str(raised.value)
    assert len(raised.value.problems) == 20_004
