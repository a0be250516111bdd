"""JupyterLab as `make lab` starts it: local to this machine, with a token, in this environment.

Settings on JupyterLab's command line, such as the class below, override every configuration file.
"""

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from jupyter_server.auth.identity import PasswordIdentityProvider
from traitlets import validate

from labkit.ranks.processes import module_command, python_path

# The first two belong to `labkit run`; with the third, a notebook might show no figures. A kernel
# "python3" in a folder of the last would take precedence over every other: notebooks would open
# with it and fail at `import labkit` or run with other packages.
_NOT_FOR_KERNELS = ("LABKIT_RUN", "LABKIT_HEADLESS", "MPLBACKEND", "JUPYTER_PATH")


class AlwaysToken(PasswordIdentityProvider):
    """Requires a token even if the user's configuration turns tokens off for other servers."""

    @validate("token")
    def _never_empty(self, proposal: Mapping) -> str:
        if proposal["value"]:
            return proposal["value"]
        self.token_generated = True  # so that the URL that the server prints contains it
        return secrets.token_hex(24)


def command(
    root: Path,
    notebook: Path | None = None,
    *,
    port: int | None = None,
    browser: bool = True,
    more: Sequence[str] = (),
) -> list[str]:
    """Return the command line of a JupyterLab that shows the folder ``root``.

    Args:
        root: folder that JupyterLab shows
        notebook: notebook to open, in ``root``
        port: first port to try; if it is taken, Jupyter tries the next ones
        browser: whether to open a browser, if the machine has one
        more: arguments for JupyterLab itself, which override the ones set by this function
    """
    import zmq

    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.root_dir": str(root),
        "ServerApp.identity_provider_class": f"{__name__}.AlwaysToken",
        # Jupyter's own manager and only this kernel; the environment determines what "python3" is.
        "ServerApp.kernel_spec_manager_class": "jupyter_client.kernelspec.KernelSpecManager",
        "KernelSpecManager.allowed_kernelspecs": "{'python3'}",
        # No network access; labconfig/ beside this file suppresses the dialog that asks about it.
        "LabApp.news_url": "None",
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
    }
    if zmq.has("curve"):
        # Without it each kernel warns that others on this machine could listen.
        options["MappingKernelManager.transport_encryption"] = "auto"
    if notebook is not None:
        options["LabApp.default_url"] = f"/lab/tree/{quote(notebook.relative_to(root).as_posix())}"
    if port is not None:
        options["ServerApp.port"] = str(port)
    if os.geteuid() == 0:
        # In a container. Jupyter refuses root because of the code that kernels run; `labkit run`
        # runs the same code.
        options["ServerApp.allow_root"] = "True"
    line = module_command("jupyterlab")
    line += [f"--{name}={value}" for name, value in options.items()]
    return [*line, *([] if browser else ["--no-browser"]), *more]


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the server and its kernels: ``variables`` without those of a run.

    The environment's own kernel takes precedence over the user's. Jupyter's search path for
    settings begins with this package's folder, for ``labconfig``; the user's settings in JupyterLab
    still override it.
    """
    kept = {name: value for name, value in variables.items() if name not in _NOT_FOR_KERNELS}
    paths = [str(Path(__file__).parent), *filter(None, [variables.get("JUPYTER_CONFIG_PATH")])]
    return kept | {
        "JUPYTER_CONFIG_PATH": os.pathsep.join(paths),
        "JUPYTER_PREFER_ENV_PATH": "1",
        # Without it the debugger warns of Python's frozen modules whenever a kernel starts.
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "PYTHONPATH": python_path(variables.get("PYTHONPATH")),  # the server loads the class above
    }
