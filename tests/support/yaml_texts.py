"""YAML written to do harm."""


def bomb(levels: int, width: int = 9) -> str:
    """Return YAML of a few hundred bytes whose aliases expand to ``width`` ** ``levels`` texts."""
    lines = [f"a0: &a0 [{', '.join(['x'] * width)}]"]
    for n in range(1, levels):
        lines.append(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]")
    return "\n".join(lines) + "\n"
