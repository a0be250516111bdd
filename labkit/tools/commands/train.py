"""`labkit train`, `eval`, `predict` and `plan`: the recipes, which parse their own options."""

from collections.abc import Callable

import typer

from labkit.recipes import RECIPES

# All words after the recipe, --help included, go to the recipe's own parser.
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def _command(name: str, words: str, example: str) -> Callable[[typer.Context], None]:
    def run(context: typer.Context) -> None:
        if context.args and context.args[0] in ("-h", "--help"):
            typer.echo(context.get_help())
            raise typer.Exit()
        from labkit.recipes import command

        raise typer.Exit(command.main([name, *context.args], "labkit"))

    run.__doc__ = f"""{words}

    RECIPE is one of {", ".join(RECIPES)}; `labkit {name} RECIPE --help` has its options.

    Example: labkit {name} {example}
    """
    return run


_WORDS = {
    "train": (
        "Train a recipe: one process, several ranks or several machines.",
        "accumulation --data_path datasets/MNIST_Data --ranks 2",
    ),
    "eval": (
        "Evaluate a checkpoint of a recipe.",
        "thor --data_path datasets/CIFAR10 --checkpoint_path FILE",
    ),
    "predict": (
        "Say which classes images are of, by a recipe's checkpoint.",
        "thor --checkpoint_path FILE cat.jpg --picture answer.png",
    ),
    "plan": (
        "Say what a recipe's training takes: steps, memory, traffic, hours. Nothing is trained.",
        "thor --devices 8 --step-time 0.2",
    ),
}
COMMANDS = {name: _command(name, *words) for name, words in _WORDS.items()}
