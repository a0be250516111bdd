"""Record what PyTorch computes in one training step, for use where PyTorch is not installed.

    python -m data_scripts.record_steps            # needs PyTorch: pip install '.[test]'

Writes ``labkit/labs/places/small_resnet.npz`` and, in ``labkit/labs/steps``, ``resnet18.npz``,
``resnet50.npz`` and ``gpt.npz``. It computes in float64, so that the records agree on every machine
to more digits than float32 has.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from labkit import migration
from labkit.data import shakespeare
from labkit.data.prepare import prepare
from labkit.labs import recorded
from labkit.labs import recorded as rule
from labkit.migration.torch_trace import torch_step, torch_trace
from labkit.migration.trace import Value
from labkit.steps.schedules import cosine
from tests.support import torch_gpt, torch_resnet

SETTINGS = {
    "classes": 10,
    "batch": 8,
    "side": 64,
    "smoothing": 0.1,
    # A warm-up: off by one step gives another rate. Large, so that the update is far above the
    # spacing of float32 numbers; small for ten steps on one batch, as these networks are steep.
    "learning_rates": [0.01 * (step + 1) for step in range(10)],
    "learning_rates_of_losses": [5e-6 * (step + 1) for step in range(10)],
    "momentum": 0.9,
    # Large: to omit it changes the updates by far more than their tolerance.
    "weight_decay": 0.01,
}
SMALL = {"stem": 2, "batch": 4, "side": 32}

# Lab 06: a batch of 8 windows of the plays for each of 50 updates.
GPT = {"vocabulary": 67, "layers": 4, "width": 64, "heads": 4, "length": 64}
GPT_TRAINING = {"updates": 50, "batch": 8, "rate": 1e-3, "beta2": 0.99, "weight_decay": 0.1}


def build(depth: int, dtype: torch.dtype = torch.float64) -> tuple:
    """Return (module, loss function, optimizer, rule's images and labels) of the recorded step."""
    module = _with_the_rules_weights(torch_resnet.resnet(depth, SETTINGS["classes"]), dtype)
    weights = [p for p in module.parameters() if p.ndim > 1]
    others = [p for p in module.parameters() if p.ndim <= 1]
    optimizer = torch.optim.SGD(
        [{"params": weights, "weight_decay": SETTINGS["weight_decay"]}, {"params": others}],
        lr=SETTINGS["learning_rates"][0],
        momentum=SETTINGS["momentum"],
    )
    loss_fn = torch.nn.CrossEntropyLoss(label_smoothing=SETTINGS["smoothing"])
    batch = rule.batch(*(SETTINGS[k] for k in ("batch", "side", "classes")))
    return module, loss_fn, optimizer, *batch


def _with_the_rules_weights(module: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    state = rule.state({name: value.shape for name, value in module.state_dict().items()})
    module.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    return module.to(dtype)


def losses(
    module: torch.nn.Module,
    loss_fn: Callable,
    optimizer: torch.optim.Optimizer,
    images: np.ndarray,
    labels: np.ndarray,
    rates: Sequence[float] | None = None,
) -> list[float]:
    """Return the losses of the first steps on one batch, one step per learning rate."""
    module.train()
    dtype = next(module.parameters()).dtype
    own = torch.long if images.dtype.kind == "i" else dtype
    batch = torch.from_numpy(images).to(own), torch.from_numpy(labels).long()
    values = []
    for rate in SETTINGS["learning_rates_of_losses"] if rates is None else rates:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        loss = loss_fn(module(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


def build_gpt() -> tuple:
    """Return (module, loss function, optimizer, tokens, labels): the two for all updates."""
    module = _with_the_rules_weights(torch_gpt.GPT(**GPT), torch.float64)
    s, weights = GPT_TRAINING, list(module.parameters())
    optimizer = torch.optim.AdamW(
        [
            {"params": [w for w in weights if w.ndim > 1], "weight_decay": s["weight_decay"]},
            {"params": [w for w in weights if w.ndim == 1], "weight_decay": 0.0},
        ],
        lr=s["rate"],
        betas=(0.9, s["beta2"]),
    )
    text = shakespeare.load(prepare("shakespeare")).train
    windows = shakespeare.even_windows(text, s["updates"] * s["batch"], GPT["length"])
    return module, token_loss, optimizer, *windows


def token_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of logits (B, T, V) and labels (B, T)."""
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def record_gpt() -> None:
    """Record the first update of the GPT, the losses of all, and the weights after them.

    Update u has the rows u, u + 50, ... of the windows: no two of a batch are neighbours. The
    biases of the keys are recorded as 0 after all: softmax does not depend on them, so that AdamW
    divides the rounding errors of their gradients by these errors' own size.
    """
    module, loss_fn, optimizer, tokens, labels = build_gpt()
    updates = GPT_TRAINING["updates"]
    step = torch_step(module, loss_fn, optimizer, (tokens[::updates], labels[::updates]))
    values = []
    for update in range(updates):
        batch = tokens[update::updates], labels[update::updates]
        values += losses(module, loss_fn, optimizer, *batch, [GPT_TRAINING["rate"]])
    after = {name: w.numpy() for name, w in module.state_dict().items()}
    for name in after:
        if name.endswith("qkv.bias"):
            after[name][GPT["width"] : 2 * GPT["width"]] = 0.0
    step.stages["after all updates"] = {name: Value(array) for name, array in after.items()}
    path = recorded.save("gpt", step, GPT | GPT_TRAINING | {"losses": values})
    print(f"{path.name}: {path.stat().st_size} bytes")


def build_small() -> tuple:
    """Return (module, loss function, (optimizer, scheduler), batch) of lab 02's planted faults."""
    module = torch_resnet.ResNet(torch_resnet.Bottleneck, (1, 1, 1, 1), 10, SMALL["stem"])
    module = _with_the_rules_weights(module, torch.float32)
    weights, others = (
        [p for p in module.parameters() if (p.ndim > 1) is big] for big in (True, False)
    )
    groups = [{"params": weights, "weight_decay": 1e-4}, {"params": others}]
    rates = cosine(lr=0.1, lr_end=0.0, epochs=10, steps_per_epoch=5, warmup_epochs=2)
    optimizer = torch.optim.SGD(groups, lr=1.0, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: float(rates[update]))
    loss_fn = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    return module, loss_fn, (optimizer, scheduler), rule.batch(SMALL["batch"], SMALL["side"], 10)


def _apart(module: torch.nn.Module, loss: Callable, optimizer: Any, *batch: np.ndarray) -> tuple:
    return module, loss, optimizer, batch


def main(depths: Sequence[int] = (18, 50)) -> None:
    """Record the steps of the small ResNet and of these ResNets."""
    trace = torch_trace(*build_small(), updates=3)
    path = migration.save(recorded.SMALL_RESNET, trace)
    print(f"{path.name}: {path.stat().st_size} bytes")
    for depth in depths:
        settings = {**SETTINGS, "depth": depth, "losses": losses(*build(depth))}
        path = recorded.save(f"resnet{depth}", torch_step(*_apart(*build(depth))), settings)
        print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
    record_gpt()
