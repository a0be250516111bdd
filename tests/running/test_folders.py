"""run.json of others, and the link to the newest run."""

import json
import os

import pytest

from labkit.errors import InputError
from labkit.tools.running import folders

GOOD = {"labs": ["01_x"], "preset": "smoke", "device": "CPU", "parameters": {"01_x": {"a": 1}}}


def test_what_a_run_has_written_is_read(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps(GOOD))
    assert folders.read_run(tmp_path) == GOOD


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(GOOD | {"labs": [1]}),
        json.dumps(GOOD | {"labs": "01_x"}),
        json.dumps(GOOD | {"labs": [["01_x"]]}),
        json.dumps(GOOD | {"preset": None}),
        json.dumps(GOOD | {"parameters": {"01_x": [1]}}),
        json.dumps(GOOD | {"parameters": {"01_x": {"a": float("nan")}}}),
        "[" * 100_000,
        '{"labs": ' + "9" * 5000 + "}",
        "[]",
        "",
    ],
)
def test_any_other_is_refused_in_one_line_and_stays(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    for use in (folders.read_run, lambda out: folders.refuse_used([], out, out)):
        with pytest.raises(InputError) as refused:
            use(tmp_path)
        assert len(str(refused.value).splitlines()) == 1
    assert (tmp_path / "run.json").read_text() == text


def test_a_pipe_is_no_run_json(tmp_path):
    os.mkfifo(tmp_path / "run.json")
    with pytest.raises(InputError, match="run.json is no ordinary file"):
        folders.read_run(tmp_path)
    assert folders.results_of(tmp_path) == {}


def test_the_link_of_a_killed_process_of_the_same_number_is_replaced(tmp_path):
    (tmp_path / f".latest-{os.getpid()}").symlink_to("gone")
    folders.point_latest(tmp_path, tmp_path / "new")
    assert os.readlink(tmp_path / "latest") == "new"
    assert os.listdir(tmp_path) == ["latest"]
