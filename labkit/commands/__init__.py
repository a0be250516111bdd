"""The commands of `labkit` that live in modules of their own; cli.py names them."""
