"""Record what PyTorch computes in one training step, for use where PyTorch is not installed.

    python data_scripts/record_steps.py            # needs PyTorch: pip install '.[test]'

Writes ``labkit/migration/steps/resnet18.npz`` and ``resnet50.npz``. In float64: what is recorded is
then the same on every machine, to more digits than float32 has.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from labkit.migration import recorded, rule
from labkit.migration.torch_trace import torch_trace
from labkit.nets import torch_resnet

SETTINGS = {
    "classes": 10,
    "batch": 8,
    "side": 64,
    "smoothing": 0.1,
    # A warm-up: off by one step is another rate. Large, so that the update is far above the spacing
    # of float32 numbers; for ten steps on one batch of these steep networks, small.
    "learning_rates": [0.01 * (step + 1) for step in range(10)],
    "learning_rates_of_losses": [5e-6 * (step + 1) for step in range(10)],
    "momentum": 0.9,
    # Large: left out, it changes the updates by far more than their tolerance.
    "weight_decay": 0.01,
}


def build(depth: int, dtype: torch.dtype = torch.float64) -> tuple:
    """Return (module, loss function, optimizer, rule's images and labels) of the recorded step."""
    module = torch_resnet.resnet(depth, SETTINGS["classes"])
    state = rule.state({name: value.shape for name, value in module.state_dict().items()})
    module.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    module = module.to(dtype)
    weights = [p for p in module.parameters() if p.ndim > 1]
    others = [p for p in module.parameters() if p.ndim <= 1]
    optimizer = torch.optim.SGD(
        [{"params": weights, "weight_decay": SETTINGS["weight_decay"]}, {"params": others}],
        lr=SETTINGS["learning_rates"][0],
        momentum=SETTINGS["momentum"],
    )
    loss_fn = torch.nn.CrossEntropyLoss(label_smoothing=SETTINGS["smoothing"])
    return (
        module,
        loss_fn,
        optimizer,
        *rule.batch(*(SETTINGS[k] for k in ("batch", "side", "classes"))),
    )


def losses(
    module: torch.nn.Module,
    loss_fn: Callable,
    optimizer: torch.optim.Optimizer,
    images: np.ndarray,
    labels: np.ndarray,
) -> list[float]:
    """Return the losses of the first steps on the one batch, a step for each learning rate."""
    module.train()
    dtype = next(module.parameters()).dtype
    batch = torch.from_numpy(images).to(dtype), torch.from_numpy(labels).long()
    values = []
    for rate in SETTINGS["learning_rates_of_losses"]:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        loss = loss_fn(module(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


def main(depths: Sequence[int] = (18, 50)) -> None:
    """Record the steps of these networks."""
    for depth in depths:
        settings = {**SETTINGS, "depth": depth, "losses": losses(*build(depth))}
        path = recorded.save(f"resnet{depth}", torch_trace(*build(depth)), settings)
        print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
