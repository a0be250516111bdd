"""Memory and time of a step: a child process's peak, operators' times, calls per second."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import psutil

from labkit.base import machine
from labkit.base.arguments import integer, wrong
from labkit.errors import refuse_unknown

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
    """Return the anonymous memory of this process now, in MB.

    It is what a training allocates, without the pages of shared libraries, which come and go.
    """
    return machine.own_memory(psutil.Process()) / 1e6


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


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], int(sys.argv[2]), [int(n) for n in sys.argv[3:]])))
