"""Stays where a training process was that has moved away: waits for the one that took over, and ends as it does.

Executed as a script, ``PID [SIGNAL...]``: it replaces the source by ``exec``, so whoever waits for the job, a shell or
a supervisor, notices nothing. Signals go on to the job, first those that came while it moved.
"""

import contextlib
import os
import signal
import sys

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main(job: int, signals: list[int]) -> None:
    """Wait for the process ``job``, a child, and end as it does."""

    def pass_on(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(job, number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    for came in signals:
        if came in PASSED_ON:
            pass_on(came, None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    status = 0
    ended = 0
    while ended != job:
        try:
            ended, status = os.wait()
        except ChildProcessError:
            os._exit(1)  # it is no child of this process: that cannot be
    if os.WIFSIGNALED(status):
        deadly = os.WTERMSIG(status)
        with contextlib.suppress(OSError, ValueError):
            signal.signal(deadly, signal.SIG_DFL)
        os.kill(os.getpid(), deadly)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(number) for number in sys.argv[2:]])
