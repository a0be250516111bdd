"""One training step of ResNet-50 at 64x64, side by side: labkit, MindSpore as installed, PyTorch.

    python benchmarks/resnet_step.py [--batch 32] [--processes 5] [--rounds 5] [--skip-installed]

Both have the same weights, batch, optimizer (momentum 0.9) and number of threads. The frameworks
take turns, process by process; medians over rounds, then over processes. The second table shows
where a step spends its time in both.
"""

import json
import sys
import zlib
from pathlib import Path

import numpy as np
from _side_by_side import (
    Target,
    in_child,
    in_processes,
    interleaved_ms,
    look_at_machine,
    medians,
    print_table,
    share_of_check,
    step_parser,
    write_results,
)

SIZE, CLASSES, RATE, MOMENTUM = 64, 1000, 0.01, 0.9
AS_INSTALLED = {"ONEDNN_MAX_CPU_ISA": None}
NAMES = {
    "plain": "PlainStep, no finite check",
    "plain, checked": "PlainStep, finite check",
    "TrainOneStepCell": "nn.TrainOneStepCell, oneDNN repaired",
    "torch": "PyTorch eager",
    "installed": "nn.TrainOneStepCell, nn.Conv2d, as installed",
}
# Kind -> prefixes of operator names in MindSpore and PyTorch; the first matching kind counts.
# PyTorch reorders inside its convolutions, and its mul_ and add_ belong to the optimizer.
KINDS = {
    "convolutions and products, forward": ("Conv2D|", "MatMul|", "aten::mkldnn_convolution",
                                           "aten::addmm"),
    "convolutions and products, backward": ("Conv2D", "MatMul", "aten::convolution_backward",
                                            "aten::mm"),
    "reordering": ("Transpose", "Reshape", "StridedSlice"),
    "batch norm, forward": ("BatchNorm|", "aten::native_batch_norm|"),
    "batch norm, backward": ("BatchNorm", "aten::native_batch_norm_backward"),
    "ReLU, sums, pooling": ("ReLU", "Relu", "Add|", "AddN", "MaxPool", "ReduceMean", "aten::clamp",
                            "aten::threshold", "aten::add|", "aten::max_pool", "aten::mean"),
    "optimizer": ("ApplyMomentum", "aten::mul_", "aten::add_", "aten::_foreach", "Optimizer"),
    "gradient norm": ("Square", "ReduceSum"),
}  # fmt: skip


def main():
    """Run all children and print both tables; as a child, measure and print JSON."""
    parser = step_parser(__doc__, batch=32, processes=5, rounds=5)
    parser.add_argument("--skip-installed", action="store_true", help="it takes minutes")
    parser.add_argument("--child", choices=CHILDREN)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(CHILDREN[options.child](options.batch, options.rounds)))
        return
    machine = look_at_machine()
    arguments = ("--batch", str(options.batch), "--rounds", str(options.rounds), "--child")
    runs = in_processes(
        options.processes,
        lambda: in_child(__file__, *arguments, "torch") | in_child(__file__, *arguments, "labkit"),
    )
    losses = {name: runs[0].pop(f"losses, {name}") for name in ("torch", "labkit")}
    runs = [{name: run[name] for name in run if name in NAMES} for run in runs]
    steps = medians(runs)
    if not options.skip_installed:
        steps |= in_child(__file__, *arguments, "installed", environment=AS_INSTALLED)
    header = ["ResNet-50, one step", "ms", "/ PyTorch"]
    print(f"batch {options.batch}, {SIZE}x{SIZE}; the first three losses: {losses}\n")
    print_table(header, [[NAMES[name], ms, ms / steps["torch"]] for name, ms in steps.items()])
    parts = {name: in_child(__file__, *arguments, name) for name in ("profile", "torch-profile")}
    print("\nwhere the time of one step goes, ms (PlainStep without finite check, profiled)\n")
    print_table(["kind", "MindSpore", "PyTorch", "difference"], _rows(*parts.values()))
    results = {"batch": options.batch, "steps_ms": steps, "runs": runs, "losses": losses, **parts}
    checked, step = steps["plain, checked"], f"a ResNet-50 step, {SIZE}x{SIZE}"
    norm = parts["profile"]["gradient norm"] / sum(parts["profile"].values())
    targets = [
        Target(f"{step}, with finite check, over PyTorch's", checked / steps["torch"], 1.1),
        share_of_check(step, steps["plain"], checked),
        Target(f"gradient norm, share of {step}, profiled", norm, 0.03),
    ]
    write_results("resnet_step", results, machine, targets)


def _rows(mine, theirs):
    kinds = [*KINDS, "everything else"]
    rows = [[kind, mine.get(kind, 0.0), theirs.get(kind, 0.0)] for kind in kinds]
    rows.append(["sum", sum(mine.values()), sum(theirs.values())])
    return [[kind, ours, others, ours - others] for kind, ours, others in rows]


def _by_kind(times):
    """Sum (operator, milliseconds) pairs by kind; "|" marks the end of an operator's name."""
    sums = {}
    for operator, ms in times:
        kinds = (kind for kind, names in KINDS.items() if f"{operator}|".startswith(names))
        kind = next(kinds, "everything else")
        sums[kind] = sums.get(kind, 0.0) + ms
    return sums


def _data(batch):
    images = np.random.default_rng(0).standard_normal((batch, 3, SIZE, SIZE), dtype=np.float32)
    return images, (np.arange(batch) % CLASSES).astype(np.int32)


def _weight(name, shape):
    """Return a weight seeded by its PyTorch name: He's for matrices, 1 or 0 for vectors."""
    if len(shape) == 1:
        ones = name.endswith("weight") or name.endswith("running_var")
        return np.full(shape, float(ones), np.float32)
    draw = np.random.default_rng(zlib.crc32(name.encode()))
    scale = np.float32((2 / np.prod(shape[1:])) ** 0.5)
    return draw.standard_normal(shape, dtype=np.float32) * scale


def _mindspore_setting(batch):
    from mindspore import Tensor, nn

    from labkit.nets.resnet import resnet50
    from labkit.steps.losses import LossNet

    torch_names = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean",
                   "moving_variance": "running_var"}  # fmt: skip
    images, labels = (Tensor(part) for part in _data(batch))

    def fresh():
        network = resnet50(CLASSES)
        for name, parameter in network.parameters_dict().items():
            stem, _, last = name.rpartition(".")
            name = f"{stem}.{torch_names.get(last, last)}"
            parameter.set_data(Tensor(_weight(name, parameter.shape)))
        loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        optimizer = nn.Momentum(network.trainable_params(), RATE, MOMENTUM)
        return LossNet(network, loss_fn), optimizer

    return fresh, images, labels


def labkit_steps(batch, rounds):
    """Time labkit's steps and MindSpore's own step cell on the same network."""
    from labkit import PlainStep, start

    start()
    from mindspore import nn

    fresh, images, labels = _mindspore_setting(batch)
    steps = {
        "plain": PlainStep(*fresh(), nonfinite="propagate"),
        "plain, checked": PlainStep(*fresh()),
        "TrainOneStepCell": nn.TrainOneStepCell(*fresh()).set_train(),
    }
    calls = {
        name: lambda step=step: float(step(images, labels).asnumpy())
        for name, step in steps.items()
    }
    # All start under equal conditions: a step that had run three times before the others were
    # compiled, and so had other memory, took a tenth less than the same step with a finite check.
    losses = {name: [call() for _ in range(3)] for name, call in calls.items()}
    return interleaved_ms(calls, rounds, 1) | {"losses, labkit": losses["plain"]}


def installed_steps(batch, rounds):
    """Time MindSpore as installed: no labkit.start, its own convolutions; the second call only."""
    import mindspore as ms
    from mindspore import nn

    from labkit.nets import resnet

    def conv(in_channels, out_channels, kernel, stride):
        padding = (kernel - 1) // 2
        return nn.Conv2d(in_channels, out_channels, kernel, stride, pad_mode="pad", padding=padding)

    resnet.PaddedConv2d = conv
    ms.set_context(mode=ms.GRAPH_MODE)
    fresh, images, labels = _mindspore_setting(batch)
    step = nn.TrainOneStepCell(*fresh()).set_train()
    return interleaved_ms({"installed": lambda: float(step(images, labels).asnumpy())}, 1, 1)


def mindspore_profile(batch, rounds):
    """Return milliseconds by kind of one PlainStep, from MindSpore's profiler."""
    from labkit import PlainStep, start
    from labkit.labs.measure import operator_times

    start()
    fresh, images, labels = _mindspore_setting(batch)
    step = PlainStep(*fresh(), nonfinite="propagate")
    rows = operator_times(step, images, labels, calls=rounds)
    # The backward pass uses the same operator, MatMul.
    return _by_kind(
        ("MatMulGrad" if row["scope"].startswith("Gradients") and row["operator"] == "MatMul"
         else row["operator"], row["ms"])
        for row in rows
    )  # fmt: skip


def _torch_step(batch):
    import torch

    sys.path.append(str(Path(__file__).resolve().parents[1]))
    from tests.support.torch_resnet import resnet

    network = resnet(50, CLASSES)
    state = network.state_dict()
    for name, value in state.items():
        if value.is_floating_point():
            value.copy_(torch.from_numpy(_weight(name, tuple(value.shape))))
    images, labels = (torch.from_numpy(part) for part in _data(batch))
    labels = labels.long()
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM)
    loss_fn = torch.nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad()
        loss = loss_fn(network(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def torch_steps(batch, rounds):
    """Time PyTorch's eager step, written as in its tutorials."""
    step = _torch_step(batch)
    losses = [step() for _ in range(3)]
    return interleaved_ms({"torch": step}, rounds, 1) | {"losses, torch": losses}


def torch_profile(batch, rounds):
    """Return milliseconds by kind of one PyTorch step, from its profiler."""
    from torch.profiler import ProfilerActivity, profile

    step = _torch_step(batch)
    step()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(rounds):
            step()
    rows = profiler.key_averages()
    return _by_kind((row.key, row.self_cpu_time_total / rounds / 1e3) for row in rows)


CHILDREN = {
    "labkit": labkit_steps,
    "installed": installed_steps,
    "torch": torch_steps,
    "profile": mindspore_profile,
    "torch-profile": torch_profile,
}

if __name__ == "__main__":
    main()
