"""`labkit convert`: which network, rules and direction, and what is refused before any writing."""

import json

import numpy as np
import pytest

from labkit.migration import read_torch, write_torch

OWN = ("--network", "a_network_of_mine:net")
STATE = {"module.fc.weight": np.ones((2, 3), np.float32), "module.fc.bias": np.zeros(2, np.float32)}
RULES = ("--rule", r"^module\.=", "--rule", r"\bfc=end_point")
LISTED = [[r"^module\.", ""], {"torch": r"\bfc", "ours": "end_point", "transpose": False}]


@pytest.fixture
def folder(tmp_path, monkeypatch, runtime):
    (tmp_path / "a_network_of_mine.py").write_text(
        "from collections import OrderedDict\nfrom mindspore import nn\n"
        "def net(): return nn.SequentialCell(OrderedDict(end_point=nn.Dense(3, 2)))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    write_torch(tmp_path / "in.safetensors", STATE)
    (tmp_path / "rules.json").write_text(json.dumps(LISTED))
    return tmp_path


@pytest.mark.parametrize("given", [RULES, (*RULES[:2], "--rules", "{}/tail.json")])
def test_there_and_back_is_equal_to_the_bit(call, folder, given):
    (folder / "tail.json").write_text(json.dumps(LISTED[1:]))
    given = [word.format(folder) for word in given]
    source, there, back = (folder / name for name in ("in.safetensors", "a.ckpt", "b.safetensors"))
    for read, written, like in ((source, there, ()), (there, back, ("--like", source))):
        said = call("convert", read, written, *OWN, *given, *like)[1]
        assert said.endswith(f"\n{written}: written; 2 parameters match\n")
    copied = read_torch(back)
    assert copied.keys() == STATE.keys()
    assert all(np.array_equal(copied[name], value) for name, value in STATE.items())


def test_a_dry_run_writes_nothing_and_proposes_a_file_of_rules(call, folder):
    source, target = folder / "in.safetensors", folder / "out.ckpt"
    code, said, _ = call("convert", source, target, *OWN, "--dry-run")
    lines = said[said.index("[\n") :]
    assert code == 1 and json.loads(lines) == [[r"^module\.fc\b", "end_point"]]
    assert "end_point.weight: no PyTorch tensor" in said
    (folder / "rules.json").write_text(lines)
    options = (*OWN, "--rules", folder / "rules.json", "--leave", "bias")
    code, said, _ = call("convert", source, target, *options, "--dry-run")
    assert code == 0 and not target.exists()
    assert "not written (dry run); 1 parameters match\n  left: end_point.bias: it fits\n" in said
    assert call("convert", source, target, *options)[0] == 0 and target.exists()


def test_the_lists_of_rules_are_those_of_the_library(call, folder):
    state = {name.replace("module.fc", "vit.end_point"): value for name, value in STATE.items()}
    source = write_torch(folder / "vit.safetensors", state)
    said = call("convert", source, folder / "a.ckpt", *OWN, "--rules", "vit")[1]
    assert "written; 2 parameters match" in said


@pytest.mark.parametrize(
    ("source", "target", "options", "words"),
    [
        ("in.safetensors", "out.pth", "", "expected one of MindSpore"),
        ("in.safetensors", "out.ckpt", "--network resnet20", "152), got 20"),
        ("in.safetensors", "out.ckpt", "--network vgg", "or module:function"),
        ("in.safetensors", "out.ckpt", "--network no_such:net", "No module named 'no_such'"),
        ("in.safetensors", "out.ckpt", "--network os:getcwd", "a function that returns an nn.Cell"),
        ("in.safetensors", "out.ckpt", "--rule fc", "expected PATTERN=NAME"),
        ("in.safetensors", "out.ckpt", "--rule x=y", "matches no name"),
        ("in.safetensors", "out.ckpt", "--rules absent", "or a JSON list of [torch, ours]"),
        ("in.safetensors", "out.ckpt", "--leave x", "matches no name"),
        ("in.safetensors", "out.ckpt", "--entry model", "has no entries"),
        ("in.safetensors", "out.ckpt", "", "no parameter of the network"),
        ("in.safetensors", "out.ckpt", "--like x.pth", "expected weights of MindSpore"),
        ("absent.safetensors", "out.ckpt", "", "is not there"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_written(
    call, folder, source, target, options, words
):
    before = list(folder.iterdir())
    code, _, said = call("convert", folder / source, folder / target, *OWN, *options.split())
    assert code == 2 and words in said and list(folder.iterdir()) == before
