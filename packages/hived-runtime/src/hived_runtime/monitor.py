"""The monitor thread of a training process: it samples once a second, and notices what the training thread cannot.

A command that waits for a boundary, in a phase without steps; a lease that is over; a datagram that says "look now".
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Protocol

from hived_control.folder import JobFolder
from hived_control.page import Page, Sample, Wanted

from .memory.tier import Bytes

_PERIOD_S = 1.0
_LATE_S = 0.05  #: a command that waits for longer than this and two mini-batches may have met a phase without steps


class Monitored(Protocol):
    """The process of the monitor's thread: what the monitor reads of it, and requests of its training thread."""

    wake: threading.Event  #: set: the page has changed
    sample_due: bool  #: to be set: the memory at the next boundary is sampled
    every_second: Callable[[], object]

    @property
    def seconds(self) -> float:
        """A mini-batch takes, smoothed."""

    @property
    def least_bytes(self) -> int:
        """On the device at the boundary that was sampled last."""

    def pending(self) -> bool:
        """Whether a command waits for a boundary."""

    def hurry(self, hurries: bool) -> None:
        """Whether somebody waits until it pauses, moves or goes on."""

    def computing_s(self) -> float:
        """Time within mini-batches so far, without the waits of a share."""

    def held(self) -> Bytes:
        """Memory on the device."""

    def look_for_phase(self) -> None:
        """A command has waited for long: the script may be in a phase without steps."""

    def expire(self) -> None:
        """The lease of the command in force is over."""


class Monitor(threading.Thread):
    """Runs until the process ends. Reads what the training thread writes, and asks it to look."""

    def __init__(self, job: JobFolder, page: Page, process: Monitored) -> None:
        super().__init__(name="hived-monitor", daemon=True)
        self._page, self._process = page, process
        self._bell: socket.socket = job.listen(page.pid)
        self._sampled = 0.0
        self._busy_s = 0.0
        self._waits_since = 0.0  #: of a command; 0: none waits
        self._hurries = False  #: until it has obeyed, and after a suspension until it has gone on
        self._expired = 0  #: number of the last command whose lease was found to be over

    def close(self) -> None:
        """Stop to listen (in a forked child)."""
        self._bell.close()

    def run(self) -> None:
        """Sample and look, until the process ends."""
        wait = _PERIOD_S
        while True:
            self._bell.settimeout(wait)
            try:
                self._bell.recv(16)
                self._process.wake.set()
            except TimeoutError:
                pass
            except OSError:
                return  # closed
            with contextlib.suppress(Exception):  # whatever fails here must not end the thread
                wait = self._looked(time.monotonic())

    def _looked(self, now: float) -> float:
        """How long to wait now."""
        process = self._process
        command = self._page.command()
        wait = _PERIOD_S
        if command.limits_until > now:
            wait = min(wait, command.limits_until - now)
        elif command.limits_until and command.number != self._expired:
            self._expired = command.number
            process.expire()
        hurries = process.pending() and (self._hurries or command.wanted is not Wanted.RUN)
        if hurries is not self._hurries:
            self._hurries = hurries
            process.hurry(hurries)
        if process.pending():
            self._waits_since = self._waits_since or now
            late = self._waits_since + _LATE_S + 2 * process.seconds
            if now >= late:
                process.look_for_phase()
            else:
                wait = min(wait, late - now)
        else:
            self._waits_since = 0.0
        if now >= self._sampled + _PERIOD_S:
            self._sample(now)
            process.every_second()
        return wait

    def _sample(self, now: float) -> None:
        process = self._process
        found = process.held()
        busy = process.computing_s()
        since = now - self._sampled if self._sampled else 0.0
        self._page.report_sample(
            Sample(
                at=now,
                device_bytes=found.device,
                used_bytes=found.used,
                peak_bytes=found.peak,
                least_bytes=process.least_bytes,
                host_bytes=found.host,
                utilization=min(max(busy - self._busy_s, 0.0) / since, 1.0) if since else 0.0,
            )
        )
        self._sampled, self._busy_s = now, busy
        process.sample_due = True
