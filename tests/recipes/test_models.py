"""Keys of the models repository are accepted, ignored, or refused with their meaning."""

import pytest

from labkit.errors import InputError
from labkit.recipes.adasum import AdasumConfig
from labkit.recipes.resnet50 import Config
from labkit.recipes.settings import read
from labkit.recipes.subspace import StageTwoConfig
from labkit.recipes.thor import ThorConfig

# Keys and values of resnet50_imagenet2012_Ascend_Thor_config.yaml.
THOR = """
enable_modelarts: False
data_url: ""
run_distribute: False
data_path: "/cache/data"
device_target: "Ascend"
checkpoint_path: "./checkpoint/"
optimizer: "Thor"
infer_label: ""
class_num: 1001
batch_size: 32
loss_scale: 128
epoch_size: 45
pretrain_epoch_size: 0
save_checkpoint_epochs: 2
use_label_smooth: True
lr_init: 0.05803
lr_decay: 4.04839
damping_init: 0.02714
frequency: 834
net_name: "resnet50"
dataset: "imagenet2012"
device_num: 1
pre_trained: ""
run_eval: False
parameter_server: False
save_best_ckpt: True
enable_cache: False
cache_session_id: ""
mode_name: "GRAPH"
boost_mode: "O0"
conv_init: "HeUniform"
dense_init: "HeUniform"
all_reduce_fusion_config:
    - 85
    - 160
train_image_size: 224
eval_image_size: 224
has_trained_epoch: 0
---
batch_size: "Batch size for training and evaluation"
"""


def settings(tmp_path, text, kind=ThorConfig):
    (tmp_path / "zoo.yaml").write_text(text)
    return read(kind, tmp_path / "zoo.yaml")


def test_a_whole_file_goes_in(tmp_path):
    made = settings(tmp_path, THOR)
    assert (made.lr_decay, made.damping_init, made.save_checkpoint_epochs) == (4.04839, 0.02714, 2)
    assert (made.initialiser, made.depth, made.image_size) == ("pytorch", 50, 224)
    assert made.all_reduce_fusion_config == (85, 160)
    assert made.cache_session_id is None and made.dataset == "imagenet2012"


def test_the_models_repositorys_list(tmp_path):
    text = "all_reduce_fusion_config:\n    - 85\n    - 160\n"
    assert settings(tmp_path, text, Config).all_reduce_fusion_config == (85, 160)


TAKEN = {
    "net_name: resnet18": ("depth", 18),
    "train_image_size: 32": ("image_size", 32),
    "conv_init: XavierUniform\ndense_init: TruncatedNormal": ("initialiser", "seed"),
    "enable_cache: True\ncache_session_id: 12": ("cache_session_id", 12),
    "cache_session_id: 12": ("cache_session_id", 12),
    "enable_cache: False\ncache_session_id: 12": ("cache_session_id", None),
    "dataset: cifar10": ("dataset", "cifar10"),
    "use_label_smooth: False": ("label_smooth_factor", 0.0),
}


@pytest.mark.parametrize("kind", [ThorConfig, AdasumConfig])
@pytest.mark.parametrize("text", TAKEN)
def test_keys_that_are_settings_here(tmp_path, text, kind):
    name, value = TAKEN[text]
    assert getattr(settings(tmp_path, text, kind), name) == value


REFUSED = {
    "optimizer: Momentum": "optimizer: expected Thor, this recipe's, got 'Momentum'",
    "net_name: se-resnet50": "net_name: expected one of resnet18",
    "train_image_size: 32\neval_image_size: 64": "expected the same size twice, got [32, 64]",
    "conv_init: HeUniform\ndense_init: TruncatedNormal": "got HeUniform, TruncatedNormal",
    "enable_cache: True": "expected cache_session_id",
    "boost_mode: O1": "labkit.boost_step takes its levels. Expected 'O0'",
    "pre_trained: a.ckpt": "a checkpoint to start from",
    "parameter_server: True": "parameter servers",
    "image_size: 64\neval_image_size: 32": "image_size is 64, and other keys of the file say 32",
    "batchsize: 3": "zoo.yaml. Did you mean 'batch_size'?",
    "first_stride: 1": "first_stride is 1: stride of the first convolution. Expected 2",
}


@pytest.mark.parametrize("text", REFUSED)
def test_keys_that_ask_for_what_is_not_here(tmp_path, text):
    with pytest.raises(InputError) as caught:
        settings(tmp_path, text)
    assert REFUSED[text] in str(caught.value)


def test_each_recipe_has_its_optimizer(tmp_path):
    own = {AdasumConfig: "Momentum", Config: "Momentum", StageTwoConfig: "SGD"}
    for kind, name in own.items():
        assert settings(tmp_path, f"optimizer: {name}", kind) == kind()
        with pytest.raises(InputError, match=f"expected {name}, this recipe's, got 'Thor'"):
            settings(tmp_path, "optimizer: Thor", kind)
