"""Measurements of `labkit doctor` that may crash or hang; ``measured.ask`` isolates them."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# A 64 -> 64 convolution of 3x3 on (8, 64, 32, 32), and the matrix product with as many
# multiplications: 8 * 32 * 32 rows, 64 * 3 * 3 inner, 64 columns.
_IMAGES, _CHANNELS, _SIDE = 8, 64, 32
MARK = "probe: "  # marks an answer within MindSpore's output


def report(call: str, probe: Callable[[], Any]) -> None:
    """Print what ``probe`` returns or raises as the answer to ``call``, at once."""
    try:
        answer = {"answer": probe()}
    except Exception as error:  # whatever a broken installation raises
        answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    print(f"\n{MARK}{json.dumps([call, answer])}", flush=True)


def arithmetic() -> dict[str, Any]:
    """Return 1 + 1 as MindSpore computes it (SystemError with numpy 2), and the versions."""
    from labkit import runtime

    runtime.start("CPU")  # for ``convolution``, which may follow: see there

    import mindspore
    import numpy

    total = float((mindspore.Tensor(1.0) + 1).asnumpy())
    versions = {"numpy": numpy.__version__, "mindspore": mindspore.__version__}
    return {"sum": total, "place": str(Path(numpy.__file__).parents[1]), **versions}


def devices() -> list[str]:
    """Return the devices that MindSpore can actually use on this machine, best first."""
    from labkit.runtime import available_devices

    return list(available_devices())


def convolution(started: bool = True) -> dict[str, Any]:
    """Return the seconds of a ``convolution`` and of a ``matmul`` with as many multiplications.

    ``onednn`` is the instruction set in force.

    Args:
        started: whether to use ``labkit.start``, as every lab does, and time ``backward`` too
    """
    if started:
        from labkit import runtime

        runtime.start("CPU")  # before MindSpore is imported, which reads variables then

    import mindspore
    import numpy as np
    from mindspore import Tensor, nn

    if not started:
        mindspore.set_context(mode=mindspore.GRAPH_MODE)
        mindspore.set_device("CPU")
    random = np.random.default_rng(1)
    images, rows = (
        Tensor(random.standard_normal(shape, dtype=np.float32))
        for shape in ((_IMAGES, _CHANNELS, _SIDE, _SIDE), (_IMAGES * _SIDE**2, _CHANNELS * 9))
    )
    layer = nn.Conv2d(_CHANNELS, _CHANNELS, 3, pad_mode="same")
    product = nn.Dense(_CHANNELS * 9, _CHANNELS, has_bias=False)
    seconds = {
        "convolution": _seconds(lambda: layer(images)),
        "matmul": _seconds(lambda: product(rows)),
    }
    if started:
        backward = nn.ForwardValueAndGrad(layer, layer.trainable_params(), get_by_list=True)
        seconds["backward"] = _seconds(lambda: backward(images)[1][0], repeat=1)
    return {**seconds, "onednn": os.environ.get("ONEDNN_MAX_CPU_ISA")}


def _seconds(compute: Callable[[], Any], repeat: int = 5) -> float:
    """Return the fastest of ``repeat`` calls after a warm-up; no new one starts after 1 s in all.

    The slow kernel takes 1 to 4 s. On a busy machine the fast one rarely took 0.25 s; when only
    one call was measured, that gave a ratio of 15.
    """
    import numpy as np

    times = []
    for _ in range(repeat + 1):
        started = time.perf_counter()
        if not np.isfinite(compute().asnumpy()).all():
            raise ArithmeticError("the result is not finite")
        times.append(time.perf_counter() - started)
        if sum(times[1:]) > 1:
            break
    return min(times[1:])
