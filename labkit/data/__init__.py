"""Data pipelines: a folder of files becomes a MindSpore dataset of stated shapes and dtypes."""

# For MNIST. "seed" is the tutorial's order: x -> (x / STD - MEAN / STD) / 255, so black is -0.00166
# and white 3.244. "correct" is (x / 255 - MEAN) / STD: black is -0.4242 and white 2.8215.
RESCALES = ("correct", "seed")
