"""The operators of a compiled call, read from the graphs that MindSpore saves.

The stage read is the last one before a device takes over: dead code is removed, gradients are
expanded, and nothing is specific to the CPU. A node counts once however often a loop runs it, and
both branches of a condition count. Source: the ``validate`` files that MindSpore 2.10 writes if
``save_graphs`` is on; each states how many nodes it holds, and another number read is an error.
"""

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

CALL = "call"
# %12(name) = PrimFunc_MatMul(...), %13(name) = %12[@FuncUnion(...)](...), Return(%13)
_NODE = re.compile(r"^  (?:%\d+\(.*?\) = |(?=Return\())(?:PrimFunc_)?([^\s(\[]+)")
_TYPES = re.compile(r"^      : (\(.*\))$")
_SCOPE = re.compile(r"^      # Fullname with scope: \((.*)\)$")
_TOTAL = re.compile(r"^Total number of cnodes: (\d+)$", re.MULTILINE)
# The shapes in TupleShape((2, 3), ()), and not the brackets of TupleShape itself.
_SHAPE = re.compile(r"(?<!Shape)\((-?\d+(?:, -?\d+)*)?\)")


class Operator(NamedTuple):
    """One node of a compiled graph."""

    name: str  # of the primitive: MatMul; "call" for the call of another graph
    outputs: tuple[tuple[int, ...], ...]  # shapes in its type; -1: known only at run time
    scope: str  # path of the cells around it: Default/network-LeNet5/fc1-Dense


def compiled_operators(call: Callable, *args: object) -> list[Operator]:
    """Return the operators of every graph that MindSpore compiles during ``call(*args)``.

    The call must be a Cell that has not run on such arguments before, or must call one.
    """
    with tempfile.TemporaryDirectory() as folder:
        with _saved_graphs(folder):
            call(*args)
        # Under msrun every rank writes into its own folder, rank_0/. A name ends with a counter.
        files = Path(folder).rglob("[0-9]*_validate_*.ir")
        files = sorted(files, key=lambda file: int(file.stem.split("_")[-1]))
        operators = [operator for file in files for operator in read_graph(file.read_text())]
    assert operators, "the call compiled nothing: it ran before, calls no Cell, or in PyNative mode"
    return operators


def read_graph(text: str) -> list[Operator]:
    """Return the operators in the text of one file; ValueError if it is not fully understood."""
    operators, name, types = [], "", ""
    for line in text.splitlines():
        if node := _NODE.match(line):
            name, types = CALL if node[1][0] in "%@" else node[1], ""
        elif found := _TYPES.match(line):
            types = types or found[1]
        elif name and types and (scope := _SCOPE.match(line)):
            shapes = _SHAPE.findall(types.partition("->")[2])
            outputs = (tuple(map(int, s.split(", "))) if s else () for s in shapes)
            operators.append(Operator(name, tuple(outputs), scope[1].rpartition("/")[0]))
            name = ""
    stated = _TOTAL.search(text)
    if stated is None or int(stated[1]) != len(operators):
        raise ValueError(
            f"the graph says that it holds {stated[1] if stated else 'an unknown number of'} "
            f"nodes, and {len(operators)} were read: MindSpore writes another form than expected"
        )
    return operators


@contextlib.contextmanager
def _saved_graphs(folder: str) -> Iterator[None]:
    """Make MindSpore write the graphs that it compiles into ``folder``."""
    from mindspore._c_expression import MSContext, ms_ctx_param

    # Not mindspore.set_context: it warns at every call, and turns the default path "." into the
    # absolute path of the current directory. The variable MS_DEV_SAVE_GRAPHS is read only once.
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
