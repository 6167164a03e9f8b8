"""Names of GPUs: ``cuda:1`` of a command is the second GPU of the machine, whichever of them a process sees."""

from __future__ import annotations

from collections.abc import Mapping

VISIBLE = "CUDA_VISIBLE_DEVICES"  #: numbers or UUIDs, by which CUDA hides the other GPUs of the machine


def visible(environment: Mapping[str, str]) -> list[str]:
    """The GPUs that a process sees, as numbers of the machine or UUIDs; empty: all.

    >>> visible({VISIBLE: "2, GPU-8f"}), visible({})
    (['2', 'GPU-8f'], [])
    """
    return [entry.strip() for entry in environment.get(VISIBLE, "").split(",") if entry.strip()]


def of_machine(index: int, environment: Mapping[str, str]) -> str:
    """The name in a command of the ``index``-th GPU that a process sees.

    >>> of_machine(1, {VISIBLE: "2,3"}), of_machine(1, {}), of_machine(0, {VISIBLE: "GPU-8f"})
    ('cuda:3', 'cuda:1', 'GPU-8f')
    """
    entries = visible(environment)
    entry = entries[index] if index < len(entries) else str(index)
    return f"cuda:{entry}" if entry.isdigit() else entry
