"""JupyterLab as `make lab` starts it: for this machine, behind a token, on this environment.

The classes below are named on JupyterLab's command line, which beats every configuration file.
"""

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from ipykernel.kernelspec import RESOURCES, get_kernel_dict
from jupyter_client.kernelspec import NATIVE_KERNEL_NAME, KernelSpec, KernelSpecManager
from jupyter_client.kernelspec import NoSuchKernel as _NoSuchKernel
from jupyter_server.auth.identity import PasswordIdentityProvider
from traitlets import validate

from labkit.ranks.processes import module_command, python_path

# These belong to `labkit run`, or would keep figures out of a notebook.
_NOT_FOR_KERNELS = ("LABKIT_RUN", "LABKIT_HEADLESS", "MPLBACKEND")


class OwnKernel(KernelSpecManager):
    """One kernel: the interpreter that runs the server, under the name that the notebooks ask for.

    Jupyter looks "python3" up in the folders of JUPYTER_PATH first, and in the user's first where
    the environment belongs to somebody else (or JUPYTER_PREFER_ENV_PATH=0): with another one from
    there a notebook would open, and fail at ``import labkit`` or run with other packages.
    """

    def find_kernel_specs(self) -> dict[str, str]:
        """Return the only kernel's name and the folder of its pictures."""
        return {NATIVE_KERNEL_NAME: RESOURCES}

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """Return the kernel; raises Jupyter's ``NoSuchKernel`` for every other name."""
        if kernel_name != NATIVE_KERNEL_NAME:
            raise _NoSuchKernel(kernel_name)
        # Without the option the debugger warns on stderr at each start.
        arguments = ["-Xfrozen_modules=off"]
        return KernelSpec(resource_dir=RESOURCES, **get_kernel_dict(python_arguments=arguments))


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
    """Return the command line of a JupyterLab that shows ``root``, opened on ``notebook`` in it.

    port     the first to try; where it is taken, Jupyter tries the next ones
    browser  open one, where the machine has one
    more     arguments for JupyterLab itself, which beat the ones here
    """
    import zmq

    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.root_dir": str(root),
        "ServerApp.identity_provider_class": f"{__name__}.AlwaysToken",
        "ServerApp.kernel_spec_manager_class": f"{__name__}.OwnKernel",
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


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the server and its kernels: ``given`` without `labkit run`'s own.

    Jupyter's search path begins with this package's folder, for the settings in ``labconfig``; the
    user's own settings in JupyterLab still beat them.
    """
    kept = {name: value for name, value in given.items() if name not in _NOT_FOR_KERNELS}
    paths = [str(Path(__file__).parent), *filter(None, [given.get("JUPYTER_CONFIG_PATH")])]
    return kept | {
        "JUPYTER_CONFIG_PATH": os.pathsep.join(paths),
        "PYTHONPATH": python_path(given.get("PYTHONPATH")),  # the server loads the classes above
    }
