"""The same step in PyTorch; see ``labkit.migration.trace``. Needs PyTorch."""

from collections.abc import Callable

import numpy as np
import torch

from labkit.migration.trace import Arrays, Trace, recorded_outputs, stages_of


def torch_trace(
    module: torch.nn.Module,
    loss_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    images: np.ndarray,
    labels: np.ndarray,
) -> Trace:
    """Take one training step with a PyTorch module and return what it computed.

    Args:
        module: images -> logits; the step changes it. The trace and its arrays have its type
            (float32, float64).
        loss_fn: (logits, labels) -> mean loss.
        optimizer: an optimizer over ``module.parameters()``.
        images, labels: (B, ...), and (B,) integers.
    """
    kind = next(module.parameters()).dtype
    batch = torch.as_tensor(images).to(kind), torch.as_tensor(labels).long()
    before = _values(module)
    module.train()
    with recorded_outputs(module.named_modules(), lambda x: x.detach().numpy()) as forward:
        loss = loss_fn(module(batch[0]), batch[1])
    optimizer.zero_grad()
    loss.backward()
    gradients = {
        name: (torch.zeros_like(p) if p.grad is None else p.grad).numpy().copy()
        # A parameter that two modules share appears under both names, as in the state dict.
        for name, p in module.named_parameters(remove_duplicate=False)
        if p.requires_grad
    }
    optimizer.step()
    result = loss.detach().numpy()
    stages = stages_of((images, labels), before, forward, result, gradients, _values(module))
    return Trace(f"PyTorch {torch.__version__}, {str(kind).removeprefix('torch.')}", stages)


def _values(module: torch.nn.Module) -> Arrays:
    tensors = module.state_dict().items()
    return {name: t.numpy().copy() for name, t in tensors if t.is_floating_point()}
