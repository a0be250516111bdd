"""One training step of LeNet, side by side: labkit, MindSpore as installed, PyTorch eager.

    python benchmarks/lenet_step.py [--batch 32] [--processes 5] [--rounds 10]

All have the same network (no bias in the convolutions), batch, optimizer (momentum) and number of
threads. Within a process the contestants take turns; medians over rounds, then over processes.
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
    share_of_check,
    step_parser,
    write_results,
)

STEPS = 40
AS_INSTALLED = {"ONEDNN_MAX_CPU_ISA": None}
NAMES = {
    "accumulated": "AccumulatedStep(4), no finite check",
    "accumulated, checked": "AccumulatedStep(4), finite check",
    "plain": "PlainStep, no finite check",
    "plain, checked": "PlainStep, finite check",
    "bare, if": "bare cell with a data-dependent if",
    "bare": "bare cell",
    "TrainOneStepCell": "nn.TrainOneStepCell, oneDNN repaired",
    "TrainOneStepCell as installed": "nn.TrainOneStepCell, as installed",
    "ms.jit as installed": "ms.jit function, as installed",
    "torch": "PyTorch eager",
}
PLAIN = ("plain", "bare, if", "bare", "TrainOneStepCell")


def main():
    """Run all children and print both tables; as a child, measure and print JSON."""
    parser = step_parser(__doc__, batch=32, processes=5, rounds=10)
    parser.add_argument("--child", choices=CHILDREN)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(CHILDREN[options.child](options.batch, options.rounds)))
        return
    machine = look_at_machine()
    arguments = ("--batch", str(options.batch), "--rounds", str(options.rounds), "--child")
    # 20 to 40 times slower: measured only once.
    slow = in_child(__file__, *arguments, "installed", environment=AS_INSTALLED)
    runs = in_processes(
        options.processes,
        lambda: (
            in_child(__file__, *arguments, "labkit")
            | in_child(__file__, *arguments, "torch")
            | slow
        ),
    )
    steps = medians(runs)
    fastest = min(PLAIN, key=steps.get)
    header = ["per micro-batch", "ms", "/ fastest plain", "/ PyTorch"]
    rows = [[NAMES[n], ms, ms / steps[fastest], ms / steps["torch"]] for n, ms in steps.items()]
    print(f"LeNet, batch {options.batch}; the fastest plain step is: {NAMES[fastest]}\n")
    print_table(header, rows)
    parts = {name: in_child(__file__, *arguments, name) for name in ("parts", "torch-parts")}
    print("\nforward and backward of one part alone, ms (calls included)\n")
    mine, theirs = parts["parts"], parts["torch-parts"]
    part_rows = [[name, mine[name], theirs[name], mine[name] - theirs[name]] for name in mine]
    print_table(["part", "MindSpore", "PyTorch", "difference"], part_rows)
    results = {"batch": options.batch, "steps_ms": steps, "runs": runs, **parts}
    targets = []
    for name, step in (("accumulated", "a LeNet micro-batch"), ("plain", "a LeNet step")):
        checked = steps[f"{name}, checked"]
        over = f"{step} of {options.batch} images, with finite check, over PyTorch's"
        targets += [
            Target(over, checked / steps["torch"], 1.2),
            share_of_check(step, steps[name], checked),
        ]
    write_results("lenet_step", results, machine, targets)


def _calls(steps, batch):
    """Return name -> function that calls a step and waits for its loss."""
    from mindspore import Tensor

    images, labels = (Tensor(part) for part in batch_of(batch, 1, 32, 32))
    return {
        name: lambda step=step: float(step(images, labels).asnumpy())
        for name, step in steps.items()
    }


def labkit_steps(batch, rounds):
    """Time labkit's steps, and every plain step that could be faster."""
    from labkit import AccumulatedStep, PlainStep, start

    start()
    from mindspore import Parameter, Tensor, nn, ops

    class Bare(nn.Cell):
        def __init__(self, loss_net, optimizer, branch):
            super().__init__(auto_prefix=False)
            self.optimizer, self.branch = optimizer, branch
            self.always = Parameter(Tensor(True), name="always", requires_grad=False)
            self.value_and_grad = ops.value_and_grad(loss_net, None, optimizer.parameters)

        def construct(self, *batch):
            loss, gradients = self.value_and_grad(*batch)
            if self.branch:
                if self.always:
                    loss = ops.depend(loss, self.optimizer(gradients))
                return loss
            return ops.depend(loss, self.optimizer(gradients))

    unchecked = {"nonfinite": "propagate"}
    steps = {
        "accumulated": AccumulatedStep(*lenet(), 4, **unchecked),
        "accumulated, checked": AccumulatedStep(*lenet(), 4),
        "plain": PlainStep(*lenet(), **unchecked),
        "plain, checked": PlainStep(*lenet()),
        "bare, if": Bare(*lenet(), branch=True).set_train(),
        "bare": Bare(*lenet(), branch=False).set_train(),
        "TrainOneStepCell": nn.TrainOneStepCell(*lenet()).set_train(),
    }
    return interleaved_ms(_calls(steps, batch), rounds, STEPS)


def installed_steps(batch, rounds):
    """Time MindSpore as installed: no labkit.start, only graph mode is set; the same LeNet5."""
    import mindspore as ms
    from mindspore import nn, ops

    ms.set_context(mode=ms.GRAPH_MODE)
    loss_net, optimizer = lenet()
    value_and_grad = ms.value_and_grad(loss_net, None, optimizer.parameters)

    @ms.jit
    def jit_step(images, labels):
        loss, gradients = value_and_grad(images, labels)
        return ops.depend(loss, optimizer(gradients))

    cell = nn.TrainOneStepCell(*lenet()).set_train()
    steps = {"TrainOneStepCell as installed": cell, "ms.jit as installed": jit_step}
    return interleaved_ms(_calls(steps, batch), min(rounds, 3), 5)


def _torch_setting(batch):
    import torch
    from torch import nn

    images, labels = (torch.from_numpy(part) for part in batch_of(batch, 1, 32, 32))
    network = nn.Sequential(
        nn.Conv2d(1, 6, 5, bias=False), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5, bias=False), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
        nn.Linear(84, 10),
    )  # fmt: skip
    return network, images, labels.long()


def torch_steps(batch, rounds):
    """Time PyTorch's eager step, written as in its tutorials."""
    import torch

    network, images, labels = _torch_setting(batch)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    loss_fn = torch.nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad()
        loss = loss_fn(network(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return interleaved_ms({"torch": step}, rounds, STEPS)


_PARTS = {
    "conv1, weight gradient": ("conv1", (1, 32, 32), False),
    "conv2, weight and input": ("conv2", (6, 14, 14), True),
    "max-pool 1": ("pool", (6, 28, 28), True),
    "max-pool 2": ("pool", (16, 10, 10), True),
    "ReLU 1, after the pooling": ("relu", (6, 14, 14), True),
    "dense layers": ("dense", (400,), True),
}


def mindspore_parts(batch, rounds):
    """Time forward and backward of single parts in compiled cells."""
    from labkit import start

    start()
    import numpy as np
    from mindspore import Parameter, Tensor, nn, ops

    from labkit.nets.layers import TiledMaxPool2d

    class Part(nn.Cell):
        def __init__(self, layer, by_input):
            super().__init__()
            weights = layer.trainable_params() or None
            self.always = Parameter(Tensor(True), name="always", requires_grad=False)
            self.total = Parameter(Tensor(0.0), name="total", requires_grad=False)
            position = 0 if by_input else None
            self.grad = ops.value_and_grad(lambda_free(layer), position, weights)

        def construct(self, x):
            value, _ = self.grad(x)
            if self.always:
                ops.assign(self.total, value)
            return value

    class lambda_free(nn.Cell):  # noqa: N801 - a function would not compile inside value_and_grad
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def construct(self, x):
            return ops.reduce_sum(self.layer(x))

    layers = {
        "conv1": nn.Conv2d(1, 6, 5, pad_mode="valid"),
        "conv2": nn.Conv2d(6, 16, 5, pad_mode="valid"),
        "pool": TiledMaxPool2d(2),
        "relu": nn.ReLU(),
        "dense": nn.SequentialCell(
            nn.Dense(400, 120), nn.ReLU(), nn.Dense(120, 84), nn.ReLU(), nn.Dense(84, 10)
        ),
    }
    calls = {}
    for name, (layer, shape, by_input) in _PARTS.items():
        x = Tensor(np.ones((batch, *shape), np.float32))
        part = Part(layers[layer], by_input)
        calls[name] = lambda part=part, x=x: float(part(x).asnumpy())
    return interleaved_ms(calls, rounds, STEPS)


def torch_parts(batch, rounds):
    """Time the same parts in PyTorch."""
    import torch

    network, _, _ = _torch_setting(batch)
    layers = {"conv1": network[0], "relu": network[1], "pool": network[2], "conv2": network[3],
              "dense": network[7:]}  # fmt: skip
    calls = {}
    for name, (layer, shape, by_input) in _PARTS.items():
        x = torch.ones((batch, *shape), requires_grad=by_input)

        def call(layer=layers[layer], x=x):
            value = layer(x).sum()
            value.backward()
            return value.item()

        calls[name] = call
    return interleaved_ms(calls, rounds, STEPS)


CHILDREN = {
    "labkit": labkit_steps,
    "installed": installed_steps,
    "torch": torch_steps,
    "parts": mindspore_parts,
    "torch-parts": torch_parts,
}

if __name__ == "__main__":
    main()
