"""The rules for transformers' files: names of today and of 2018, with the prefix and without it."""

import numpy as np
import pytest
from mindspore import nn

from labkit.migration import applied, load, state_dict
from labkit.migration.rules import BERT, GPT2, LLAMA, MERGED, VIT

pytestmark = pytest.mark.usefixtures("runtime")
# rules, prefix, name in a file, our name
NAMES = [
    (BERT, "bert.", "encoder.layer.3.attention.self.query.weight", ...),
    (BERT, "bert.", "embeddings.LayerNorm.gamma", "embeddings.LayerNorm.weight"),
    (BERT, "bert.", "embeddings.LayerNorm.weight", ...),
    (BERT, "bert.", "encoder.layer.0.output.LayerNorm.beta",
     "encoder.layer.0.output.LayerNorm.bias"),
    (BERT, "bert.", "embeddings.position_ids", None),
    (BERT, "", "cls.predictions.bias", ...),
    (GPT2, "transformer.", "h.0.attn.c_attn.bias", ...),
    (GPT2, "transformer.", "h.0.attn.bias", None),
    (GPT2, "transformer.", "h.11.attn.masked_bias", None),
    (GPT2, "transformer.", "h.0.crossattention.bias", None),
    (GPT2, "", "lm_head.weight", None),
    (VIT, "vit.", "encoder.layer.0.attention.attention.key.bias", ...),
    ((*VIT, MERGED), "vit.", "encoder.layer.0.attention.attention.key.bias",
     "encoder.layer.0.attention.attention.qkv.bias"),
    ((*LLAMA, MERGED), "model.", "layers.0.self_attn.v_proj.weight",
     "layers.0.self_attn.qkv.weight"),
    (LLAMA, "model.", "layers.0.self_attn.rotary_emb.inv_freq", None),
    (LLAMA, "", "lm_head.weight", ...),
]  # fmt: skip


@pytest.mark.parametrize(("rules", "prefix", "name", "ours"), NAMES)
def test_names(rules, prefix, name, ours):
    expected = name if ours is ... else ours
    assert applied(rules, name) == applied(rules, prefix + name) == expected


def test_a_square_matrix_of_gpt_2_is_transposed_too_both_ways():
    """Its (4, 4) would fit as it is, and the mask beside it has no parameter."""
    network, block, attention = nn.Cell(), nn.Cell(), nn.Cell()
    network.h, block.attn, attention.c_proj = nn.CellList([block]), attention, nn.Dense(4, 4)
    weight, bias = np.arange(16, dtype=np.float32).reshape(4, 4), np.ones(4, np.float32)
    state = {"h.0.attn.c_proj.weight": weight, "h.0.attn.c_proj.bias": bias}
    prefixed = {f"transformer.{name}": value for name, value in state.items()}
    load(network, prefixed | {"transformer.h.0.attn.bias": bias}, GPT2)
    assert np.array_equal(attention.c_proj.weight.asnumpy(), weight.T)
    back = state_dict(network, GPT2, state)
    assert back.keys() == state.keys()
    assert all(np.array_equal(back[name], state[name]) for name in state)
