"""The parameter names of the tutorials' ResNets, and their names in ``labkit.nets.resnet``.

    end_point.X                        fc.X
    P.down_sample_layer.X              P.downsample.X
    P.bn1d.X, P.bn2d.X                 P.bn1.X, P.bn2.X
    P.e2.0.X, P.e2.1.X                 P.conv2.X, P.bn2.X

Sources: the ResNet-50 migration document, section 4, and ``resnet.py`` of MindSpore's models
repository, which has the first two rows. The values have the same layout. A block with ``e2`` pools
where labkit's network has a stride: with the same weights, only ``resnet(..., differences=BLOG)``
computes the same function.
"""

_WORDS = {"end_point": "fc", "down_sample_layer": "downsample", "bn1d": "bn1", "bn2d": "bn2"}
_E2 = {"0": "conv2", "1": "bn2"}


def own_name(name: str) -> str:
    """Return labkit's name for a tutorial's Parameter or its moment; other names are unchanged.

    >>> own_name("moments.layer2.0.e2.0.weight")
    'moments.layer2.0.conv2.weight'
    """
    words: list[str] = []
    for word in name.split("."):
        if words and words[-1] == "e2" and word in _E2:
            words[-1] = _E2[word]
        else:
            words.append(_WORDS.get(word, word))
    return ".".join(words)


def pools(name: str) -> bool:
    """Return whether a tutorial's name belongs to a block that pools instead of striding."""
    return "e2" in name.split(".")
