"""MindSpore's half of the comparison: what a network computes at the places of a ``Trace``.

Each cell alone gets what PyTorch's module got in the step, its arguments and the gradient of its
outputs, so that no fault spreads. In a pass between the cells each of them returns what PyTorch's
module returned: whatever then reaches a cell is due to the functions in ``construct`` alone.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, nn

from labkit.migration.names import Match, Rule, applied
from labkit.migration.trace import Arrays, Call, called, numbered, replaced, tensors
from labkit.runtime import pynative
from labkit.steps.state import running_statistics, set_state


class Places:
    """The cells of a network under the paths of PyTorch's modules."""

    def __init__(
        self, network: nn.Cell, match: Match, rules: Sequence[Rule], calls: Iterable[Call]
    ):
        self.network, self.match = network, match
        cells = dict(network.cells_and_names())
        kinds = {call.name: call.kind for call in calls if "#" not in call.name}
        self.cells = _paired(cells, kinds, match, rules)
        self.renamed = self._pair_by_kind(cells, kinds)
        self.paths = {id(cell): path for path, cell in reversed(self.cells.items())}

    def _pair_by_kind(self, cells: Mapping[str, nn.Cell], kinds: Mapping[str, str]) -> dict:
        """Pair parts without parameters that are left, by class and order in the same parent."""
        known, renamed = {id(cell) for cell in self.cells.values()}, {}
        free = [(p, c) for p, c in cells.items() if id(c) not in known and not c.parameters_dict()]
        for path, kind in kinds.items():
            parent = self.cells.get(path.rpartition(".")[0])
            for place, (name, cell) in enumerate(free):
                inside = parent is not None and cell in parent.cells()
                if path not in self.cells and inside and type(cell).__name__ == kind:
                    self.cells[path], renamed[path] = cell, name
                    del free[place]
                    break
        return renamed

    def alone(self, call: Call, training: bool, cell: nn.Cell | None = None) -> Arrays:
        """Return what a cell computes from the arguments and gradients of a call, by name."""
        cell = self.cells[_path(call.name)] if cell is None else cell
        given = [as_tensor(array) for array in tensors(call.arguments, is_array)]
        floats = [number for number, t in enumerate(given) if t.dtype in ms_floats]
        used = [(i, g) for i, g in enumerate(call.gradients) if g is not None]

        def total(*values: ms.Tensor) -> tuple:
            now = list(given)
            for place, value in zip(floats, values, strict=True):
                now[place] = value
            args, kwargs = replaced(call.arguments, is_array, iter(now))
            outputs = tensors(cell(*args, **kwargs), is_tensor)
            same = [(outputs[i], fitted(g, outputs[i].shape)) for i, g in used]
            terms = ((o * as_tensor(g)).sum() for o, g in same if g is not None)
            return sum(terms, ms.Tensor(0.0)), tuple(outputs)

        cell.set_train(training)
        starts, weights = [given[i] for i in floats], cell.trainable_params()
        with kept(cell), pynative():
            if training and used and (starts or weights):
                grads = ms.value_and_grad(
                    total, tuple(range(len(starts))) or None, weights or None, has_aux=True
                )
                (_, outputs), gradients = grads(*starts)
                by_input, by_weight = _split(gradients, starts, weights)
            else:
                (_, outputs), by_input, by_weight = total(*starts), (), ()
            made = {numbered("output", i): _array(t) for i, t in enumerate(outputs)}
            made |= {numbered("input gradient", i): _array(g) for i, g in enumerate(by_input)}
            made |= self._named(call, "gradient of ", zip(weights, by_weight, strict=False))
            if training:
                made |= self._named(call, "", ((p, p) for p in running_statistics(cell)))
        return made

    def _named(
        self, call: Call, prefix: str, pairs: Iterable[tuple[Parameter, ms.Tensor]]
    ) -> Arrays:
        """Return tensors of parameters under PyTorch's names of them in the module."""
        path = _path(call.name)
        values = self.match.to_torch({parameter.name: _array(t) for parameter, t in pairs})
        start = f"{path}." if path else ""
        own = {name.removeprefix(start): v for name, v in values.items() if name.startswith(start)}
        return {prefix + name: value for name, value in own.items()}

    def passed(
        self,
        inputs: Any,
        training: bool,
        given: Mapping[str, Call],
        see: Callable[[bool, str, list[np.ndarray]], None],
    ) -> Any:
        """Run the network once; ``see`` is told what reaches and what leaves each cell.

        Cells whose calls are ``given`` return PyTorch's outputs. Returns the network's.
        """
        counts: Counter[str] = Counter()
        open_calls: list[str] = []

        def before(path: str, cell: nn.Cell, args: tuple, kwargs: Any) -> None:
            counts[path] += 1
            open_calls.append(path if counts[path] == 1 else f"{path}#{counts[path]}")
            see(False, open_calls[-1], list(map(_array, tensors((args, kwargs), is_tensor))))

        def after(path: str, cell: nn.Cell, args: tuple, output: Any) -> Any:
            name, own = open_calls.pop(), tensors(output, is_tensor)
            see(True, name, list(map(_array, own)))
            if name not in given:
                return None
            known = [_fitting(own, number, given[name]) for number in range(len(own))]
            return replaced(output, is_tensor, iter(known))

        handles = []
        for path, cell in self.cells.items():
            if self.paths[id(cell)] == path:
                pre = partial(before, path)
                handles.append(cell.register_forward_pre_hook(pre, with_kwargs=True))
                handles.append(cell.register_forward_hook(partial(after, path)))
        try:
            with kept(self.network), pynative():
                return called(self.network.set_train(training), as_tensors(inputs))
        finally:
            for handle in handles:
                handle.remove()


def _paired(
    cells: Mapping[str, nn.Cell], kinds: Mapping[str, str], match: Match, rules: Sequence[Rule]
) -> dict[str, nn.Cell]:
    """Return the cell of each of PyTorch's paths: the one that holds the same tensors.

    By the rules alone ``0``, which has ``0.0`` and ``0.1``, would be paired with our layer ``0``.
    Several paths that hold the same are paired from the outside, or as the rules name them; of
    tensors that are joined or split there is no cell.
    """
    theirs = _holding(match.paths.items())
    ours = _holding((own, own) for own in match.paths.values())
    direct = ((a.rpartition(".")[0], b.rpartition(".")[0]) for a, b in match.paths.items())
    paired = {a: b for a, b in direct if theirs[a] == ours[b]}
    owners = {name.rpartition(".")[0] for name in match.shapes} - {"", *theirs}
    for path in kinds:
        rule = None if path in owners else applied(rules, f"{path}.")
        named = rule.removesuffix(".") if isinstance(rule, str) else "no cell"
        if path in theirs and path not in paired:
            same = sorted((p for p in kinds if theirs.get(p) == theirs[path]), key=len)
            left = [p for p in same if p not in paired]
            free = [p for p in ours if ours[p] == theirs[path] and p not in paired.values()]
            if len(left) == len(free):
                paired |= zip(left, sorted(free, key=len), strict=True)
            elif named in free:
                paired[path] = named
        elif path not in theirs and named not in ours:
            paired[path] = named
    return {path: cells[paired[path]] for path in kinds if paired.get(path) in cells}


def _holding(names: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """Return the tensors below each path, from outside, of pairs (name, tensor)."""
    held: dict[str, set[str]] = {}
    for name, tensor in names:
        words = name.split(".")
        for count in range(len(words)):
            held.setdefault(".".join(words[:count]), set()).add(tensor)
    return held


ms_floats = (ms.float16, ms.float32, ms.float64, ms.bfloat16)


def is_tensor(value: Any) -> bool:
    return isinstance(value, ms.Tensor)


def is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def as_tensor(array: np.ndarray) -> ms.Tensor:
    """Return a Tensor: int64 as int32, which MindSpore's losses expect, float64 as float32."""
    array = np.asarray(array)
    smaller = {"int64": np.int32, "float64": np.float32}.get(array.dtype.name)
    return ms.Tensor(array if smaller is None else array.astype(smaller))


def as_tensors(batch: Any) -> Any:
    """Return nested arrays as Tensors."""
    return replaced(batch, is_array, map(as_tensor, tensors(batch, is_array)))


@contextmanager
def kept(cell: nn.Cell) -> Iterator[None]:
    """Restore running statistics after the block."""
    before = [(statistic, statistic.asnumpy().copy()) for statistic in running_statistics(cell)]
    try:
        yield
    finally:
        for statistic, value in before:
            set_state(statistic, value)


def fitted(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return the array in this shape, if it differs by axes of length 1 or by joined rows only."""
    ones = [tuple(n for n in s if n != 1) for s in (array.shape, shape)]
    rows = array.ndim != len(shape) and array.shape[-1:] == tuple(shape[-1:])
    if ones[0] == ones[1] or (rows and array.size == np.prod(shape)):
        return array.reshape(shape)
    return None


def _fitting(own: list[ms.Tensor], number: int, call: Call) -> ms.Tensor:
    if number >= len(call.outputs):
        return own[number]
    known = call.outputs[number]
    same = fitted(known, own[number].shape)
    return as_tensor(known if same is None else same)


def _split(gradients: Any, starts: list, weights: list) -> tuple:
    by_input, by_weight = gradients if starts and weights else (gradients, gradients)
    return several(by_input) if starts else (), several(by_weight) if weights else ()


def several(gradients: Any) -> tuple:
    """Return a tuple: MindSpore gives a tensor for one position."""
    return gradients if isinstance(gradients, tuple) else (gradients,)


def _array(tensor: ms.Tensor) -> np.ndarray:
    return tensor.asnumpy().copy()


def _path(name: str) -> str:
    return name.partition("#")[0]
