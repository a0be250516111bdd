"""Foundations of the other packages: arguments, files, locks; MindSpore only for checkpoints."""
