"""Measurements for `labkit doctor` that may crash or hang: each in a child process of its own."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# A 64 -> 64 convolution of 3x3 on (32, 64, 32, 32), and the matrix product with as many
# multiplications: 32 * 32 * 32 rows, 64 * 3 * 3 inner, 64 columns.
_IMAGES, _CHANNELS, _SIDE = 32, 64, 32
_EXCEPTION = re.compile(r"[\w.]*(Error|Exception|Interrupt|Exit)\b")


def in_child(probe: str, *arguments: Any, timeout: float = 120, **environment: str | None) -> Any:
    """Return what function ``probe`` of this module returns in a fresh Python process.

    ``environment`` sets variables there; None takes one away. Raises ``RuntimeError`` with the last
    line of the child's errors if it fails, crashes or takes longer than ``timeout`` seconds.
    """
    code = f"from labkit import probes; probes.report(probes.{probe}, {json.dumps(arguments)!r})"
    root = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    variables = {**os.environ, "PYTHONPATH": path, **environment}
    variables = {name: value for name, value in variables.items() if value is not None}
    command = [sys.executable, "-c", code]
    options = {"env": variables, "capture_output": True, "text": True, "timeout": timeout}
    # A compiler that fails leaves files in its working folder.
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(command, cwd=folder, check=False, **options)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"no answer within {timeout:.0f} s") from None
    if done.returncode:
        raise RuntimeError(_reason(done))
    return json.loads(done.stdout.splitlines()[-1])


def _reason(done: subprocess.CompletedProcess) -> str:
    """Return the line of the child's errors that names its exception, else its exit code."""
    named = [text for text in done.stderr.splitlines() if _EXCEPTION.match(text)]
    return named[-1] if named else f"the process ended with exit code {done.returncode}"


def report(probe: Callable[..., Any], arguments: str) -> None:
    """Print what ``probe`` returns as one last line of JSON: the child's side of ``in_child``."""
    print("\n" + json.dumps(probe(*json.loads(arguments))), flush=True)


def scalar_arithmetic() -> float:
    """Return 1 + 1 as MindSpore computes it: with numpy 2 it dies of a SystemError there."""
    from mindspore import Tensor

    return float((Tensor(1.0) + 1).asnumpy())


def devices() -> list[str]:
    """Return the devices that MindSpore can really use here, best first."""
    from labkit.runtime import available_devices

    return list(available_devices())


def convolution(with_labkit: bool) -> dict[str, Any]:
    """Return the seconds of a ``convolution``, of its backward pass, and of a ``matmul``.

    The matrix product has the convolution's arithmetic. ``with_labkit``: after ``labkit.start`` on
    CPU; otherwise as MindSpore is installed. ``onednn`` is the instruction set in force.
    """
    import mindspore
    import numpy as np
    from mindspore import Tensor, nn, ops

    from labkit import runtime

    if with_labkit:
        runtime.start("CPU")
    else:
        mindspore.set_context(mode=mindspore.GRAPH_MODE)
        mindspore.set_device("CPU")

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
    if with_labkit:
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
        if len(times) > 1 and times[-1] > 0.5:
            break
    return min(times[1:])
