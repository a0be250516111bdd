"""`labkit run` and `labkit sweep`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labkit.base.signals import ended_by_sigterm
from labkit.errors import InputError
from labkit.tools.commands import options

if TYPE_CHECKING:
    from labkit.tools.running.request import Request


def run(
    ctx: typer.Context,
    labs: options.Labs = None,
    preset: options.Preset = None,
    device: options.Device = None,
    parameter: options.Parameters = None,
    out: options.Out = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Go on in the folder of an earlier run: passed labs whose inputs are the same are "
            "not executed again, interrupted trainings continue from their checkpoints.",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            help="Labs at once, each on cores of its own. If not given: one a core, as memory "
            "allows; one at preset paper, or where there is an Ascend or a GPU to share."
        ),
    ] = None,
    timeout: options.Timeout = None,
    cell_timeout: options.CellTimeout = None,
    memory: options.Memory = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    as_json: options.Json = False,
) -> None:
    """Execute labs headlessly; each leaves its notebook, results.json, records and figures.

    A lab that fails, dies, hangs or takes too much memory is reported as such, and the others
    continue. Exit codes: 0 all passed, 1 a lab failed, 2 bad input, 130 Ctrl-C.

    Example: labkit run 01 --preset smoke -p micro_steps=8
    """
    from labkit.tools import console
    from labkit.tools.running import pool, runner

    if resume is not None and out is not None:
        raise InputError("--resume continues in the folder of its run: expected no --out with it")
    say = console.reporter(quiet=quiet, verbose=verbose, as_json=as_json)
    source = ctx.get_parameter_source("preset")
    if source is not None and source.name == "ENVIRONMENT" and resume is not None:
        preset = None  # LABKIT_PRESET applies to new runs only
    wanted = _request(labs, preset, device, parameter, resume)
    if jobs is None and wanted.preset == "paper":
        jobs = 1
    jobs = pool.jobs_of(jobs, len(wanted.labs), runner.MEMORY, wanted.device)
    limits = options.limits(wanted.preset, timeout, cell_timeout, memory, jobs)
    outcomes: list[runner.Outcome] = []
    with ended_by_sigterm(), runner.prepared(wanted, out, resume=resume, say=say) as folder:
        try:
            for outcome in runner.run_labs(wanted, folder, jobs, say, limits, again=bool(resume)):
                outcomes.append(outcome)
        except KeyboardInterrupt:
            console.closing(outcomes, folder, as_json=as_json, code=130)
            raise
    outcomes.sort(key=lambda outcome: wanted.labs.index(outcome.lab))
    code = runner.exit_code(outcomes)
    console.closing(outcomes, folder, as_json=as_json, code=code)
    raise typer.Exit(code)


def _request(
    labs: list[str] | None,
    preset: str | None,
    device: str | None,
    parameters: list[str] | None,
    resume: Path | None,
) -> "Request":
    """Return the request; what is not given is taken from the run that is resumed."""
    from labkit.tools.running import folders, request

    named = request.parse_parameters(parameters or ())
    before: dict[str, Any] = {"preset": "lab", "device": "auto", "labs": (), "parameters": {}}
    if resume is not None:
        before = folders.read_run(resume)
    return request.check(
        labs or before["labs"],
        preset=preset or before["preset"],
        device=device or before["device"],
        parameters=named,
        before=before["parameters"],
    )


def sweep(
    lab: options.SingleLab,
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
        typer.Option(
            help="Runs at once, each on its own core. If not given: one a core, as memory allows; "
            "one where there is an Ascend or a GPU to share."
        ),
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
    """Run one lab over a grid of parameters; write a table, and a figure of every metric.

    Runs that have passed with the same inputs are not repeated. Exit codes: 0 all passed, 1 a run
    failed, 2 bad input, 130 Ctrl-C (the same command continues).

    Example: labkit sweep 01 -p micro_steps=1,2,4,8 -p seed=1,2 --preset smoke
    """
    from labkit.tools import console
    from labkit.tools.running import pool, request, sweep, sweep_table

    say = console.reporter(quiet=quiet, verbose=verbose, as_json=as_json)
    axes = request.parse_grid(parameter or ())
    requests = request.of_grid(lab, axes, preset=preset, device=device)
    jobs = pool.jobs_of(jobs, len(requests), sweep.MEMORY, device)
    project, name = requests[0].project, requests[0].labs[0].name
    folder = out or project / "runs" / "sweeps" / f"{name}-{preset}"
    limits = options.limits(preset, timeout, cell_timeout, memory, jobs)
    say(console.sweep_begins(name, axes, jobs, limits))
    with ended_by_sigterm():
        rows = sweep.sweep(requests, axes, folder, jobs=jobs, say=say, limits=limits)
    files = sweep_table.write(rows, axes, folder)
    raise typer.Exit(console.sweep_ends(rows, files, as_json=as_json))
