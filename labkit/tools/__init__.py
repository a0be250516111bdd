"""The `labkit` command. Nothing else in the package imports it."""
