"""Everything a user can get wrong about a run is refused before anything is created."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.errors import InputError
from labkit.tools.running import request
from tests.support.lab_projects import write_lab, write_labs


@pytest.fixture
def project(tmp_path):
    write_labs(tmp_path, {"01_sums": []}, parameters=["preset = device = epochs = rate = None"])
    write_lab(tmp_path, "02_thor", parameters=["preset = device = epochs = damping = None"])
    return tmp_path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("x=4", 4),
        ("x=0.01", 0.01),
        ("x=1e-3", 0.001),
        ("x=-2.5E+3", -2500.0),
        ("x=true", True),
        ("x=[1, 2e-1]", [1, 0.2]),
        ("x=drop", "drop"),
        ("x=a=b", "a=b"),
        ("x=2024-01-02", "2024-01-02"),
        ("x=e5", "e5"),
        ("x=", None),
        ("x={a: 1}", {"a": 1}),
    ],
)
def test_values_are_typed_as_yaml(text, value):
    parsed = request.parse_parameters([text])["x"]
    assert parsed == value and type(parsed) is type(value)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["epochs"], "-p: expected NAME=VALUE, as in -p epochs=2, got 'epochs'"),
        (["two words=3"], "expected NAME=VALUE"),
        (["x=[1"], "-p: expected a value that can be read as YAML.* got 'x=.1'"),
        (["x=1", "x=2"], "-p: expected each parameter once, got 'x' twice"),
        (["preset=smoke"], "got 'preset=smoke'. Use --preset smoke"),
    ],
)
def test_unreadable_parameters_are_refused(texts, said):
    with pytest.raises(InputError, match=said):
        request.parse_parameters(texts)


def test_a_right_request_is_returned_whole_and_creates_nothing(project):
    before = sorted(project.rglob("*"))
    asked = {"preset": "smoke", "device": "CPU", "parameters": ["epochs=2"]}
    checked = request.check(["sums"], **asked, start=project)
    (lab,) = checked.labs
    assert (lab.name, checked.of(lab)) == ("01_sums", {"epochs": 2})
    assert (checked.preset, checked.device) == ("smoke", "CPU")
    assert checked.project == project.resolve()
    assert sorted(project.rglob("*")) == before


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"names": ["04"]}, "unknown lab '04'"),
        ({"preset": "smok"}, "unknown preset 'smok'.*Did you mean 'smoke'"),
        ({"device": "cpu"}, "unknown device 'cpu'; expected one of: auto, Ascend, GPU, CPU"),
        ({"names": ["1"], "parameters": ["epoch=2"]}, "of lab 01_sums 'epoch'.*mean 'epochs'"),
        # Only the second lab has this parameter; the first would ignore it silently.
        ({"parameters": ["damping=2"]}, "unknown parameter of lab 01_sums 'damping'"),
    ],
)
def test_what_is_not_there_is_refused(project, asked, said):
    with pytest.raises(InputError, match=said):
        request.check(start=project, **asked)


def test_a_preset_that_a_lab_does_not_have_is_refused(project, monkeypatch):
    monkeypatch.setitem(request.lab_files.LABS, "02_thor", {"smoke": {}, "lab": {}})
    with pytest.raises(InputError, match="unknown preset of lab 02_thor 'paper'"):
        request.check(preset="paper", start=project)


def test_a_device_that_is_not_here_is_refused(project, monkeypatch):
    monkeypatch.setattr(request, "available_devices", lambda: ("CPU",))
    message = "GPU was requested but is not available; MindSpore can use: CPU"
    with pytest.raises(InputError, match=message):
        request.check(device="GPU", start=project)


def test_values_of_a_grid_are_yaml_between_commas():
    texts = ["micro_steps=1,2,4", "rate=1e-3,0.1", "tail=drop,flush", "sizes=[1, 2],[3]", "seed=7"]
    assert request.parse_grid(texts) == {
        "micro_steps": [1, 2, 4],
        "rate": [0.001, 0.1],
        "tail": ["drop", "flush"],
        "sizes": [[1, 2], [3]],
        "seed": [7],
    }


def test_values_of_other_kinds_are_others():
    values = request.parse_grid(["x=1,true,1.0"])["x"]
    assert [type(value) for value in values] == [int, bool, float]


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([], "at least one parameter"),
        (["seed="], "expected one value or several, as in -p seed=1,2, got 'seed='"),
        (["seed=1,2,1"], "-p seed: expected each value once, got 1 twice"),
        (["seed=[1"], "can be read as YAML"),
    ],
)
def test_what_is_no_grid_is_refused(texts, said):
    with pytest.raises(InputError, match=said):
        request.parse_grid(texts)


def test_the_last_parameter_changes_fastest():
    points = request.points({"a": [1, 2], "b": ["x", "y"]})
    assert [tuple(point.values()) for point in points] == [(1, "x"), (1, "y"), (2, "x"), (2, "y")]


def test_a_folders_name_is_readable_and_does_not_depend_on_the_order():
    for point in ({"seed": 1, "rate": 0.1}, {"rate": 0.1, "seed": 1}):
        assert request.folder_name(point) == "rate=0.1,seed=1"


VALUES = st.one_of(
    st.integers(), st.floats(allow_nan=False), st.booleans(), st.none(), st.text(max_size=200)
)


def test_a_folders_name_has_no_more_bytes_than_a_file_system_takes():
    name = request.folder_name({"x": "\u4e2d" * 90})
    assert len(name.encode()) <= 255 and name != request.folder_name({"x": "\u4e2d" * 91})


@given(VALUES, VALUES)
def test_two_values_never_share_a_folder(left, right):
    names = [request.folder_name({"x": value}) for value in (left, right)]
    assert (names[0] == names[1]) == (type(left) is type(right) and repr(left) == repr(right))
    for name in names:
        assert "/" not in name and len(name) <= 120 and name.isprintable()


@given(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans()))
def test_a_value_is_read_as_it_is_written(value):
    assert request.parse_grid([f"x={request.text(value)}"]) == {"x": [value]}
