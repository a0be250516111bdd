"""What to write where a cell differs from PyTorch's module: the line is tried before it is said."""

from collections.abc import Callable
from typing import Any

from mindspore import nn

from labkit.migration.trace import Call
from labkit.steps.state import set_state

# What MindSpore 2.10 computes otherwise on CPU, with the cells written rightly.
_OPERATORS = {
    "Tanh": "MindSpore's tanh itself is off by up to 1e-4 on CPU",
    "Mish": "the gradient of MindSpore's Mish itself is off by up to 7e-4 on CPU",
    "RReLU": "MindSpore's RReLU stays random in evaluation",
}


def cure(call: Call, cell: nn.Cell, agrees: Callable[[nn.Cell], bool]) -> str:
    """Return the line that makes the cell agree, or nothing: a cell of PyTorch's own settings."""
    if call.kind not in _LINES:
        return _OPERATORS.get(call.kind, "")
    name, args, kwargs = _LINES[call.kind](call.settings)
    kwargs = {key: value for key, value in kwargs.items() if value is not None}
    words = [repr(a) for a in args] + [f"{key}={value!r}" for key, value in kwargs.items()]
    try:
        new = getattr(nn, name)(*args, **kwargs)
        for key, parameter in cell._params.items():
            set_state(new._params[key], parameter.asnumpy())
            new._params[key].name = parameter.name
        return f"with nn.{name}({', '.join(words)}) it agrees" if agrees(new) else ""
    except Exception:  # settings that MindSpore's has not; then there is no line
        return ""


def _convolution(s: dict[str, Any]) -> tuple[str, tuple, dict]:
    rank = len(s["kernel_size"])
    if s["padding_mode"] != "zeros" or isinstance(s["padding"], str):
        raise NotImplementedError(s["padding_mode"])
    padding = tuple(p for p in s["padding"] for _ in range(2)) if rank > 1 else s["padding"][0]
    options = {"stride": _one(s["stride"]), "pad_mode": "pad", "padding": _one(padding)}
    options |= {"dilation": _one(s["dilation"]), "group": s["groups"]}
    options = {key: value for key, value in options.items() if value != 1 or key == "padding"}
    sizes = s["in_channels"], s["out_channels"], _one(s["kernel_size"])
    return f"Conv{rank}d", sizes, options | ({"has_bias": True} if s["bias"] else {})


def _pool(s: dict[str, Any], name: str, **more: Any) -> tuple[str, tuple, dict]:
    options = {"stride": _one(s["stride"]), "pad_mode": "pad", "padding": _one(s["padding"])}
    return name, (_one(s["kernel_size"]),), options | {"ceil_mode": s["ceil_mode"]} | more


def _one(value: Any) -> Any:
    """Return one number for a tuple of equal ones."""
    if isinstance(value, list | tuple):
        return value[0] if len(set(value)) == 1 else tuple(value)
    return value


def _batch_norm(s: dict[str, Any], name: str) -> tuple[str, tuple, dict]:
    kept = 1.0 if s["momentum"] is None else round(1 - s["momentum"], 10)
    return name, (s["num_features"],), {"eps": s["eps"], "momentum": kept}


_LINES: dict[str, Callable[[dict], tuple[str, tuple, dict]]] = {
    "Conv1d": _convolution,
    "Conv2d": _convolution,
    "Conv3d": _convolution,
    "BatchNorm1d": lambda s: _batch_norm(s, "BatchNorm1d"),
    "BatchNorm2d": lambda s: _batch_norm(s, "BatchNorm2d"),
    "BatchNorm3d": lambda s: _batch_norm(s, "BatchNorm3d"),
    "LayerNorm": lambda s: (
        "LayerNorm",
        (tuple(s["normalized_shape"]),),
        {"epsilon": s["eps"]},
    ),
    "GroupNorm": lambda s: ("GroupNorm", (s["num_groups"], s["num_channels"]), {"eps": s["eps"]}),
    "GELU": lambda s: ("GELU", (), {"approximate": s["approximate"] == "tanh"}),
    "GELUActivation": lambda s: ("GELU", (), {"approximate": False}),
    "LeakyReLU": lambda s: ("LeakyReLU", (s["negative_slope"],), {}),
    "Softmax": lambda s: ("Softmax", (s["dim"],), {}),
    "Dropout": lambda s: ("Dropout", (), {"p": s["p"]}),
    "MaxPool2d": lambda s: _pool(s, "MaxPool2d"),
    "AvgPool2d": lambda s: _pool(s, "AvgPool2d", count_include_pad=s["count_include_pad"]),
    "Upsample": lambda s: (
        "Upsample",
        (),
        {
            "size": s["size"],
            "scale_factor": None if s["size"] else (_pair(s["scale_factor"])),
            "mode": s["mode"],
            "align_corners": s["align_corners"],
            "recompute_scale_factor": None if s["size"] else True,
        },
    ),
    "Embedding": lambda s: (
        "Embedding",
        (s["num_embeddings"], s["embedding_dim"]),
        {"padding_idx": s["padding_idx"]} if s["padding_idx"] is not None else {},
    ),
}


def _pair(value: Any) -> tuple:
    return tuple(value) if isinstance(value, list | tuple) else (float(value), float(value))
