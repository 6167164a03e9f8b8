"""As whom jobs run: as the user who submitted them, where the engine can become that user; else nobody else's run.

An engine of root becomes the submitter in the process that becomes the task (:mod:`.supervisor`), which root's own
supervisor watches: no job reaches what it is watched by, nor what another user's job has. What is the job's is in a
folder of its submitter's, which the engine makes, and in which it then writes nothing: who owns a folder can put a link
in the place of anything there.
"""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hived.errors import ForbiddenError, HivedError
from hived.spec import ClusterSpec
from hived.spec.subjects import Kind, Subject

#: where a user's programs are, if they have sent no other path
_PATH = "/usr/local/bin:/usr/bin:/bin"
#: unknown accounts of a spec that are named, at most
_NAMED = 10


@dataclass(frozen=True, slots=True)
class RunAs:
    """The user that a task becomes, and where what it writes is."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    folders: tuple[str, ...]  #: which it makes, each in the one before it
    output: str  #: file of what it prints
    mode: int = 0o700  #: of the folders; who may read those may read the output


@dataclass(frozen=True, slots=True)
class JobUsers:
    """Whose jobs an engine runs."""

    #: its own user
    uid: int
    #: whether jobs of others run as the engine's user too: they all have that user's rights then
    shared: bool = False

    @classmethod
    def here(cls, shared: bool = False) -> JobUsers:
        """Of this process."""
        return cls(os.geteuid(), shared)

    def text(self) -> str:
        """As whom jobs run, in words."""
        if self.uid == 0:
            return "run as who submitted them"
        own = name_of(self.uid)
        return f"run as {own}, whoever submitted them" if self.shared else f"run as {own}; those of others are refused"

    def becomes(self, uid: int) -> bool:
        """Whether a job of this user runs as another user than the engine; below 0: of a version that knew none."""
        return uid >= 0 and uid != self.uid and not (self.shared and self.uid != 0)

    def check(self, user: str, uid: int | None) -> int:
        """The uid that a job of ``user`` runs as; ``uid``: the user's, None: of nobody on this machine.

        Raises :class:`~hived.errors.ForbiddenError` where the engine can run none of theirs.
        """
        if self.shared and self.uid != 0:
            return self.uid
        if uid is None:
            raise ForbiddenError(
                f"{user} is no user of this machine, and jobs run as who submitted them; make the user there (useradd "
                f"{user}), or a token for one that there is"
            )
        if uid != self.uid and self.uid != 0:
            raise ForbiddenError(
                f"jobs of {user} are not run here: they would run as {name_of(self.uid)}, the engine's user, with all "
                "that is theirs; start hived up as root, so that jobs run as who submitted them, or with "
                "--jobs-run-as engine, if this user is there for all"
            )
        return uid

    def check_folder(self, user: str, uid: int, folder: Path) -> None:
        """Raise :class:`~hived.errors.ForbiddenError` where a user could not pass a folder to what is theirs in it."""
        if self.becomes(uid) and (shut := not_passable(folder)) is not None:
            raise ForbiddenError(
                f"jobs of {user} cannot run here: {shut} is shut to other users, and what they write is below it; "
                f"start hived up with --state /var/lib/hived, or chmod o+x {shut}"
            )

    def check_runtime(self, user: str, uid: int, folder: Path) -> None:
        """Raise :class:`~hived.errors.ForbiddenError` where a user could not load the runtime of training jobs."""
        if self.becomes(uid) and (shut := not_passable(folder)) is not None:
            raise ForbiddenError(
                f"jobs of {user} cannot share GPUs here: they load the runtime from {folder}, and {shut} is shut to "
                "other users; install hived where all may read it (/opt/hived, say), or submit with --no-share"
            )

    def run_as(self, uid: int, folder: Path, attempt: int, rank: int, readers: str = "") -> RunAs:
        """How a task of a job becomes another user; makes the folder of the job that is theirs, in ``folder``.

        ``readers``: a group that may read what is in there; "": nobody. One that there is not reads nothing. Raises
        ``OSError`` where the engine cannot become them, or they are no more.
        """
        if self.uid != 0:
            raise PermissionError(1, f"it is a job of {name_of(uid)}, and the engine runs as {name_of(self.uid)}")
        try:
            found = pwd.getpwuid(uid)
        except KeyError:
            raise LookupOSError(f"there is no user with uid {uid} any more") from None
        own = own_folder(folder)
        gid, mode = found.pw_gid, 0o700
        if readers:
            with suppress(KeyError, ValueError):  # ValueError: it has a NUL in it, as no name has
                gid, mode = grp.getgrnam(readers).gr_gid, 0o2750  # what is made in it is of that group too
        own.mkdir(mode=0o700, exist_ok=True)
        os.chown(own, uid, gid, follow_symlinks=False)
        own.chmod(mode)  # a user cannot put anything in its place: the folder above is the engine's
        groups = tuple(os.getgrouplist(found.pw_name, found.pw_gid))
        output = output_of(folder, attempt, rank)
        folders = (str(own / "shared"), str(output.parent.parent), str(output.parent))
        return RunAs(uid, found.pw_gid, groups, folders, str(output), mode & 0o777)

    @staticmethod
    def read_by(folder: Path) -> str:
        """The group that may read what is a job's own in its folder, as a sentence; "": nobody."""
        with suppress(OSError, KeyError):
            status = own_folder(folder).lstat()
            if status.st_mode & 0o070:
                return f"the group {grp.getgrgid(status.st_gid).gr_name} may read what it prints, in its folder"
        return ""

    def shut(self, jobs: Path, vcs_of: Callable[[Sequence[int]], Mapping[int, str]], groups: Mapping[str, str]) -> None:
        """Take what a group may read of jobs from it, where that is not the group of their virtual cluster any more.

        ``jobs``: the folders of all. O(their number). ``groups``: by virtual cluster. Never raises: it is tried again
        at the next start.
        """
        if self.uid != 0:
            return
        read: dict[int, int] = {}  # the group that reads what is a job's own
        with suppress(OSError), os.scandir(jobs) as folders:
            for folder in folders:
                with suppress(OSError, ValueError):
                    status = own_folder(Path(folder.path)).lstat()
                    if status.st_mode & 0o070:
                        read[int(folder.name)] = status.st_gid
        with suppress(HivedError):
            vcs = vcs_of(sorted(read))
            gids = {vc: gid_of(group) for vc, group in groups.items()}
            for number, gid in read.items():
                if gids.get(vcs.get(number, "")) != gid:
                    with suppress(OSError):
                        _make_private(own_folder(jobs / str(number)))

    @staticmethod
    def environment(uid: int) -> dict[str, str]:
        """What a program of a user finds in its environment, beside what they have sent: nothing of the engine's."""
        try:
            found = pwd.getpwuid(uid)
        except KeyError:
            return {"PATH": _PATH}
        name, home, shell = found.pw_name, found.pw_dir, found.pw_shell or "/bin/sh"
        return {"PATH": _PATH, "LANG": "C.UTF-8", "HOME": home, "USER": name, "LOGNAME": name, "SHELL": shell}


def _make_private(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchmod(opened, 0o700)
        with suppress(KeyError):  # they are no more
            os.fchown(opened, -1, pwd.getpwuid(os.fstat(opened).st_uid).pw_gid)
    finally:
        os.close(opened)


class LookupOSError(OSError):
    """A user is no more."""

    def __init__(self, what: str) -> None:
        super().__init__(2, what)


def not_passable(folder: Path) -> Path | None:
    """The first of a folder and those above it that others may not pass; None: they may pass all. O(depth)."""
    return next((path for path in (folder, *folder.parents) if not path.stat().st_mode & 0o001), None)


def own_folder(folder: Path) -> Path:
    """What is a job's own, in its folder, where it runs as another user than the engine."""
    return folder / "own"


def output_of(folder: Path, attempt: int, rank: int) -> Path:
    """The output of a task of a job that runs as another user than the engine."""
    return own_folder(folder) / str(attempt) / str(rank) / "output"


def uid_of(user: str) -> int | None:
    """The uid of a user of this machine, by name."""
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None


def gid_of(group: str) -> int | None:
    """The gid of a group of this machine, by name."""
    try:
        return grp.getgrnam(group).gr_gid
    except (KeyError, ValueError):
        return None


def name_of(uid: int) -> str:
    """The name of a user of this machine."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"


def unknown_accounts(spec: ClusterSpec) -> list[str]:
    """Users and groups of a spec that this machine does not have, a sentence each, at most a few.

    One may be misspelt, or be of another machine, where the spec is right.
    """
    named = [("the spec", "operators", spec.operators)]
    for vc in spec.virtual_clusters:
        if vc.access is not None:
            named += [(vc.name, "members", vc.access.members), (vc.name, "admins", vc.access.admins)]
    lookups = {Kind.USER: pwd.getpwnam, Kind.GROUP: grp.getgrnam}
    known: dict[Subject, bool] = {}
    found = []
    for who, role, texts in named:
        for subject in map(Subject.of, texts):
            if subject not in known:
                known[subject] = subject.kind not in lookups or _has(lookups[subject.kind], subject.name)
            if not known[subject]:
                what = f"{subject.kind} {subject.name}"
                found.append(f"this machine has no {what}, whom {who} has among its {role}")
    more = len(found) - _NAMED
    return found[:_NAMED] + ([f"and {more:,} more that this machine does not have"] if more > 0 else [])


def _has(lookup: Callable[[str], object], name: str) -> bool:
    try:
        lookup(name)
    except (KeyError, ValueError):  # ValueError: it has a NUL in it, as no name has
        return False
    return True
