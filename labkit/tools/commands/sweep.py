"""`labkit sweep`."""

from pathlib import Path
from typing import Annotated

import typer

from labkit.base.signals import ended_by_sigterm
from labkit.tools.commands import options


def sweep(
    lab: options.OneLab,
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "-p",
            "--parameter",
            metavar="NAME=VALUE,VALUE",
            help="Values that one takes; may be repeated. The first is the figures' axis.",
            autocompletion=options.parameters,
        ),
    ] = None,
    preset: options.PresetOrDefault = "lab",
    device: options.DeviceOrDefault = "auto",
    jobs: Annotated[
        int | None,
        typer.Option(help="Runs at once, each on its own core; as many as there are if not given."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the sweep; runs/sweeps/<lab>-<preset> if not given."),
    ] = None,
    timeout: options.Timeout = None,
    cell_timeout: options.CellTimeout = None,
    memory: options.Memory = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    as_json: options.Json = False,
) -> None:
    """Run one lab over a grid of parameters; write one table, and a figure of every metric.

    What has passed before with the same inputs is not run again. Exit codes: 0 all passed, 1 a run
    failed, 2 bad input, 130 Ctrl-C (the same command goes on).

    Example: labkit sweep 01 -p micro_steps=1,2,4,8 -p seed=1,2 --preset smoke
    """
    from labkit.tools import console
    from labkit.tools.running import grid, sweep, sweep_table
    from labkit.tools.running.watch import free_memory

    say = console.reporter(quiet=quiet, verbose=verbose, as_json=as_json)
    axes = grid.parse(parameter or ())
    requests = grid.requests(lab, axes, preset=preset, device=device)
    jobs = sweep.usable_jobs(len(requests), free_memory()) if jobs is None else jobs
    sweep.check_jobs(jobs)
    first = requests[0]
    folder = out or first.project / "runs" / "sweeps" / f"{first.labs[0].name}-{preset}"
    limits = options.limits(preset, timeout, cell_timeout, memory, jobs)
    say(console.sweep_begins(first.labs[0].name, axes, jobs, limits))
    with ended_by_sigterm():
        rows = sweep.sweep(requests, axes, folder, jobs=jobs, say=say, limits=limits)
    files = sweep_table.write(rows, axes, folder)
    failed = [row for row in rows if row.results.get("status") != "passed"]
    console.sweep_ends(rows, files, as_json=as_json)
    raise typer.Exit(1 if failed else 0)
