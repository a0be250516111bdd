"""Compilation time of each step, from its first call, relative to a bare cell.

    python benchmarks/compiling.py [--processes 5]

LeNet and Momentum. The bare cell computes a gradient and calls the optimizer, nothing else. In
every process each step is built and called once, in an order that rotates from process to process
(compiling takes longer the more a process has already compiled); medians over processes. ThorStep
is called twice, since its second update is a different graph; so are SubspaceStep, which searches
from the first update on, and AdasumStep, once for each of two workers.
"""

import itertools
import json
import time

from side_by_side import (
    Target,
    batch_of,
    in_child,
    in_processes,
    lenet,
    look_at_machine,
    medians,
    print_table,
    write_results,
)
from step_times import bare, random_basis

from labkit.base.arguments import Parser

# Upper limits, in multiples of a bare cell's compilation time.
LIMITS = {
    "plain": 1.6,
    "accumulated": 2.1,
    "adasum": 4.6,
    "subspace": 5.3,
    "thor": 10.0,
}


def main():
    """Measure in children and print the table; as a child, measure and print JSON."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--child", type=int, help="number of the process: where its order begins")
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(measure(options.child)))
        return
    machine = look_at_machine()
    numbers = itertools.count()
    runs = in_processes(
        options.processes, lambda: in_child(__file__, "--child", str(next(numbers)))
    )
    seconds = medians(runs)
    ratios = {name: taken / seconds["bare"] for name, taken in seconds.items()}
    rows = [[name, taken, ratios[name]] for name, taken in seconds.items()]
    print_table(["first calls of a step", "seconds", "/ bare"], rows)
    targets = [
        Target(f"compiling, {name}, over a bare cell", ratios[name], most)
        for name, most in LIMITS.items()
    ]
    write_results("compiling", {"seconds": seconds, "runs": runs}, machine, targets)


def measure(first: int) -> dict[str, float]:
    """Return name -> seconds to build a step and make its first calls, in this process."""
    from mindspore import Tensor

    from labkit import start

    start("CPU", seed=1)
    images, labels = (Tensor(part) for part in batch_of(32, 1, 32, 32))
    contestants = list(builders().items())
    first %= len(contestants)
    turned = contestants[first:] + contestants[:first]
    seconds = {}
    # The first one does not count: it includes what MindSpore loads for its first compilation.
    for name, (build, calls) in [contestants[0], *turned]:
        begin = time.perf_counter()
        step = build()
        for _ in range(calls):
            loss = step(images, labels)
        loss.asnumpy()
        seconds[name] = time.perf_counter() - begin
    return {name: seconds[name] for name in ("bare", *LIMITS)}


def builders() -> dict:
    """Return name -> (function that builds a step, calls until all its graphs are compiled)."""
    from mindspore import nn

    from labkit import AccumulatedStep, AdasumStep, PlainStep, SubspaceStep, ThorStep

    def subspace():
        loss_net, _ = lenet()
        weights = loss_net.trainable_params()
        return SubspaceStep(loss_net, nn.SGD(weights, 1.0), random_basis(weights))

    return {
        "bare": (lambda: bare(*lenet()), 1),
        "plain": (lambda: PlainStep(*lenet()), 1),
        "accumulated": (lambda: AccumulatedStep(*lenet(), micro_steps=2), 1),
        "thor": (lambda: ThorStep(*lenet(), 1.0, frequency=10), 2),
        "adasum": (lambda: AdasumStep(*lenet(), workers=2), 2),
        "subspace": (subspace, 2),
    }


if __name__ == "__main__":
    main()
