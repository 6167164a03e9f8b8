"""Users of this machine, by name."""

from __future__ import annotations

import functools
import os
import pwd

from starlette.requests import Request


def asking(request: Request) -> str:
    """Who asks: over a Unix socket the user that the kernel names, over TCP (who has the token) the engine's own."""
    return str(getattr(request.state, "user", "")) or user_name(os.geteuid())


@functools.lru_cache(maxsize=1024)
def user_name(uid: int) -> str:
    """The name of a user, or its number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
