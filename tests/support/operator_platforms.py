"""The platforms for which MindSpore documents the operators of a compiled graph.

They are those under "Supported Platforms" in a primitive's own docstring or in that of the function
it refers to; one without is in a table here. The docstrings describe an operator, not every type it
takes, and a graph compiled on CPU shows only the CPU's version of what MindSpore writes differently
for another device.
"""

import re
from collections.abc import Iterable

from mindspore import ops
from mindspore.ops import auto_generate, operations

from tests.support.compiled import CALL

PLATFORMS = frozenset({"Ascend", "GPU", "CPU"})

# Nodes that order a graph and launch no kernel.
NO_KERNEL = {CALL, "Depend", "Load", "MakeTuple", "Partial", "Return", "Switch", "TupleGetItem"}
NO_KERNEL |= {"UpdateState", "make_list"}

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
# with the arguments of the function (SumExt, which CPU composes from others). TensorMove copies a
# Parameter that is read before and after the assignment of another.
WRITTEN_FOR = {"Divs": ops.div, "EqScalar": ops.eq, "LessScalar": ops.less, "Max": ops.max}
WRITTEN_FOR |= {"MatMulExt": ops.matmul, "Muls": ops.mul, "SumExt": ops.sum}
WRITTEN_FOR |= {"TensorMove": ops.assign}

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


def platforms(name: str) -> frozenset[str]:
    """Return the platforms of the primitive ``name``; raise ``LookupError`` if it has none."""
    if name in NO_KERNEL:
        return PLATFORMS
    if name in GRADIENT_OF:
        return platforms(GRADIENT_OF[name])
    modules = (ops, operations, auto_generate)
    for documented in (WRITTEN_FOR.get(name), *(getattr(module, name, None) for module in modules)):
        text = documented.__doc__ or ""
        if reference := re.search(r"Refer to :func:`mindspore\.ops\.(\w+)` for more details", text):
            text += getattr(ops, reference[1], None).__doc__ or ""
        # A section for each overload.
        if sections := re.findall(r"Supported Platforms:\s*\n(.*)", text):
            return PLATFORMS.intersection(*(re.findall(r"`(\w+)`", each) for each in sections))
    raise LookupError(f"{name} has no docstring with platforms and is in no table of this file")


def missing(operators: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return name -> platforms that an operator lacks, ``EXCEPTIONS`` apart."""
    lacking = {name: PLATFORMS - platforms(name) for name in operators}
    lacking = {name: lacks - EXCEPTIONS.get(name, set()) for name, lacks in lacking.items()}
    return {name: lacks for name, lacks in lacking.items() if lacks}
