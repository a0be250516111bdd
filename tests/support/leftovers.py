"""What a process that is killed while it writes a file leaves in the folder."""


def left_over(folder):
    """Make a leftover in ``folder``; return its path."""
    part = folder / ".part-0123abcd.safetensors"
    part.write_bytes(b"half")
    return part
