"""Device, seeds, graph mode: the one place that sets global state, through ``start``.

MindSpore is imported inside the functions: ``start`` sets what it reads at its own import alone.
"""

import contextlib
import gc
import os
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from labkit.base import arguments, machine
from labkit.errors import InputError, refuse_unknown
from labkit.ranks import cluster

Device = Literal["auto", "Ascend", "GPU", "CPU"]
DEVICES = get_args(Device)
_ONEDNN_VARIABLE = "ONEDNN_MAX_CPU_ISA"
# oneDNN 3.10, bundled since MindSpore 2.9, has no fast kernel for plain-layout convolutions where
# AVX-512 is present: 1.6-1.9 s instead of 0.02 s for 64 -> 64 channels, 3x3, (32, 64, 32, 32).
# A limit of AVX2 takes nothing from a machine without it.
_SLOW_CONVOLUTION_SINCE = (2, 9)


@dataclass(frozen=True)
class Runtime:
    """What ``start`` chose."""

    device: str
    reason: str  # why it was chosen
    seed: int
    mindspore: str  # its version
    onednn: str  # value of ONEDNN_MAX_CPU_ISA in force, or "default"
    rank: int = 0  # 0 if this process has joined no others
    ranks: int = 1
    cores: tuple[int, ...] = ()  # that this rank is bound to; empty: all that it may use

    def __str__(self) -> str:
        text = f"labkit: {self.device} ({self.reason}), MindSpore {self.mindspore}, graph mode"
        text += f", seed {self.seed}"
        text += f", oneDNN up to {self.onednn}" if self.device == "CPU" else ""
        text += f", rank {self.rank} of {self.ranks}" if self.ranks > 1 else ""
        return text + (f" on core {', '.join(map(str, self.cores))}" if self.cores else "")


@contextlib.contextmanager
def pynative() -> Iterator[None]:
    """Run the block operator by operator (PyNative mode), to inspect intermediate values."""
    import mindspore
    from mindspore.common.api import _pynative_executor

    before = mindspore.get_context("mode")
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    try:
        yield
    except BaseException:
        # A gradient whose function raises is never ended: in every later one, indexing a tensor
        # raises "Only support integers ... but got 0 with type <class 'int'>" (MindSpore 2.10).
        _pynative_executor.clear_res()
        raise
    finally:
        mindspore.set_context(mode=before)


def available_devices() -> tuple[str, ...]:
    """Return the devices that this process can really use, best first; always ends with ``CPU``."""
    if "mindspore" not in sys.modules:  # MindSpore reads its log level at its first import
        # In a notebook it logs "[ERROR] Get realpath failed" for a Cell, although it compiles.
        os.environ.setdefault("GLOG_v", "4" if "ipykernel" in sys.modules else "3")
    from mindspore._c_expression import MSContext

    # hal.is_available makes the same check, but also prints warnings of the plugin loader.
    handle = MSContext.get_instance()
    return tuple(name for name in DEVICES[1:] if handle.is_pkg_support_device(name))


def start(device: Device = "auto", seed: int = 1, *, distribute: bool = False) -> Runtime:
    """Choose the device, set graph mode and every seed; print and return what was chosen.

    On Ascend and GPU the environment variable DEVICE_ID, if set, gives the number of the device.
    Call this first, before anything is built and before the first convolution. The objects that
    Python holds at the first call are excluded from later garbage collections (``gc.freeze``).

    Args:
        device: ``auto`` takes the first of Ascend, GPU, CPU that is available; a named device is
            used or refused, never replaced by a different device.
        seed: seed of the framework, NumPy, Python and the data pipeline; 0 .. 2**32 - 1.
        distribute: join the other ranks that msrun, mpirun or a script with a rank table has
            started. The parallel mode remains MindSpore's stand_alone: the gradient stage of a
            step averages over ranks itself, and nothing may do it a second time.

    Raises:
        InputError: if the device or seed cannot be used, or the environment describes no ranks.
    """
    refuse_unknown("device", device, DEVICES)
    seed = arguments.seed(seed)
    if distribute:
        machine.need_linux("start with distribute=True")
    if distribute and not any(os.environ.get(name) for name in cluster.SIZES):
        raise InputError(
            "got distribute=True in a process that was started alone: RANK_SIZE is not in its "
            "environment. labkit.launch(..., workers=N) or msrun --worker_num=N starts N ranks"
        )
    present = available_devices()
    usable, chosen, reason = ", ".join(present), str(device), "asked for"
    if device == "auto":
        chosen, reason = present[0], f"first of {usable}"
        reason = reason if len(present) > 1 else "no Ascend or GPU that MindSpore can use"
    elif device not in present:
        expected = f"this MindSpore can use: {usable}. `labkit doctor` says more"
        raise InputError(f"device {device} was requested but is not available; {expected}")
    version = _set_global_state(chosen, seed)
    is_slow = tuple(map(int, version.split(".")[:2])) >= _SLOW_CONVOLUTION_SINCE
    if chosen == "CPU" and is_slow:
        os.environ.setdefault(_ONEDNN_VARIABLE, "AVX2")
    onednn = os.environ.get(_ONEDNN_VARIABLE, "default")
    cores = _join(chosen) if distribute else ()
    runtime = Runtime(chosen, reason, seed, version, onednn, *cluster.rank_and_size(), cores)
    # MindSpore collects garbage around every compilation, which visits everything imported: 2.5 of
    # the 17.5 s that 24 LeNet steps take to compile. Networks made after the first call stay out.
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()
    print(runtime, flush=True)
    return runtime


def _set_global_state(device: str, seed: int) -> str:
    import mindspore
    import numpy

    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    if not cluster.joined():  # after joining, the device is set and MindSpore refuses a second call
        numbered = device != "CPU" and os.environ.get("DEVICE_ID")
        number = [cluster.environment_number("DEVICE_ID")] if numbered else []
        mindspore.set_device(device, *number)
    mindspore.set_seed(seed)
    numpy.random.seed(seed)
    random.seed(seed)
    mindspore.dataset.config.set_seed(seed)
    # Fast recovery (MindSpore's default) skips augmentation while it skips rows, so that random
    # augmentation after a resume differs from the uninterrupted run.
    mindspore.dataset.config.set_fast_recovery(False)
    return mindspore.__version__


def _join(device: str) -> tuple[int, ...]:
    """Join the other ranks, once per process; return the cores that this rank is bound to."""
    import mindspore
    from mindspore.communication import init

    mode = mindspore.get_auto_parallel_context("parallel_mode")
    why = "stand_alone: the steps average gradients over ranks themselves"
    if mode == "data_parallel":  # the source documents' own line
        mindspore.reset_auto_parallel_context()
        print(f"labkit: parallel mode data_parallel set back to {why}", flush=True)
    elif mode != "stand_alone":
        raise InputError(f"the parallel mode is {mode}; expected {why}")
    if cluster.joined():
        return ()
    if os.environ.get(cluster.RANKS_HERE):  # started by labkit.launch, through msrun
        machine.end_with_parent()
    init()
    return _keep_to_share() if device == "CPU" else ()


def _keep_to_share() -> tuple[int, ...]:
    """Bind the process to this rank's share of the cores, if all shares are equal; return it.

    On two cores, a LeNet step of two ranks took 17 to 24 ms unbound, 11 to 12 bound; joining took
    6 to 40 s longer when bound, so it comes first. mpirun binds its own.
    """
    import mindspore

    if not os.environ.get(cluster.RANKS_HERE) or not os.environ.get("DEVICE_ID"):
        return ()
    ranks = cluster.environment_number(cluster.RANKS_HERE, low=1)
    rank, cores = cluster.environment_number("DEVICE_ID"), machine.own_cores()
    # Three ranks on two cores: the rank alone on a core would wait for the two that share one.
    if rank >= ranks or ranks == 1 or (ranks > len(cores) and ranks % len(cores)):
        return ()
    # MindSpore creates its threads at the first product, one per core available then. Their number
    # decides how sums are rounded: results stay bit-equal to one process, to virtual workers.
    ones = mindspore.ops.ones((8, 8), mindspore.float32)
    mindspore.ops.matmul(ones, ones).asnumpy()
    first, last = rank * len(cores) // ranks, (rank + 1) * len(cores) // ranks
    share = cores[first : max(last, first + 1)]
    machine.bind(share)
    return tuple(share)
