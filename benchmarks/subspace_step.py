"""Cost of a search in the subspace: a step of ``SubspaceStep`` against ``PlainStep``.

    python benchmarks/subspace_step.py [--rounds 5] [--batch 250] [--components 32] [--processes 5]

Both use LeNet, the same batch and SGD, and take turns in one process; medians over rounds and
processes. The basis is random with orthonormal rows; its values do not affect the cost. The batch
is the same at every call, and before each round the search is restarted, so that the first trial is
accepted; the program warns if it is not. Each compiled graph of an update is also timed by itself;
their sum is the time of an update except for what happens between them.
"""

import json
from pathlib import Path

from _side_by_side import (
    Target,
    in_child,
    in_processes,
    interleaved_ms,
    lenet,
    look_at_machine,
    medians,
    print_table,
    step_parser,
    write_results,
)

MOST = 1.4  # limit in multiples of a plain step if the first trial is accepted
STEPS = 5  # calls of each contestant in a round


def main():
    """Measure in separate processes and print the table; as a child, measure and print JSON."""
    parser = step_parser(__doc__, batch=250, processes=5, rounds=5)
    parser.add_argument("--components", type=int, default=32)
    parser.add_argument("--json", type=Path, help="also write what was measured to this file")
    parser.add_argument("--child", action="store_true")
    options = parser.parse_args()
    if options.child:
        print(json.dumps(step_ms(options.batch, options.components, options.rounds)))
        return
    machine = look_at_machine()
    arguments = [f"--{n}={getattr(options, n)}" for n in ("rounds", "batch", "components")]
    runs = in_processes(options.processes, lambda: in_child(__file__, *arguments, "--child"))
    measured = {
        "batch": options.batch,
        "components": options.components,
        "ms": medians([run["ms"] for run in runs]),
        "graphs_ms": medians([run["graphs_ms"] for run in runs]),
        "ratio": medians([{"ratio": run["ms"]["bfgs"] / run["ms"]["plain"]} for run in runs]),
        "trials": [run["trials"] for run in runs],
    }
    show(measured)
    ratio = Target("a subspace search over a plain step", measured["ratio"]["ratio"], MOST)
    path = write_results("subspace_step", measured, machine, [ratio])
    if options.json:
        options.json.write_text(path.read_text())


def step_ms(batch, components, rounds):
    """Return the milliseconds of each step and graph, and the mean number of trials of a search."""
    from labkit import start

    start(device="CPU", seed=1)
    import numpy as np
    from mindspore import Tensor, nn

    from labkit.algorithms.subspace import SubspaceStep
    from labkit.steps.plain import PlainStep

    random = np.random.default_rng(0)
    images = Tensor(random.standard_normal((batch, 1, 32, 32), dtype=np.float32))
    labels = Tensor(random.integers(0, 10, batch).astype(np.int32))

    def fresh(make, rate, **options):
        loss_net, _ = lenet()
        optimizer = nn.SGD(loss_net.trainable_params(), rate)
        if make is not PlainStep:
            options["basis"] = random_basis(optimizer.parameters, components)
        step = make(loss_net, optimizer, **options)
        return step, lambda: float(step(images, labels).asnumpy())

    step, bfgs = fresh(SubspaceStep, 1.0, alpha=1e-5, sigma=1e-3)
    trials, fresh_values = [], [parameter.asnumpy().copy() for parameter in step.get_parameters()]

    def counted():
        bfgs()
        trials.append(step.last_search.trials)

    calls = {
        "plain": fresh(PlainStep, 1e-4)[1],
        # Back to the start: near the optimum the first trial would fail. It is timed separately.
        "restore": lambda: restore(step, fresh_values),
        "bfgs": counted,
        "projected sgd": fresh(SubspaceStep, 1e-4, method="sgd")[1],
    }
    measured = {"ms": interleaved_ms(calls, rounds, STEPS), "trials": float(np.mean(trials))}
    del measured["ms"]["restore"]
    return measured | {"graphs_ms": interleaved_ms(graphs(step, images, labels), rounds, STEPS)}


def restore(step, values):
    """Set all Parameters of a step to earlier values."""
    from labkit.steps.gradients import set_state

    for parameter, value in zip(step.get_parameters(), values, strict=True):
        set_state(parameter, value)


def random_basis(parameters, components):
    """Return a random basis with the attributes that a step reads."""
    from types import SimpleNamespace

    import numpy as np

    numbers = sum(parameter.size for parameter in parameters)
    columns = np.random.default_rng(0).standard_normal((numbers, components))
    return SimpleNamespace(
        matrix=np.ascontiguousarray(np.linalg.qr(columns)[0].T, np.float32),
        names=[parameter.name for parameter in parameters],
        shapes=[parameter.shape for parameter in parameters],
        checksum="random",
    )


def graphs(step, images, labels):
    """Return name -> function that calls one compiled graph of an update by itself."""
    import mindspore as ms
    import numpy as np
    from mindspore import Tensor

    update = step.update
    shard, rate = update.basis_shard, Tensor(0.0, ms.float32)
    half = Tensor(0.5, ms.float32)  # the move is 0, and a trial restores the weights
    flat = update.project(shard.tensor)[1]
    rows = np.zeros((2, shard.components), np.float32)
    (move, inside), start = update.prepare(shard.tensor, shard.of(rows))
    notes = [Tensor(parameter.asnumpy()) for parameter in update.remembered]

    def finished():
        update.finish(rate, move, inside, start, flat, *notes)
        return step.updates.asnumpy()

    return {
        "project": lambda: update.project(shard.tensor)[0].asnumpy(),
        "prepare": lambda: update.prepare(shard.tensor, shard.of(rows))[1].asnumpy(),
        "trial": lambda: update.trial(half, move, start, images, labels)[0].asnumpy(),
        "finish": lambda: int(finished()),
    }


def show(measured: dict) -> None:
    """Print the table."""
    plain = measured["ms"]["plain"]
    rows = [[name, ms, ms / plain] for name, ms in measured["ms"].items()]
    rows += [[f"  {name}", ms, ms / plain] for name, ms in measured["graphs_ms"].items()]
    print(f"LeNet, batch {measured['batch']}, {measured['components']} components, ms\n")
    print_table(["step", "ms", "of plain"], rows)
    if any(trials > 1 for trials in measured["trials"]):
        print(f"warning: trials a search, on average by process: {measured['trials']}; expected 1")


if __name__ == "__main__":
    main()
