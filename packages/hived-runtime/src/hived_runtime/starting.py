"""Starts the runtime in a process: at once if torch is imported already, else when it is. Imports nothing heavy."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import warnings
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hived_control.environment import JOB, MEMORY, PAGER, SHARE, SWITCH

from .idle import yield_processor

if TYPE_CHECKING:
    from .process import TrainingProcess

_LOADS_S = 120.0  #: for a job to load, and to end its first mini-batch
_process: TrainingProcess | None = None


def running() -> TrainingProcess | None:
    """The runtime of this process, if it has been started."""
    return _process


def start() -> None:
    """Start the runtime; once. What fails is said on stderr, and the script runs as it would alone."""
    global _process
    if _process is not None or os.environ.get(SWITCH) == "off":
        return
    try:
        _process = _made()
    except Exception as error:
        print(f"hived_runtime: this job cannot be managed, and runs as it would alone: {error}", file=sys.stderr)


def on_import_of_torch() -> None:
    """Start the runtime when the script imports torch: now, if it has."""
    if "torch" in sys.modules:
        start()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _made() -> TrainingProcess:
    from hived_control.folder import JobFolder, named_after, started_at

    from .memory import noted
    from .moving.destination import Destination
    from .process import Floor, TrainingProcess

    name = os.environ.get(JOB)
    if name is None:
        name = f"{named_after(sys.argv[:1] or ['python'])}-{os.getpid()}"
        os.environ[JOB] = name  # for children that are ranks of the same job
        job = JobFolder.named(name)
        job.claim(
            {"argv": sys.orig_argv, "cwd": str(Path.cwd()), "pid": os.getpid(), "started": started_at(os.getpid())}
        )
    else:
        job = JobFolder.named(name)
    floor = Floor(int(os.environ.get(MEMORY, "0")), float(os.environ.get(SHARE, "1")))
    pager = None
    if driver := os.environ.get(PAGER):
        from .memory.paged import installed

        pager = installed(driver)
    # not of the script's making: both would be printed because of hooks and threads of ours
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork.*")
    warnings.filterwarnings("ignore", message=".*when there are global hooks on modules.*")
    noted.watch()
    made = TrainingProcess(job, floor, pager, Destination.of_environment(job.path.resolve()))
    atexit.register(made.leave)
    os.register_at_fork(after_in_child=made.forget)
    return made


def _yield_while_it_loads() -> None:
    """Of a job that is started with a share: it disturbs nobody meanwhile; one that does not train is not limited."""
    with contextlib.suppress(ValueError):
        if os.environ.get(SWITCH) == "off" or float(os.environ.get(SHARE, "1")) >= 1:
            return
        yield_processor(True)
        timer = threading.Timer(_LOADS_S, _end_yielding)
        timer.daemon = True
        timer.start()


def _end_yielding() -> None:
    if _process is None or not _process.trains:
        yield_processor(False)


class _Finder(MetaPathFinder):
    """Finds torch as the other finders do, and starts the runtime when it has been imported."""

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of torch with a loader of ours around its own; ``None`` for all else."""
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(fullname, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader(Loader):
    """The loader of torch, and then the start of the runtime."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the loader does."""
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """As the loader does; then start."""
        spec = module.__spec__
        if spec is not None:
            spec.loader = self._loader
        module.__loader__ = self._loader
        _yield_while_it_loads()
        self._loader.exec_module(module)
        start()
