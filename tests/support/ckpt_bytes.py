"""MindSpore's checkpoint files byte by byte, so that they can be wrong."""

import zlib


def number(value):
    """A protobuf varint; of a negative number its 64 bits."""
    value %= 2**64
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes(parts) + bytes([value])


def part(field, content):
    """One field of a message: a number, or bytes with their length."""
    if isinstance(content, int):
        return number(field << 3) + number(content)
    return number(field << 3 | 2) + number(len(content)) + content


def tensor(kind=b"Float32", dims=(), content=b"\0\0\0\0"):
    return b"".join(part(1, length) for length in dims) + part(2, kind) + part(3, content)


def entry(name=b"w", kind=b"Float32", dims=(), content=b"\0\0\0\0"):
    """A tensor or text of a checkpoint."""
    return part(1, part(1, name) + part(2, tensor(kind, dims, content)))


def text(value):
    """A text as MindSpore writes it: NumPy's, of four bytes a character."""
    return value.encode("utf-32-le", "surrogatepass")


def crc(content):
    """The content with the check sum that MindSpore puts at its end."""
    return content + b"crc_num" + zlib.crc32(content).to_bytes(10, "big")
