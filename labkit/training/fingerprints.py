"""Texts that stand for values that are no small numbers, to compare one training's with another's.

Of a large array its type, shape, ends and SHA-256; of a function its name and a SHA-256 of what it
computes with; of an object of MindSpore its class.
"""

import enum
import functools
import hashlib
import types
from numbers import Number

import numpy as np
from mindspore import Parameter, Tensor, nn

UNKNOWN = "cannot be compared: "
_LONGEST = 200  # characters of a text that is kept as it is
_DEEPEST = 5


def fingerprint(value, depth: int = 0) -> str:
    """Return a text that is the same for what computes the same, as far as can be told.

    Where nothing can be told of a value, the text begins with ``UNKNOWN`` and names its class.
    """
    if isinstance(value, Tensor) and not isinstance(value, Parameter):
        value = value.asnumpy()
    if isinstance(value, np.ndarray):
        return _of_array(value)
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else f"{value[:20]}... SHA-256 {_sha(value)}"
    if value is None or isinstance(value, bytes | Number | np.generic | np.dtype | enum.Enum):
        return repr(value)
    if depth > _DEEPEST:
        return UNKNOWN + "too deep"
    if isinstance(value, list | tuple | set | frozenset | dict):
        return _of_parts(value, depth + 1)
    if isinstance(value, functools.partial):
        parts = [value.func, value.args, value.keywords]
        return f"partial of {_joined(parts, depth)}"
    if isinstance(value, types.MethodType):
        return fingerprint(value.__func__, depth)
    if isinstance(value, types.FunctionType):
        return _of_function(value, depth + 1)
    if isinstance(value, type | types.BuiltinFunctionType | np.ufunc):
        return _name(value)
    kind = type(value)
    if kind.__module__.partition(".")[0] == "mindspore" or isinstance(value, nn.Cell):
        # A type of numbers is known by its text; operators and cells by their class.
        return str(value) if kind.__module__.endswith("typing") else _name(kind)
    return UNKNOWN + _name(kind)


def _of_array(value) -> str:
    if value.dtype.kind == "O":
        return f"{UNKNOWN}an array of objects"
    ends = [f"{end}" for end in (value.ravel()[:1].tolist() + value.ravel()[-1:].tolist())]
    digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:16]
    return f"{value.dtype} {value.shape} from {' to '.join(ends)}, SHA-256 {digest}"


def _of_parts(value, depth) -> str:
    if isinstance(value, dict):
        parts = [f"{fingerprint(k, depth)}: {fingerprint(v, depth)}" for k, v in value.items()]
    else:
        parts = [fingerprint(part, depth) for part in value]
    if isinstance(value, set | frozenset):
        parts.sort()
    return _short(f"{type(value).__name__} of {', '.join(parts)}")


def _of_function(value, depth) -> str:
    """Name and digest of code, constants, defaults and what it has enclosed.

    What it looks up by name elsewhere (globals) is not in it.
    """
    enclosed = []
    for cell in value.__closure__ or ():
        try:
            enclosed.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            enclosed.append(None)
    parts = [_of_code(value.__code__), *_all(enclosed, depth)]
    parts += _all([value.__defaults__, value.__kwdefaults__], depth)
    unknown = next((part for part in parts if UNKNOWN in part), None)
    if unknown:
        return f"{UNKNOWN}{_name(value)}, by what it has enclosed"
    return f"{_name(value)}, SHA-256 {_sha(chr(0).join(parts))}"


def _of_code(code) -> str:
    constants = [
        _of_code(c) if isinstance(c, types.CodeType) else fingerprint(c) for c in code.co_consts
    ]
    return chr(0).join([code.co_code.hex(), *constants, *code.co_names])


def _all(values, depth) -> list[str]:
    return [fingerprint(value, depth) for value in values]


def _joined(values, depth) -> str:
    return _short(", ".join(_all(values, depth + 1)))


def _short(text) -> str:
    if UNKNOWN in text:
        return UNKNOWN + text.partition(UNKNOWN)[2][:_LONGEST]
    return text if len(text) <= _LONGEST else f"{text[:60]}... SHA-256 {_sha(text)}"


def _name(value) -> str:
    return f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', value)}"


def _sha(text) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
