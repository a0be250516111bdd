"""The example program trains with each technique, and resumes where it stopped."""

import pytest


# Adasum reached 0.930. Always predicting the larger class gives 0.53.
@pytest.mark.parametrize(
    ("technique", "least"),
    [
        ("accumulation", 0.93),
        pytest.param("thor", 0.93, marks=pytest.mark.long),
        pytest.param("both", 0.93, marks=pytest.mark.long),
        pytest.param("adasum", 0.9, marks=pytest.mark.long),
    ],
)
def test_the_example_learns_the_circle(example, technique, least, tmp_path, capsys):
    program = example("own_network")
    assert program.main(tmp_path, technique) > least
    capsys.readouterr()
    assert program.main(tmp_path, technique) > least
    assert "resumed after micro-batch 625" in capsys.readouterr().out
