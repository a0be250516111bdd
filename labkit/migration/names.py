"""PyTorch's names and MindSpore's: what a network's own cells are called, and rules for the rest.

The paths of cells are assumed to be those of PyTorch's modules, except for the rules given. The
type of a cell determines the names of its parameters and their layout, by the table below; all
others have the same name and shape (mint.nn, Dense, Conv2d, Conv3d, and LSTM, GRU, RNN: the same
order of gates, the same two biases). tests/migration/test_layers.py compares each with PyTorch.

"Our name" of a parameter is the path of its cell and PyTorch's attribute: ``layer1.0.bn1.weight``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from mindspore import Parameter, nn
from mindspore.nn.layer.normalization import _BatchNorm, _InstanceNorm

from labkit.errors import InputError, nearest

MISSING, UNKNOWN = "no PyTorch tensor", "no parameter of the network"
COUNTER = "num_batches_tracked"  # of BatchNorm: ignored, as it changes nothing with a set momentum
_NORM = {"gamma": "weight", "beta": "bias"}
_STATISTICS = {"moving_mean": "running_mean", "moving_variance": "running_var"}
# The first match counts: (cells, attribute -> name in PyTorch). InstanceNorm's statistics, never
# read, have none, as with PyTorch's track_running_stats=False.
_KINDS = (
    ((_BatchNorm,), _NORM | _STATISTICS),
    ((_InstanceNorm,), _NORM | dict.fromkeys(_STATISTICS)),
    ((nn.LayerNorm, nn.GroupNorm), _NORM),
    ((nn.Embedding, nn.EmbeddingLookup), {"embedding_table": "weight"}),
    ((nn.PReLU,), {"w": "weight"}),
)
_ONE_DIMENSIONAL = (nn.Conv1d, nn.Conv1dTranspose)  # weight (out, in, 1, k) <- (out, in, k)

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Pair:
    """One parameter under both names, with its shape in PyTorch and its own."""

    mindspore: str
    torch: str
    torch_shape: Shape
    shape: Shape = field(repr=False)


def pairs(network: nn.Cell) -> list[Pair]:
    """Return a ``Pair`` for each place of a parameter in ``network``, in the network's order.

    A parameter that two cells share (tied weights) has two pairs, as it has two names in PyTorch.

    Raises:
        InputError: if two parameters have one name, or a cell computes something else than
            PyTorch's module.
    """
    paired: list[Pair] = []
    parameters: dict[str, Parameter] = {}
    for path, cell in _places(network):
        if isinstance(cell, nn.Conv2dTranspose) and np.any(cell.output_padding):
            why = "with output_padding appends zeros where PyTorch's computes values"
            use = "use mint.nn.ConvTranspose2d"
            raise InputError(f"{'.'.join(path) or 'the network'}: nn.Conv2dTranspose {why}; {use}")
        names = next((names for kinds, names in _KINDS if isinstance(cell, kinds)), {})
        for attribute, parameter in cell._params.items():
            attribute = names.get(attribute, attribute)
            if parameter is None or attribute in (None, COUNTER):
                continue
            shape = torch_shape = tuple(parameter.shape)
            if isinstance(cell, _ONE_DIMENSIONAL) and len(shape) == 4:
                torch_shape = shape[:2] + shape[3:]
            paired.append(Pair(parameter.name, ".".join((*path, attribute)), torch_shape, shape))
            if parameters.setdefault(parameter.name, parameter) is not parameter:
                raise InputError(f"two parameters of the network are called {parameter.name}")
    return paired


def _places(cell: nn.Cell, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple, nn.Cell]]:
    """Yield (path, cell) for each place in a network; a cell used in two places comes twice."""
    yield path, cell
    for name, child in cell._cells.items():
        if child is not None:
            # nn.BatchNorm3d holds its parameters in an inner cell ``bn2d``.
            yield from _places(child, path if isinstance(cell, nn.BatchNorm3d) else (*path, name))


@dataclass(frozen=True, repr=False)
class Rule:
    r"""What becomes of the names in which the expression ``torch`` is found.

    ``torch`` is a regular expression, and ``ours`` replaces it as in ``re.sub``, with ``\1`` for
    its first group: ``Rule(r"^module\.", "")``. ``ours=None`` drops the tensor; a tuple of names
    splits it into equal parts along axis 0; a tuple of expressions joins equal parts in that order.
    ``transpose`` transposes a matrix, before it is split or joined; a vector stays as it is.

    Rules are applied in order, each to the names that the ones before left.
    """

    torch: str | tuple[str, ...]
    ours: str | tuple[str, ...] | None
    transpose: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.torch, tuple) and not isinstance(self.ours, str):
            raise InputError(f"{self}: expected one name to join to")
        try:
            list(map(re.compile, _several(self.torch)))
        except (re.error, TypeError) as error:
            raise InputError(f"{self}: not a regular expression ({error})") from None

    def __repr__(self) -> str:
        more = ", transpose=True" if self.transpose else ""
        return f"Rule({_written(self.torch)}, {_written(self.ours)}{more})"

    def names(self, name: str) -> tuple[int, tuple[str, ...]] | None:
        """Return which expression is found in ``name`` and what that becomes; None if none is."""
        for i, expression in enumerate(_several(self.torch)):
            if re.search(expression, name):
                try:
                    return i, tuple(re.sub(expression, own, name) for own in _several(self.ours))
                except (re.error, IndexError) as error:
                    raise InputError(f"{self}: {error}") from None
        return None


def _several(value: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else () if value is None else (value,)


def _written(value: str | tuple | None) -> str:
    """Return ``value`` as one writes it in Python, a text with backslashes as a raw one."""
    if isinstance(value, str) and '"' not in value:
        return "r" * ("\\" in value) + f'"{value}"'
    return repr(value)


def applied(rules: Sequence[Rule], name: str) -> str | tuple[str, ...] | None:
    """Return what one PyTorch name becomes: our name, several (split), or None (dropped)."""
    names: tuple[str, ...] = (name,)
    for rule in rules:
        names = sum((found[1] if (found := rule.names(n)) else (n,) for n in names), ())
    return names[0] if len(names) == 1 else names or None


@dataclass(frozen=True)
class Source:
    """Where a parameter's values are: in one tensor, in a part of it, or in several joined."""

    torch: tuple[str, ...]
    transposed: bool = False
    part: int = 0
    parts: int = 1

    @property
    def whole(self) -> bool:
        """Whether it is one tensor, not a part and not joined."""
        return self.parts == 1 == len(self.torch)

    def shape(self, shapes: Mapping[str, Shape]) -> Shape:
        """Return the shape of the values; raise ``InputError`` if a rule does not suit them."""
        own = {shapes[name][:: -1 if self.transposed else 1] for name in self.torch}
        first = min(own)
        rows, *rest = first or (1,)
        if self.transposed and len(rest) > 1 or len(own) > 1 or rows % self.parts:
            got = ", ".join(f"{name} {shapes[name]}" for name in self.torch)
            parts = f"{self.parts * len(self.torch)} equal parts"
            raise InputError(f"rules: expected {'a matrix' if self.whole else parts}, got {got}")
        return first if self.whole else (rows * len(self.torch) // self.parts, *rest)

    def of(self, state: Mapping) -> np.ndarray:
        """Return the values, from PyTorch's tensors."""
        arrays = [np.asarray(state[name]) for name in self.torch]
        arrays = [array.T for array in arrays] if self.transposed else arrays
        joined = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        return joined if self.parts == 1 else np.split(joined, self.parts)[self.part]


def _moved(rule: Rule, sources: Mapping[str, Source]) -> dict[str, Source]:
    """Return our name -> where its values are, after one rule more."""
    reached: dict[str, list[tuple[int, Source]]] = {}
    used = False
    for name, source in sources.items():
        which, ours = rule.names(name) or (-1, (name,))
        if which >= 0:
            used = True
            if not source.whole and (
                rule.transpose or isinstance(rule.torch, tuple) or len(ours) > 1
            ):
                raise InputError(f"{rule}: {name} is a part already, or joined")
            source = replace(source, transposed=source.transposed != rule.transpose)
        for part, own in enumerate(ours):
            one = replace(source, part=part, parts=len(ours)) if len(ours) > 1 else source
            reached.setdefault(own, []).append((which, one))
    if not used and rule.ours is not None:
        raise InputError(f"{rule} matches no name")
    return {own: _one(rule, own, parts) for own, parts in reached.items()}


def _one(rule: Rule, own: str, parts: list[tuple[int, Source]]) -> Source:
    """Return the source of one of our names, joined if that is what the rule does."""
    parts = sorted(parts, key=lambda part: part[0])
    expected = range(len(_several(rule.torch))) if parts[0][0] >= 0 else range(-1, 0)
    names = sum((source.torch for _, source in parts), ())
    if [which for which, _ in parts] != list(expected):
        many = "each expression once" if len(expected) > 1 else "one name"
        raise InputError(f"{rule}: {' and '.join(names)} become {own}; expected {many}")
    return replace(parts[0][1], torch=names)


@dataclass(frozen=True)
class Match:
    """The parameters and tensors that belong together, and those that do not."""

    links: tuple[tuple[Pair, Source], ...]
    left: tuple[str, ...]  # a line for each name that ``leave`` left, and why
    faults: Mapping[str, str]  # each other of our names of either side -> why it does not match
    shapes: Mapping[str, Shape] = field(repr=False)  # of PyTorch's tensors

    def __str__(self) -> str:
        found = f"{len(self.links)} parameters match"
        return "\n  ".join((found, *(f"left: {line}" for line in self.left), *self.problems))

    @property
    def problems(self) -> tuple[str, ...]:
        """A line for each name that does not match."""
        return tuple(f"{name}: {why}" for name, why in self.faults.items())

    @property
    def paths(self) -> dict[str, str]:
        """PyTorch's name -> our name, of tensors that are neither split nor joined."""
        return {source.torch[0]: pair.torch for pair, source in self.links if source.whole}

    def to_ours(self, state: Mapping) -> dict[str, np.ndarray]:
        """Return parameter name -> array in MindSpore's layout, from PyTorch's tensors."""
        return {pair.mindspore: link.of(state).reshape(pair.shape) for pair, link in self.links}

    def to_torch(self, ours: Mapping) -> dict[str, np.ndarray]:
        """Return PyTorch's name -> array in its layout, of those whose parameters are all given."""
        parts: dict[str, list[np.ndarray]] = {}
        whole = {}
        for pair, source in sorted(self.links, key=lambda link: link[1].part):
            if pair.mindspore in ours:
                values = np.asarray(ours[pair.mindspore]).reshape(source.shape(self.shapes))
                joined = np.split(values, len(source.torch)) if len(source.torch) > 1 else [values]
                for name, array in zip(source.torch, joined, strict=True):
                    parts.setdefault(name, []).append(array)
                    if len(parts[name]) == source.parts:
                        array = np.concatenate(parts[name]) if source.parts > 1 else array
                        whole[name] = array.T if source.transposed else array
        return whole


def shapes_of(state: Mapping) -> dict[str, Shape]:
    """Return the shapes of arrays, or shapes, by name, without those of batch counters."""
    shapes = getattr(state, "shapes", None) or {
        name: tuple(value if isinstance(value, tuple) else np.shape(value))
        for name, value in state.items()
    }
    return {n: shape for n, shape in shapes.items() if n.rpartition(".")[2] != COUNTER}


def match(
    network: nn.Cell, state: Mapping, rules: Sequence[Rule] = (), leave: str | None = None
) -> Match:
    """Match the parameters of ``network`` with PyTorch's tensors, by name and shape.

    ``state`` has arrays or shapes by name: PyTorch's, to which ``rules`` are applied, or
    MindSpore's own. Axes of length 1 may differ. Names in which the regular expression ``leave`` is
    found are left: the network's keep their values, and the file's are not read.

    Raises:
        InputError: if a rule, but for one that drops, or ``leave`` matches no name, or two names
            become one.
    """
    shapes = shapes_of(state)
    sources = {name: Source((name,)) for name in shapes}
    for rule in rules:
        sources = _moved(rule, sources)
    wanted = {pair.torch: pair for pair in pairs(network)}
    by_parameter = {pair.mindspore: name for name, pair in wanted.items()}
    given = {n if n in wanted else by_parameter.get(n, n): source for n, source in sources.items()}
    if len(given) < len(sources):
        raise InputError("expected each parameter under one name, got PyTorch's and MindSpore's")
    unknown = [name for name in given if name not in wanted]
    filled = {wanted[name].mindspore for name in given.keys() & wanted.keys()}
    faults = {name: "" for name in wanted} | dict.fromkeys(unknown, UNKNOWN)
    for name, pair in wanted.items():
        shape = given[name].shape(shapes) if name in given else None
        if shape is None and pair.mindspore not in filled:
            hint = nearest(name, unknown)
            faults[name] = f"{MISSING}{hint and '.' + hint}"
        elif shape is None:  # tied: filled under its other name
            del faults[name]
        elif [n for n in shape if n != 1] != [n for n in pair.torch_shape if n != 1]:
            hint = ": transposed?" if shape == pair.torch_shape[::-1] else ""
            faults[name] = f"shape {shape}, expected {pair.torch_shape}{hint}"
    left = {name for name in faults if leave is not None and re.search(leave, name)}
    if leave is not None and not left:
        raise InputError(f"leave={leave!r} matches no name of the network or of the file")
    return Match(
        tuple((wanted[n], given[n]) for n, why in faults.items() if not why and n not in left),
        tuple(f"{n}: {why or 'it fits'}" for n, why in faults.items() if n in left),
        {n: why for n, why in faults.items() if why and n not in left},
        shapes,
    )
