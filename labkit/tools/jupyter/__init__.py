"""JupyterLab as `make lab` starts it: for this machine, behind a token, on this environment.

What is set on JupyterLab's command line, as the class below, beats every configuration file.
"""

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from jupyter_server.auth.identity import PasswordIdentityProvider
from traitlets import validate

from labkit.ranks.processes import module_command, python_path

# The first two belong to `labkit run`, the third would keep figures out of a notebook. A kernel
# "python3" in the folders of the last comes before every other: a notebook would open with it, and
# fail at `import labkit` or run with other packages.
_NOT_FOR_KERNELS = ("LABKIT_RUN", "LABKIT_HEADLESS", "MPLBACKEND", "JUPYTER_PATH")


class AlwaysToken(PasswordIdentityProvider):
    """Asks for a token even where the user's configuration turns tokens off for other servers."""

    @validate("token")
    def _never_empty(self, proposal: Mapping) -> str:
        if proposal["value"]:
            return proposal["value"]
        self.token_generated = True  # so that it is in the address that the server prints
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
        notebook: the one to open, in ``root``
        port: the first to try; where it is taken, Jupyter tries the next ones
        browser: open one, where the machine has one
        more: arguments for JupyterLab itself, which beat the ones here
    """
    import zmq

    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.root_dir": str(root),
        "ServerApp.identity_provider_class": f"{__name__}.AlwaysToken",
        # Jupyter's own, and no other kernel: what "python3" is, the environment decides.
        "ServerApp.kernel_spec_manager_class": "jupyter_client.kernelspec.KernelSpecManager",
        "KernelSpecManager.allowed_kernelspecs": "{'python3'}",
        # No question to the network; labconfig/ beside this file keeps the window that asks away.
        "LabApp.news_url": "None",
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
    }
    if zmq.has("curve"):
        # Else each kernel warns that others on this machine could listen.
        options["MappingKernelManager.transport_encryption"] = "auto"
    if notebook is not None:
        options["LabApp.default_url"] = f"/lab/tree/{quote(notebook.relative_to(root).as_posix())}"
    if port is not None:
        options["ServerApp.port"] = str(port)
    if os.geteuid() == 0:
        # In a container. Jupyter refuses it for what its kernels may do; so may `labkit run`.
        options["ServerApp.allow_root"] = "True"
    line = module_command("jupyterlab")
    line += [f"--{name}={value}" for name, value in options.items()]
    return [*line, *([] if browser else ["--no-browser"]), *more]


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the server and its kernels: ``variables`` without those of a run.

    The environment's own kernel comes before the user's. Jupyter's search path for settings begins
    with this package's folder, for ``labconfig``; the user's settings in JupyterLab still beat it.
    """
    kept = {name: value for name, value in variables.items() if name not in _NOT_FOR_KERNELS}
    paths = [str(Path(__file__).parent), *filter(None, [variables.get("JUPYTER_CONFIG_PATH")])]
    return kept | {
        "JUPYTER_CONFIG_PATH": os.pathsep.join(paths),
        "JUPYTER_PREFER_ENV_PATH": "1",
        # Else the debugger warns of Python's frozen modules on stderr at each start of a kernel.
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "PYTHONPATH": python_path(variables.get("PYTHONPATH")),  # the server loads the class above
    }
