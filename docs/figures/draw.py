"""Draw the data's way through each lab: docs/figures/*_flow.svg.

    python docs/figures/draw.py

tests/docs/test_flow_figures.py holds the committed files to what this writes.
"""

from pathlib import Path

from flow import accumulation, adasum, migration, subspace, thor

from labkit.base.files import whole_file

PICTURES = {
    "accumulation": accumulation.accumulation,
    "migration": migration.migration,
    "thor": thor.thor,
    "adasum": adasum.adasum,
    "subspace": subspace.subspace,
}


def texts() -> dict[str, str]:
    """Return the text of each file by its name."""
    return {f"{name}_flow.svg": picture().svg() for name, picture in PICTURES.items()}


if __name__ == "__main__":
    for name, text in texts().items():
        with whole_file(Path(__file__).with_name(name), "the picture") as temporary:
            temporary.write_text(text, encoding="utf-8", newline="\n")
