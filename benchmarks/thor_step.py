"""One training step of LeNet with THOR and with Momentum, side by side, refreshes included.

    python benchmarks/thor_step.py [--batch 128] [--processes 5] [--rounds 5]

All have the same network, batch, optimizer (momentum, for THOR too) and number of threads. Within a
process the contestants take turns of 50 steps: whole cycles of frequencies 10 and 50. Medians over
rounds, then over processes.
"""

import json

from _side_by_side import (
    Target,
    batch_of,
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

STEPS = 50
LIMITS = {10: 1.2, 50: 1.06}  # upper limits, in multiples of Momentum's step


def main():
    """Run the processes and print the table; as a child, measure and print JSON."""
    parser = step_parser(__doc__, batch=128, processes=5, rounds=5)
    parser.add_argument("--child", action="store_true")
    options = parser.parse_args()
    if options.child:
        print(json.dumps(steps_ms(options.batch, options.rounds)))
        return
    machine = look_at_machine()
    arguments = ("--batch", str(options.batch), "--rounds", str(options.rounds), "--child")
    runs = in_processes(options.processes, lambda: in_child(__file__, *arguments))
    ratios = medians([{name: ms / run["Momentum"] for name, ms in run.items()} for run in runs])
    taken = medians(runs)
    rows = [[name, taken[name], ratios[name]] for name in taken]
    print(f"LeNet, batch {options.batch}, mean of {STEPS} steps\n")
    print_table(["per step", "ms", "/ Momentum"], rows)
    results = {"batch": options.batch, "steps_ms": taken, "ratios": ratios, "runs": runs}
    names = {_name(frequency): most for frequency, most in LIMITS.items()}
    targets = [Target(f"{name}, over Momentum", ratios[name], most) for name, most in names.items()]
    write_results("thor_step", results | {"table": rows}, machine, targets)


def steps_ms(batch, rounds):
    """Return the milliseconds per step of each contestant in this process."""
    from labkit import start

    start()
    from mindspore import Tensor

    from labkit.algorithms.thor import ThorStep, TraceRule
    from labkit.steps.plain import PlainStep

    images, labels = (Tensor(part) for part in batch_of(batch, 1, 32, 32))
    steps = {"Momentum": PlainStep(*lenet())}
    for frequency in LIMITS:
        steps[_name(frequency)] = ThorStep(*lenet(), 0.3, frequency=frequency)
    rule = TraceRule(0.01, 0.001)
    steps["THOR, frequency 10, trace rule"] = ThorStep(*lenet(), 0.3, frequency=10, trace_rule=rule)
    upstream = {"frequency": 10, "formulas": "upstream_gpu"}
    steps["MindSpore's GPU formulas, frequency 10"] = ThorStep(*lenet(), 0.3, **upstream)
    steps["THOR, no refresh"] = ThorStep(*lenet(), 0.3, frequency=10**9)
    calls = {
        name: (lambda step=step: float(step(images, labels).asnumpy()))
        for name, step in steps.items()
    }
    return interleaved_ms(calls, rounds, STEPS)


def _name(frequency):
    return f"THOR, frequency {frequency}"


if __name__ == "__main__":
    main()
