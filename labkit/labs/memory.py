"""Peak memory of a training, measured in a separate child process.

The measure is anonymous memory (RssAnon of /proc/self/status): what the training allocates, without
the pages of shared libraries, which come and go. The kernel keeps no high-water mark of it, so a
thread reads it every 2 ms; peaks last for whole kernels and recur at every update.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from labkit.base.arguments import integer, wrong
from labkit.errors import refuse_unknown

if TYPE_CHECKING:
    from mindspore.nn import Cell

NETWORKS = ("lenet", "dense", "resnet18")
_UPDATES = 3
_DENSE_WIDTH, _DENSE_LAYERS = 2880, 3  # 24.9 million parameters


def peak_memory_mb(network: str, batch: int, micro_batch: int | None = None) -> float:
    """Return the peak anonymous memory (MB, 10^6 bytes) of a process that makes three updates.

    ``AccumulatedStep`` and ``PlainStep`` check for non-finite values. Python and MindSpore take
    about 160 MB of the peak.

    Args:
        network: ``lenet`` (images 32×32), ``dense`` (25 million parameters) or ``resnet18`` (images
            3×32×32)
        batch: images in an update
        micro_batch: images in a micro-batch of ``AccumulatedStep``; None: the whole batch at once,
            with ``PlainStep``

    Raises:
        InputError: if the network is unknown, or the micro-batch does not divide the batch.
        RuntimeError: if the child fails; the message contains its stderr.
    """
    return _peaks(network, [batch], micro_batch)[0]


def _peaks(network: str, batches: Sequence[int], micro_batch: int | None) -> list[float]:
    """Return ``peak_memory_mb`` of each size, all trained in one process.

    Give several sizes only with a micro-batch, for which all sizes share one graph: the graphs of
    smaller full batches stayed in the next peak, up to 12 % of it (LeNet, 32 to 4096 images).
    """
    _check(network, batches, micro_batch)
    sizes = (str(number) for number in (micro_batch or 0, *batches))
    # -P: ``-m`` alone would put the working folder first on the path.
    command = [sys.executable, "-P", "-m", "labkit.labs.memory", network, *sizes]
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} exited with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])["peaks_mb"]


def _check(network: str, batches: Iterable[int], micro_batch: int | None) -> None:
    refuse_unknown("network", network, NETWORKS)
    for batch in batches:
        integer("batch", batch)
        if micro_batch is not None and batch % integer("micro_batch", micro_batch):
            raise wrong("batch", batch, f"a multiple of micro_batch {micro_batch}")


def sweep(batches: Iterable[int], micro_batch: int = 32, network: str = "lenet") -> list[dict]:
    """Return a row (batch, full_mb, accumulated_mb) for each batch size; runs two at a time."""
    batches = list(batches)
    if not batches:
        return []
    _check(network, batches, micro_batch)  # before the first is measured
    with ThreadPoolExecutor(max_workers=2) as pool:
        accumulated = pool.submit(_peaks, network, batches, micro_batch)
        full = pool.map(lambda batch: peak_memory_mb(network, batch), batches)
        return [
            {"batch": batch, "full_mb": full_mb, "accumulated_mb": accumulated_mb}
            for batch, full_mb, accumulated_mb in zip(
                batches, full, accumulated.result(), strict=True
            )
        ]


def anonymous_mb() -> float:
    """Return the anonymous resident memory of this process now, in MB."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError("/proc/self/status has no RssAnon: a Linux kernel since 4.5 is needed")


class Peak:
    """Largest value of ``anonymous_mb`` since the start, read by a thread."""

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


def _measure(network: str, micro_batch: int, batches: Sequence[int]) -> None:
    """Train for a few updates of each size and print the peaks; runs in the child process."""
    import numpy as np
    from mindspore import Tensor, nn

    from labkit.nets.lenet import LeNet5
    from labkit.nets.resnet import resnet
    from labkit.runtime import start
    from labkit.steps.accumulation import AccumulatedStep
    from labkit.steps.losses import LossNet
    from labkit.steps.plain import PlainStep

    start("CPU")
    shape, build = {
        "lenet": ((1, 32, 32), LeNet5),
        "dense": ((_DENSE_WIDTH,), _dense),
        "resnet18": ((3, 32, 32), lambda: resnet(18, 10)),
    }[network]
    loss_net = LossNet(build(), nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
    optimizer = nn.Momentum(loss_net.trainable_params(), 0.01, 0.9)
    step: Cell = PlainStep(loss_net, optimizer)
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
    print(json.dumps({"peaks_mb": peaks}))


def _dense() -> Cell:
    from mindspore import nn

    layers = []
    for _ in range(_DENSE_LAYERS):
        layers += [nn.Dense(_DENSE_WIDTH, _DENSE_WIDTH), nn.ReLU()]
    return nn.SequentialCell(*layers, nn.Dense(_DENSE_WIDTH, 10))


if __name__ == "__main__":
    _measure(sys.argv[1], int(sys.argv[2]), [int(text) for text in sys.argv[3:]])
