"""Foundations of the other packages: arguments, files, free memory, progress, the project."""
