"""A Jupyter kernel of this very interpreter, whose process the caller gets to see."""

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

NAME = "python3"


def own_kernel(
    environment: Mapping[str, str], log: Path, started: Callable[[subprocess.Popen], None]
) -> type:
    """Return a kernel manager class whose kernels run this interpreter.

    Jupyter looks a kernel up by name in the folders of JUPYTER_PATH first, and in the user's first
    where the environment belongs to somebody else: another environment's "python3" can stand before
    this one's, and the notebook would run with other packages.

    Args:
        environment: added to the kernels' variables.
        log: file for what their processes write.
        started: gets each kernel's process at once, also while the kernel is still getting ready.
    """
    import zmq
    from ipykernel.kernelspec import get_kernel_dict
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from traitlets import default

    # Jupyter fills $NAME in these values.
    literal = {name: value.replace("$", "$$") for name, value in environment.items()}
    arguments = {"python_arguments": ["-Xfrozen_modules=off"]}  # else the debugger warns on stderr

    class OwnKernelSpecManager(KernelSpecManager):
        def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
            return KernelSpec(**get_kernel_dict(**arguments), env=literal)

    class OwnKernelManager(AsyncKernelManager):
        @default("kernel_spec_manager")
        def _own_interpreter(self) -> KernelSpecManager:
            return OwnKernelSpecManager()

        @default("transport_encryption")
        def _encrypted(self) -> str:
            # Else the kernel warns that others on this machine could listen.
            return "auto" if zmq.has("curve") else "disabled"

        # The class above it is typed as the one that blocks.
        async def start_kernel(self, **options: Any) -> None:  # type: ignore[override]
            with log.open("wb") as file:
                await super().start_kernel(stdout=file, stderr=subprocess.STDOUT, **options)
            provisioner: Any = self.provisioner  # a LocalProvisioner, by default
            started(provisioner.process)

    return OwnKernelManager
