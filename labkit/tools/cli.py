"""The `labkit` command. Exit codes: 0 success, 1 something failed, 2 bad input, 130 Ctrl-C.

A command imports what it needs when it is called, so that `labkit --help` answers at once.
"""

import sys
from typing import Annotated, Any

try:
    import typer
    from typer.core import TyperGroup
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"labkit: {missing}. The command needs the extra labs: in the clone, "
        "pip install -c constraints.txt -e '.[labs]'"
    ) from None

from labkit.base.printable import printable
from labkit.errors import InputError
from labkit.tools.commands import convert, notebooks, ranktable, reports, runs, train
from labkit.tools.doctor import command as doctor
from labkit.tools.work import lab


class _Commands(TyperGroup):
    """Turns bad input and Ctrl-C into a message and an exit code, for every command."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (InputError, PermissionError) as error:  # a path without read permission
            print(printable(f"labkit: {error}"), file=sys.stderr)
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


app.add_typer(ranktable.app, name="ranktable")


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
    pass


for name, command in (
    ("list", notebooks.list_labs),
    ("run", runs.run),
    ("sweep", runs.sweep),
    ("report", reports.report),
    ("compare", reports.compare),
    ("attach", reports.attach),
    ("lab", lab),
    ("convert", convert.convert),
    ("doctor", doctor),
):
    app.command(name)(command)
for name, recipe_command in train.COMMANDS.items():
    app.command(name, context_settings=train.CONTEXT)(recipe_command)


if __name__ == "__main__":
    app()
