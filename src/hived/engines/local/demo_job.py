"""A job of the demo: counts steps, saves its step on SIGTERM, and resumes there the next time.

Executed as a script: ``STEPS [EXIT_CODE]``, a step being half a second.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

_STEP_S = 0.5


def main(steps: int, code: int) -> int:
    """Run the steps that are left."""
    saved = Path(os.environ.get("HIVED_JOB_DIR", ".")) / "step"
    step = int(saved.read_text()) if saved.exists() else 0

    def leave(number: int, frame: FrameType | None) -> None:
        saved.write_text(str(step))
        print(f"told to stop: step {step} is saved", flush=True)
        sys.exit(0)

    signal.signal(signal.SIGTERM, leave)
    name, devices = os.environ.get("HIVED_JOB_NAME", "job"), os.environ.get("CUDA_VISIBLE_DEVICES", "")
    print(f"{name} on devices {devices}, from step {step} of {steps}", flush=True)
    while step < steps:
        time.sleep(_STEP_S)
        step += 1
        print(f"step {step} of {steps}, loss {4.0 * 0.97**step:.3f}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
