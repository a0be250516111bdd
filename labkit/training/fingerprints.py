"""Texts that stand for values other than small numbers, to compare those of two trainings.

For a large array its type, shape, ends and SHA-256; for a function its name and a SHA-256 of what
it computes with; for a method the function and what its object holds; for an object of MindSpore
its class.
"""

import enum
import functools
import hashlib
import types
from collections.abc import Iterable
from numbers import Number
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn

UNKNOWN = "cannot be compared: "
_LONGEST = 200  # characters of a text that is kept as it is
_DEEPEST = 5
_OF = ", a method of "  # between a method's function and its object


def fingerprint(value: Any, depth: int = 0) -> str:
    """Return a text that is the same for values that compute the same, as far as code shows.

    If a value shows nothing of what it computes, its text begins with ``UNKNOWN`` and names its
    class.
    """
    if isinstance(value, Tensor) and not isinstance(value, Parameter):
        value = value.asnumpy()
    if isinstance(value, np.ndarray):
        return _of_array(value)
    if isinstance(value, str):
        return _shortened(value, 20)
    if value is None or isinstance(value, bytes | Number | np.generic | np.dtype | enum.Enum):
        return repr(value)
    if depth > _DEEPEST:
        return UNKNOWN + "too deep"
    if isinstance(value, list | tuple | set | frozenset | dict):
        return _of_parts(value, depth + 1)
    if isinstance(value, functools.partial):
        return f"partial of {_joined([value.func, value.args, value.keywords], depth + 1)}"
    if isinstance(value, types.MethodType):
        function, held = fingerprint(value.__func__, depth), _of_object(value.__self__, depth + 1)
        return function if UNKNOWN in function else f"{function}{_OF}{held}"
    if isinstance(value, types.FunctionType):
        return _of_function(value, depth + 1)
    if isinstance(value, type | types.BuiltinFunctionType | np.ufunc):
        return _name(value)
    kind = type(value)
    if is_mindspores(kind) or isinstance(value, nn.Cell):
        # A type of numbers is identified by its text; operators and cells by their class.
        return str(value) if kind.__module__.endswith("typing") else _name(kind)
    return UNKNOWN + _name(kind)


def agrees(text: str, noted: str) -> bool:
    """Return whether a text stands for the same as ``noted``, the text in a checkpoint.

    An older labkit noted only the function of a method.
    """
    return text == noted or text.startswith(noted + _OF)


def is_mindspores(kind: type) -> bool:
    """Return whether a class is one of MindSpore's own."""
    return kind.__module__.partition(".")[0] == "mindspore"


def _of_object(value: Any, depth: int) -> str:
    """Return the class and the attributes of a user's object."""
    text = fingerprint(value, depth)
    if not text.startswith(UNKNOWN) or not hasattr(value, "__dict__"):
        return text
    return _known(f"{_name(type(value))} with {_of_parts(vars(value), depth)}")


def _of_array(value: np.ndarray) -> str:
    if value.dtype.kind == "O":
        return f"{UNKNOWN}an array of objects"
    ends = " to ".join(map(str, value.ravel()[:1].tolist() + value.ravel()[-1:].tolist()))
    digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:16]
    return f"{value.dtype} {value.shape} from {ends}, SHA-256 {digest}"


def _of_parts(value: Any, depth: int) -> str:
    if isinstance(value, dict):
        parts = [f"{fingerprint(k, depth)}: {fingerprint(v, depth)}" for k, v in value.items()]
    else:
        parts = [fingerprint(part, depth) for part in value]
    if isinstance(value, set | frozenset):
        parts.sort()
    return _known(f"{type(value).__name__} of {', '.join(parts)}")


def _of_function(value: types.FunctionType, depth: int) -> str:
    """Return name, and digest of code, constants, defaults and enclosed values; not of globals."""
    values = [_content(cell) for cell in value.__closure__ or ()]
    values += [value.__defaults__, value.__kwdefaults__]
    parts = [_of_code(value.__code__), *(fingerprint(part, depth) for part in values)]
    if any(UNKNOWN in part for part in parts):
        return f"{UNKNOWN}{_name(value)}, by what it has enclosed"
    return f"{_name(value)}, SHA-256 {_sha(chr(0).join(parts))}"


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _of_code(code: types.CodeType) -> str:
    constants = [
        _of_code(c) if isinstance(c, types.CodeType) else fingerprint(c) for c in code.co_consts
    ]
    return chr(0).join([code.co_code.hex(), *constants, *code.co_names])


def _joined(values: Iterable[Any], depth: int) -> str:
    return _known(", ".join(fingerprint(value, depth) for value in values))


def _known(text: str) -> str:
    """Return a text of parts, shortened; ``UNKNOWN`` and the reason if a part is unknown."""
    if UNKNOWN in text:
        return UNKNOWN + text.partition(UNKNOWN)[2][:_LONGEST]
    return _shortened(text, 60)


def _shortened(text: str, beginning: int) -> str:
    return text if len(text) <= _LONGEST else f"{text[:beginning]}... SHA-256 {_sha(text)}"


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', value)}"


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
