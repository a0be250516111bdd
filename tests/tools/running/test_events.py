"""The output of a notebook, as it is passed on and as its executed copy holds it."""

import threading

from nbformat.v4 import new_code_cell, new_output

from labkit.tools.running.events import Progress, merge_streams


def stream(text, name="stdout"):
    return new_output("stream", name=name, text=text)


def test_what_follows_on_one_stream_is_one_output_and_keeps_its_place():
    picture = new_output("display_data", data={"text/plain": "picture"})
    texts = [stream("a"), stream("b\n"), stream("!", "stderr"), picture, stream("c"), stream("d")]
    cell = new_code_cell(outputs=texts)
    merge_streams(cell=cell, cell_index=3, execute_reply={})
    assert cell.outputs == [stream("ab\n"), stream("!", "stderr"), picture, stream("cd")]


def test_a_line_that_redraws_itself_keeps_its_last_state_across_messages():
    cell = new_code_cell(outputs=[stream("1%\r2"), stream("%\r\nx\r"), stream("3%\rdone\n4%\r")])
    merge_streams(cell)
    assert cell.outputs == [stream("2%\ndone\n4%")]


def test_progress_says_which_cell_is_running():
    events, happened = [], threading.Event()

    def say(event):
        events.append(event)
        happened.set()

    def next_progress():
        """Return the next progress event but one: the next may have been sent before."""
        events.clear()
        while len(later := [event for event in events if event.kind == "progress"]) < 2:
            happened.clear()
            assert happened.wait(10)
        return later[1].text.split(" s · ")[1], later[1].as_json()

    with Progress("01_x", 7, say, every=0.05) as progress:
        progress.cell_started({"cell_type": "markdown", "source": "# Lab\n\n## Loss\n\ntext"}, 0)
        progress.cell_started({"cell_type": "code", "source": ""}, 1)
        progress.cell_started({"cell_type": "code", "source": "1"}, 2)
        assert next_progress()[0] == "Loss"
        progress.write("loss 1\nloss 2\n")
        text, values = next_progress()
        assert text == "loss 2"
        assert 0 <= values.pop("seconds") < 60
        assert values == {
            "event": "progress", "lab": "01_x", "cell": 1, "cells": 7, "section": "Loss",
            "last": "loss 2",
        }  # fmt: skip
        # For a cell that prints nothing, the last line of an earlier cell is not shown.
        progress.cell_started({"cell_type": "markdown", "source": "### Next"}, 3)
        progress.cell_started({"cell_type": "code", "source": "2"}, 4)
        assert next_progress()[0] == "Next"


def test_the_documented_kinds_are_those_that_the_code_says(root):
    """The code's kinds are those of every ``Event("kind", ...)`` in the package."""
    import re

    from labkit.tools.running.events import Event

    sources = [path.read_text() for path in (root / "labkit" / "tools").rglob("*.py")]
    said = {kind for text in sources for kind in re.findall(r'\bEvent\(\s*"(\w+)"', text)}
    kinds = Event.__doc__.partition("Kinds, with their values:")[2]
    assert said == set(re.findall(r"^        (\w+): ", kinds, re.MULTILINE))
