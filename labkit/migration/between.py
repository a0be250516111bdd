"""What reaches and what leaves each cell of a network whose cells return PyTorch's outputs.

Nothing spreads: what is off there is due to the functions in ``construct`` between the cells.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from labkit.migration.judge import Row, judged, largest
from labkit.migration.places import Places, fitted
from labkit.migration.trace import Call, Value, numbered

Rows = dict[str, tuple[list[Row], list[Row]]]  # by call: of what reaches and what leaves it


class Between:
    """The passes of one stage, training or evaluation.

    Attributes:
        rows: of each call.
        elsewhere: cells that end elsewhere than PyTorch's modules.
        random: calls that a random function of ours reaches or leaves.
        returned: what the network returned, with PyTorch's outputs.
    """

    def __init__(
        self,
        places: Places,
        given: Mapping[str, Call],
        stage: str,
        inputs: Any,
        fail: Callable[[str, Exception], None],
    ):
        self.places, self.given, self.stage, self.inputs = places, given, stage, inputs
        self.fail, self.returned = fail, None
        self.reached: dict[tuple[str, bool], list[np.ndarray]] = {}
        self.random: list[str] = []
        self.elsewhere: set[str] = set()
        self.rows: Rows = {name: ([], []) for name in given}
        self.rows = self._passed(set())

    def leave_out_random(self) -> None:
        """Judge nothing where two passes differ: there is a random function in a module's place."""
        if self._differ(self.rows):
            first = dict(self.reached)
            self._passed(set())
            for name, leaving in first:
                again = self.reached.get((name, leaving), [])
                if not all(map(_is_near, first[name, leaving], again)):
                    self.rows[name] = ([], [])
                    self.random.append(name)

    def find_other_ends(self) -> None:
        """Tell a cell that ends elsewhere, as before an activation, from one that is faulty.

        If it returns its own outputs, what follows agrees.
        """
        for name in [n for n, (_, leave) in self.rows.items() if not _agree(leave)]:
            red = self._differ(self.rows, name)
            tried = self._passed(self.elsewhere | {name}) if red else self.rows
            if self._differ(tried, name) < red:
                self.rows, self.elsewhere = tried, self.elsewhere | {name}

    def _differ(self, rows: Rows, but: str = "") -> set[tuple[str, int]]:
        """Return which inputs differ, and which outputs of cells with cells of their own."""
        return {
            (name, leaving)
            for name, parts in rows.items()
            for leaving, part in enumerate(parts)
            if not _agree(part) and not (leaving and (name == but or self.given[name].leaf))
        }

    def _passed(self, elsewhere: set[str]) -> Rows:
        made: Rows = {name: ([], []) for name in self.given}
        last, offs = ["the network's input"], list[np.ndarray]()
        self.reached.clear()

        def see(leaving: bool, name: str, arrays: list[np.ndarray]) -> None:
            if name not in self.given:
                return
            call = self.given[name]
            self.reached[name, leaving] = arrays[:1]
            new = list(_reaching(self.stage, call, arrays, leaving))
            if not leaving and not _agree(new):
                new = [] if _is_carried(new[0], call.entry[0], arrays[0], offs) else new
            note = f"between {last[0]} and here, in construct"
            notes = ("; ".join(filter(None, (row.note, note))) for row in new)
            made[name][leaving].extend(map(lambda row, n: replace(row, note=n), new, notes))
            last[0] = name if leaving else last[0]

        known = {name: call for name, call in self.given.items() if name not in elsewhere}
        try:
            self.returned = self.places.passed(self.inputs, self.stage == "training", known, see)
        except Exception as error:  # whatever a network raises with a wrong shape
            if elsewhere:  # it shows nothing
                return self.rows
            self.fail(last[0], error)
        return made


def _agree(rows: list[Row]) -> bool:
    return all(row.passed for row in rows)


def _reaching(stage: str, call: Call, arrays: list[np.ndarray], leaving: bool) -> Iterator[Row]:
    """Judge what reaches or leaves a cell: all tensors of one that PyTorch calls alike, or one."""
    known, what = (call.exit, "output") if leaving else (call.entry, "input")
    if not leaving and (not call.leaf or len(arrays) != len(known)):
        arrays, known = arrays[:1], known[:1]
    for number, (ours, theirs) in enumerate(zip(arrays, known, strict=False)):
        row = judged(stage, call.name, numbered(what, number), ours, theirs)
        if np.isfinite(row.difference) or leaving or call.leaf:
            yield row


def _is_near(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and np.allclose(one, other, 1e-3, 1e-3 * largest(one))


def _is_carried(row: Row, value: Value, array: np.ndarray, offs: list[np.ndarray]) -> bool:
    """Return whether the difference is that of a place before, as a residual carries it on."""
    known = fitted(value.value, array.shape)
    if known is None or not np.isfinite([row.difference, known.sum()]).all():
        return False
    for off in offs:
        if off.shape == array.shape:
            if judged(row.stage, row.place, row.tensor, array - off, value).passed:
                return True
    offs.append(array - known)
    return False
