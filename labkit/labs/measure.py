"""Memory and time of a step: a child process's peak, operators' times, calls per second."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from labkit.base.arguments import integer, wrong
from labkit.errors import InputError, refuse_unknown

NETWORKS = ("lenet", "dense", "resnet18")
_UPDATES = 3
_DENSE_WIDTH, _DENSE_LAYERS = 2880, 3  # 24.9 million parameters


def peaks_mb(network: str, batches: Sequence[int], micro_batch: int | None = None) -> list[float]:
    """Return the peak anonymous memory (MB, 10^6 bytes) of a process that makes three updates.

    Python and MindSpore take about 160 MB of the peak.

    Args:
        network: ``lenet`` (images 32×32), ``dense`` (25 million parameters) or ``resnet18`` (images
            3×32×32)
        batches: images in an update, for each peak. Give several only with a micro-batch, for which
            all share one graph: the graphs of smaller full batches stayed in the next peak, up to
            12 % of it (LeNet, 32 to 4096 images)
        micro_batch: images in a micro-batch of ``AccumulatedStep``; None: ``PlainStep``

    Raises:
        InputError: if the network is unknown, or the micro-batch does not divide a batch.
        RuntimeError: if the child fails; the message contains its stderr.
    """
    refuse_unknown("network", network, NETWORKS)
    for batch in batches:
        if integer("batch", batch) % integer("micro_batch", micro_batch or batch):
            raise wrong("batch", batch, f"a multiple of micro_batch {micro_batch}")
    sizes = (str(number) for number in (micro_batch or 0, *batches))
    # -P: ``-m`` alone would put the working folder first on the path.
    command = [sys.executable, "-P", "-m", "labkit.labs.measure", network, *sizes]
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=os.environ | path, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} exited with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def sweep(batches: Sequence[int], micro_batch: int = 32, network: str = "lenet") -> list[dict]:
    """Return a row (batch, full_mb, accumulated_mb) for each batch size; runs two at a time."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        accumulated = pool.submit(peaks_mb, network, batches, micro_batch)
        full = pool.map(lambda batch: peaks_mb(network, [batch])[0], batches)
        peaks = zip(batches, full, accumulated.result(), strict=True)
        return [{"batch": b, "full_mb": f, "accumulated_mb": a} for b, f, a in peaks]


def anonymous_mb() -> float:
    """Return the anonymous memory (RssAnon) of this process now, in MB, on Linux.

    It is what a training allocates, without the pages of shared libraries, which come and go.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("RssAnon:"))


class Peak:
    """Largest value of ``anonymous_mb`` in a ``with`` block, as ``value`` after it.

    The kernel keeps no high-water mark of it, so a thread reads it every 2 ms; peaks last for whole
    kernels and recur at every update.
    """

    def __enter__(self) -> Peak:
        self.value = anonymous_mb()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.002):
            self.value = max(self.value, anonymous_mb())

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        self.value = max(self.value, anonymous_mb())


def _measure(network: str, micro_batch: int, batches: Sequence[int]) -> list[float]:
    """Train for a few updates of each size and return the peaks; runs in the child process."""
    import numpy as np
    from mindspore import Tensor, nn

    from labkit.nets.lenet import LeNet5
    from labkit.nets.resnet import resnet
    from labkit.runtime import start
    from labkit.steps.accumulation import AccumulatedStep
    from labkit.steps.losses import LossNet
    from labkit.steps.step import PlainStep

    start("CPU")
    shape: tuple[int, ...] = (1, 32, 32)
    if network == "lenet":
        net = LeNet5()
    elif network == "resnet18":
        shape, net = (3, 32, 32), resnet(18, 10)
    else:
        shape, layers = (_DENSE_WIDTH,), []
        for _ in range(_DENSE_LAYERS):
            layers += [nn.Dense(_DENSE_WIDTH, _DENSE_WIDTH), nn.ReLU()]
        net = nn.SequentialCell(*layers, nn.Dense(_DENSE_WIDTH, 10))
    loss_net = LossNet(net, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
    optimizer = nn.Momentum(loss_net.trainable_params(), 0.01, 0.9)
    step = PlainStep(loss_net, optimizer)
    if micro_batch:
        groups = [batch // micro_batch for batch in batches for _ in range(_UPDATES)]
        step = AccumulatedStep(loss_net, optimizer, lambda updates: [*groups, 1][updates])
    draw, peaks = np.random.default_rng(0), []
    for batch in batches:
        rows = micro_batch or batch
        with Peak() as peak:
            for _ in range(_UPDATES * batch // rows):
                images = draw.standard_normal((rows, *shape), dtype=np.float32)
                labels = draw.integers(0, 10, rows).astype(np.int32)
                float(step(Tensor(images), Tensor(labels)))
        peaks.append(round(peak.value, 1))
    return peaks


def operator_times(step: Callable, *batch: Any, calls: int) -> list[dict]:
    """Return the rows (operator, count, ms, share) of a call of ``step``, slowest first.

    ``step`` returns a tensor; its updates take effect. The rows are means over ``calls`` calls
    after one that compiles, from MindSpore's own CPU profiler. Kernels run one after another, so
    the times add up to the whole, of which ``other`` is no operator's: launches and Python.

    Raises:
        InputError: if the device is not the CPU (profilers of other devices write other files).
    """
    import mindspore
    from mindspore.profiler import ProfilerActivity, profile, tensorboard_trace_handler

    device = mindspore.get_context("device_target")
    if device != "CPU":
        raise InputError(f"device: expected CPU, whose profile is read, got {device}")
    calls = integer("calls", calls)
    step(*batch).asnumpy()
    with tempfile.TemporaryDirectory() as folder:
        # analyse_flag: skip the timeline, which takes seconds and prints; the table is written.
        handler = tensorboard_trace_handler(folder, analyse_flag=False)
        with profile(activities=[ProfilerActivity.CPU], on_trace_ready=handler):
            begin = time.perf_counter()
            for _ in range(calls):
                step(*batch).asnumpy()
            call = (time.perf_counter() - begin) / calls * 1e3
        (table,) = Path(folder).glob("*/FRAMEWORK/cpu_op_detail_info_*.csv")
        with table.open(newline="") as file:
            return by_operator(csv.DictReader(file), calls, call)


def by_operator(lines: Iterable[dict], calls: int, call: float) -> list[dict]:
    """Return the lines of a profile of ``calls`` calls of ``call`` ms, summed by operator."""
    sums: dict[str, dict] = {}
    for line in lines:
        total = sums.setdefault(line["op_type"], {"count": 0.0, "ms": 0.0})
        total["count"] += int(line["op_occurrences"]) / calls
        total["ms"] += float(line["op_total_time(ms)"]) / calls
    kernels = sum(total["ms"] for total in sums.values())
    sums["other"] = {"count": 1, "ms": max(0.0, call - kernels)}
    whole = kernels + sums["other"]["ms"]
    summed = [{"operator": n, **total, "share": total["ms"] / whole} for n, total in sums.items()]
    return sorted(summed, key=lambda row: -row["ms"])


def calls_per_second(call: Callable[[], object], seconds: float) -> float:
    """Call ``call`` once, to compile it, then for at least ``seconds``; return calls per second."""
    call()
    calls, begin = 0, time.perf_counter()
    while True:
        call()
        calls += 1
        if (taken := time.perf_counter() - begin) >= seconds:
            return calls / taken


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], int(sys.argv[2]), [int(n) for n in sys.argv[3:]])))
