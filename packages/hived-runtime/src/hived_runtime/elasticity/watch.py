"""A worker that waits for one that has died does not wait for ever.

Usually the process group says so at once. NCCL does not, and gloo does not for as long as a child of the dead worker
has its sockets: then this worker would wait for half an hour, which is PyTorch's default, with its GPU.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

_PATIENCE = 5  #: looks, of one a second, in which the process group may find it by itself


class Watch:
    """Looks once a second, by the monitor, so a process that is stopped does not lose its patience.

    ``lost`` says which worker has died, or nothing; ``give_up`` is called first, and may free the training thread.
    """

    def __init__(self, lost: Callable[[], str], give_up: Callable[[], None] = lambda: None) -> None:
        self._lost, self._give_up = lost, give_up
        self._looks = 0
        self._waits = False

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Within, the training thread waits for all the others, once: their gradients."""
        self._looks, self._waits = 0, True
        try:
            yield
        finally:
            self._waits = False

    def look(self) -> None:
        """End this process, with exit code 1, if it has waited in vain."""
        why = self._lost() if self._waits else ""
        self._looks = self._looks + 1 if why else 0
        if self._looks == _PATIENCE:
            self._give_up()
        elif self._looks == 2 * _PATIENCE:  # its training thread is in a call that nothing ends
            print(f"hived_runtime: {why}, and the process group waits for it: this job ends", file=sys.stderr)
            sys.stderr.flush()
            os._exit(1)
