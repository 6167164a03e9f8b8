"""Mini-batches of training scripts of these tests: a job does not end before the test has done what it wants with it.

However slow the machine is: a move imports PyTorch in another process while the job goes on.
"""

import time
from pathlib import Path


def pace(done: int, total: int, hurry: Path) -> None:
    """Sleep after ``done`` of ``total`` mini-batches: shortly at first, a second at the end, never if ``hurry`` exists.

    500 mini-batches take some 80 s, 100 of them some 50 s.
    """
    if not hurry.exists():
        time.sleep(min(18 / max(total - done, 1), 1.0))
