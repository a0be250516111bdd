"""The list of slow tests: which tests belong in it, and that each of them exists."""

import re

from tests.support import slow_tests

LOG = """
============ slowest durations ============
1.50s setup    tests/a/test_b.py::test_all[1]
0.60s call     tests/a/test_b.py::test_all[1]
9.00s call     tests/a/test_b.py::test_all[2-x]
9.00s call     tests/a/test_b.py::TestC::test_some[1]
0.01s call     tests/a/test_b.py::TestC::test_some[a b]
9.00s teardown tests/a/test_b.py::test_cleans
6.00s setup    tests/a/test_b.py::TestD::test_first[1::2]
0.10s call     tests/a/test_b.py::TestD::test_first[1::2]
9.00s call     tests/a/test_c_on_ranks.py::test_marked
9.00s call     tests/steps/test_step.py::TestEveryStep::test_kept[plain]
9.00s call     notebooks/01.ipynb::Cell 1
"""


def test_a_function_stands_for_its_tests_where_all_are_slow():
    assert slow_tests.slow_in(LOG) == {
        "tests/a/test_b.py::test_all",
        "tests/a/test_b.py::TestC::test_some[1]",
        "tests/a/test_b.py::TestD",
    }


def test_a_name_covers_what_is_below_it():
    below = ("a.py::T::test_x[1::2]", "a.py::T::test_x", "a.py::T", "a.py")
    for names in below:
        assert slow_tests.is_among("a.py::T::test_x[1::2]", {names})
    for other in ("a.py::T::test_x[1]", "a.py::T::test", "a.py::Te", "a"):
        assert not slow_tests.is_among("a.py::T::test_x[1::2]", {other})


def test_one_that_is_kept_is_not_slow_with_its_file():
    kept = next(name for name in slow_tests.KEPT if "test_sanitizer.py" in name)
    file = kept.partition("::")[0]
    assert not slow_tests.is_slow(f"{kept}[a]", {file})
    assert slow_tests.is_slow(f"{file}::test_other", {file})


def test_every_line_names_a_test(root):
    names = slow_tests.listed()
    assert names
    for name in names | slow_tests.KEPT:
        file, *inside = name.partition("[")[0].split("::")
        source = (root / file).read_text()
        for part in inside:
            assert re.search(rf"^ *(def|class) {part}\b", source, re.MULTILINE), name
