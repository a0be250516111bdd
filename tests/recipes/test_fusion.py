"""all_reduce_fusion_config as a setting; tests/steps/test_fusion.py shows its effect."""

import pytest

from labkit.errors import InputError
from labkit.recipes.resnet50 import Config
from labkit.recipes.settings import read


@pytest.mark.parametrize("text", ["85,160", "[85, 160]", "(85, 160)"])
def test_numbers_with_commas(text):
    config = read(Config, assignments=[f"all_reduce_fusion_config={text}"])
    assert config.all_reduce_fusion_config == (85, 160)


def test_the_models_repositorys_list(tmp_path):
    (tmp_path / "zoo.yaml").write_text("all_reduce_fusion_config:\n    - 85\n    - 160\n")
    assert read(Config, tmp_path / "zoo.yaml").all_reduce_fusion_config == (85, 160)
    none = read(Config, tmp_path / "zoo.yaml", ["all_reduce_fusion_config=None"])
    assert none.all_reduce_fusion_config is None


@pytest.mark.parametrize("text", ["85;160", "160,85", "x"])
def test_other_texts_are_refused(text):
    with pytest.raises(InputError, match="all_reduce_fusion_config: expected integers >= 0"):
        read(Config, assignments=[f"all_reduce_fusion_config={text}"])
