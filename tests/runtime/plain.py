"""Scripts that nobody manages, for the results to compare with: in processes that have imported PyTorch already."""

from __future__ import annotations

import functools
import multiprocessing
import os
import runpy
import sys
import time
from collections.abc import Mapping
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from unittest import mock

#: one thread of a math library: sums are then the same in every run
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_PATIENCE_S = 300.0


@functools.cache
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch._dynamo"])
    with mock.patch.dict(os.environ, {**ONE_THREAD, "HIVED_RUNTIME": "off"}):
        forkserver.ensure_running()
    return context


def run_plain(script: Path, arguments: list[str], log: Path, **variables: str) -> None:
    """Run a script without the runtime; what it prints goes to ``log``, and into the error if it fails."""
    environment = {**os.environ, **ONE_THREAD, "HIVED_RUNTIME": "off", **variables}
    process = _context().Process(target=_run, args=(str(script), arguments, str(log), environment))
    process.start()
    process.join(_PATIENCE_S)
    if process.is_alive():
        process.kill()
        process.join()
    assert process.exitcode == 0, log.read_text(errors="replace")[-4000:]


def _run(script: str, arguments: list[str], log: str, environment: Mapping[str, str]) -> None:
    output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.clear()
    os.environ.update(environment)
    multiprocessing.set_start_method("fork", force=True)  # as in any other process
    sleep = time.sleep
    time.sleep = lambda _: sleep(0.0001)  # nobody has anything to do meanwhile
    sys.argv = [script, *arguments]
    sys.path[:0] = [str(Path(script).parent), str(Path(__file__).parent / "light")]
    runpy.run_path(script, run_name="__main__")
