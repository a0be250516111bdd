"""The commands of `labkit`, one file each; `labkit.cli` registers them."""
