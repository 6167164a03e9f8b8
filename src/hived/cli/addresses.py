"""Addresses to listen on, and the links that lead there."""

from __future__ import annotations

from hived.errors import InputError

#: where the engine on Kubernetes listens unless told otherwise, as one reaches it from its own machine
SCHEDULER_URL = "http://127.0.0.1:9096"
#: all addresses of this machine, and one that a browser here can open
ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def address(listen: str) -> tuple[str, int]:
    """``127.0.0.1:8080``, ``[::1]:0``, ``:8080`` (loopback). Raises :class:`InputError` for what is none."""
    host, colon, port = listen.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not (port.isascii() and port.isdigit()) or (":" in bare and bare == host):
        raise InputError(f"--listen {listen}: give host and port, for example 127.0.0.1:8080 or [::1]:8080")
    return bare or "127.0.0.1", int(port)


def link(host: str, port: int, token: str = "") -> str:
    """What a browser on this machine opens."""
    shown = ANY.get(host, host)
    where = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/"
    return f"{where}?token={token}" if token else where
