"""Networks, and the choices that recipes read before MindSpore is imported."""

DEPTHS = (18, 34, 50, 101, 152)
INITIALISERS = ("seed", "seed_table", "torchvision", "pytorch")
