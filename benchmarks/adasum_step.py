"""Cost of Adasum: its Gram form against the tree, and a step on real ranks against the mean.

    python benchmarks/adasum_step.py [--rounds 7] [--ranks 2 4] [--json FILE]

1. Combining N vectors of LeNet's size, layer by layer, in one process: ``by="gram"``;
   ``by="tree"``, which rescales every vector; and a plain tree with raw float32 scalar products in
   two forms: a compiled pair called N - 1 times, and one graph for all pairs of a level at once.
2. A training step of LeNet, batch 32 per rank, on real ranks of this machine: ``AdasumStep``
   against ``PlainStep``, which averages gradients by AllReduce, with the same optimizer. Each gets
   unseen batches of MNIST: on a memorised batch the workers' moves cancel as they never do in
   training. Also the combination alone: AllGather and Adasum against AllReduce of as many numbers.
3. Bytes that a rank sends and receives for an update if the collectives use rings.

The contestants take turns in one process, or in one process per rank; medians over rounds.
"""

import itertools
import json
import sys
import tempfile
from pathlib import Path

from _side_by_side import (
    Target,
    in_child,
    interleaved_ms,
    lenet,
    look_at_machine,
    print_table,
    write_results,
)

from labkit.base.arguments import Parser
from labkit.data.prepare import prepare

# Sizes of LeNet's parameters, in the step's order: conv1, conv2, dense weights and biases.
SIZES = (150, 2400, 48000, 120, 10080, 84, 840, 10)
WORKERS = (16, 32, 64)
TREE, MEAN = 1 / 3, 1.05  # upper limits of the ratios: Gram to tree, Adasum's step to the mean's
NOTES = 5  # numbers that are sent with a worker's vector
SECONDS = 300  # timeout of the ranks
STEPS = {"gram": 5, "rank": 20}
BATCH = 32
PAIRS = {"step": ("AdasumStep", "PlainStep"), "combination alone": ("Adasum", "AllReduce")}


def main():
    """Measure everything and print three tables; as a child, measure one part as JSON."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--json", type=Path, help="also write what was measured to this file")
    parser.add_argument("--child", choices=("gram", "rank"))
    parser.add_argument("--workers", type=int)
    parser.add_argument("--data", type=Path, help="folder of MNIST; the bundled files without it")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.child == "gram":
        print(json.dumps(combinations_ms(options.workers, options.rounds)))
        return
    if options.child == "rank":
        _leave(ranks_ms(options.rounds, options.data), options.out)
        return
    machine = look_at_machine()
    data = Path(options.data or prepare("mnist")).resolve()
    rounds = ("--rounds", str(options.rounds), "--child")
    measured = {"gram": {}, "ranks": {}}
    for workers in WORKERS:
        child = in_child(__file__, *rounds, "gram", "--workers", str(workers))
        measured["gram"][workers] = child
        print(f"{workers} workers done", file=sys.stderr)
    for ranks in options.ranks:
        measured["ranks"][ranks] = on_ranks(ranks, *rounds, "rank", "--data", data)
        print(f"{ranks} ranks done", file=sys.stderr)
    measured["bytes"] = {ranks: bytes_of(ranks) for ranks in sorted({*options.ranks, 16, 64})}
    show(measured)
    path = write_results("adasum_step", measured, machine, targets_of(measured))
    if options.json:
        options.json.write_text(path.read_text())


def on_ranks(ranks: int, *arguments: str) -> dict:
    """Run this program on ``ranks`` ranks and return rank 0's result."""
    from labkit import launch

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        program = Path(__file__).resolve()
        launch(program, *arguments, "--out", out, workers=ranks, timeout=SECONDS, cwd=folder)
        return json.loads(out.read_text())


def combinations_ms(workers, rounds):
    """Return each form's milliseconds and its relative difference from the float64 tree."""
    from labkit import start

    start(device="CPU")
    import numpy as np
    from mindspore import Tensor

    from labkit.algorithms.adasum import combination
    from labkit.reference import adasum_tree
    from labkit.steps.state import bounds

    random = np.random.default_rng(0)
    # A common part plus a part per worker, as in gradients: neither parallel nor orthogonal.
    rows = random.standard_normal((workers, sum(SIZES))) + random.standard_normal(sum(SIZES))
    rows = rows.astype(np.float32)
    forms = {
        "gram": combination("adasum", SIZES, workers),
        "tree": combination("adasum", SIZES, workers, by="tree"),
    } | _plain_trees(bounds(SIZES))
    # In the form they have in use: separate vectors for the pairs, one matrix for the others.
    inputs = {name: Tensor(rows) for name in forms}
    inputs["plain tree by pairs"] = [Tensor(row[None]) for row in rows]
    right = [adasum_tree(rows[:, start:end]) for start, end in bounds(SIZES)]
    measured = {"difference": {}}
    for name, form in forms.items():
        parts = np.split(form(inputs[name]).asnumpy().astype(np.float64), np.cumsum(SIZES)[:-1])
        measured["difference"][name] = max(
            float(np.linalg.norm(part - exact) / np.linalg.norm(exact))
            for part, exact in zip(parts, right, strict=True)
        )
    calls = {
        name: (lambda form=form, vectors=inputs[name]: form(vectors).asnumpy())
        for name, form in forms.items()
    }
    return measured | {"ms": interleaved_ms(calls, rounds, STEPS["gram"])}


def _plain_trees(bounds):
    """Return the plain formula, N a power of two: for N rows (1, D), and for (N, D) at once."""
    from mindspore import nn, ops

    class Pairs(nn.Cell):
        """Pairs a and b (P, D) -> (P, D)."""

        def __init__(self):
            super().__init__(auto_prefix=False)
            self.sum = ops.ReduceSum(keep_dims=True)

        def construct(self, a, b):
            layers = ()
            for start, end in bounds:
                layers += (self.pair(a[:, start:end], b[:, start:end]),)
            return ops.concat(layers, -1)

        def pair(self, a, b):
            product = self.sum(a * b, -1)
            of_a = 1 - product / (2 * self.sum(a * a, -1))
            of_b = 1 - product / (2 * self.sum(b * b, -1))
            return of_a * a + of_b * b

    class Levels(Pairs):
        def construct(self, rows):
            layers = ()
            for start, end in bounds:
                level = rows[:, start:end]
                while level.shape[0] > 1:
                    level = self.pair(level[0::2], level[1::2])
                layers += (ops.reshape(level, (-1,)),)
            return ops.concat(layers)

    pairs = Pairs()

    def by_pairs(vectors):
        while len(vectors) > 1:
            vectors = [pairs(a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
        return vectors[0].reshape(-1)

    return {"plain tree by pairs": by_pairs, "plain tree by levels": Levels()}


def ranks_ms(rounds, data):
    """Return the milliseconds of steps and combinations on this rank, all ranks in lockstep."""
    from labkit import start

    start(device="CPU", seed=1, distribute=True)
    import numpy as np
    from mindspore import Tensor

    from labkit.algorithms.adasum import AdasumStep
    from labkit.data.mnist import load_arrays
    from labkit.ranks.cluster import rank_and_size
    from labkit.steps.plain import PlainStep

    rank, ranks = rank_and_size()
    random = np.random.default_rng(rank)
    images, labels = load_arrays(data, "train")
    rows = random.permutation(len(labels))[: len(labels) // BATCH * BATCH].reshape(-1, BATCH)
    batches = [(Tensor(images[some]), Tensor(labels[some])) for some in rows]

    def fresh(make):
        step = make(*lenet())
        unseen = itertools.cycle(batches)
        return step, lambda: float(step(*next(unseen)).asnumpy())

    step, adasum = fresh(AdasumStep)
    sizes = step.update.sizes
    if sizes != SIZES or step.total_workers != ranks:
        raise ValueError(f"LeNet has parameters of {sizes}, {step.team.text()}; see SIZES")
    calls = {"AdasumStep": adasum, "PlainStep": fresh(PlainStep)[1]}
    calls |= _combinations(step.team, Tensor(random.standard_normal((1, sum(SIZES)), np.float32)))
    measured = {"ms": interleaved_ms(calls, rounds, STEPS["rank"])}
    step.check_replicas()
    return measured | {"bytes_received": step.team.bytes_received(sum(SIZES) + NOTES)}


def _combinations(team, row):
    """Return name -> function: Adasum and the mean of every rank's row (1, D)."""
    from mindspore import nn, ops

    from labkit.algorithms.adasum import combination

    class Gathered(nn.Cell):
        def __init__(self):
            super().__init__(auto_prefix=False)
            self.team, self.combination = team, combination("adasum", SIZES, team.total)

        def construct(self, row):
            return self.combination(self.team(row))

    class Reduced(nn.Cell):
        def __init__(self):
            super().__init__(auto_prefix=False)
            self.all_reduce, self.count = ops.AllReduce(), team.total

        def construct(self, row):
            return self.all_reduce(row) / self.count

    cells = {"Adasum": Gathered(), "AllReduce": Reduced()}
    return {name: (lambda cell=cell: cell(row).asnumpy()) for name, cell in cells.items()}


def _leave(measured, out):
    """Write rank 0's measurements; no process may end before all ranks are finished."""
    from labkit.ranks.cluster import gather, rank_and_size

    if rank_and_size()[0] == 0:
        out.write_text(json.dumps(measured))
    gather([0.0])


def bytes_of(ranks: int) -> dict[str, float]:
    """Return the bytes that a rank sends for an update; in a ring it receives as many.

    AllReduce of D float32 numbers on R ranks is a ReduceScatter and an AllGather, each of
    (R - 1) / R of them; Adasum gathers the whole vectors of the R - 1 other ranks.
    """
    numbers = sum(SIZES)
    return {
        "mean or sum": 2 * (ranks - 1) / ranks * 4 * numbers,
        "Adasum": (ranks - 1) * 4 * (numbers + NOTES),
    }


def show(measured: dict) -> None:
    """Print the three tables."""
    print("Vectors of LeNet's size to one, one process, ms\n")
    rows = []
    for workers, child in measured["gram"].items():
        ms = child["ms"]
        for name in [name for name in ms if name != "gram"]:
            rows.append([f"{workers}, {name}", ms[name], ms["gram"], ms["gram"] / ms[name]])
    print_table(["workers", "ms", "by Gram", "ratio"], rows)
    far = max(max(child["difference"].values()) for child in measured["gram"].values())
    print(f"\nlargest relative difference of a layer from the float64 tree: {far:.1e}")
    print("\nReal ranks, LeNet, batch 32 a rank, ms\n")
    rows = []
    for ranks, child in measured["ranks"].items():
        for what, (ours, mean) in PAIRS.items():
            taken = child["ms"][ours], child["ms"][mean]
            rows.append([f"{ranks}, {what}", *taken, taken[0] / taken[1]])
    print_table(["ranks", "Adasum", "mean", "ratio"], rows)
    print("\nBytes that a rank sends for an update, and receives, in rings\n")
    rows = [
        [str(ranks), *(f"{value / 1e6:.2f} MB" for value in each.values()),
         each["Adasum"] / each["mean or sum"]]
        for ranks, each in measured["bytes"].items()
    ]  # fmt: skip
    print_table(["ranks", "mean or sum", "Adasum", "ratio"], rows)


def targets_of(measured: dict) -> list[Target]:
    """Return targets: Gram's time over the fastest tree's, a step's on ranks over the mean's."""
    targets = []
    for workers, child in measured["gram"].items():
        ms = dict(child["ms"])
        gram = ms.pop("gram")
        what = f"Adasum of {workers} workers by Gram matrices over the fastest tree"
        targets.append(Target(what, gram / min(ms.values()), TREE))
    for ranks, child in measured["ranks"].items():
        ours, mean = (child["ms"][name] for name in PAIRS["step"])
        targets.append(Target(f"Adasum over AllReduce-mean, {ranks} ranks", ours / mean, MEAN))
    return targets


if __name__ == "__main__":
    main()
