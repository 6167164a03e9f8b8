"""A training job without PyTorch: its mini-batches are naps, and it obeys its control page as the runtime has a job do.

Executed as a script: ``SECONDS [CODE]``, of a mini-batch; ``CODE`` is run first. It prints the number and the time of
each mini-batch. What it is told holds from the next one on; suspended, it is stopped, until it is told otherwise.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from hived_control.environment import JOB, JOBS
from hived_control.folder import JobFolder
from hived_control.page import Answer, Command, Page, Sample, State, Wanted
from hived_control.stopping import Deferred, stop_self, woken_at


def train(seconds: float) -> None:
    """Train for ever."""
    folder = JobFolder(Path(os.environ[JOBS]) / os.environ[JOB])
    page: Page | None = None
    number, answer = 0, Answer(state=State.RUNNING, tier="framework", device="cpu")
    while True:
        time.sleep(seconds * (1 / answer.share if answer.share else 1))
        number += 1
        print(number, time.time(), flush=True)
        if page is None:
            page = folder.join(os.getpid(), Command())
            page.report_answer(answer)
            page.report_sample(Sample(time.monotonic(), peak_bytes=1 << 20, least_bytes=1 << 10, utilization=0.3))
            page.publish()
        page.report_progress(number, seconds, time.monotonic())
        with Deferred() as signals:
            answer = obey(page, answer, signals)


def obey(page: Page, answer: Answer, signals: Deferred) -> Answer:
    """Carry out its command; what it answers then."""
    while True:
        command = page.command()
        wants = command.wanted
        if command.suspended_until and time.monotonic() >= command.suspended_until:
            wants = Wanted.RUN
        if not page.file.exists():  # by which alone it could be resumed
            wants = Wanted.RUN
        state = State.SUSPENDED if wants is Wanted.SUSPEND and not signals.have_come() else State.RUNNING
        now = Answer(
            noted=command.number, state=state, memory_limit=command.memory_limit, share=command.share, tier=answer.tier,
            device=answer.device, since=answer.since if state is answer.state else time.monotonic(),
        )  # fmt: skip
        if now != answer:
            answer = now
            page.report_answer(answer)
        if state is State.RUNNING:
            return answer
        with woken_at(command.suspended_until):
            stop_self()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        exec(sys.argv[2])
    train(float(sys.argv[1]))
