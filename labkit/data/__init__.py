"""Data pipelines: a folder of files becomes a MindSpore dataset of stated shapes and dtypes."""
