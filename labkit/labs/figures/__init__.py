"""The figures of the labs. No MindSpore import."""
