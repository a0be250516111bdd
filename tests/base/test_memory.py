"""The memory that a container has left, from the files of its control group."""

import pytest

from labkit.base.memory import left_in_container

SECOND = {"memory.max": "4000\n", "memory.current": "3500\n"}
STATISTICS = "anon 900\nactive_file 400\ninactive_file 2000\ntotal_inactive_file 2100\n"


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({}, None),
        (SECOND | {"memory.max": "max\n"}, None),
        (SECOND, 500),
        # The system reclaims inactive pages of files without delay, so they count as free.
        (SECOND | {"memory.stat": STATISTICS}, 2500),
        (SECOND | {"memory.stat": "inactive_file many\n"}, 500),
        (SECOND | {"memory.current": "4100\n"}, 0),
        (
            {
                "memory/memory.limit_in_bytes": f"{2**62}\n",
                "memory/memory.usage_in_bytes": "1000\n",
                "memory/memory.stat": STATISTICS,
            },
            2**62 + 1100,
        ),
    ],
)
def test_what_is_left_of_a_limit(tmp_path, files, left):
    (tmp_path / "memory").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert left_in_container(tmp_path) == left
