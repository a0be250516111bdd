"""The command `labkit`, called in the process of the test."""

from typer.testing import CliRunner, Result

from labkit.tools import cli


def labkit(*arguments: object, **settings) -> Result:
    """Call the command as a shell does; ``settings`` are passed to ``CliRunner.invoke``."""
    return CliRunner().invoke(cli.app, list(map(str, arguments)), **settings)
