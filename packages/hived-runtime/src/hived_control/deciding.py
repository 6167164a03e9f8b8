"""Decisions that several processes make together, of which one may die at any moment: the first that is written holds.

A decision is a symbolic link, whose target is the decision. It appears whole, and only if there is none of that name,
on network file systems too. So of a controller that says "go" and a rank that waits no longer one wins, for all.
"""

from __future__ import annotations

from pathlib import Path

_YES, _NO = "yes", "no"


def decide(link: Path, wish: bool) -> bool:
    """Decide, unless it has been decided: what holds. ``OSError`` if nothing can be written there."""
    try:
        link.symlink_to(_YES if wish else _NO)
    except FileExistsError:
        return str(link.readlink()) == _YES
    return wish


def decided(link: Path) -> bool | None:
    """What has been decided; ``None``: nothing yet."""
    try:
        return str(link.readlink()) == _YES
    except OSError:
        return None
