"""The tables of a report: which facts differ between runs, what ran where, metrics."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.tools.reports.difference import NOTHING, number
from labkit.tools.reports.read import LabRun, RunFolder
from labkit.tools.reports.reference import Row, against_reference

# With more runs than this, a table has a row for each, not a column: it grows down, not across.
_MOST_COLUMNS = 4
_SHORT_HASH = 12
_RUNTIME = ("reason", "onednn", "ranks")


@dataclass(frozen=True)
class Table:
    """Texts for one HTML table; ``statuses`` are the columns shown as a coloured word."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    statuses: tuple[int, ...] = ()


@dataclass(frozen=True)
class Facts:
    """Named values of several runs: those that differ, and those that are equal in all."""

    differ: Table | None
    equal: Table | None


def facts(columns: Mapping[str, Mapping[str, str]]) -> Facts:
    """Separate what differs from what is equal; ``columns`` is run -> fact -> value."""
    rows = _by_name(columns)
    equal = {name: values[0] for name, values in rows.items() if len(set(values)) == 1}
    differ = {name: values for name, values in rows.items() if name not in equal}
    same = Table(("what", "value"), tuple(equal.items())) if equal else None
    return Facts(_turned(columns, differ), same)


def surroundings(run: RunFolder) -> dict[str, str]:
    """Return preset, device, git, versions and runtime of a RUN; joined if its labs differ."""
    values: dict[str, set[str]] = {}
    for results in (lab.results for lab in run.labs):
        texts: dict[str, str] = {n: text(results[n]) for n in ("preset", "device") if n in results}
        if "git" in results:
            texts["git"] = _revision(results["git"])
        texts |= {name: text(value) for name, value in results.get("versions", {}).items()}
        runtime = results.get("runtime", {})
        texts |= {f"runtime: {name}": text(runtime[name]) for name in _RUNTIME if name in runtime}
        for name, value in texts.items():
            values.setdefault(name, set()).add(value)
    return {name: ", ".join(sorted(different)) for name, different in values.items()}


def inputs(lab: LabRun) -> dict[str, str]:
    """Return parameters and inputs of one lab, as texts: ``parameter seed`` -> ``1``."""
    parameters = lab.results.get("parameters", {})
    facts = {f"parameter {name}": text(value) for name, value in parameters.items()}
    for name, value in lab.results.get("inputs", {}).items():
        if name == "parameters" and parameters:
            continue  # a digest of the parameters above
        facts[f"input {name}"] = text(value)[:_SHORT_HASH]
    return facts


def what_ran(runs: Iterable[RunFolder]) -> Table:
    """Return a row for every lab of every run: status, device, machine, git, time."""
    head = ("run", "lab", "status", "device", "preset", "started", "seconds", "peak MB")
    rows = tuple(_ran(lab) for run in runs for lab in run.labs)
    return Table((*head, "platform", "git"), rows, statuses=(2,))


def headline(labs: Sequence[LabRun]) -> dict[str, list[tuple[str, Row]]]:
    """Return headline metric -> (run's label, row against the stored run) of one lab's runs."""
    metrics: dict[str, list[tuple[str, Row]]] = {}
    for lab in labs:
        for row in against_reference({**lab.results, "status": lab.status}):
            metrics.setdefault(row.metric, []).append((lab.label, row))
    return metrics


def all_metrics(labs: Sequence[LabRun]) -> Table | None:
    """Return every metric of several runs of one lab; None if there is none."""
    columns = {
        lab.label: {name: text(value) for name, value in lab.results.get("metrics", {}).items()}
        for lab in labs
    }
    return _turned(columns, _by_name(columns))


def rows_as_table(rows: Sequence[Mapping[str, str]]) -> Table | None:
    """Return rows of a CSV file as a table; None if there is none."""
    names = tuple(dict.fromkeys(name for row in rows for name in row))
    if not names:
        return None
    statuses = tuple(number for number, name in enumerate(names) if name == "status")
    cells = tuple(tuple(_shorter(row.get(name, "")) for name in names) for row in rows)
    return Table(names, cells, statuses)


def text(value: Any) -> str:
    """Return any value of a JSON file as one line of text."""
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return number(value) or "(empty)"


def _by_name(columns: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
    """Return name -> its value in each of ``columns``, for every name in any of them."""
    names = dict.fromkeys(name for values in columns.values() for name in values)
    return {name: [values.get(name, NOTHING) for values in columns.values()] for name in names}


def _turned(labels: Collection[str], facts: Mapping[str, Sequence[str]]) -> Table | None:
    """Return name -> values as a table: a column per run, or a row per run if there are many."""
    if not facts:
        return None
    if len(labels) <= _MOST_COLUMNS:
        return Table(("", *labels), tuple((name, *values) for name, values in facts.items()))
    return Table(("run", *facts), tuple(zip(labels, *facts.values(), strict=True)))


def _ran(lab: LabRun) -> tuple[str, ...]:
    results = lab.results
    seconds = results.get("total_seconds", results.get("seconds"))
    return (
        lab.label,
        lab.lab,
        lab.status,
        results.get("device", "-"),
        results.get("preset", "-"),
        results.get("started", "-").replace("T", " "),
        _rounded(seconds, 1),
        _rounded(results.get("peak_memory_mb"), 0),
        text(results.get("versions", {}).get("platform")).partition("-with-")[0],
        _revision(results.get("git", "-")),
    )


def _rounded(value: float | None, places: int) -> str:
    return f"{value:.{places}f}" if value is not None and abs(value) < 1e9 else "-"


def _revision(git: str) -> str:
    """Return the first characters of a revision, with the "+" of a checkout with changes."""
    return git[:7] + ("+" if git.endswith("+") and len(git) > 7 else "")


def _shorter(cell: str) -> str:
    try:
        value = float(cell)
    except ValueError:
        return cell
    is_whole = cell.lstrip("-").isdigit()
    return cell if is_whole or len(cell) < 9 else f"{value:.6g}"
