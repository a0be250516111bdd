r"""Rules for what `transformers` stores of BERT, GPT-2, ViT and Llama: what names and order hide.

On our side the names are those of its modules, without the prefix of the base model: a network has
``embeddings``, ``encoder``, ``classifier``, or ``h``, ``ln_f``, and loads a file of the base model
and of a model with a head alike. Rules of a network's own come behind them:

    rules = (*GPT2, Rule(r"^h\.(\d+)\.", r"blocks.\1."))

A head that a file lacks, or has beside the network's, is the business of ``leave=``.

Source: ``modeling_bert.py``, ``modeling_gpt2.py``, ``modeling_vit.py`` and ``modeling_llama.py`` of
transformers 4.57, and the names that its ``load`` still accepts of older files.
"""

from labkit.migration.names import Rule

# Files of 2018 call a LayerNorm's weight gamma; files before transformers 4.31 hold position_ids.
BERT = (
    Rule(r"^(?:bert\.)?", ""),
    Rule(r"LayerNorm\.(?:gamma|weight)$", "LayerNorm.weight"),
    Rule(r"LayerNorm\.(?:beta|bias)$", "LayerNorm.bias"),
    Rule(r"^embeddings\.position_ids$", None),
)

# Its dense layers are "Conv1D", (in, out), and nn.Dense has (out, in): a square one fits both ways.
# The masks are buffers. lm_head is wte again, whether a file has it or not.
GPT2 = (
    Rule(r"^(?:transformer\.)?", ""),
    Rule(r"\.(c_attn|q_attn|c_proj|c_fc)\.weight$", r".\1.weight", transpose=True),
    Rule(r"\.(?:attn|crossattention)\.(?:masked_)?bias$", None),
    Rule(r"^lm_head\.weight$", None),
)

VIT = (Rule(r"^(?:vit\.)?", ""),)

# Files before transformers 4.32 hold the frequencies of the rotation.
LLAMA = (
    Rule(r"^(?:model\.)?", ""),
    Rule(r"\.rotary_emb\.inv_freq$", None),
)

# For a network with one dense layer ``qkv`` where BERT, ViT, or a Llama without grouped queries,
# has three: ``(*VIT, MERGED)``.
MERGED = Rule((r"\.(?:query|q_proj)\.", r"\.(?:key|k_proj)\.", r"\.(?:value|v_proj)\."), ".qkv.")
