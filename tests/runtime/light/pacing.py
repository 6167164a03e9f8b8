"""Mini-batches of training scripts of these tests: a job does not end before the test has done what it wants with it.

However slow the machine is: a move imports PyTorch in another process while the job goes on.
"""

import time
from pathlib import Path


def pace(done: int, total: int, hurry: Path) -> None:
    """Sleep after ``done`` of ``total`` mini-batches: shortly at first, never if ``hurry`` exists.

    All but the last ten of 500 mini-batches take some 75 s, and those 200 s more: then the test has hung.
    """
    left = max(total - done, 1)
    for _ in range(1 if left > 10 else 200):
        if hurry.exists():
            return
        time.sleep(min(18 / left, 1.0) if left > 10 else 0.1)
