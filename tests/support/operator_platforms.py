"""On which platforms MindSpore documents the operators of a compiled graph.

A primitive counts for the platforms under "Supported Platforms" in its own docstring, or in that of
the function it refers to. What has no docstring of its own is in one of four tables; whatever is
in none of them and documented nowhere is an error.

The docstrings speak of an operator, not of every type it takes, and a graph compiled on CPU shows
the CPU's side of what MindSpore itself writes differently for another device (``amp.all_finite``,
which is documented for all three).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import mindspore
from mindspore import ops
from mindspore.ops import auto_generate, operations

from tests.support.compiled import CALL, Operator

PLATFORMS = frozenset({"Ascend", "GPU", "CPU"})

# What orders a graph, and launches nothing.
NO_KERNEL = frozenset(
    {CALL, "Depend", "Load", "MakeTuple", "Partial", "Return", "Switch", "TupleGetItem"}
    | {"UpdateState", "make_list"}
)

# Operators of the backward pass, undocumented, and the forward one whose gradient they are.
GRADIENT_OF = {
    "AvgPoolGrad": "AvgPool",
    "BatchNormGrad": "BatchNorm",
    "BiasAddGrad": "BiasAdd",
    "Conv2DBackpropFilter": "Conv2D",
    "Conv2DBackpropInput": "Conv2D",
    "GatherDGradV2": "GatherD",
    "GeLUGrad": "GeLU",
    "GroupNormGrad": "GroupNorm",
    "LayerNormGrad": "LayerNorm",
    "LogSoftmaxGrad": "LogSoftmax",
    "MaxPool3DGradWithArgmax": "MaxPool3DWithArgmax",
    "MaxPoolGrad": "MaxPool",
    "ReluGrad": "ReLU",
    "RsqrtGrad": "Rsqrt",
    "SigmoidGrad": "Sigmoid",
    "SqrtGrad": "Sqrt",
    "StridedSliceGrad": "StridedSlice",
    "TanhGrad": "Tanh",
}

# What the compiler writes for a documented function: with a number for one of the tensors (Muls),
# or with the arguments of the function (SumExt). Each device has a kernel for it or puts it
# together from others: on CPU, SumExt becomes ReduceSum. TensorMove copies a Parameter that is
# read before and after the assignment of another.
WRITTEN_FOR = {
    "Divs": "mindspore.ops.div",
    "EqScalar": "mindspore.ops.eq",
    "LessScalar": "mindspore.ops.less",
    "MatMulExt": "mindspore.ops.matmul",
    "Max": "mindspore.ops.max",
    "Muls": "mindspore.ops.mul",
    "SumExt": "mindspore.ops.sum",
    "TensorMove": "mindspore.ops.assign",
}


@dataclass(frozen=True)
class Replaced:
    """An operator that a platform has not, and the branch that does without it there.

    missing  the platforms that its docstring leaves out
    branch   who takes the branch, and where
    instead  the operators in the branch
    """

    missing: frozenset[str]
    branch: str
    instead: tuple[str, ...]


# Operators that are allowed although not all platforms have them.
EXCEPTIONS = {
    # Of nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"), documented for all three.
    "SparseSoftmaxCrossEntropyWithLogits": Replaced(
        missing=frozenset({"Ascend"}),
        branch="MindSpore's Ascend backend, pass SparseSoftmaxCrossEntropyWithLogitsUnifyMindIR",
        instead=("OneHot", "SoftmaxCrossEntropyWithLogits", "ReduceMean"),
    ),
}


@dataclass(frozen=True)
class Measured:
    """An operator that runs on a platform for which MindSpore does not document it.

    missing  the platforms that its docstring leaves out
    how      in which form it runs there
    test     the test that runs it there
    """

    missing: frozenset[str]
    how: str
    test: str


# What is not documented for CPU and runs there.
MEASURED = {
    "AllGather": Measured(
        missing=frozenset({"CPU"}),
        how="over all ranks; over a part of them it is refused: only support mccl_world_group",
        test="tests/algorithms/adasum/test_on_ranks.py",
    ),
}


class Undocumented(LookupError):
    """An operator that MindSpore documents nowhere and no table here knows."""


def platforms(name: str) -> frozenset[str]:
    """Return the platforms that MindSpore documents the primitive ``name`` for.

    Raises ``Undocumented``.
    """
    if name in NO_KERNEL:
        return PLATFORMS
    if name in GRADIENT_OF:
        return platforms(GRADIENT_OF[name])
    if name in WRITTEN_FOR:
        return _documented(_named(WRITTEN_FOR[name]))
    for module in (ops, operations, auto_generate):
        primitive = getattr(module, name, None)
        for documented in (primitive, _referred(primitive)):
            found = _documented(documented)
            if found is not None:
                return found
    raise Undocumented(
        f"{name} has no docstring with platforms and is in no table of operator_platforms.py"
    )


def missing(operators: Iterable[Operator]) -> dict[str, frozenset[str]]:
    """Return what is not documented for all platforms, and the platforms that it lacks.

    What ``EXCEPTIONS`` and ``MEASURED`` name is left out, for the platforms they name. Raises
    ``Undocumented``.
    """
    lacking = {name: PLATFORMS - platforms(name) for name in {o.name for o in operators}}
    for name, replaced in (EXCEPTIONS | MEASURED).items():
        if name in lacking:
            lacking[name] -= replaced.missing
    return {name: lacks for name, lacks in lacking.items() if lacks}


def _documented(object_):
    """Return the platforms that a docstring names, or None where it has no such section.

    Overloads have a section each: what counts is in all of them. "Deprecated" is no platform.
    """
    sections = re.findall(r"Supported Platforms:\s*\n(.*)", getattr(object_, "__doc__", "") or "")
    if not sections:
        return None
    return PLATFORMS.intersection(*(re.findall(r"`(\w+)`", section) for section in sections))


def _referred(primitive):
    """Return the function that a primitive's docstring refers to, or None."""
    reference = re.search(
        r"Refer to :func:`([\w.]+)` for more details", getattr(primitive, "__doc__", "") or ""
    )
    return _named(reference[1]) if reference else None


def _named(path):
    """Return the object of a dotted path that begins with ``mindspore``, or None."""
    found = mindspore
    for part in path.split(".")[1:]:
        found = getattr(found, part, None)
    return found
