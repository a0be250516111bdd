"""`labkit train`, `labkit eval` and `labkit predict`: the recipes, whose options are their own."""

from collections.abc import Callable

import typer

from labkit.recipes import command

# Every word behind the command goes to the recipe's own parser, --help too.
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def _command(name: str, words: str) -> Callable[[typer.Context], None]:
    def run(context: typer.Context) -> None:
        raise typer.Exit(command.main([name, *context.args], "labkit"))

    run.__doc__ = f"""{words}

    RECIPE is one of {", ".join(command.RECIPES)}; `labkit {name} RECIPE --help` has its options.
    """
    return run


COMMANDS = {
    "train": _command("train", "Train a recipe: one process, several ranks or several machines."),
    "eval": _command("eval", "Evaluate a checkpoint of a recipe."),
    "predict": _command("predict", "Say which classes images are of, by a recipe's checkpoint."),
}
