"""`labkit convert`."""

from pathlib import Path
from typing import Annotated

import typer


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

    Nothing in a file of weights is executed, and nothing of the working folder but the module that
    --network names.

    Example: labkit convert resnet50.pth resnet50.ckpt --network resnet50
    """
    from labkit import runtime
    from labkit.migration import command

    runtime.start("CPU")
    result = command.convert(
        source, target, network, classes, rename=rename or (), entry=entry, prefix=prefix
    )
    print(result)
