"""Who we are to an API server, and where that is: from a kubeconfig, or from the pod that this runs in."""

from __future__ import annotations

import os
from pathlib import Path

from kubernetes_asyncio import config
from kubernetes_asyncio.client import Configuration

from hived.errors import InputError

_KUBECONFIG = "KUBECONFIG"
_IN_A_POD = "KUBERNETES_SERVICE_HOST"


async def load_configuration(kubeconfig: Path | None, context: str | None = None) -> Configuration:
    """As it is now; files may have changed since the last time. Raises :class:`~hived.errors.InputError`.

    Neither is given: what ``KUBECONFIG`` names, else the pod's own account, else ``~/.kube/config``.
    """
    # not Configuration(): that may be a copy of a process-wide default
    found: Configuration = type.__call__(Configuration)
    # Go's tools do not ask for what Python 3.13 does of a certificate, and many clusters' have not got it
    found.disable_strict_ssl_verification = True
    files = os.environ.get(_KUBECONFIG) if kubeconfig is None else str(kubeconfig)
    if files or context is not None or _IN_A_POD not in os.environ:
        await _load_files(files or str(Path.home() / ".kube" / "config"), context, found)
    else:
        try:
            config.load_incluster_config(found)  # type: ignore[no-untyped-call]  # they have no types there
        except (config.ConfigException, OSError) as error:
            raise InputError(
                f"this pod's account: {error}: mount its token (automountServiceAccountToken), or give --kubeconfig"
            ) from None
    return found


async def _load_files(files: str, context: str | None, into: Configuration) -> None:
    # several, as kubectl has it: those that are there are merged
    if not any(Path(name).expanduser().is_file() for name in files.split(os.pathsep) if name):
        raise InputError(
            f"kubeconfig {files}: no such file: name one with --kubeconfig, or run in a pod of the cluster"
        )
    try:
        await config.load_kube_config(files, context, into, persist_config=False)
    # whatever is wrong with the file, or with the program that it names: it is not ours, and says so in many ways
    except Exception as error:
        raise InputError(f"kubeconfig {files}: {_words(error)}: try `kubectl version` with it") from None


def _words(error: Exception) -> str:
    said = " ".join(str(error).split())
    # those that mean a shape which nobody expected say little by themselves
    known = isinstance(error, config.ConfigException | OSError)
    return said if known else f"cannot be read ({said or type(error).__name__})"
