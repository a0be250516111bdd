"""Networks that others published: of correct pairs nothing is said, and of MindCV's what differs.

Each seed draws all weights and the batch. ``long`` are the other seeds, and the deep networks.
"""

import numpy as np
import pytest
from mindspore import nn

from labkit.migration import compare, load, propose

pairs = pytest.importorskip("tests.migration.pairs", reason="`make test ALL=1` installs them")
import torch  # noqa: E402

pytestmark = [pytest.mark.usefixtures("runtime"), pytest.mark.slow]
STAGES = {"weights", "training", "evaluation", "loss", "optimizer", "gradients", "run"}
DEEP = {
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "efficientnet_b0",
    "mobilenet_v3",
}


def case(name, seed=0):
    return pytest.param(name, seed, marks=pytest.mark.long if seed or name in DEEP else ())


def compared(pair, head=0):
    """Return the comparison with PyTorch's weights; of ``head`` last tensors alone in training."""
    network, module, inputs, labels, rules = pair
    load(network, {name: value.numpy() for name, value in module.state_dict().items()}, rules)
    ours = nn.Momentum(network.trainable_params()[-head:], 0.01, 0.9)
    theirs = torch.optim.SGD(list(module.parameters())[-head:], 0.01, momentum=0.9)
    losses = pairs.loss, pairs.torch_loss
    return compare(network, module, losses, (ours, theirs), (inputs, labels), rules=rules)


@pytest.mark.parametrize(
    ("name", "seed"), [case(n, seed) for n in pairs.PAIRS for seed in range(5)]
)
def test_nothing_is_found_in_a_correct_pair(name, seed):
    result = compared(pairs.pair(name, seed))
    assert not result.faults, str(result)
    assert {row.stage for row in result.rows} >= STAGES


def mindcv_pair(name):
    """Return a network of MindCV's, the original in PyTorch, and which of its modules differ."""
    from mindcv.models import create_model, efficientnet
    from mindcv.models.vit import VisionTransformer
    from timm.models.vision_transformer import VisionTransformer as Original

    t, models = torch.nn, pairs.models
    if name == "resnet18":  # pads on the right and below alone
        return create_model(name, num_classes=5), models.resnet18(num_classes=5), t.MaxPool2d
    if name == "vit":  # eps 1e-7 for 1e-6, and GELU's tanh form
        sizes = {"embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}
        return VisionTransformer(16, 4, **sizes), Original(16, 4, **sizes), (t.LayerNorm, t.GELU)
    if name == "mobilenet_v3":  # eps and momentum; some convolutions as in EfficientNet
        network = create_model("mobilenet_v3_large_100", num_classes=5)
        return network, models.mobilenet_v3_large(num_classes=5), t.BatchNorm2d
    network = efficientnet.EfficientNet(name, 0.0, num_classes=5, drop_path_prob=0.0)
    off = {"stochastic_depth_prob": 0.0, "dropout": 0.0}
    return network, models.efficientnet_b0(num_classes=5, **off), ()


@pytest.mark.parametrize(
    ("name", "seed"), [("resnet18", 0), *map(case, ("vit", "mobilenet_v3", "efficientnet_b0"))]
)
def test_of_mindcvs_networks_exactly_the_places_that_differ_are_named(name, seed):
    """Its strided convolutions pad on the right and below alone, but for MobileNetV3's first."""
    torch.manual_seed(seed)
    network, module, kinds = mindcv_pair(name)
    rules = propose(network, module.state_dict())
    side = 16 if name == "vit" else 64
    random = np.random.default_rng(seed)
    result = compared(pairs.of_images(random, network, module, side, (), rules), head=2)
    modules = dict(module.named_modules())
    expected = {path for path, part in modules.items() if isinstance(part, kinds)}
    if name in ("mobilenet_v3", "efficientnet_b0"):
        convs = {path: p for path, p in modules.items() if getattr(p, "stride", 1) == (2, 2)}
        expected |= convs.keys() - ({"features.0.0"} if name == "mobilenet_v3" else set())
    assert {place for _, place in result.faults} == expected, str(result)
