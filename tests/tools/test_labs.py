"""Labs are found, named and read; a notebook that cannot be a lab is refused with the reason."""

import pytest

from labkit.errors import InputError
from labkit.tools import labs
from tests.support.lab_projects import write_lab, write_labs

PARAMETERS = 'preset = os.environ.get("LABKIT_PRESET", "lab")\ndevice = "auto"\nepochs = None\n'


@pytest.fixture
def project(tmp_path, monkeypatch):
    write_labs(tmp_path, {"02_thor": [], "scratch": []})
    write_lab(tmp_path, "01_accumulation", "MNIST()", card="# 01 · Sums\n\n*about 3 minutes*")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_labs_come_in_reading_order_with_their_header_card(project):
    first, second = labs.find_labs(project)
    assert (first.number, first.name, first.title) == ("01", "01_accumulation", "Sums")
    assert (first.minutes, second.minutes) == ("3", "")
    assert second.presets == ("smoke", "lab", "paper")
    # The code of a lab shows which data it needs.
    assert labs.mentions(first, "mnist") and not labs.mentions(second, "mnist")


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (["01"], ["01"]),
        (["1"], ["01"]),
        (["01_accumulation"], ["01"]),
        (["accumulation"], ["01"]),
        ([], ["01", "02"]),
        (["02,01"], ["02", "01"]),
        (["2 1", "thor"], ["02", "01"]),
    ],
)
def test_labs_answer_to_each_of_their_names_and_come_once_in_the_order_given(
    project, names, numbers
):
    place, chosen = labs.chosen(names)
    assert place == project and [lab.number for lab in chosen] == numbers


def test_a_second_notebook_answers_to_its_names_and_leaves_the_number_to_its_lab(project):
    write_lab(project, "01_accumulation_in_depth")
    assert [lab.prefix for lab in labs.chosen()[1]] == ["01", "01-in-depth", "02"]
    assert [lab.is_in_depth for lab in labs.chosen(["1"])[1]] == [False]
    for name in ("01_accumulation_in_depth", "accumulation_in_depth"):
        (second,) = labs.chosen([name])[1]
        assert second.is_in_depth and second.number == "01"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("acumulation", "unknown lab 'acumulation'.*Did you mean 'accumulation'"),
        ("7", "unknown lab '7'; expected one of: 01_accumulation"),
        (",", "LAB: expected a number or name, or nothing for all, got ','"),
        ("1", "LAB: expected a full name, 01_accumulation or 01_other, got '1'"),
    ],
)
def test_an_unknown_or_ambiguous_name_is_refused(project, name, said):
    if name == "1":
        write_lab(project, "01_other")
    with pytest.raises(InputError, match=said):
        labs.chosen([name])


def test_no_labs_at_all_is_an_error(tmp_path):
    with pytest.raises(InputError, match="no lab found"):
        labs.pick(labs.find_labs(tmp_path), [])


def test_parameter_names_come_from_the_syntax_tree(project):
    # Two "=" in a line: papermill's own line reader leaves such a parameter out.
    source = PARAMETERS + "check: bool = 1 == 1\nsizes = [\n    1,\n]\nx.y = 3\n# z = 1\n"
    write_lab(project, "01_accumulation", parameters=[source])
    names = labs.parameter_names(labs.find_labs(project)[0])
    assert names == ("preset", "device", "epochs", "check", "sizes")


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ([], "has 0 cells tagged 'parameters'"),
        ([PARAMETERS, PARAMETERS], "has 2 cells tagged 'parameters'"),
        (["epochs = 3"], "does not set preset and device"),
        (["%time epochs = 3"], "not plain Python"),
    ],
)
def test_a_notebook_without_its_parameters_is_refused(project, parameters, said):
    write_lab(project, "01_accumulation", PARAMETERS, parameters=parameters)
    with pytest.raises(InputError, match=said):
        labs.parameter_names(labs.find_labs(project)[0])


ONLY_CELL = '{"cells": [{"cell_type": "code", "source": "", "metadata": METADATA}]}'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot read the notebook .*03_broken"),
        ("[]", "03_broken.* is not a notebook of format 4"),
        ('{"cells": 3}', "is not a notebook"),
        ('{"cells": [{"cell_type": "code", "source": 3}]}', "is not a notebook"),
        (ONLY_CELL.replace("METADATA", "[]"), "is not a notebook"),
        (ONLY_CELL.replace("METADATA", '{"tags": 3}'), "is not a notebook"),
    ],
)
def test_a_broken_notebook_is_named(project, text, said):
    (project / "notebooks" / "03_broken.ipynb").write_text(text)
    with pytest.raises(InputError, match=said):
        labs.find_labs(project)
