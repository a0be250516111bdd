"""Single training steps, side by side in one run: labkit, a bare cell, MindSpore's own, PyTorch.

    python benchmarks/step_times.py [NAME ...] [--processes 5] [--rounds 7]

"checked" means with the finite check.

    lenet      AccumulatedStep and PlainStep, batch 32, over PyTorch's eager step
    resnet     the same of ResNet-50 at 64 x 64
    thor       THOR's mean step, refreshes included, over Momentum's, batch 128
    subspace   a search in the subspace, the first trial accepted, over a plain step, batch 250
    gram       Adasum of 16, 32 and 64 vectors of LeNet's size: by Gram matrix, and by the tree
    ranks      a LeNet step of Adasum over that of AllReduce's mean, on 2 and 4 ranks
    compiling  the first calls of each step of LeNet, which compile it, over a bare cell's

All have the same network, batch, optimizer and number of threads. Within a process the contestants
take turns; medians over rounds, then over processes. What compiles does so once in a process.
"""

import itertools
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from side_by_side import (
    Target,
    in_child,
    interleaved_ms,
    look_at_machine,
    medians,
    print_table,
    write_results,
)

import labkit
from labkit.base.arguments import Parser

COMPONENTS = 32
# Sizes of LeNet's parameters: what a worker's vector in Adasum consists of.
SIZES = (150, 2400, 48000, 120, 10080, 84, 840, 10)
VECTORS = (16, 32, 64)  # numbers of vectors that Adasum combines
RANKS, TIMEOUT = (2, 4), 300  # numbers of ranks; seconds that they may take


def main():
    """Run each comparison in child processes and print its table; as a child, print JSON."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*COMPARISONS, []])
    parser.add_argument("--child", nargs="+")
    options = parser.parse_args()
    if options.child:
        name, *more = options.child
        print(json.dumps(globals()[name](options.rounds, *more)))
        return
    machine, measured, targets = look_at_machine(), {}, []
    for name in options.names or COMPARISONS:
        children, first = COMPARISONS[name]
        runs = []
        for number in range(1 if name == "ranks" else options.processes):
            runs.append({})
            for function, *more in children:
                words = ("--rounds", str(options.rounds), "--child", function.__name__, *more)
                runs[-1] |= in_child(__file__, *words, environment={"PROCESS": str(number)})
        taken = medians(runs)
        print(f"\n{name}\n")
        rows = [[contestant, ms, ms / taken[first]] for contestant, ms in taken.items()]
        print_table(["", "ms", f"/ {first}"], rows)
        measured[name] = {"ms": taken, "runs": runs}
        for _, one, other, most in (target for target in TARGETS if target[0] == name):
            targets.append(Target(f"{name}: {one}, over {other}", taken[one] / taken[other], most))
    write_results("step_times", measured, machine, targets)


def timed(rounds, steps, batch, calls):
    """Return the milliseconds of a call of each step on one batch of NumPy arrays."""
    from mindspore import Tensor

    tensors = [Tensor(part) for part in batch]
    waiting = {
        name: lambda step=step: float(step(*tensors).asnumpy()) for name, step in steps.items()
    }
    return interleaved_ms(waiting, rounds, calls)


def batch_of(*shape):
    """Return NumPy images of this shape, batch first, and labels that cycle through 0 to 9."""
    images = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    return images, (np.arange(shape[0]) % 10).astype(np.int32)


def fresh(make=None):
    """Return (loss_net, optimizer): a new network, LeNet by default, and Momentum."""
    from mindspore import nn

    network = (make or labkit.LeNet5)()
    loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.Momentum(network.trainable_params(), 0.01, 0.9)
    return labkit.LossNet(network, loss_fn), optimizer


def bare(loss_net, optimizer):
    """Return the smallest cell that trains."""
    from mindspore import nn, ops

    class Bare(nn.Cell):
        def __init__(self):
            super().__init__(auto_prefix=False)
            self.optimizer = optimizer
            parameters = optimizer.parameters
            self.gradient = ops.value_and_grad(loss_net, None, parameters, has_aux=True)

        def construct(self, *batch):
            (loss, _), gradients = self.gradient(*batch)
            return ops.depend(loss, self.optimizer(gradients))

    return Bare().set_train()


def of_mindspore(loss_net, optimizer):
    """Return MindSpore's own step of the same network and loss."""
    from mindspore import nn

    with_loss = nn.WithLossCell(loss_net.network, loss_net.loss_fn)
    return nn.TrainOneStepCell(with_loss, optimizer).set_train()


def plain_steps(rounds, name):
    """Time labkit's steps, a bare cell and MindSpore's own step, each with a new network."""
    labkit.start()
    make, shape, calls = labkit.resnet50, (32, 3, 64, 64), 1
    if name == "lenet":
        make, shape, calls = labkit.LeNet5, (32, 1, 32, 32), 40
    steps = {
        "plain": labkit.PlainStep(*fresh(make), nonfinite="propagate"),
        "plain, checked": labkit.PlainStep(*fresh(make)),
        "TrainOneStepCell": of_mindspore(*fresh(make)),
    }
    if name == "lenet":
        steps["accumulated"] = labkit.AccumulatedStep(*fresh(), 4, nonfinite="propagate")
        steps["accumulated, checked"] = labkit.AccumulatedStep(*fresh(), 4)
        steps["bare cell"] = bare(*fresh())
    return timed(rounds, steps, batch_of(*shape), calls)


def torch_step(rounds, network):
    """Time PyTorch's eager step, written as in its tutorials."""
    import torch
    from torch import nn

    if network == "lenet":
        images, labels = batch_of(32, 1, 32, 32)
        module = nn.Sequential(
            nn.Conv2d(1, 6, 5, bias=False), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5, bias=False), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
            nn.Linear(84, 10),
        )  # fmt: skip
    else:
        from tests.support.torch_resnet import resnet

        images, labels = batch_of(32, 3, 64, 64)
        module = resnet(50, 1000)
    images, labels = torch.from_numpy(images), torch.from_numpy(labels).long()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad()
        loss = loss_fn(module(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return interleaved_ms({"PyTorch": step}, rounds, 40 if network == "lenet" else 1)


def thor_steps(rounds):
    """Time THOR's steps of LeNet; a turn of 50 is a whole number of cycles of refreshes."""
    labkit.start()
    rule = labkit.TraceRule(0.01, 0.001)
    steps = {"Momentum": labkit.PlainStep(*fresh())}
    for frequency, own in (
        (10, {}),
        (50, {}),
        (10, {"trace_rule": rule}),
        (10, {"formulas": "upstream_gpu"}),
        (10**9, {}),  # no refresh
    ):
        name = ", ".join([f"frequency {frequency}", *own])
        steps[name] = labkit.ThorStep(*fresh(), 0.3, frequency=frequency, **own)
    return timed(rounds, steps, batch_of(128, 1, 32, 32), 50)


def subspace_step(rate, **options):
    """Return a step of LeNet in a random subspace; its numbers do not affect the cost."""
    from mindspore import nn

    from labkit.algorithms.subspace import Basis

    loss_net, optimizer = fresh()
    weights = optimizer.parameters
    numbers = sum(parameter.size for parameter in weights)
    columns = np.random.default_rng(0).standard_normal((numbers, COMPONENTS))
    matrix = np.ascontiguousarray(np.linalg.qr(columns)[0].T, np.float32)
    basis = Basis(matrix, weights, np.ones(COMPONENTS), float(COMPONENTS))
    return labkit.SubspaceStep(loss_net, nn.SGD(weights, rate), basis, **options)


def subspace_steps(rounds):
    """Time a search whose first trial is accepted: it is restarted before each turn."""
    labkit.start()
    from mindspore import Tensor, nn

    from labkit.steps.state import set_state

    batch = [Tensor(part) for part in batch_of(250, 1, 32, 32)]
    search = subspace_step(1.0, alpha=1e-5, sigma=1e-3)
    sgd, (loss_net, _) = subspace_step(1e-4, method="sgd"), fresh()
    plain = labkit.PlainStep(loss_net, nn.SGD(loss_net.trainable_params(), 1e-4))
    begun, trials = [p.asnumpy().copy() for p in search.get_parameters()], []

    def restart():
        for parameter, value in zip(search.get_parameters(), begun, strict=True):
            set_state(parameter, value)

    def searched():
        search(*batch)
        trials.append(search.last_search.trials)

    calls = {
        "plain": lambda: float(plain(*batch).asnumpy()),
        "restart": restart,
        "search": searched,
        "projected SGD": lambda: float(sgd(*batch).asnumpy()),
    }
    taken = interleaved_ms(calls, rounds, 5)
    if max(trials) > 1:
        print(f"warning: {np.mean(trials):.2f} trials a search; expected 1", file=sys.stderr)
    del taken["restart"]
    return taken


def adasum_forms(rounds):
    """Time Adasum of vectors by Gram matrix and by a tree of the plain formula."""
    labkit.start()
    from mindspore import Tensor, nn, ops

    from labkit.algorithms.adasum import combination

    class Levels(nn.Cell):
        """Rows (N, D), N a power of two -> (D,), all pairs of a level at once."""

        def __init__(self):
            super().__init__(auto_prefix=False)
            self.sum = ops.ReduceSum(keep_dims=True)

        def construct(self, rows):
            layers, first = (), 0
            for size in SIZES:
                level, first = rows[:, first : first + size], first + size
                while level.shape[0] > 1:
                    a, b = level[0::2], level[1::2]
                    product = self.sum(a * b, -1)
                    level = (1 - product / (2 * self.sum(a * a, -1))) * a
                    level += (1 - product / (2 * self.sum(b * b, -1))) * b
                layers += (ops.reshape(level, (-1,)),)
            return ops.concat(layers)

    random, calls = np.random.default_rng(0), {}
    for workers in VECTORS:
        # A common part plus a part per worker, as in gradients: neither parallel nor orthogonal.
        vectors = random.standard_normal((workers, sum(SIZES))) + random.standard_normal(sum(SIZES))
        rows = Tensor(vectors.astype(np.float32))
        forms = {
            "by Gram": combination("adasum", SIZES, workers),
            "by a plain tree": Levels(),
        }
        for name, form in forms.items():
            calls[f"{workers} {name}"] = lambda form=form, rows=rows: form(rows).asnumpy()
    return interleaved_ms(calls, rounds, 5)


def on_ranks(rounds):
    """Run this program on ranks; return what their first ranks measured."""
    from labkit.data.prepare import prepare

    data, taken = Path(prepare("mnist")).resolve(), {}
    for ranks in RANKS:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out.json"
            words = ("--rounds", str(rounds), "--child", "rank_steps", str(data), str(out))
            program = Path(__file__).resolve()
            labkit.launch(program, *words, workers=ranks, timeout=TIMEOUT, cwd=folder)
            taken |= {f"{ranks} ranks, {n}": ms for n, ms in json.loads(out.read_text()).items()}
    return taken


def rank_steps(rounds, data, out):
    """Time both steps on this rank, on unseen batches of MNIST.

    On a memorised batch the workers' moves cancel as they never do in training.
    """
    labkit.start(device="CPU", seed=1, distribute=True)
    from mindspore import Tensor

    from labkit.data.mnist import load_arrays
    from labkit.ranks.cluster import gather, rank_and_size

    rank, _ = rank_and_size()
    images, labels = load_arrays(data, "train")
    rows = np.random.default_rng(rank).permutation(len(labels)).reshape(-1, 32)
    batches = [(Tensor(images[some]), Tensor(labels[some])) for some in rows]
    adasum, mean = labkit.AdasumStep(*fresh()), labkit.PlainStep(*fresh())

    def call_of(step):
        unseen = itertools.cycle(batches)
        return lambda: float(step(*next(unseen)).asnumpy())

    taken = interleaved_ms({"mean": call_of(mean), "Adasum": call_of(adasum)}, rounds, 20)
    adasum.end_epoch()  # it refuses ranks whose weights differ
    if rank == 0:
        Path(out).write_text(json.dumps(taken))
    gather([0.0])  # no process may end before all ranks are finished
    return {}


def compiling(rounds):
    """Return the milliseconds to build each step and make its first calls.

    ThorStep is called twice, since its second update is a different graph; so are SubspaceStep,
    which searches from the first update on, and AdasumStep, once for each of two workers.
    """
    labkit.start("CPU", seed=1)
    from mindspore import Tensor

    batch = [Tensor(part) for part in batch_of(32, 1, 32, 32)]
    builders = {
        "bare cell": (lambda: bare(*fresh()), 1),
        "plain": (lambda: labkit.PlainStep(*fresh()), 1),
        "accumulated": (lambda: labkit.AccumulatedStep(*fresh(), micro_steps=2), 1),
        "thor": (lambda: labkit.ThorStep(*fresh(), 1.0, frequency=10), 2),
        "adasum": (lambda: labkit.AdasumStep(*fresh(), workers=2), 2),
        "subspace": (lambda: subspace_step(1.0), 2),
    }
    # The order rotates from process to process: compiling takes longer the more a process has
    # compiled. The first one does not count: MindSpore loads for it what all need.
    taken, names, first = {}, [*builders], int(os.environ["PROCESS"]) % len(builders)
    for name in ("bare cell", *names[first:], *names[:first]):
        begin = time.perf_counter()
        build, calls = builders[name]
        step = build()
        for _ in range(calls):
            loss = step(*batch)
        loss.asnumpy()
        taken[name] = (time.perf_counter() - begin) * 1e3
    return {name: taken[name] for name in builders}


# name -> the children of one process's measurement, and the contestant to divide by
COMPARISONS = {
    "lenet": ([(plain_steps, "lenet"), (torch_step, "lenet")], "PyTorch"),
    "resnet": ([(plain_steps, "resnet"), (torch_step, "resnet")], "PyTorch"),
    "thor": ([(thor_steps,)], "Momentum"),
    "subspace": ([(subspace_steps,)], "plain"),
    "gram": ([(adasum_forms,)], "16 by Gram"),
    "ranks": ([(on_ranks,)], "2 ranks, mean"),
    "compiling": ([(compiling,)], "bare cell"),
}
# (name, contestant, the one to divide by, limit of the ratio)
TARGETS = (
    ("lenet", "accumulated, checked", "PyTorch", 1.2),
    ("lenet", "accumulated, checked", "accumulated", 1.03),
    ("lenet", "plain, checked", "PyTorch", 1.2),
    ("lenet", "plain, checked", "plain", 1.03),
    ("resnet", "plain, checked", "PyTorch", 1.1),
    ("resnet", "plain, checked", "plain", 1.03),
    ("thor", "frequency 10", "Momentum", 1.2),
    ("thor", "frequency 50", "Momentum", 1.06),
    ("subspace", "search", "plain", 1.4),
    *(("gram", f"{n} by Gram", f"{n} by a plain tree", 1 / 3) for n in VECTORS),
    *(("ranks", f"{n} ranks, Adasum", f"{n} ranks, mean", 1.05) for n in RANKS),
    ("compiling", "plain", "bare cell", 1.6),
    ("compiling", "accumulated", "bare cell", 2.1),
    ("compiling", "adasum", "bare cell", 4.6),
    ("compiling", "subspace", "bare cell", 5.3),
    ("compiling", "thor", "bare cell", 10.0),
)

if __name__ == "__main__":
    main()
