"""Single training steps, side by side in one run: labkit, a bare cell, MindSpore's own, PyTorch.

    python benchmarks/step_times.py [NAME ...] [--processes 5] [--rounds 7]

"checked" means with the finite check.

    lenet     AccumulatedStep and PlainStep, batch 32, over PyTorch's eager step
    resnet    the same of ResNet-50 at 64 x 64
    thor      THOR's mean step, refreshes included, over Momentum's, batch 128
    subspace  a search in the subspace, the first trial accepted, over a plain step, batch 250
    gram      Adasum of 16, 32 and 64 vectors of LeNet's size: by Gram matrix, and by the tree
    ranks     a LeNet step of Adasum over that of AllReduce's mean, on 2 and 4 ranks

All have the same network, batch, optimizer and number of threads. Within a process the contestants
take turns; medians over rounds, then over processes.
"""

import functools
import itertools
import json
import sys
import tempfile
from pathlib import Path

from side_by_side import (
    Target,
    batch_of,
    in_child,
    in_processes,
    interleaved_ms,
    lenet,
    look_at_machine,
    medians,
    print_table,
    write_results,
)

from labkit.base.arguments import Parser

UNCHECKED = {"nonfinite": "propagate"}
FREQUENCIES = {10: 1.2, 50: 1.06}  # of THOR's refreshes -> limit, in multiples of Momentum's step
COMPONENTS = 32
# Sizes of LeNet's parameters: what a worker's vector in Adasum consists of.
SIZES = (150, 2400, 48000, 120, 10080, 84, 840, 10)
FORMS = (16, 32, 64)  # numbers of vectors that Adasum combines
RANKS, TIMEOUT = (2, 4), 300  # numbers of ranks; seconds that they may take


def main():
    """Run each comparison in child processes and print its table; as a child, print JSON."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--child", nargs="+")
    options = parser.parse_args()
    if options.child:
        name, *more = options.child
        CHILDREN[name](options.rounds, *more)
        return
    machine, measured, targets = look_at_machine(), {}, []
    for name in options.names or COMPARISONS:
        if name not in COMPARISONS:
            parser.error(f"NAME: expected one of {', '.join(COMPARISONS)}, got {name!r}")
        children, first, limits = COMPARISONS[name]
        measure = functools.partial(measured_by, children, options.rounds)
        runs = in_processes(1 if name == "ranks" else options.processes, measure)
        taken = medians(runs)
        print(f"\n{name}\n")
        rows = [[contestant, ms, ms / taken[first]] for contestant, ms in taken.items()]
        print_table(["", "ms", f"/ {first}"], rows)
        measured[name] = {"ms": taken, "runs": runs}
        targets += [Target(what, taken[a] / taken[b], most) for what, a, b, most in limits]
    write_results("step_times", measured, machine, targets)


def measured_by(children, rounds):
    """Run children one after the other; return what they print, joined."""
    taken = {}
    for words in children:
        taken |= in_child(__file__, "--rounds", str(rounds), "--child", *words)
    return taken


def timed(rounds, steps, batch, calls):
    """Print the milliseconds of a call of each step on one batch of NumPy arrays."""
    from mindspore import Tensor

    tensors = [Tensor(part) for part in batch]
    waiting = {
        name: lambda step=step: float(step(*tensors).asnumpy()) for name, step in steps.items()
    }
    print(json.dumps(interleaved_ms(waiting, rounds, calls)))


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


def lenet_steps(rounds):
    """Time labkit's steps of LeNet, a bare cell and MindSpore's own step."""
    from labkit import AccumulatedStep, PlainStep, start

    start()
    steps = {
        "accumulated": AccumulatedStep(*lenet(), 4, **UNCHECKED),
        "accumulated, checked": AccumulatedStep(*lenet(), 4),
        "plain": PlainStep(*lenet(), **UNCHECKED),
        "plain, checked": PlainStep(*lenet()),
        "bare cell": bare(*lenet()),
        "TrainOneStepCell": of_mindspore(*lenet()),
    }
    timed(rounds, steps, batch_of(32, 1, 32, 32), 40)


def resnet_steps(rounds):
    """Time labkit's step of ResNet-50 and MindSpore's own."""
    from labkit import PlainStep, start

    start()
    from mindspore import nn

    from labkit import LossNet, resnet50

    def fresh():
        network = resnet50(1000)
        loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        return LossNet(network, loss_fn), nn.Momentum(network.trainable_params(), 0.01, 0.9)

    steps = {
        "plain": PlainStep(*fresh(), **UNCHECKED),
        "plain, checked": PlainStep(*fresh()),
        "TrainOneStepCell": of_mindspore(*fresh()),
    }
    timed(rounds, steps, batch_of(32, 3, 64, 64), 1)


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

    print(json.dumps(interleaved_ms({"PyTorch": step}, rounds, 40 if network == "lenet" else 1)))


def thor_steps(rounds):
    """Time THOR's steps of LeNet; a turn of 50 is a whole number of cycles of refreshes."""
    from labkit import PlainStep, ThorStep, TraceRule, start

    start()
    steps = {"Momentum": PlainStep(*lenet())}
    for frequency in FREQUENCIES:
        steps[f"frequency {frequency}"] = ThorStep(*lenet(), 0.3, frequency=frequency)
    steps["frequency 10, trace rule"] = ThorStep(
        *lenet(), 0.3, frequency=10, trace_rule=TraceRule(0.01, 0.001)
    )
    upstream = {"frequency": 10, "formulas": "upstream_gpu"}
    steps["frequency 10, MindSpore's formulas on GPU"] = ThorStep(*lenet(), 0.3, **upstream)
    steps["no refresh"] = ThorStep(*lenet(), 0.3, frequency=10**9)
    timed(rounds, steps, batch_of(128, 1, 32, 32), 50)


def random_basis(parameters):
    """Return a basis of random orthonormal rows; its numbers do not affect the cost."""
    import numpy as np

    from labkit.algorithms.subspace import Basis

    numbers = sum(parameter.size for parameter in parameters)
    columns = np.random.default_rng(0).standard_normal((numbers, COMPONENTS))
    matrix = np.ascontiguousarray(np.linalg.qr(columns)[0].T, np.float32)
    return Basis(matrix, parameters, np.ones(COMPONENTS), float(COMPONENTS))


def subspace_steps(rounds):
    """Time a search whose first trial is accepted: it is restarted before each turn."""
    from labkit import PlainStep, SubspaceStep, start

    start()
    import numpy as np
    from mindspore import Tensor, nn

    from labkit.steps.gradients import set_state

    def fresh(make, rate, **options):
        loss_net, _ = lenet()
        optimizer = nn.SGD(loss_net.trainable_params(), rate)
        if make is SubspaceStep:
            options["basis"] = random_basis(optimizer.parameters)
        return make(loss_net, optimizer, **options)

    batch = [Tensor(part) for part in batch_of(250, 1, 32, 32)]
    search = fresh(SubspaceStep, 1.0, alpha=1e-5, sigma=1e-3)
    plain, sgd = fresh(PlainStep, 1e-4), fresh(SubspaceStep, 1e-4, method="sgd")
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
    print(json.dumps(taken))


def adasum_forms(rounds):
    """Time Adasum of vectors by Gram matrix, by labkit's tree and by the plain formula."""
    from labkit import start

    start()
    import numpy as np
    from mindspore import Tensor, nn, ops

    from labkit.algorithms.adasum import combination
    from labkit.steps.state import bounds

    places = bounds(SIZES)

    class Levels(nn.Cell):
        """Rows (N, D), N a power of two -> (D,), all pairs of a level at once."""

        def __init__(self):
            super().__init__(auto_prefix=False)
            self.sum = ops.ReduceSum(keep_dims=True)

        def construct(self, rows):
            layers = ()
            for first, end in places:
                level = rows[:, first:end]
                while level.shape[0] > 1:
                    a, b = level[0::2], level[1::2]
                    product = self.sum(a * b, -1)
                    level = (1 - product / (2 * self.sum(a * a, -1))) * a
                    level += (1 - product / (2 * self.sum(b * b, -1))) * b
                layers += (ops.reshape(level, (-1,)),)
            return ops.concat(layers)

    random, calls = np.random.default_rng(0), {}
    for workers in FORMS:
        # A common part plus a part per worker, as in gradients: neither parallel nor orthogonal.
        vectors = random.standard_normal((workers, sum(SIZES))) + random.standard_normal(sum(SIZES))
        rows = Tensor(vectors.astype(np.float32))
        forms = {
            "by Gram": combination("adasum", SIZES, workers),
            "by the tree": combination("adasum", SIZES, workers, by="tree"),
            "by a plain tree": Levels(),
        }
        for name, form in forms.items():
            calls[f"{workers} {name}"] = lambda form=form, rows=rows: form(rows).asnumpy()
    print(json.dumps(interleaved_ms(calls, rounds, 5)))


def on_ranks(rounds):
    """Run this program on ranks; print what their first ranks measured."""
    from labkit import launch
    from labkit.data.prepare import prepare

    data, taken = Path(prepare("mnist")).resolve(), {}
    for ranks in RANKS:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out.json"
            words = ("--rounds", str(rounds), "--child", "rank", str(data), str(out))
            program = Path(__file__).resolve()
            launch(program, *words, workers=ranks, timeout=TIMEOUT, cwd=folder)
            taken |= {f"{ranks} ranks, {n}": ms for n, ms in json.loads(out.read_text()).items()}
    print(json.dumps(taken))


def rank_steps(rounds, data, out):
    """Time both steps on this rank, on unseen batches of MNIST.

    On a memorised batch the workers' moves cancel as they never do in training.
    """
    from labkit import AdasumStep, PlainStep, start

    start(device="CPU", seed=1, distribute=True)
    import numpy as np
    from mindspore import Tensor

    from labkit.data.mnist import load_arrays
    from labkit.ranks.cluster import gather, rank_and_size

    rank, _ = rank_and_size()
    images, labels = load_arrays(data, "train")
    rows = np.random.default_rng(rank).permutation(len(labels)).reshape(-1, 32)
    batches = [(Tensor(images[some]), Tensor(labels[some])) for some in rows]
    adasum, mean = AdasumStep(*lenet()), PlainStep(*lenet())

    def call_of(step):
        unseen = itertools.cycle(batches)
        return lambda: float(step(*next(unseen)).asnumpy())

    taken = interleaved_ms({"mean": call_of(mean), "Adasum": call_of(adasum)}, rounds, 20)
    adasum.check_replicas()
    if rank == 0:
        Path(out).write_text(json.dumps(taken))
    gather([0.0])  # no process may end before all ranks are finished


# name -> the children of one process's measurement, the contestant to divide by, and targets:
# (what, contestant, the one to divide by, limit of the ratio)
COMPARISONS = {
    "lenet": (
        [["lenet"], ["torch", "lenet"]],
        "PyTorch",
        [
            (
                "a LeNet micro-batch, checked, over PyTorch's",
                "accumulated, checked",
                "PyTorch",
                1.2,
            ),
            ("the same over one not checked", "accumulated, checked", "accumulated", 1.03),
            ("a LeNet step, checked, over PyTorch's", "plain, checked", "PyTorch", 1.2),
            ("a LeNet step, checked, over one not checked", "plain, checked", "plain", 1.03),
        ],
    ),
    "resnet": (
        [["resnet"], ["torch", "resnet"]],
        "PyTorch",
        [
            ("a ResNet-50 step, checked, over PyTorch's", "plain, checked", "PyTorch", 1.1),
            ("a ResNet-50 step, checked, over one not checked", "plain, checked", "plain", 1.03),
        ],
    ),
    "thor": (
        [["thor"]],
        "Momentum",
        [
            (f"THOR, frequency {n}, over Momentum", f"frequency {n}", "Momentum", most)
            for n, most in FREQUENCIES.items()
        ],
    ),
    "subspace": (
        [["subspace"]],
        "plain",
        [("a subspace search over a plain step", "search", "plain", 1.4)],
    ),
    "gram": (
        [["gram"]],
        "16 by Gram",
        [
            (f"Adasum of {n} by Gram over a tree", f"{n} by Gram", f"{n} by a plain tree", 1 / 3)
            for n in FORMS
        ],
    ),
    "ranks": (
        [["ranks"]],
        "2 ranks, mean",
        [
            (f"Adasum over AllReduce, {n} ranks", f"{n} ranks, Adasum", f"{n} ranks, mean", 1.05)
            for n in RANKS
        ],
    ),
}
CHILDREN = {
    "lenet": lenet_steps,
    "resnet": resnet_steps,
    "torch": torch_step,
    "thor": thor_steps,
    "subspace": subspace_steps,
    "gram": adasum_forms,
    "ranks": on_ranks,
    "rank": rank_steps,
}

if __name__ == "__main__":
    main()
