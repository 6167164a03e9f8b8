"""A folder of control groups that is an engine's own, with the controllers that it needs.

The kernel lets a group divide memory and processors among the groups in it only where no process is in that group
itself. A process that was started in a shell or as a service is in a group of systemd's, with others, and those groups
are systemd's to divide. So it is asked for one that is not (a transient scope with ``Delegate=``), by ``busctl``, which
comes with it. Where there is no systemd, as in most containers, a process that is alone in its group moves into one
below it.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from hived.errors import InputError

#: where the hierarchy of version 2 may be mounted
MOUNTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
#: is there where systemd runs the machine (sd_booted(3))
_SYSTEMD = Path("/run/systemd/system")
_MANAGER = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
#: the group of the processes that are no tasks, so that none is in the folder itself
_LEAF = "engine"
#: how long systemd is waited for, in seconds
_PATIENCE_S = 10.0


class OwnGroups:
    """A folder of control groups in which this process makes others."""

    def __init__(self, path: Path, holder: subprocess.Popen[bytes] | None = None) -> None:
        """``holder``: a process that does nothing but keep it, until this one ends."""
        self.path = path
        self._holder = holder

    @classmethod
    def plain(cls, name: str, mounts: Sequence[Path] = MOUNTS) -> OwnGroups | None:
        """One below the group that this process is in, made if need be; None: it may make none."""
        for here in _here(mounts):
            group = here / name
            with suppress(OSError):
                group.mkdir(exist_ok=True)
                if (group / "cgroup.kill").exists():
                    with suppress(OSError):  # if the kernel lets us count processes there
                        _control(group, {"pids"})
                    return cls(group)
        return None

    @classmethod
    def dividing(cls, name: str, controllers: Collection[str], mounts: Sequence[Path] = MOUNTS) -> OwnGroups:
        """One with these controllers, that has no processes itself. Blocks until systemd has answered.

        Raises :class:`~hived.errors.InputError` where there can be none, with the way out.
        """
        here = next(iter(_here(mounts)), None)
        if here is None:
            raise InputError("control groups of version 2 are not mounted here")
        try:
            made = _scope(here, name) if _SYSTEMD.is_dir() else cls(_below(here) / name)
            made.path.mkdir(exist_ok=True)
        except OSError as error:
            raise InputError(f"this process may make no control groups in {here} ({error.strerror})") from None
        try:
            made._divide(here, controllers)
        except InputError:
            made.close()
            raise
        return made

    def _divide(self, here: Path, controllers: Collection[str]) -> None:
        for group in (self.path.parent, self.path):
            for wanted in (controllers, {"pids"}):
                with suppress(OSError):
                    _control(group, wanted)
        has = (self.path / "cgroup.subtree_control").read_text(encoding="ascii").split()
        if lacking := sorted(set(controllers) - set(has)):
            raise InputError(f"{' and '.join(lacking)} cannot be divided among the groups in {here}: {_way_out(here)}")

    def close(self) -> None:
        """Remove the folder, if nothing is in it, and keep it no longer."""
        with suppress(OSError):
            self.path.rmdir()
        if self._holder is not None:
            _release(self._holder)
            self._holder = None


def _control(group: Path, controllers: Collection[str]) -> None:
    (group / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in sorted(controllers)))


def _here(mounts: Sequence[Path]) -> list[Path]:
    """The group that this process is in, by each mount of the hierarchy of version 2."""
    with suppress(OSError):
        group = _group_of(os.getpid())
        return [mount / group for mount in mounts if group is not None and (mount / "cgroup.controllers").exists()]
    return []


def _group_of(pid: int) -> str | None:
    lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii").splitlines()
    return next((line.removeprefix("0::/") for line in lines if line.startswith("0::")), None)


def _below(here: Path) -> Path:
    """The group in which this process makes its own: ``here``, left by it if it is the only one there."""
    if here.name == _LEAF:  # it has been here before; or DelegateSubgroup= of systemd is that
        return here.parent
    pids = (here / "cgroup.procs").read_text(encoding="ascii").split()
    if (here / "cgroup.type").exists() and pids == [str(os.getpid())]:  # the root of all has no type, and no need
        _enter(here / _LEAF, os.getpid())
    return here


def _enter(group: Path, pid: int) -> None:
    group.mkdir(exist_ok=True)
    (group / "cgroup.procs").write_text(str(pid))


def _way_out(here: Path) -> str:
    if os.geteuid() != 0 and _SYSTEMD.is_dir():
        return (
            "root lets users divide them by a file /etc/systemd/system/user@.service.d/hived.conf of the lines "
            "[Service] and Delegate=cpu memory pids"
        )
    return "start hived up as the only process of its group, as a container does, or under systemd"


# -- a scope of systemd's ---------------------------------------------------------------------------------------------


def _scope(here: Path, name: str) -> OwnGroups:
    """A scope that systemd leaves to this process, with no process in its topmost group.

    Of a user's shell the groups are root's, and who is in them moves to no other: the engine is itself in the scope
    then, with all that it starts. Elsewhere, as the process of a service, it stays where it is.
    """
    unit = f"{name}.scope"
    if here.parent.name == unit:  # one engine after another, in one process
        return OwnGroups(here.parent / "tasks")
    if os.geteuid() != 0 and f"/user@{os.geteuid()}.service/" not in f"{here}/":
        return OwnGroups(_moved(here, os.getpid(), unit) / "tasks")
    quiet = subprocess.DEVNULL
    holder = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True)
    try:
        return OwnGroups(_moved(here, holder.pid, unit) / "tasks", holder)
    except (InputError, OSError):
        _release(holder)
        raise


def _release(holder: subprocess.Popen[bytes]) -> None:
    """End a process that reads to the end of its input, which nobody writes."""
    holder.communicate()


def _moved(here: Path, pid: int, unit: str) -> Path:
    """The group of a scope into which systemd has put a process, as the first one or beside others."""
    mount = next(path for path in MOUNTS if here.is_relative_to(path) and (path / "cgroup.controllers").exists())
    properties = f"4 Description s {unit} Delegate b true CollectMode s inactive-or-failed PIDs au 1 {pid} 0".split()
    last = time.monotonic() + _PATIENCE_S
    while True:  # a scope that has just become empty is there, and takes nobody
        answer = _ask("StartTransientUnit", "ssa(sv)a(sa(sv))", unit, "fail", *properties)
        if "already" in answer:
            answer = _ask("AttachProcessesToUnit", "ssau", unit, f"/{_LEAF}", "1", str(pid))
        look_until = min(last, time.monotonic() + 1.0)
        while not answer and time.monotonic() < look_until:
            parts = Path(_group_of(pid) or "").parts
            if unit in parts:
                scope = mount.joinpath(*parts[: parts.index(unit) + 1])
                _enter(scope / _LEAF, pid)
                return scope
            time.sleep(0.01)
        if time.monotonic() > last or (answer and "nit " not in answer):  # it says something of the unit
            raise InputError(f"systemd makes no scope {unit}: {answer or 'it puts no process into it'}")
        time.sleep(0.05)


def _ask(method: str, *arguments: str) -> str:
    """Call a method of the manager of this user's units; what is wrong, or ""."""
    whose = [] if os.geteuid() == 0 else ["--user"]
    command = ["busctl", "--quiet", *whose, "call", *_MANAGER, method, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
    except FileNotFoundError:
        return "there is no busctl"
    except subprocess.TimeoutExpired:
        return f"no answer within {_PATIENCE_S:.0f} seconds"
    return done.stderr.strip() or "unknown" if done.returncode else ""
