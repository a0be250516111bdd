"""Readers of what a user writes: rank tables, settings as YAML, values of -p."""

# ruff: noqa: E501 (tables of odd values)

import functools
import importlib
import json
import random
from pathlib import Path

from labkit.recipes import RECIPES
from tests.campaigns.mutate import ODD, Tree, dumps, json_file, json_like, text_damaged
from tests.campaigns.reader import Reader, with_special
from tests.support.yaml_texts import bomb

ROOT = Path(__file__).resolve().parents[2]


def _table() -> dict:
    device = [
        {"device_id": str(n), "device_ip": f"192.1.{n}.6", "rank_id": str(n)} for n in range(8)
    ]
    server = {"server_id": "10.1.2.3", "device": device, "host_nic_ip": "reserve"}
    table = {"version": "1.0", "server_count": "1", "server_list": [server]}
    return table | {"status": "completed"}


def _make_table(rule: random.Random) -> Tree:
    value = _table()
    if rule.random() < 0.01:
        value["server_list"][0]["device"] *= 5000
        content = json.dumps(value).encode()
    else:
        content = json_file(rule, value)
    conf = text_damaged(rule, b"".join(b"address_%d=192.1.%d.6\n" % (n, n) for n in range(8)))
    return with_special(rule, {"table.json": content, "hccn.conf": conf})


_YAML = b"""# settings
batch_size: 32
lr: 0.05
epoch_size: 2
weight_decay: 1e-4
save_checkpoint: false
lr_schedule: cosine
save_checkpoint_path: runs/x
"""
_VALUES = (
    "1", "1e-3", "2024-13-45", "2024-01-01", "0b_", "0b", "0x_", "0o8", "!!bool x", "!!int x", "!!float x", "!!null x",
    "!!timestamp x", "!!binary '%%%'", "!!set {a}", "!!omap [a]", "!!pairs [a]", "!!python/object:os.system x", "!x y",
    "1" + "0" * 400, "9" * 5000, "1:2:3:4:5", ":".join(["59"] * 2000), "0x" + "F" * 9000, "-.inf", ".nan", "~", "null",
    "&a [1, *a]", "&a {x: *a}", "*a", "&a 1", "{<<: *a}", "{<<: [1]}", "{[a]: b}", "{? {a: b} : c}", "? a", "- a", "[",
    "[" * 900, "[" * 300 + "]" * 300, "{a: " * 300 + "1" + "}" * 300, "'", '"', '"\\ud800"', '"\\x00"', '"\\U00110000"', "|", ">",
    "%YAML 9.9", "--- 1\n--- 2", "...", "a: b: c", "\t1", "@", "`", "\u2028", "x" * 5000, "é", "=", "<<", "yes", "on",
    "1_000", "0.1e+400", "1e400", "+1", "--1", "1 2", "[1, 2]", "{a: 1}", "!!str 1", "# x", "", " ", "\0", "\x1b[2J", "\ud800",
)  # fmt: skip


def _make_yaml(rule: random.Random) -> Tree:
    act = rule.random()
    if act < 0.05:
        levels = rule.choice((3, 5, 9))
        content = bomb(levels).encode() + rule.choice((b"", _YAML, b"lr: *a%d\n" % (levels - 1)))
    elif act < 0.6:
        lines = _YAML.decode().splitlines()
        for _ in range(rule.choice((1, 1, 2))):
            at = rule.randrange(1, len(lines))
            value = rule.choice((*_VALUES, *map(str, ODD)))
            name = rule.choice(
                (lines[at].split(":")[0], lines[at].split(":")[0], rule.choice(_VALUES))
            )
            lines[at] = f"{name}: {value}"
        content = "\n".join(lines).encode("utf-8", "surrogatepass")
    elif act < 0.75:
        content = dumps(json_like(rule, {"lr": 0.1, "batch_size": 8, "lr_schedule": "cosine"}))
    else:
        content = text_damaged(rule, _YAML)
    return with_special(rule, {"settings.yaml": content})


_NAMES = "epochs learning_rate seed micro_steps data batch_size x preset é __class__".split()


def _make_values(rule: random.Random) -> Tree:
    odd = [str(value) for value in ODD if value != "/"]
    texts = []
    for _ in range(rule.choice((1, 1, 1, 2))):
        value = rule.choice((*_VALUES, *odd, "~nobody/x", "x" * 300, "/root/x", "a\nb", bomb(4)))
        if rule.random() < 0.2:
            content = text_damaged(rule, value.encode("utf-8", "replace"))
            value = content.decode("utf-8", "surrogateescape")
        equals = "=" if rule.random() < 0.95 else ""
        texts.append(f"{rule.choice((*_NAMES, ''))}{equals}{value}")
    return {"values": json.dumps(texts).encode()}


def _rank_table(folder: Path, _out: Path):
    from labkit.ranks import rank_table as ranktable

    return ranktable.read(folder / "table.json")


def _merge(folder: Path, _out: Path):
    from labkit.ranks import rank_table as ranktable

    return ranktable.merge(ranktable.read(folder / "table.json", masked=True), _table())


def _addresses(folder: Path, _out: Path):
    from labkit.ranks import rank_table as ranktable

    result = ranktable.read_addresses(folder / "hccn.conf")
    return ranktable.make("10.1.1.1", list(result.values()), list(result))


def _settings(module: str):
    def read(folder: Path, out: Path):
        from labkit.recipes import settings

        recipe = importlib.import_module(f"labkit.recipes.{module}").RECIPE
        kind = type(next(iter(recipe.named.values())))
        result = settings.read(kind, folder / "settings.yaml")
        settings.write(result, out / "config.json")
        return settings.lines(result)

    return read


def _assignments(folder: Path, _out: Path):
    from labkit.recipes import settings
    from labkit.recipes.resnet50_config import Config

    return settings.read(Config, None, json.loads((folder / "values").read_bytes()))


@functools.cache
def _keep_labs() -> None:
    """Read the project's notebooks only once, because they do not change during the campaign."""
    from labkit.tools import labs

    labs.find_labs = functools.cache(labs.find_labs)
    labs.parameter_names = functools.cache(labs.parameter_names)


def _parameters(lab: str):
    def check(folder: Path, out: Path):
        from labkit.tools.running import digests as inputs
        from labkit.tools.running import folders, request

        _keep_labs()
        texts = json.loads((folder / "values").read_bytes())
        wanted = request.check([lab], preset="smoke", parameters=texts, start=ROOT)
        folders.write_run(out / lab, wanted)
        for each in wanted.labs:
            notebook = {"cells": [], "metadata": {}}
            inputs.of_run(out, notebook, wanted.preset, wanted.device, wanted.of(each))

    return check


def _grid(folder: Path, _out: Path):
    from labkit.tools.running import request

    points = request.points(request.parse_grid(json.loads((folder / "values").read_bytes())))
    return [request.folder_name(point) for point in points[:100]]


READERS = {
    "ranktable": Reader(_make_table, (_rank_table, _merge, _addresses)),
    "yaml": Reader(_make_yaml, tuple(map(_settings, RECIPES.values()))),
    "parameters": Reader(_make_values, (_parameters("01"), _parameters("02"), _assignments, _grid)),
}
