"""`labkit list`: the labs."""


def list_labs() -> None:
    """Show the labs: number, name, title, presets, and the minutes stated on their header card.

    Example: labkit list
    """
    from labkit.base.project import find_project
    from labkit.tools import console
    from labkit.tools.labs import find_labs

    rows = [
        (lab.number, lab.name, lab.title, " ".join(lab.presets), lab.minutes)
        for lab in find_labs(find_project())
    ]
    console.table(("number", "lab", "title", "presets", "minutes"), rows)
