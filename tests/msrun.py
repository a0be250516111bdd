"""Start a program on local ranks and read all their logs, however it ends."""

from labkit.errors import WorkerFailed
from labkit.launching import launch

SECONDS = 170


def msrun(out, *program, root, ranks=2):
    """Run a program on two or more ranks, in folder ``out``; return (exit code, logs' ends).

    The exit code is 1 where a rank failed; one that hangs raises.
    """
    if program[0] == "python":
        program = program[1:]
    code, env = 0, {"PYTHONPATH": str(root)}
    options = {"cwd": out, "log_dir": out / "log", "cluster_timeout": 120, "env": env}
    try:
        launch(*program, workers=ranks, timeout=SECONDS, **options)
    except TimeoutError:
        raise
    except WorkerFailed:
        code = 1
    return code, "\n".join(log.read_text(errors="replace")[-3000:] for log in out.rglob("*.log"))
