"""Which operators a compiled call consists of, read from MindSpore's own graphs.

Two stages can be read. ``optimised`` is the last one before a device takes over: dead code is gone,
equal nodes are one, gradients are written out, and nothing is peculiar to the CPU. ``kernels`` is
what the device runs: on CPU, ``x.sum()`` has become ReduceSum, and casts stand where a kernel takes
no scalar.

A node counts once however often a loop runs it, and both branches of a condition count.

Source: the files ``validate`` and ``graph_build`` that MindSpore 2.10 writes where ``save_graphs``
is on. Every file states how many nodes it holds; a file that is read otherwise is an error.
"""

import contextlib
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from labkit.errors import InputError, refuse_unknown

STAGES = {"optimised": "[0-9]*_validate_*.ir", "kernels": "graph_build_*.ir"}
CALL = "call"
# %12(name) = PrimFunc_MatMul(...), %13(name) = %12[@FuncUnion(...)](...), Return(%13)
_NODE = re.compile(r"^  (?:%\d+\(.*?\) = |(?=Return\())(?:PrimFunc_)?([^\s(\[]+)")
_TYPES = re.compile(r"^      : \((.*?)\)(?: -> \((.*)\))?$")
_SCOPE = re.compile(r"^      # Fullname with scope: \((.*)\)$")
_TOTAL = re.compile(r"^Total number of cnodes: (\d+)$", re.MULTILINE)
# The shapes in TupleShape((2, 3), ()), and not the brackets of TupleShape itself.
_SHAPE = re.compile(r"(?<!Shape)\((-?\d+(?:, -?\d+)*)?\)")
_CLOSING = {"<": ">", "(": ")", "[": "]", "{": "}"}

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Operator:
    """One node of a compiled graph.

    name             of the primitive: ``MatMul``; ``call`` for the call of another graph
    inputs, outputs  shapes of its tensors, in order; those in a tuple one by one; other values are
                     left out. -1 is a size that only the run knows
    gradient         whether it comes from differentiating; in stage ``kernels`` not known for
                     nodes that the device wrote anew (scope ``Expand``), and False there
    scope            path of the cells around it: ``Default/network-LeNet5/fc1-Dense``
    """

    name: str
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    gradient: bool
    scope: str


def compiled_operators(call: Callable, *args, stage: str = "optimised") -> list[Operator]:
    """Return the operators of every graph that MindSpore compiles during ``call(*args)``.

    call   a Cell that has not run on such arguments before, or any function that calls one: only
           what is compiled can be read. The call is made, with all that it changes
    stage  ``optimised`` or ``kernels``, see above

    MindSpore's own settings are as they were afterwards, whatever the call raises, and no file is
    left. Raises ``InputError`` for an unknown stage, outside graph mode, and where the call
    compiled nothing.
    """
    refuse_unknown("stage", stage, STAGES)
    import mindspore

    if mindspore.get_context("mode") != mindspore.GRAPH_MODE:
        raise InputError("the mode is PyNative, which compiles no Cell; expected graph mode")
    with tempfile.TemporaryDirectory() as folder:
        with _saved_graphs(folder):
            call(*args)
        # Under msrun every rank writes into a folder of its own, rank_0/.
        files = sorted(Path(folder).rglob(STAGES[stage]), key=_number)
        operators = [operator for file in files for operator in read_graph(file.read_text())]
    if not operators:
        raise InputError(
            "the call compiled nothing: it had run on arguments of these shapes and types before, "
            "or calls no Cell; expected a new one"
        )
    return operators


def by_shape(operators: Iterable[Operator]) -> list[dict]:
    """Return rows (operator, inputs, outputs, gradient, count), equal ones together, by name."""
    counts = Counter((o.name, o.inputs, o.outputs, o.gradient) for o in operators)
    names = ("operator", "inputs", "outputs", "gradient")
    return [dict(zip(names, key, strict=True), count=counts[key]) for key in sorted(counts)]


def read_graph(text: str) -> list[Operator]:
    """Return the operators in the text of one file that MindSpore has written.

    Raises ``ValueError`` for a text that is not understood in full.
    """
    operators = []
    lines = iter(text.splitlines())
    for line in lines:
        node = _NODE.match(line)
        if node:
            name = CALL if node[1][0] in "%@" else node[1]
            operators.append(_operator(name, lines))
    stated = _TOTAL.search(text)
    if stated is None or int(stated[1]) != len(operators):
        raise ValueError(
            f"the graph says that it holds {stated[1] if stated else 'an unknown number of'} "
            f"nodes, and {len(operators)} were read: MindSpore writes another form than expected"
        )
    return operators


def _operator(name: str, lines: Iterator[str]) -> Operator:
    """Read what follows a node's first line: its types, on CPU more of them, and its scope."""
    types = None
    for line in lines:
        types = types or _TYPES.match(line)
        scope = _SCOPE.match(line)
        if scope:
            if types is None:
                raise ValueError(f"{name} in {scope[1]} has no line of types")
            path = scope[1].rpartition("/")[0]
            gradient = path.startswith("Gradients/")
            return Operator(name, _shapes(types[1]), _shapes(types[2] or ""), gradient, path)
        if _NODE.match(line):
            break
    raise ValueError(f"{name} has no scope")


def _shapes(types: str) -> tuple[Shape, ...]:
    """Return the shapes in ``<Tensor[Float32], (2, 3)>, <Ref[Tensor[Float32]], (), ...>, ...``."""
    found = []
    for one in _split(types):
        # Behind the shape come names and values, which may hold anything.
        _, shape, *_ = _split(one[1:-1])
        found += [tuple(map(int, s.split(", "))) if s else () for s in _SHAPE.findall(shape)]
    return tuple(found)


def _split(text: str) -> list[str]:
    """Split at the commas that are in no brackets."""
    parts, open_, start = [], [], 0
    for place, letter in enumerate(text):
        if letter in _CLOSING:
            open_.append(_CLOSING[letter])
        elif open_ and letter == open_[-1]:
            open_.pop()
        elif letter == "," and not open_:
            parts.append(text[start:place].strip())
            start = place + 1
    if open_:
        raise ValueError(f"brackets that do not close in {text!r}")
    return [*parts, text[start:].strip()] if text else parts


def _number(file: Path) -> int:
    """Return the running number at the end of a file's name: 76 of 21_validate_0076.ir."""
    return int(file.stem.rpartition("_")[2])


@contextlib.contextmanager
def _saved_graphs(folder: str):
    """Have MindSpore write the graphs that it compiles into ``folder``."""
    from mindspore._c_expression import MSContext, ms_ctx_param

    # Not mindspore.set_context: it warns at every call, and turns the default path "." into the
    # absolute one of today's working directory. The environment's MS_DEV_SAVE_GRAPHS is read once.
    context = MSContext.get_instance()
    settings = {ms_ctx_param.save_graphs: 1, ms_ctx_param.save_graphs_path: folder}
    before = {name: context.get_param(name) for name in settings}
    try:
        for name, value in settings.items():
            context.set_param(name, value)
        yield
    finally:
        for name, value in before.items():
            context.set_param(name, value)
