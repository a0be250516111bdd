"""The interfaces of MindSpore and of its tutorials, implemented with the steps of labkit."""
