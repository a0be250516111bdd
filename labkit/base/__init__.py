"""What every other room stands on: arguments, files, locks; MindSpore in checkpoints alone."""
