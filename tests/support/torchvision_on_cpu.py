"""torchvision beside a PyTorch for CPU: ``from tests.support.torchvision_on_cpu import models``.

The package index has it for CUDA alone. Its operators then do not load, and it cannot be imported:
it describes two that detection needs, and PyTorch does not know them. No network here calls them.
Import it before ``timm`` or ``transformers``, which import torchvision as it is.
"""

import torch

try:
    import torchvision
except RuntimeError:
    for name in ("nms", "qnms"):
        kind = "(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor"
        torch.library.define(f"torchvision::{name}", kind)
    import torchvision

models = torchvision.models
