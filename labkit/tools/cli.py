"""The `labkit` command. Exit codes: 0 success, 1 something failed, 2 bad input, 130 Ctrl-C."""

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
    from typer.core import TyperCommand, TyperGroup
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"labkit: {missing}. The command needs the extra labs: "
        "pip install 'mindspore-labs[labs]', or, in the clone, "
        "pip install -c constraints.txt -e '.[labs]'"
    ) from None

from labkit.base.arguments import local_path, parse_several, read_yaml, wrong
from labkit.base.project import find_project, labs_source
from labkit.base.project import version as labkit_version
from labkit.errors import InputError
from labkit.recipes import RECIPES
from labkit.tools import report as reports
from labkit.tools import run as runner
from labkit.tools import sweep as sweeps
from labkit.tools.convert import convert
from labkit.tools.doctor import doctor
from labkit.tools.labs import find_labs
from labkit.tools.work import lab


class _Commands(TyperGroup):
    """Turns bad input into a message and an exit code, for every command."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        sys.stdout = sys.stdout or open(os.devnull, "w")  # None after >&-
        try:
            try:
                return super().main(*arguments, **options)
            finally:
                sys.stdout.flush()  # at exit it would be a traceback
        except (InputError, OSError) as error:  # no right to write, a full disk
            if getattr(error, "filename", "") is None:  # standard output's: not again at exit
                sys.stdout = open(os.devnull, "w")
            if not isinstance(error, BrokenPipeError):  # as of labkit list | head -1
                print(f"labkit: {error}", file=sys.stderr)
            sys.exit(2)


class _Run(TyperCommand):
    """Takes papermill's ``-p NAME VALUE`` beside ``-p NAME=VALUE``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = list(args)
        for at in reversed(range(len(words) - 2)):
            option, name, value = words[at : at + 3]
            if option in ("-p", "--parameter") and name.isidentifier() and value[:2] != "--":
                words[at + 1 : at + 3] = [f"{name}={value}"]
        return super().parse_args(ctx, words)


app = typer.Typer(
    cls=_Commands,
    help="Training techniques for neural networks with MindSpore, one notebook lab each.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_Preset = Annotated[str, typer.Option(help="smoke, lab or paper; $LABKIT_PRESET, else lab.")]
_Device = Annotated[str, typer.Option(help="auto (if not given), Ascend, GPU or CPU.")]
_Out = Annotated[
    str | None, typer.Option(metavar="FOLDER", help="A new one in runs/ if not given.")
]
_Jobs = Annotated[int | None, typer.Option(min=1, help="At once; as many as fit if not given.")]
_Seconds = Annotated[float | None, typer.Option(min=1, help="Seconds of one lab; or inf.")]
_Memory = Annotated[float | None, typer.Option(min=0.1, help="GB that one lab may hold.")]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object at the end alone.")]
_PARAMETER = typer.Option("-p", "--parameter", metavar="NAME=VALUE", help="May be repeated.")
_Parameters = Annotated[list[str] | None, _PARAMETER]
_Labs = Annotated[list[str] | None, typer.Argument(help="Number, name or notebook; none: all.")]


@app.callback(invoke_without_command=True)
def _main(version: Annotated[bool, typer.Option("--version")] = False) -> None:
    # As Ctrl-C: what a command has started ends with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if version:
        print(f"labkit {labkit_version()}")
        raise typer.Exit()


@app.command("list")
def list_labs() -> None:
    """Show the labs: number, name and title.

    Example: labkit list
    """
    rows = [(lab.number, lab.name, lab.title) for lab in find_labs(labs_source())]
    _table(("number", "lab", "title"), rows)


@app.command(cls=_Run)
def run(
    labs: _Labs = None,
    preset: _Preset = "",
    device: _Device = "",
    parameter: _Parameters = None,
    parameters: Annotated[str | None, typer.Option("-f", help="Parameters, in YAML.")] = None,
    out: _Out = None,
    resume: Annotated[
        str | None, typer.Option(metavar="RUN", help="Go on in the folder of an earlier run.")
    ] = None,
    jobs: _Jobs = None,
    timeout: _Seconds = None,
    memory: _Memory = None,
    as_json: _Json = False,
) -> None:
    """Execute labs headlessly, each by papermill in a process of its own, and print a table.

    A lab that fails, hangs or takes too much memory is reported with its cell and the last lines of
    its log; the others go on. With --resume, labs that passed with the same parameters are not
    executed again.

    Example: labkit run 01 --preset smoke -p micro_steps=8
    """
    named = {} if parameters is None else read_yaml(parameters)
    if not isinstance(named, dict):
        raise wrong("-f", str(parameters), "a file of NAME: VALUE lines")
    earlier = None if resume is None else local_path("--resume", resume).absolute()
    if earlier and out is not None:
        raise wrong("--out", out, "none beside --resume, which goes on in its folder")
    try:
        before = json.loads((earlier / runner.RUN).read_text("utf-8")) if earlier else {}
    except (OSError, ValueError) as error:
        raise InputError(f"--resume: {resume} holds no run ({error})") from error
    kinds = type(before.get("labs")), type(before.get("parameters"))
    if earlier and kinds != (list, dict):
        raise InputError(f"--resume: {resume} holds no run ({runner.RUN} lists no labs)")
    named = before.get("parameters", {}) | named
    named |= runner.values(parameter or ()) | _given(preset, device)
    chosen = runner.tasks(labs or before.get("labs", ()), named, bool(labs))
    folder = earlier or runner.output_folder(out)
    _finish(runner.run(chosen, folder, jobs, timeout, memory, as_json), folder, as_json)


@app.command()
def sweep(
    lab: str,
    parameter: _Parameters = None,
    preset: _Preset = "",
    device: _Device = "",
    out: _Out = None,
    jobs: _Jobs = None,
    timeout: _Seconds = None,
    memory: _Memory = None,
    as_json: _Json = False,
) -> None:
    """Run a lab with every combination of values; write sweep.csv and a figure.

    The same command again executes nothing; with one more seed, that seed alone.

    Example: labkit sweep 01 --preset smoke -p micro_steps=1,2,4 -p seed=1,2
    """
    if not (grid := runner.values(parameter or (), parse_several)):
        raise InputError("-p: expected at least one parameter, as in -p seed=1,2,3, got none")
    chosen = sweeps.tasks(lab, grid, _given(preset, device))
    name = f"{chosen[0].lab.name}-{chosen[0].asked['preset']}"
    default = find_project() / "runs" / "sweeps" / name
    folder = runner.output_folder(str(default) if out is None else out, again=True)
    results = runner.run(chosen, folder, jobs, timeout, memory, as_json)
    sweeps.write(results, grid, folder)
    _finish(results, folder, as_json, tuple(grid))


@app.command()
def report(
    runs: list[str],
    out: Annotated[str | None, typer.Option(help="RUN/report.html, of several here.")] = None,
    notebooks: Annotated[bool, typer.Option(help="Also as pages, 2 to 4 seconds each.")] = True,
    check: Annotated[bool, typer.Option("--check", help="Only list what differs.")] = False,
) -> None:
    """Write one HTML page about runs that needs no network, and print its path.

    Differences between the runs come first, times apart; then what ran, headline numbers beside the
    stored run's, figures and the executed notebooks. --check exits with 1 if anything differs.

    Example: labkit report runs/latest
    """
    folders = [local_path("RUN", run) for run in runs]
    place = None if out is None else local_path("--out", out)
    lines = reports.check(folders) if check else [reports.write(folders, place, notebooks)]
    print("".join(f"{line}\n" for line in lines), end="")
    raise typer.Exit(check and bool(lines))


app.command()(lab)
app.command()(convert)
app.command()(doctor)


def _recipe(context: typer.Context) -> None:
    from labkit.recipes.__main__ import main

    raise typer.Exit(main([context.info_name or "", *context.args], "labkit"))


for _name, _example in (
    ("train", "accumulation --data_path MNIST_Data"),
    ("eval", "thor --data_path CIFAR10 --checkpoint_path FILE"),
):
    app.command(
        _name,
        help=f"{_name.capitalize()} a whole program: one process, ranks or machines. RECIPE is one "
        f"of {', '.join(RECIPES)}; `labkit {_name} RECIPE --help` has its options.\n\n"
        f"Example: labkit {_name} {_example}",
        rich_help_panel="Whole training programs",
        # All words, --help included, go to the recipe's own parser.
        context_settings={
            "allow_extra_args": True,
            "ignore_unknown_options": True,
            "help_option_names": [],
        },
    )(_recipe)


def _given(preset: str, device: str) -> dict[str, str]:
    return {name: text for name, text in (("preset", preset), ("device", device)) if text}


def _finish(
    results: list[dict[str, Any]], folder: Path, as_json: bool, grid: Sequence[str] = ()
) -> None:
    """Print how labs ended and why some failed.

    Exit with 0 if all passed, 130 after Ctrl-C, 2 if only bad input stopped some, else 1.
    """
    errors = [each["error"] for each in results if each["status"] != "passed"]
    code, place = int(bool(errors)), os.path.relpath(folder)
    if any(error["cause"] == "interrupted" for error in errors):
        code = 130
    elif errors and all(error["name"] == "InputError" for error in errors):
        code = 2
    if as_json:
        print(json.dumps({"folder": str(folder), "exit": code, "labs": results}))
    else:
        rows = []
        for each in results:
            asked, seconds = map(each["requested"].get, grid), f"{each['total_seconds']:.1f}"
            last = (seconds, each["device"] or "-", runner.headline(each) or "-")
            rows.append((*asked, each["lab"], each["status"], *last))
        _table((*grid, "lab", "status", "seconds", "device", "headline"), rows)
        what = "table, figure and runs" if grid else "notebooks, logs and results"
        print(f"{what} are in {place}")
    for each in results:
        error = each.get("error")
        if error and error["cause"] != "interrupted":
            where = f"in cell {error['cell']}" if error["cell"] else "outside its cells"
            first = f"{error['name']}: {error['message']}".splitlines()[0]
            named = runner.parameters_of(each["requested"]).items()
            lab_asked = " ".join([each["lab"], *(f"{name}={value}" for name, value in named)])
            lines = (f"{lab_asked} {each['status']} {where}: {first}", *error["log"])
            print("\n    ".join(lines), file=sys.stderr)
    if code in (1, 130):
        again = "the same command" if grid else f"labkit run --resume {place}"
        print(f"{again} goes on", file=sys.stderr)
    raise typer.Exit(code)


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print aligned columns, a line per row, nothing cut off."""
    lines = [list(map(str, row)) for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())


if __name__ == "__main__":
    app()
