"""The platforms for which MindSpore documents the operators of a compiled graph.

The platforms of a primitive are those under "Supported Platforms" in its own docstring, or in that
of the function it refers to. A primitive without a docstring of its own is in one of three tables;
one that is neither in a table nor documented is an error.

The docstrings describe an operator, not every type it takes. And a graph compiled on CPU shows only
the CPU's version of what MindSpore writes differently for another device.
"""

import re
from collections.abc import Iterable

import mindspore
from mindspore import ops
from mindspore.ops import auto_generate, operations

from tests.support.compiled import CALL

PLATFORMS = frozenset({"Ascend", "GPU", "CPU"})

# Nodes that order a graph and launch no kernel.
NO_KERNEL = frozenset(
    {CALL, "Depend", "Load", "MakeTuple", "Partial", "Return", "Switch", "TupleGetItem"}
    | {"UpdateState", "make_list"}
)

# Undocumented operators of the backward pass: XGrad for each X here, and others by name.
HAVE_GRAD = (
    "AdaptiveMaxPool2D AvgPool BatchNorm BiasAdd GeLU GroupNorm LayerNorm LogSoftmax MaxPool Rsqrt "
    "Sigmoid Sqrt StridedSlice Tanh"
)
GRADIENT_OF = {f"{name}Grad": name for name in HAVE_GRAD.split()} | {
    "Conv2DBackpropFilter": "Conv2D",
    "Conv2DBackpropInput": "Conv2D",
    "GatherDGradV2": "GatherD",
    "MaxPool3DGradWithArgmax": "MaxPool3DWithArgmax",
    "ReluGrad": "ReLU",
}

# What the compiler writes for a documented function: with a number in place of a tensor (Muls), or
# with the arguments of the function (SumExt). Each device has a kernel for it or composes it from
# others: on CPU, SumExt becomes ReduceSum. TensorMove copies a Parameter that is read before and
# after the assignment of another.
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


# Operators that are allowed although MindSpore does not document them for these platforms.
EXCEPTIONS = {
    # Of nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"), documented for all three:
    # on Ascend the pass ``ASCEND_PASS`` writes OneHot, SoftmaxCrossEntropyWithLogits, ReduceMean.
    "SparseSoftmaxCrossEntropyWithLogits": frozenset({"Ascend"}),
    # Over all ranks it runs on CPU (tests/ranks/test_steps_on_ranks.py); over a part of them
    # it is refused: only support mccl_world_group.
    "AllGather": frozenset({"CPU"}),
}
ASCEND_PASS = "SparseSoftmaxCrossEntropyWithLogitsUnifyMindIR"


class Undocumented(LookupError):
    """An operator that MindSpore does not document and that is in no table of this module."""


def platforms(name: str) -> frozenset[str]:
    """Return the platforms of the primitive ``name``; raise ``Undocumented`` if there are none."""
    if name in NO_KERNEL:
        return PLATFORMS
    if name in GRADIENT_OF:
        return platforms(GRADIENT_OF[name])
    if name in WRITTEN_FOR:
        return _documented(_named(WRITTEN_FOR[name]))
    for module in (ops, operations, auto_generate):
        primitive = getattr(module, name, None)
        for documented in (primitive, _referred(primitive)):
            named = _documented(documented)
            if named is not None:
                return named
    raise Undocumented(f"{name} has no docstring with platforms and is in no table of this file")


def missing(operators: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return name -> platforms that an operator lacks, ``EXCEPTIONS`` apart."""
    lacking = {name: PLATFORMS - platforms(name) for name in operators}
    lacking = {name: lacks - EXCEPTIONS.get(name, set()) for name, lacks in lacking.items()}
    return {name: lacks for name, lacks in lacking.items() if lacks}


def _documented(object_: object) -> frozenset[str] | None:
    """Return the platforms in all sections of a docstring, one an overload; None if it has none."""
    sections = re.findall(r"Supported Platforms:\s*\n(.*)", getattr(object_, "__doc__", "") or "")
    if not sections:
        return None
    return PLATFORMS.intersection(*(re.findall(r"`(\w+)`", section) for section in sections))


def _referred(primitive: object) -> object | None:
    """Return the function that a primitive's docstring refers to, or None."""
    text = getattr(primitive, "__doc__", "") or ""
    reference = re.search(r"Refer to :func:`([\w.]+)` for more details", text)
    return _named(reference[1]) if reference else None


def _named(path: str) -> object | None:
    """Return the object of a dotted path that begins with ``mindspore``, or None."""
    value = mindspore
    for part in path.split(".")[1:]:
        value = getattr(value, part, None)
    return value
