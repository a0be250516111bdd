"""`labkit convert`: the network and the direction of the conversion."""

import importlib
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from labkit.base.arguments import local_path, wrong
from labkit.errors import InputError


def convert(
    source: Annotated[str, typer.Argument(help=".pth, .pt, .bin, .safetensors or .ckpt")],
    target: Annotated[str, typer.Argument(help=".ckpt, or .pth or .safetensors")],
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
    read, written = local_path("SOURCE", source), local_path("TARGET", target)
    back = read.suffix == ".ckpt"
    if back == (written.suffix == ".ckpt"):
        expected = "one .ckpt (MindSpore) and one .pth or .safetensors (PyTorch)"
        raise wrong("convert", f"{read.name} to {written.name}", expected)
    if back and (entry or prefix):
        raise InputError("entry and prefix: expected none with a checkpoint, which has neither")
    renames = dict(text.partition("=")[::2] for text in rename or ())
    if len(renames) < len(rename or ()) or not all(map(all, renames.items())):
        raise wrong("rename", rename, "different parts, each as MINDSPORE=PYTORCH")
    from labkit import runtime

    runtime.start("CPU")
    from labkit.migration import weights

    cell = _build(network, classes)
    if back:
        weights.convert_back(read, written, cell, renames)
        print(f"{written}: written")
    else:
        match = weights.convert_file(read, written, cell, renames, entry=entry, prefix=prefix)
        print(f"{written}: written; {match}")


def _build(network: str, classes: int) -> Any:
    """Return the Cell that ``network`` names."""
    if match := re.fullmatch(r"resnet(\d+)", network):
        from labkit.nets.resnet import resnet

        return resnet(int(match[1]), classes)
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
