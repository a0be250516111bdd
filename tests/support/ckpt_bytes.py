"""MindSpore's checkpoint files built byte by byte, so that they can be made invalid."""

import zlib


def number(value):
    """A protobuf varint; a negative number is encoded by its 64 bits."""
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
    """A text as MindSpore writes it: NumPy's encoding, four bytes per character."""
    return value.encode("utf-32-le", "surrogatepass")


def crc(content):
    """The content followed by the checksum that MindSpore appends."""
    return content + b"crc_num" + zlib.crc32(content).to_bytes(10, "big")
