"""The networks and the schemes that there are, by name. No MindSpore import: recipes read them."""

DEPTHS = (18, 34, 50, 101, 152)
INITIALISERS = ("seed", "seed_table", "torchvision", "pytorch")
