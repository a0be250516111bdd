"""Which Parameters a forward pass changes: running averages, counts, a teacher's weights.

BatchNorm's are known. For all other Cells the compiled graph of the forward pass shows them: a
Parameter that is only read is loaded before it is used, and one that is assigned is passed to the
operator itself. Compiling that graph costs as much as an evaluation does (3 s for ResNet-50 on two
cores), so it is done only if the code of a Cell contains something that might assign.
"""

import dis
import functools
import re
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mindspore import Parameter, mint, nn
from mindspore.nn.layer.normalization import _BatchNorm

from labkit.steps.state import set_state

BATCH_NORMS = (_BatchNorm, mint.nn.BatchNorm1d, mint.nn.BatchNorm2d, mint.nn.BatchNorm3d)
# Names of functions, methods (add_) and operators that write into their inputs: all of MindSpore's
# whose signature says so.
_WRITES = re.compile(
    r"assign|scatter|apply|batch_?norm|instance_?norm|cache|copy|(?<!boo)[^_]_$|inplace|index_?add|set_?data"
    r"|adam|fused|^distcomm|^free$|topk$|preprocess|^update",
    re.IGNORECASE,
)
# The inputs that these operators write into; others count as writing into all their Parameters.
_WRITTEN = {"Load": (), "UpdateState": (), "Depend": (), "BatchNorm": (3, 4)}
_PHASE = "labkit_forward"


def trainable_batch_norms(network: nn.Cell) -> list[nn.Cell]:
    """Return the BatchNorm cells of ``network`` that use each micro-batch's own statistics."""
    cells = (cell for _, cell in network.cells_and_names())
    return [
        cell
        for cell in cells
        if isinstance(cell, BATCH_NORMS)
        and getattr(cell, "use_batch_statistics", None) is not False
    ]


def running_statistics(network: nn.Cell) -> tuple[Parameter, ...]:
    """Return the running statistics of BatchNorm, usually all that a forward pass changes."""
    return tuple(
        parameter
        for cell in trainable_batch_norms(network)
        for parameter in cell.get_parameters(expand=False)
        if not parameter.requires_grad
    )


@contextmanager
def unchanged(network: nn.Cell) -> Iterator[None]:
    """Restore on exit what forward passes in the block have changed; on the host, for rare use.

    Copies the running statistics, or every Parameter if other code may assign some.
    """
    parameters = network.get_parameters() if may_assign(network) else running_statistics(network)
    kept = [(parameter, parameter.asnumpy().copy()) for parameter in parameters]
    try:
        yield
    finally:
        for parameter, value in kept:
            set_state(parameter, value)


def may_assign(network: nn.Cell) -> bool:
    """Return whether a Cell in ``network`` other than BatchNorm might assign a Parameter."""
    known: set[tuple] = set()
    return any(
        _writes(cell, known)
        for _, cell in network.cells_and_names()
        if not isinstance(cell, BATCH_NORMS)
    )


def assigned(network: nn.Cell, batch: tuple) -> list[Parameter]:
    """Return the Parameters that ``network(*batch)`` may assign, in the network's order.

    Returns all of them if MindSpore does not show it, as it cannot compile the network alone.
    """
    parameters = {parameter.name: parameter for parameter in network.get_parameters()}
    try:
        names = _assigned_names(_graphs(network, batch), set(parameters))
    except Exception:  # the step itself reports better what is wrong with network or batch
        names = set(parameters)
    return [parameter for name, parameter in parameters.items() if name in names]


def _writes(cell: nn.Cell, known: set[tuple]) -> bool:
    if any(_WRITES.search(primitive.name) for primitive in cell._primitives.values()):
        return True
    if getattr(cell, "max_norm", None) is not None:
        return True  # an embedding of mint that rescales its rows
    values = [type(cell).construct, *vars(cell).values()]
    return any(_code_writes(value, type(cell), known) for value in values)


def _code_writes(value: Any, owner: type, known: set[tuple]) -> bool:
    """Return whether a function, or a function or method of ``owner`` it names, might assign."""
    if isinstance(value, list | tuple | dict | functools.partial):
        if isinstance(value, functools.partial):
            value = [value.func, *value.args]
        parts = value.values() if isinstance(value, dict) else value
        return any(_code_writes(part, owner, known) for part in parts)
    if hasattr(value, "__ms_class__"):
        return True  # an instance of a custom class that MindSpore compiles: jit_class
    function = getattr(value, "__func__", value)
    function = getattr(function, "__wrapped__", function)
    if not isinstance(function, types.FunctionType) or (function, owner) in known:
        return False
    known.add((function, owner))
    names: set[str] = set()
    codes = [function.__code__]
    for code in codes:
        names.update(code.co_names)
        codes += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
        if any(map(_stores, dis.get_instructions(code))):
            return True
    if any(_WRITES.search(name) for name in names):
        return True
    methods = [getattr(owner, name, None) for name in names if not hasattr(nn.Cell, name)]
    functions = methods + _own_functions(function, names)
    return any(_code_writes(named, owner, known) for named in functions)


def _stores(instruction: dis.Instruction) -> bool:
    """Return whether it is x.a = y, x[i] = y or x += y, which would write into a Parameter x."""
    augmented = instruction.opname == "BINARY_OP" and instruction.argrepr.endswith("=")
    return augmented or instruction.opname in ("STORE_ATTR", "STORE_SUBSCR")


def _own_functions(function: types.FunctionType, names: set[str]) -> list:
    """Return what a function names outside its Cell, but not MindSpore's, known by their names."""
    values = [function.__globals__.get(name) for name in names]
    values += [cell.cell_contents for cell in function.__closure__ or ()]
    modules = [value for value in values if isinstance(value, types.ModuleType)]
    values += [getattr(module, name, None) for module in modules for name in names]
    return [v for v in values if not getattr(v, "__module__", "").startswith("mindspore.")]


def _graphs(network: nn.Cell, batch: tuple) -> list:
    """Return the graphs of ``network(*batch)``, the main one first, as MindSpore exports them."""
    from mindspore.common.api import _cell_graph_executor as executor
    from mindspore.train.mind_ir_pb2 import ModelProto

    phase, _ = executor.compile(network, *batch, phase=_PHASE, do_convert=False)
    try:
        model = ModelProto()
        model.ParseFromString(executor._get_func_graph_proto(network, phase, "mind_ir"))
    finally:
        executor.del_net_res(network, {phase})
    return [model.graph, *model.functions]


def _assigned_names(graphs: list, names: set[str]) -> set[str]:
    """Return which of ``names`` any of the graphs might assign.

    A tensor is called GRAPH:NAME. A tensor passed to a second graph keeps its name there.
    """
    inputs = {graph.name: [tensor.name for tensor in graph.input] for graph in graphs}
    assigned_names = set()
    for graph in graphs:
        for node in graph.node:
            operator = node.op_type.removeprefix("REF::").split(":")[0]
            arguments = [_short(name) for name in node.input]
            handed_to = (
                [_short(name) for name in inputs.get(node.input[0], ())] if arguments else []
            )
            for place, name in enumerate(arguments):
                if name not in names:
                    continue
                if operator == "Partial":
                    written = handed_to[place - 1 : place] != [name]
                else:
                    written = place in _WRITTEN.get(operator, (place,))
                if written:
                    assigned_names.add(name)
    return assigned_names


def _short(name: str) -> str:
    return name.split(":", 1)[-1]
