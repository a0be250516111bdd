"""The `labkit` command. Exit codes: 0 success, 1 something failed, 2 bad input, 130 Ctrl-C.

A command imports what it needs when it is called, so that `labkit --help` answers at once.
"""

import json
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
    from typer.core import TyperGroup
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"labkit: {missing}. The command needs the extra labs: in the clone, "
        "pip install -c constraints.txt -e '.[labs]'"
    ) from None

from labkit.base.arguments import wrong
from labkit.errors import InputError
from labkit.recipes import RECIPES
from labkit.tools.convert import convert
from labkit.tools.doctor import command as doctor
from labkit.tools.work import lab


class _Commands(TyperGroup):
    """Turns bad input and Ctrl-C into a message and an exit code, for every command."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (InputError, PermissionError) as error:  # a path without read permission
            print(f"labkit: {error}", file=sys.stderr)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            print("labkit: interrupted", file=sys.stderr)
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=_Commands,
    help="Training techniques for neural networks with MindSpore, one notebook lab each.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_LABS = typer.Argument(
    metavar="[LAB]...", help="Number or name, as in `labkit list`, or a notebook's path; none: all."
)
_PRESET = typer.Option(envvar="LABKIT_PRESET", help="smoke, lab or paper.")
_DEVICE = typer.Option(help="auto, Ascend, GPU or CPU.")
_PARAMETERS = typer.Option(
    "-p", "--parameter", metavar="NAME=VALUE", help="Set one; may be repeated; also NAME VALUE."
)
_FILE = typer.Option("-f", "--parameters", metavar="FILE.yaml", help="Parameters from a file.")
_JOBS = typer.Option(min=1, help="At once, each on cores of its own; as many as fit if not given.")
_TIMEOUT = typer.Option(
    min=1, help="Seconds a lab may take; 900 at smoke, 3600 at lab if not given; inf: no limit."
)
_MEMORY = typer.Option(min=0.1, metavar="GB", help="Memory that one lab may hold.")
_JSON = typer.Option("--json", help="One JSON object at the end, and nothing else on stdout.")


def _show_version(asked: bool) -> None:
    if asked:
        from labkit.base.project import version

        typer.echo(f"labkit {version()}")
        raise typer.Exit()


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    # As Ctrl-C: what a command has started ends with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


@app.command("list")
def list_labs() -> None:
    """Show the labs: number, name, title, presets, and the minutes stated on their header card.

    Example: labkit list
    """
    from labkit.base.project import find_project
    from labkit.tools.labs import find_labs

    labs = find_labs(find_project())
    rows = [(lab.number, lab.name, lab.title, " ".join(lab.presets), lab.minutes) for lab in labs]
    _table(("number", "lab", "title", "presets", "minutes"), rows)


@app.command()
def run(
    labs: Annotated[list[str] | None, _LABS] = None,
    preset: Annotated[str | None, _PRESET] = None,
    device: Annotated[str | None, _DEVICE] = None,
    parameter: Annotated[list[str] | None, _PARAMETERS] = None,
    parameters: Annotated[Path | None, _FILE] = None,
    out: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="runs/<time> of the project if not given.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Go on in the folder of an earlier run: labs that passed with the same parameters "
            "are not executed again.",
        ),
    ] = None,
    jobs: Annotated[int | None, _JOBS] = None,
    timeout: Annotated[float | None, _TIMEOUT] = None,
    memory: Annotated[float | None, _MEMORY] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Only the closing table.")] = False,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Execute labs headlessly, each by papermill in a process of its own, and print a table.

    A lab that fails, hangs or takes too much memory is reported with its cell and the last lines of
    its log; the others go on.

    Example: labkit run 01 --preset smoke -p micro_steps=8
    """
    from labkit.base.project import find_project
    from labkit.base.values import read_yaml
    from labkit.tools import run as runner

    before = _before(resume) if resume else {}
    words = list(labs or before.get("labs", ()))
    words, pairs = _papermill_pairs(words, parameter or [])
    named = read_yaml(parameters) if parameters else {}
    if not isinstance(named, dict):
        raise wrong("-f", str(parameters), "a file of NAME: VALUE lines")
    named = before.get("parameters", {}) | named | runner.values(pairs)
    preset = preset or named.pop("preset", None) or before.get("preset", "lab")
    device = device or named.pop("device", None) or before.get("device", "auto")
    options = {"preset": preset, "device": device, "parameters": named}
    runner.tasks(words, Path(), **options)  # refused before a folder is made
    if resume and out:
        raise wrong("--out", out, "none beside --resume, which goes on in its folder")
    project = find_project()
    folder = resume.resolve() if resume else runner.output_folder(out, project)
    chosen = runner.tasks(words, folder, **options)
    if not resume and out is None:
        _point_latest(project / "runs", folder)
    say = (lambda text: None) if quiet or as_json else lambda text: print(text, flush=True)
    count = runner.jobs_of(jobs, preset, device, len(chosen))
    results = runner.run(
        chosen, folder, jobs=count, limits=_limits(preset, timeout, memory), say=say
    )
    _finish(results, folder, as_json)


@app.command()
def sweep(
    lab: Annotated[str, typer.Argument(metavar="LAB", help="Number, name or path.")],
    parameter: Annotated[
        list[str] | None,
        typer.Option("-p", "--parameter", metavar="NAME=VALUE,VALUE", help="May be repeated."),
    ] = None,
    preset: Annotated[str, _PRESET] = "lab",
    device: Annotated[str, _DEVICE] = "auto",
    out: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="runs/sweeps/<lab>-<preset> if not given."),
    ] = None,
    jobs: Annotated[int | None, _JOBS] = None,
    timeout: Annotated[float | None, _TIMEOUT] = None,
    memory: Annotated[float | None, _MEMORY] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Run a lab with every combination of values; write sweep.csv and a figure.

    The same command again executes nothing; with one more seed, that seed alone.

    Example: labkit sweep 01 --preset smoke -p micro_steps=1,2,4 -p seed=1,2
    """
    from labkit.base.project import find_project
    from labkit.tools import run as runner
    from labkit.tools import sweep as sweeps

    grid = sweeps.grid_of(parameter or ())
    project = find_project()
    options = {"preset": preset, "device": device}
    name = sweeps.tasks(lab, grid, Path(), **options)[0].lab.name
    default = str(project / "runs" / "sweeps" / f"{name}-{preset}")
    folder = runner.output_folder(default if out is None else out, project, again=True)
    chosen = sweeps.tasks(lab, grid, folder, **options)
    say = (lambda text: None) if as_json else lambda text: print(text, flush=True)
    count = runner.jobs_of(jobs, preset, device, len(chosen))
    results = runner.run(
        chosen, folder, jobs=count, limits=_limits(preset, timeout, memory), say=say
    )
    written = sweeps.write(results, grid, folder)
    if not as_json:
        print("written:", *map(str, written))
    _finish(results, folder, as_json)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    out: Annotated[
        Path | None,
        typer.Option(help="RUN/report.html for one RUN, ./report.html for several."),
    ] = None,
    notebooks: Annotated[
        bool, typer.Option(help="Convert the executed notebooks too, two to four seconds each.")
    ] = True,
    check: Annotated[
        bool,
        typer.Option("--check", help="Write nothing; list what differs, exit 1 if anything does."),
    ] = False,
) -> None:
    """Write one HTML page about runs that needs no network, and print its path.

    Differences between the runs come first, times apart; then what ran, headline numbers beside the
    stored run's, figures and the executed notebooks.

    Example: labkit report runs/latest
    """
    from labkit.tools import report as reports

    if not check:
        print(reports.write(runs, out, notebooks))
        return
    listed = reports.differences([reports.read(folder) for folder in runs])
    counting = [each for each in listed if not each.is_time]
    for each in counting:
        print(f"{each.lab}: {each.name}: {' | '.join(map(str, each.values))}")
    outside = [
        f"{lab}: {row[0]} is {row[1]}, stored {row[2]} {row[3]}: outside"
        for folder in runs
        for lab, results in reports.read(folder).items()
        for row in reports.judged(results)
        if row[4] == "outside"
    ]
    print(*outside, sep="\n" if outside else "")
    raise typer.Exit(1 if counting or outside else 0)


app.command()(lab)
app.command()(convert)
app.command("doctor")(doctor)

# All words after the recipe, --help included, go to the recipe's own parser.
_PASSED_ON: dict[str, Any] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}
_PROGRAMS = {
    "train": ("Train a technique as a whole program", "accumulation --data_path MNIST_Data"),
    "eval": ("Evaluate a checkpoint of one", "thor --data_path CIFAR10 --checkpoint_path FILE"),
}


def _program(name: str, words: str, example: str) -> None:
    def call(context: typer.Context) -> None:
        if context.args and context.args[0] in ("-h", "--help"):
            typer.echo(context.get_help())
            raise typer.Exit()
        from labkit.recipes import command

        raise typer.Exit(command.main([name, *context.args], "labkit"))

    call.__doc__ = f"""{words}: one process, ranks or machines.

    RECIPE is one of {", ".join(RECIPES)}; `labkit {name} RECIPE --help` has its options.

    Example: labkit {name} {example}
    """
    panel = "Whole training programs"
    app.command(name, rich_help_panel=panel, context_settings=_PASSED_ON)(call)


for _name, _texts in _PROGRAMS.items():
    _program(_name, *_texts)


def _papermill_pairs(words: Sequence[str], given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return (labs, NAME=VALUE texts); of papermill's ``-p NAME VALUE`` the VALUE came as a lab."""
    words, pairs = list(words), []
    for text in given:
        if "=" in text or not words:
            pairs.append(text)
        else:
            pairs.append(f"{text}={words.pop(_position(text))}")
    return words, pairs


def _position(name: str) -> int:
    """Return the place, among the words that are no options, of what follows ``-p name``."""
    words, count, skip = sys.argv[2:], 0, False
    for before, word in zip(["", *words], words, strict=False):
        if before == name and not skip:
            return count
        skip = False
        if not word.startswith("-") and not before.startswith("-"):
            count += 1
    raise wrong("-p", name, "NAME=VALUE, as in -p epochs=2")


def _before(folder: Path) -> dict[str, Any]:
    from labkit.tools.run import RUN

    try:
        return json.loads((folder / RUN).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"--resume: {folder} holds no run ({error})") from error


def _point_latest(runs: Path, folder: Path) -> None:
    """Let runs/latest point to the newest run."""
    link = runs / "latest"
    if link.is_symlink() or not link.exists():
        link.unlink(missing_ok=True)
        link.symlink_to(folder.name)


def _limits(preset: str, timeout: float | None, memory: float | None) -> Any:
    from labkit.tools.run import GB, SECONDS, Limits

    seconds = SECONDS[preset] if timeout is None else timeout
    return Limits(seconds, float("inf") if memory is None else memory * GB)


def _finish(results: list[dict[str, Any]], folder: Path, as_json: bool) -> None:
    """Print how labs ended and exit with the code that says so."""
    from labkit.tools import run as runner

    code = runner.exit_code(results)
    if as_json:
        print(json.dumps({"folder": str(folder), "exit": code, "labs": results}))
    else:
        print()
        _table(("lab", "status", "device", "seconds", "headline"), runner.rows(results))
        print(f"\nin {folder}")
    for text in runner.complaints(results):
        print(text, file=sys.stderr)
    raise typer.Exit(code)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print aligned columns, a line per row, nothing cut off."""
    rows = [tuple(map(str, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


if __name__ == "__main__":
    app()
