"""The environment in which ``hived train run`` starts a job: by what it and the job's runtime agree."""

from __future__ import annotations

from pathlib import Path

JOBS = "HIVED_JOBS"  #: the folder of all jobs; see :mod:`.folder`
JOB = "HIVED_RUN_JOB"  #: the job's name
MEMORY = "HIVED_RUN_MEMORY"  #: device bytes that it is started with
SHARE = "HIVED_RUN_SHARE"  #: of the device's time, that it is started with
PAGER = "HIVED_RUN_PAGER"  #: "cuda", or the library of another driver: device memory is paged
MOVE = "HIVED_RUN_MOVE"  #: of a destination: how it reaches its source
SESSION = "HIVED_RUN_SESSION"  #: "own": its session is no user's, but the job's alone
SWITCH = "HIVED_RUNTIME"  #: "off": the script runs as it would alone
LAUNCH = Path(__file__).parents[1] / "hived_runtime" / "launch"  #: first in PYTHONPATH: every Python there imports it
