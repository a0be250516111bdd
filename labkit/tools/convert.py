"""`labkit convert`: the network, the rules and the direction of the conversion."""

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from labkit.base.arguments import local_path, wrong

_LISTS = ("bert", "gpt2", "vit", "llama")


def convert(
    source: Annotated[
        str,
        typer.Argument(help="A weights file of PyTorch or MindSpore, an index.json, or a folder."),
    ],
    target: Annotated[str, typer.Argument(help=".ckpt; or .pth, .safetensors from MindSpore's.")],
    network: Annotated[
        str,
        typer.Option(help="resnet18 ... resnet152, or module:function (run) that returns a Cell."),
    ] = "resnet50",
    rules: Annotated[
        str | None, typer.Option(metavar="FILE|NAME", help=f"JSON, or one of {', '.join(_LISTS)}.")
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN=NAME", help="Before --rules; may be repeated."),
    ] = None,
    entry: Annotated[
        str | None, typer.Option(help="Entry of PyTorch's file that holds the tensors: state.model")
    ] = None,
    leave: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="The network's names to leave: ^fc")
    ] = None,
    like: Annotated[
        str | None, typer.Option(metavar="FILE", help="Weights with PyTorch's names, to go back to")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would happen, or propose rules.")
    ] = False,
) -> None:
    """Convert weights between PyTorch and MindSpore, bit by bit.

    No code in a weights file is executed, and none in the working folder except the module that
    --network names.

    Example: labkit convert resnet50.pth resnet50.ckpt --network resnet50
    """
    read, written = local_path("SOURCE", source), local_path("TARGET", target)
    from labkit import runtime

    runtime.start("CPU")
    from labkit import migration

    given = _rules(rule or [], rules)
    tensors = migration.read_torch(read, entry)
    if written.suffix not in ((".pth", ".safetensors") if tensors.mindspore else (".ckpt",)):
        expected = "one of MindSpore (.ckpt) and one of PyTorch (.pth or .safetensors)"
        raise wrong("convert", f"{read.name} to {written.name}", expected)
    cell = _build(network)
    if dry_run and not tensors.mindspore:
        match = migration.match(cell, tensors, given, leave)
        if match.problems:
            print(match)
            if not given:
                proposed = migration.propose(cell, tensors)
                lines = ",\n ".join(json.dumps([each.torch, each.ours]) for each in proposed)
                print(f"proposed rules, to be confirmed and given as --rules FILE:\n[\n {lines}\n]")
            raise typer.Exit(1)
    options = {"entry": entry, "leave": leave, "like": like}
    match = migration.convert(read, None if dry_run else written, cell, given, **options)
    print(f"{written}: {'not written (dry run)' if dry_run else 'written'}; {match}")


def _rules(texts: list[str], name: str | None) -> list[Any]:
    """Return the rules of --rule, then those of --rules, a list's name or a JSON file."""
    from labkit.migration import Rule

    if bad := [text for text in texts if "=" not in text]:
        raise wrong("rule", bad[0], "PATTERN=NAME")
    given = [Rule(*text.rpartition("=")[::2]) for text in texts]
    if name is None:
        return given
    if name in _LISTS:
        lists = importlib.import_module("labkit.migration.rules")
        return [*given, *getattr(lists, name.upper())]
    path = local_path("rules", name)
    try:
        for row in json.loads(path.read_text("utf-8")):
            row = row if isinstance(row, dict) else dict(zip(("torch", "ours"), row, strict=True))
            row = {key: tuple(v) if isinstance(v, list) else v for key, v in row.items()}
            given.append(Rule(**row))
    except (OSError, ValueError, TypeError) as error:
        expected = f"{', '.join(_LISTS)}, or a JSON list of [torch, ours]"
        raise wrong("rules", name, expected, f" {error}") from None
    return given


def _build(network: str) -> Any:
    """Return the Cell that ``network`` names."""
    if match := re.fullmatch(r"resnet(\d+)", network):
        from labkit.nets.resnet import resnet

        return resnet(int(match[1]), 1000)
    from mindspore import nn

    module, _, function = network.partition(":")
    # Last in the search path: in a downloaded folder, a file torch.py would else be PyTorch.
    sys.path.append(str(Path.cwd()))
    try:
        cell = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        expected = "resnet18, 34, 50, 101, 152, or module:function"
        raise wrong("network", network, expected, f" {error}") from None
    if not isinstance(cell, nn.Cell):
        raise wrong("network", network, "a function that returns an nn.Cell")
    return cell
