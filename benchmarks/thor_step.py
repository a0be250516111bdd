"""One THOR step of LeNet against one of Momentum, side by side, refreshes included.

    python benchmarks/thor_step.py [--batch 128] [--processes 3] [--rounds 7]
                                   [--kfac-jax PYTHON]

Same network, batch, optimizer behind THOR (momentum) and number of threads. Within a process the
contestants take turns, 50 steps each: whole cycles of frequency 10 and 50. Medians over rounds,
then over processes. --kfac-jax adds rows for kfac-jax and for the momentum that it is held against,
measured by an interpreter that has the package kfac-jax 0.0.8 installed.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from _side_by_side import (
    in_child,
    interleaved_ms,
    look_at_machine,
    medians,
    print_table,
    write_json,
)

STEPS = 50
FREQUENCIES = (10, 50)
LIMITS = {10: 1.3, 50: 1.1}


def main():
    """Run the processes and print the table; or, as a child, measure and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--kfac-jax", metavar="PYTHON")
    parser.add_argument("--child", action="store_true")
    given = parser.parse_args()
    if given.child:
        print(json.dumps(steps_ms(given.batch, given.rounds)))
        return
    machine = look_at_machine()
    arguments = ("--batch", str(given.batch), "--rounds", str(given.rounds), "--child")
    runs = []
    for number in range(given.processes):
        runs.append(in_child(__file__, *arguments))
        print(f"process {number + 1} of {given.processes} done", file=sys.stderr)
    ratios = medians([{name: ms / run["Momentum"] for name, ms in run.items()} for run in runs])
    taken = medians(runs)
    rows = [[name, taken[name], ratios[name], _limit(name, ratios[name])] for name in taken]
    if given.kfac_jax:
        rows += _kfac_rows(given.kfac_jax, given.batch, given.rounds)
    print(f"LeNet, batch {given.batch}, mean of {STEPS} steps\n")
    print_table(["per step", "ms", "/ Momentum", "at most"], rows)
    results = {"batch": given.batch, "steps_ms": taken, "ratios": ratios, "runs": runs}
    write_json("thor_step", results | {"table": rows}, machine)


def steps_ms(batch, rounds):
    """Return the milliseconds of a step of each contestant in this process."""
    from labkit import start

    start()
    import numpy as np
    from mindspore import Tensor, nn

    from labkit.algorithms.thor import ThorStep, TraceRule
    from labkit.nets.lenet import LeNet5
    from labkit.steps.losses import LossNet
    from labkit.steps.plain import PlainStep

    images = np.random.default_rng(0).standard_normal((batch, 1, 32, 32), dtype=np.float32)
    images, labels = Tensor(images), Tensor((np.arange(batch) % 10).astype(np.int32))

    def fresh():
        network = LeNet5()
        loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        optimizer = nn.Momentum(network.trainable_params(), 0.01, 0.9)
        return LossNet(network, loss_fn), optimizer

    steps = {"Momentum": PlainStep(*fresh())}
    for frequency in FREQUENCIES:
        steps[_name(frequency)] = ThorStep(*fresh(), 0.3, frequency=frequency)
    rule = TraceRule(0.01, 0.001)
    steps["THOR, frequency 10, trace rule"] = ThorStep(*fresh(), 0.3, frequency=10, trace_rule=rule)
    upstream = {"frequency": 10, "formulas": "upstream_gpu"}
    steps["MindSpore's GPU formulas, frequency 10"] = ThorStep(*fresh(), 0.3, **upstream)
    steps["THOR, no refresh"] = ThorStep(*fresh(), 0.3, frequency=10**9)
    calls = {
        name: (lambda step=step: float(step(images, labels).asnumpy()))
        for name, step in steps.items()
    }
    return interleaved_ms(calls, rounds, STEPS)


def _name(frequency):
    return f"THOR, frequency {frequency}"


def _limit(name, ratio):
    for frequency, limit in LIMITS.items():
        if name == _name(frequency):
            return f"{limit} {'met' if ratio <= limit else 'MISSED'}"
    return ""


def _kfac_rows(python, batch, rounds):
    program = Path(__file__).with_name("_kfac_jax.py")
    command = [python, str(program), str(batch), str(rounds), *map(str, FREQUENCIES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    taken = json.loads(done.stdout.splitlines()[-1])
    momentum = taken["kfac-jax, momentum"]
    return [[name, ms, ms / momentum, ""] for name, ms in taken.items()]


if __name__ == "__main__":
    main()
