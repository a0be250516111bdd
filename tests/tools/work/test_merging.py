"""A merge loses nothing that a learner wrote, and takes what the learner left alone."""

import pytest

from labkit.tools.notebook_files import digest
from labkit.tools.work.merging import CannotMerge, merge


def cells(text):
    """Return cells for a text such as "a1 b1": the letters are the ids, the words the sources."""
    return [
        {"id": word[0], "cell_type": "code", "source": word, "metadata": {}}
        for word in text.split()
    ]


def base(text):
    return {cell["id"]: digest(cell) for cell in cells(text)}


def merged(was, mine, theirs):
    return merge(base(was), cells(mine), cells(theirs))


def words(result):
    return " ".join(cell["source"] for cell in result.cells)


@pytest.mark.parametrize(
    ("was", "mine", "theirs", "result", "conflicts"),
    [
        # A change by only one side is taken.
        ("a1 b1 c1", "a1 b1 c1", "a1 b1 c1", "a1 b1 c1", []),
        ("a1 b1 c1", "a1 b2 c1", "a1 b1 c1", "a1 b2 c1", []),  # an answer
        ("a1 b1 c1", "a1 b1 c1", "a1 b9 c1", "a1 b9 c1", []),  # a change of the project
        ("a1 b1 c1", "a1 b2 c1", "a9 b1 c9", "a9 b2 c9", []),  # both, in different cells
        ("a1 b1 c1", "a1 b1 x1 c1", "a9 b9 c9", "a9 b9 x1 c9", []),  # a cell of the learner's own
        ("a1 b1 c1", "x1 y1 a1 b1 c1 z1", "a1 b1 c1", "x1 y1 a1 b1 c1 z1", []),
        ("a1 b1 c1", "a1 b1 x1 c1", "a1 b1 n1 c1", "a1 b1 x1 n1 c1", []),  # each has a new cell
        ("a1 b1 c1", "a1 b1 c1", "n1 a1 b1 m1 c1 o1", "n1 a1 b1 m1 c1 o1", []),
        ("a1 b1 c1", "a1 c1", "a1 b1 c9", "a1 c9", []),  # deleted by the learner: stays deleted
        ("a1 b1 c1", "a1 b1 c1", "a1 c1", "a1 c1", []),  # removed by the project
        ("a1 b1 c1", "a1 b1 c2", "c1 a1 b1", "c2 a1 b1", []),  # moved by the project
        ("a1 b1 c1", "c2 a1 b1", "a1 b9 c1", "c2 a1 b9", []),  # moved by the learner
        ("a1 b1 c1", "b1 a1 c1", "b1 a1 c9", "b1 a1 c9", []),  # moved alike by both
        ("a1 b1", "a1 b2", "a1 b2", "a1 b2", []),  # the same change on both sides
        # Where both changed a cell, the learner's version stays and the conflict is named.
        ("a1 b1 c1", "a1 b2 c1", "a1 b9 c1", "a1 b2 c1", ["b2"]),
        ("a1 b1 c1", "a1 b2 c1", "a1 c9", "a1 b2 c9", ["b2 (removed in the project)"]),
        ("a1 b1 c1", "a1 c1", "a1 b9 c1", "a1 c1", ["b9 (deleted in the copy)"]),
    ],
)
def test_a_merge_loses_nothing_and_takes_what_was_left_alone(was, mine, theirs, result, conflicts):
    made = merged(was, mine, theirs)
    assert words(made) == result
    assert made.conflicts == conflicts


def test_cells_taken_are_counted_once():
    assert merged("a1 b1 c1 d1", "a1 b1 c2 d1", "a9 c1 d1 n1").taken == ["a", "n", "b"]


def test_the_outputs_of_a_cell_that_did_not_change_stay():
    (mine,) = cells("a1")
    mine["outputs"] = ["printed"]
    assert merge(base("a1"), [mine], cells("a1")).cells[0]["outputs"] == ["printed"]


def test_a_duplicated_cell_is_the_learners_own_and_gets_an_id():
    made = merged("a1 b1", "a1 b1 b3", "a1 b9")
    assert words(made) == "a1 b9 b3"
    assert len({cell["id"] for cell in made.cells}) == 3


def test_cells_without_their_ids_cannot_be_merged():
    with pytest.raises(CannotMerge, match="other ids"):
        merge(base("a1 b1"), [dict(cell, id=None) for cell in cells("a1 b1")], cells("a9 b1"))


def test_cells_moved_on_both_sides_cannot_be_merged():
    with pytest.raises(CannotMerge, match="moved both"):
        merged("a1 b1 c1", "b1 a1 c1", "a1 c1 b1")
