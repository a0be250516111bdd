"""`labkit run`."""

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
    timeout: options.Timeout = None,
    cell_timeout: options.CellTimeout = None,
    memory: options.Memory = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    as_json: options.Json = False,
) -> None:
    """Execute labs headlessly; each leaves its notebook, results.json, records and figures.

    A lab that fails, dies, hangs or takes too much memory is reported as that, and the others go
    on. Exit codes: 0 all passed, 1 a lab failed, 2 bad input, 130 Ctrl-C.

    Example: labkit run 01 --preset smoke -p micro_steps=8
    """
    from labkit.tools import console
    from labkit.tools.running import runner

    if resume is not None and out is not None:
        raise InputError("--resume goes on in the folder of its run: expected no --out beside it")
    say = console.reporter(quiet=quiet, verbose=verbose, as_json=as_json)
    source = ctx.get_parameter_source("preset")
    if source is not None and source.name == "ENVIRONMENT" and resume is not None:
        preset = None  # the shell's is for new runs
    wanted = _request(labs, preset, device, parameter, resume)
    limits = options.limits(wanted.preset, timeout, cell_timeout, memory)
    outcomes: list[runner.Outcome] = []
    with ended_by_sigterm(), runner.prepared(wanted, out, resume=resume, say=say) as job:
        try:
            for outcome in runner.run_labs(job, say, limits):
                outcomes.append(outcome)
        except KeyboardInterrupt:
            console.closing(outcomes, job.folder, as_json=as_json, code=130)
            raise
    code = runner.exit_code(outcomes)
    console.closing(outcomes, job.folder, as_json=as_json, code=code)
    raise typer.Exit(code)


def _request(
    labs: list[str] | None,
    preset: str | None,
    device: str | None,
    parameters: list[str] | None,
    resume: Path | None,
) -> "Request":
    """Return what is to be run; what is not given is as in the run that is resumed."""
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
