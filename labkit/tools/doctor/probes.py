"""Measurements for `labkit doctor` that may crash or hang, in a child process."""

import json
import operator
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# A 64 -> 64 convolution of 3x3 on (8, 64, 32, 32), and the matrix product with as many
# multiplications: 8 * 32 * 32 rows, 64 * 3 * 3 inner, 64 columns.
_IMAGES, _CHANNELS, _SIDE = 8, 64, 32
_MARK = '{"probe": '
_EXCEPTION = re.compile(r"[\w.]*(Error|Exception|Interrupt|Exit)\b")


class Child:
    """A fresh Python process that runs probes one after the other, from the moment it is made.

    probes       functions of this module, each a name or (name, arguments ...)
    timeout      seconds for all of them together
    environment  variables to set there; None takes one away

    A probe that raises leaves the others to run, one that crashes leaves the answers before it.
    """

    def __init__(self, *probes: str | tuple, timeout: float = 60, **environment: str | None):
        self._timeout = timeout
        self._answers: dict[str, dict] | None = None
        self._reason = ""
        calls = [[probe] if isinstance(probe, str) else list(probe) for probe in probes]
        code = f"from labkit.tools.doctor import probes; probes.report({json.dumps(calls)!r})"
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        variables = {**os.environ, "PYTHONPATH": path, **environment}
        # A compiler that fails leaves files in its working folder.
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", code],
            cwd=self._folder.name,
            env={name: value for name, value in variables.items() if value is not None},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def answer(self, probe: str) -> Any:
        """Wait for the process and return what ``probe`` returned there.

        Raises ``RuntimeError`` with the exception it raised, or why there is no answer.
        """
        if self._answers is None:
            self._wait()
        answer = self._answers.get(probe, {"error": self._reason})
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["answer"]

    def _wait(self) -> None:
        try:
            printed, errors = self._process.communicate(timeout=self._timeout)
            self._reason = _reason(self._process.returncode, errors)
        except subprocess.TimeoutExpired:
            self._process.kill()
            printed, _ = self._process.communicate()
            self._reason = f"no answer within {self._timeout:.0f} s"
        self._folder.cleanup()
        lines = [json.loads(line) for line in printed.splitlines() if line.startswith(_MARK)]
        self._answers = {line["probe"]: line for line in lines}


def _reason(code: int, errors: str) -> str:
    """Return the line of the child's errors that names its exception, else its exit code."""
    named = [text for text in errors.splitlines() if _EXCEPTION.match(text)]
    return named[-1] if named and code > 0 else f"the process ended with exit code {code}"


def report(calls: str) -> None:
    """Print what each probe returns or raises as one line of JSON: the child's side."""
    for name, *arguments in json.loads(calls):
        try:
            found = {"answer": operator.attrgetter(name)(sys.modules[__name__])(*arguments)}
        except Exception as error:  # whatever a broken installation raises
            found = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        print("\n" + json.dumps({"probe": name, **found}), flush=True)


def arithmetic() -> dict[str, Any]:
    """Return 1 + 1 as MindSpore computes it (with numpy 2: SystemError), and the versions."""
    import mindspore
    import numpy

    total = float((mindspore.Tensor(1.0) + 1).asnumpy())
    versions = {"numpy": numpy.__version__, "mindspore": mindspore.__version__}
    return {"sum": total, "place": str(Path(numpy.__file__).parents[1]), **versions}


def devices() -> list[str]:
    """Return the devices that MindSpore can really use here, best first."""
    from labkit.runtime import available_devices

    return list(available_devices())


def start() -> None:
    """Do what every lab does first."""
    from labkit import runtime

    runtime.start("CPU")


def start_bare() -> None:
    """Set graph mode and the device, and nothing else of what ``labkit.start`` sets."""
    import mindspore

    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    mindspore.set_device("CPU")


def convolution(backward: bool = True) -> dict[str, Any]:
    """Return the seconds of a ``convolution``, of its ``backward`` pass, and of a ``matmul``.

    The matrix product has the convolution's arithmetic. Call ``start`` or ``start_bare`` before.
    ``onednn`` is the instruction set in force.
    """
    import mindspore
    import numpy as np
    from mindspore import Tensor, nn, ops

    class Product(nn.Cell):
        def construct(self, left, right):
            return ops.matmul(left, right)

    class Backward(nn.Cell):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer
            self.weights = mindspore.ParameterTuple(layer.trainable_params())
            self.gradient = ops.GradOperation(get_by_list=True)

        def construct(self, images):
            return self.gradient(self.layer, self.weights)(images)[0]

    random = np.random.default_rng(1)
    shapes = [(_IMAGES, _CHANNELS, _SIDE, _SIDE), (_IMAGES * _SIDE**2, _CHANNELS * 9)]
    images, left, right = (
        Tensor(random.standard_normal(shape, dtype=np.float32))
        for shape in (*shapes, (_CHANNELS * 9, _CHANNELS))
    )
    layer, product = nn.Conv2d(_CHANNELS, _CHANNELS, 3, pad_mode="same"), Product()
    seconds = {
        "convolution": _seconds(lambda: layer(images)),
        "matmul": _seconds(lambda: product(left, right)),
    }
    if backward:
        seconds["backward"] = _seconds(lambda: Backward(layer)(images), repeat=1)
    return {**seconds, "onednn": os.environ.get("ONEDNN_MAX_CPU_ISA")}


def _seconds(compute: Callable[[], Any], repeat: int = 5) -> float:
    """Return the fastest of ``repeat`` calls after a first one; a slow call is measured once."""
    import numpy as np

    times = []
    for _ in range(repeat + 1):
        started = time.perf_counter()
        if not np.isfinite(compute().asnumpy()).all():
            raise ArithmeticError("the result is not finite")
        times.append(time.perf_counter() - started)
        if len(times) > 1 and times[-1] > 0.2:
            break
    return min(times[1:])
