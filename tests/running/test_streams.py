"""What a cell prints is one text, each line as a terminal shows it."""

from nbformat.v4 import new_code_cell, new_output

from labkit.tools.running.streams import last_state, merge_streams


def stream(text, name="stdout"):
    return new_output("stream", name=name, text=text)


def test_what_follows_on_one_stream_is_one_output_and_keeps_its_place():
    picture = new_output("display_data", data={"text/plain": "picture"})
    cell = new_code_cell(
        outputs=[
            stream("a"),
            stream("b\n"),
            stream("!", "stderr"),
            picture,
            stream("c"),
            stream("d"),
        ]
    )
    merge_streams(cell=cell, cell_index=3, execute_reply={})
    assert cell.outputs == [stream("ab\n"), stream("!", "stderr"), picture, stream("cd")]


def test_a_line_that_redraws_itself_keeps_its_last_state_across_messages():
    cell = new_code_cell(outputs=[stream("1%\r2"), stream("%\r\nx\r"), stream("3%\rdone\n4%\r")])
    merge_streams(cell)
    assert cell.outputs == [stream("2%\ndone\n4%")]


def test_the_last_state_of_a_line():
    assert list(map(last_state, ["a", "a\rb", "a\rb\r", "\r", "a\r\r\r", ""])) == [
        "a", "b", "b", "", "a", "",
    ]  # fmt: skip
