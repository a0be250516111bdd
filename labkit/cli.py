"""The `labkit` command. Exit codes: 0 all right, 1 something failed, 2 bad input, 130 Ctrl-C.

What a command needs is imported when it is called: `labkit --help` answers at once.
"""

import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from labkit.commands import lab, progress, work
from labkit.errors import InputError
from labkit.ranktable import command as ranktable


class _Commands(TyperGroup):
    """Turns bad input and Ctrl-C into a message and an exit code, for every command alike."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InputError as error:
            print(f"labkit: {error}", file=sys.stderr)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            print("labkit: interrupted", file=sys.stderr)
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=_Commands,
    help="Training techniques for neural networks with MindSpore, one notebook lab each.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


app.add_typer(ranktable.app, name="ranktable")
app.command("lab")(lab.lab)
app.command("work")(work.work)
app.command("progress")(progress.progress)


def _show_version(asked: bool) -> None:
    if asked:
        from labkit.run import installed_version

        typer.echo(f"labkit {installed_version('labkit') or '(not installed)'}")
        raise typer.Exit()


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


@app.command("list")
def list_labs() -> None:
    """Show the labs: number, title, presets, and the minutes their header card states."""
    from labkit import console, labs

    found = labs.find_labs(labs.find_project())
    rows = [(lab.number, lab.name, lab.title, " ".join(lab.presets), lab.minutes) for lab in found]
    console.table(("number", "lab", "title", "presets", "minutes"), rows)


@app.command()
def run(
    labs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[LAB]...", help="Number or name, as in `labkit list`; none: all."),
    ] = None,
    preset: Annotated[
        str, typer.Option(envvar="LABKIT_PRESET", help="smoke, lab or paper.")
    ] = "lab",
    device: Annotated[str, typer.Option(help="auto, Ascend, GPU or CPU.")] = "auto",
    parameter: Annotated[
        list[str] | None,
        typer.Option("-p", "--parameter", metavar="NAME=VALUE", help="Set one; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write to; runs/<time> of the project if not given."),
    ] = None,
    cell_timeout: Annotated[
        float | None,
        typer.Option(min=1, help="Seconds that one cell may take; no limit if not given."),
    ] = None,
) -> None:
    """Execute labs headlessly; each leaves its notebook, results.json, records and figures."""
    from labkit import console, request, runner

    wanted = request.check(labs or (), preset=preset, device=device, parameters=parameter or ())
    # SIGTERM ends Python at once and would leave the kernel to find that out by itself.
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        outcomes = runner.run(wanted, out, say=console.line, cell_timeout=cell_timeout)
    finally:
        signal.signal(signal.SIGTERM, before)
    console.outcomes(outcomes)
    raise typer.Exit(runner.exit_code(outcomes))


@app.command()
def doctor() -> None:
    """Check this machine for what bites people, and say the remedy. Takes about 15 seconds."""
    from labkit import console, doctor

    found = [console.check(check()) for check in doctor.checks()]
    failed = sum(not check.ok for check in found)
    console.line(f"{len(found) - failed} of {len(found)} checks passed")
    raise typer.Exit(1 if failed else 0)


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help=".pth, .pt, .bin, .safetensors or .ckpt")],
    target: Annotated[Path, typer.Argument(help=".ckpt, or .pth or .safetensors")],
    network: Annotated[
        str, typer.Option(help="resnet18 ... resnet152, or module:function that returns a Cell.")
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
    """Convert weights between PyTorch and MindSpore, bit by bit; nothing in a file is executed.

    Example: labkit convert resnet50.pth resnet50.ckpt --network resnet50
    """
    from labkit import runtime
    from labkit.migration import command

    sys.path.insert(0, str(Path.cwd()))
    runtime.start("CPU")
    print(
        command.convert(
            source, target, network, classes, rename=rename or (), entry=entry, prefix=prefix
        )
    )


def _terminate(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    app()
