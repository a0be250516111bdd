"""`labkit convert`: the network and the direction of the conversion."""

import importlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labkit.base.arguments import wrong
from labkit.errors import InputError

if TYPE_CHECKING:
    from mindspore import nn

CHECKPOINT = ".ckpt"


def convert(
    source: Annotated[Path, typer.Argument(help=".pth, .pt, .bin, .safetensors or .ckpt")],
    target: Annotated[Path, typer.Argument(help=".ckpt, or .pth or .safetensors")],
    network: Annotated[
        str,
        typer.Option(help="resnet18 ... resnet152, or module:function (run) that returns a Cell."),
    ] = "resnet50",
    classes: Annotated[int, typer.Option(min=1, help="Classes of a resnet.")] = 1000,
    rename: Annotated[
        list[str] | None,
        typer.Option(metavar="MINDSPORE=PYTORCH", help="Part of a name; may be repeated."),
    ] = None,
    entry: Annotated[
        str | None, typer.Option(help="Entry of PyTorch's file that holds the tensors.")
    ] = None,
    prefix: Annotated[str, typer.Option(help="To take off PyTorch's names: module.")] = "",
) -> None:
    """Convert weights between PyTorch and MindSpore, bit by bit.

    No code in a weights file is executed, and none in the working folder except the module that
    --network names.

    Example: labkit convert resnet50.pth resnet50.ckpt --network resnet50
    """
    if (source.suffix == CHECKPOINT) == (target.suffix == CHECKPOINT):
        raise InputError(
            f"{source.name} to {target.name}: expected one {CHECKPOINT} (MindSpore) and one .pth "
            "or .safetensors (PyTorch)"
        )
    if source.suffix == CHECKPOINT and (entry or prefix):
        raise InputError("entry and prefix: expected none with a checkpoint, which has neither")
    if not target.parent.is_dir():
        raise InputError(
            f"{target.parent} is not a folder; expected one to write {target.name} into"
        )
    renames: dict[str, str] = {}
    for text in rename or ():
        ours, _, theirs = text.partition("=")
        if not (ours and theirs) or ours in renames:
            raise wrong("rename", text, "MINDSPORE=PYTORCH, each name once")
        renames[ours] = theirs
    from labkit import runtime

    runtime.start("CPU")
    from labkit.migration import weights

    cell = _build(network, classes)
    if source.suffix == CHECKPOINT:
        weights.convert_back(source, target, cell, renames)
        print(f"{target}: written")
    else:
        match = weights.convert_file(source, target, cell, renames, entry=entry, prefix=prefix)
        print(f"{target}: written; {match}")


def _build(network: str, classes: int) -> "nn.Cell":
    """Return the Cell that ``network`` names."""
    if match := re.fullmatch(r"resnet(\d+)", network):
        from labkit.nets.resnet import resnet

        return resnet(int(match[1]), classes)
    module, colon, function = network.partition(":")
    if not colon or not all(map(str.isidentifier, module.split("."))):
        raise wrong("network", network, "resnet18, 34, 50, 101, 152, or module:function")
    from mindspore import nn

    # Last in the search path: in a downloaded folder, a file torch.py would else be PyTorch.
    sys.path.append(str(Path.cwd()))
    try:
        make = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InputError(f"network {network}: {error}") from error
    cell = make() if callable(make) else None
    if not isinstance(cell, nn.Cell):
        raise wrong("network", network, "a function that returns an nn.Cell")
    return cell
