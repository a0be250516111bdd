"""What the parser says about a misspelled option."""

import pytest

from labkit.base.command_line import Parser


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--sourc", "x"], "unrecognized arguments: --sourc x. Did you mean '--source'?"),
        (["--sourc=x"], "unrecognized arguments: --sourc=x. Did you mean '--source'?"),
        (["--settings", "ascendd"], "(choose from 'ascend', 'gpu'). Did you mean 'ascend'?"),
        (["--xyz"], "unrecognized arguments: --xyz."),
    ],
)
def test_a_misspelled_option_or_word_is_refused_with_the_nearest(given, message, capsys):
    parser = Parser(prog="program")
    parser.add_argument("--source")
    parser.add_argument("--settings", choices=("ascend", "gpu"))
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(given)
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"{message}\n")
