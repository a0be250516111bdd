"""The names of MindSpore and of its tutorials, on the steps of this package."""
