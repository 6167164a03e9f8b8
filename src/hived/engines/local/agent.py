"""The machine's agent: tells training jobs what to do by their control pages, and reads there what they make of it.

Only tasks that were started under the runtime (:mod:`hived_runtime`, a distribution of its own) have pages. A page says
what a job does now, so that an engine that was killed finds everything again; what this learns, the job scheduler makes
events of. No call is for the thread of the event loop: a job may hold the lock of its folder, and disks may hang.

Pages of other users' jobs are in a folder of the user's, which the engine does not touch: a process of that user does
(:mod:`.user_agents`). What a job says of itself is bounded here, whoever runs it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from hived.errors import ConflictError, HivedError, NotFoundError, NotYetError, UnavailableError
from hived_control import commands, errors
from hived_control.commands import JobStatus as JobStatus
from hived_control.commands import ProcessStatus, TrainingJob
from hived_control.environment import JOB, JOBS, LAUNCH, SESSION, SHARE
from hived_control.folder import JobFolder
from hived_control.page import State

from .job_users import JobUsers, own_folder
from .model import Job, Limiting, Obeying, RefusedError
from .tasks import delete_folder
from .user_agents import JobOfUser, UserAgents

#: the most that is believed of a job: bytes or mini-batches, seconds, and letters of what it notes
_MOST, _MOST_S, _MOST_NOTES = 1 << 50, 1e9, 1000


class Agent:
    """The training jobs of an engine, each with a folder of its own below ``folder``, which says whose it is."""

    def __init__(self, folder: Path, database: str, users: JobUsers, jobs: Path) -> None:
        """``database``: the id of the engine's, which the folders name beside the submission and its user.

        ``jobs``: the folders of all jobs, in which those of other users have theirs.
        """
        self.folder, self._database, self._users, self._jobs = folder, database, users, jobs
        self._of_users = UserAgents()

    #: where the runtime is that tasks load
    installed = LAUNCH

    def close(self) -> None:
        """Tell nothing more to jobs of other users."""
        self._of_users.keep(set())

    # -- a task begins ------------------------------------------------------------------------------------------------

    def environment(self, job: Job, given: Mapping[str, str]) -> dict[str, str]:
        """The variables that make a task obey, beside those ``given`` to it; makes the folder of its job.

        A guest has little of the time until it is told more, and again if nobody tells it any more. Raises ``OSError``.
        """
        self._path(job).mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        JobFolder(self._path(job)).write_about({"task": job.mark(self._database), "user": job.spec.user})
        path = os.pathsep.join(filter(None, (str(LAUNCH), given.get("PYTHONPATH"))))
        pages = self._pages(job)
        found = {"PYTHONPATH": path, JOBS: str(pages.parent), JOB: pages.name, SESSION: "own"}
        if given.get("PYTHONHASHSEED", "random") == "random":  # a process that takes the job over needs the same
            found["PYTHONHASHSEED"] = str(secrets.randbelow(1 << 32))
        if job.floor is not None:
            found[SHARE] = str(job.floor)
        return found

    def idle(self, jobs: Iterable[Job]) -> list[Path]:
        """The folders of all attempts but those of ``jobs``, to be deleted by :meth:`delete`. O(folders)."""
        kept = {self._path(job).name: job.spec.uid for job in jobs}
        self._of_users.keep(set(kept.values()))
        with contextlib.suppress(OSError):
            return [folder for folder in self.folder.iterdir() if folder.name not in kept]
        return []

    def delete(self, folders: Iterable[Path]) -> None:
        """Delete folders of attempts that have ended. Never raises: what stays is found again."""
        for folder in folders:
            delete_folder(folder)

    def obeys(self, job: Job) -> bool:
        """Whether a job was started under the runtime: its folder is there, and is not another submission's."""
        if job.attempt == 0 or not self._path(job).is_dir():
            return False
        whose = JobFolder(self._path(job)).about().get("task")  # None: of the version before, which does not say
        return whose is None or whose == job.mark(self._database)

    # -- what it does, and is told ------------------------------------------------------------------------------------

    def look(self, job: Job) -> Obeying | None:
        """What a job does now; None: it has ended no mini-batch yet, or is about to end. O(its processes)."""
        with contextlib.suppress(HivedError, OSError):
            found = self.status(job).processes
            if found:
                return _obeying(found)
        return None

    def status(self, job: Job) -> JobStatus:
        """All that the processes of a job say of themselves."""
        with self._commanding(job) as training:
            return training.status()

    def suspend(self, job: Job, timeout_s: float) -> None:
        """Suspend all its processes at one mini-batch, until they are told to go on.

        Raises :class:`~hived.errors.NotYetError` where it has not come to the end of one: it is suspended there.
        """
        with self._commanding(job) as training:
            training.suspend(timeout_s)

    def resume(self, job: Job, timeout_s: float) -> None:
        """Let all its processes go on. Raises :class:`~hived.errors.NotYetError` where one does not answer."""
        with self._commanding(job) as training:
            training.resume(timeout_s)

    def limit(self, job: Job, limiting: Limiting) -> None:
        """Change its limits, from its next mini-batch on."""
        with self._commanding(job) as training:
            training.limit(limiting.memory, limiting.share, limiting.most or None, limiting.lease_s)

    def scale(self, job: Job, workers: int, timeout_s: float) -> None:
        """Have an elastic job go on with so many workers; :class:`.model.RefusedError` if it does not."""
        with self._commanding(job) as training:
            training.scale(workers, timeout_s)

    # -- parts --------------------------------------------------------------------------------------------------------

    def _path(self, job: Job) -> Path:
        return self.folder / f"{job.id}.{job.attempt}"

    def _pages(self, job: Job) -> Path:
        """The folder of its pages: the same, but of another user's job."""
        name = self._path(job).name
        others = self._users.becomes(job.spec.uid)
        return own_folder(self._jobs / str(job.id)) / "training" / name if others else self._path(job)

    @contextlib.contextmanager
    def _commanding(self, job: Job) -> Iterator[TrainingJob | JobOfUser]:
        """A job to be commanded; the errors of that as errors of ours, which call it by its name."""
        if not self.obeys(job):
            raise ConflictError(f"{job.name} does not run under the runtime; submit it with --share")
        folder, uid = self._pages(job), job.spec.uid
        try:
            others = self._users.becomes(uid)
            yield JobOfUser(self._of_users.of(uid), folder) if others else TrainingJob(JobFolder(folder))
        except errors.TrainingError as error:
            said = (
                str(error).replace(f"the training job {folder.name}", job.name).replace(f"job {folder.name}", job.name)
            )
            raise _kind_of(error)(said) from None


def _obeying(found: Sequence[ProcessStatus]) -> Obeying:
    """What a job does, by all that its processes say, whatever that is."""
    answers, samples = [each.answer for each in found], [each.sample for each in found]
    first, slowest = answers[0], min(found, key=lambda each: (each.progress.iterations, each.progress.at)).progress
    notes = "; ".join(dict.fromkeys(filter(None, (answer.note for answer in answers))))
    return Obeying(
        suspended=all(answer.state is State.SUSPENDED for answer in answers),
        tier=first.tier,
        moved_bytes=_count(sum(answer.moved_bytes for answer in answers)),
        took_s=_seconds(max(answer.seconds for answer in answers)),
        memory=_count(first.memory_limit),
        share=_part(first.share),
        note=notes if len(notes) <= _MOST_NOTES else notes[:_MOST_NOTES] + "…",
        mini_batch_s=_seconds(max(each.progress.seconds for each in found)),
        utilization=_part(max(sample.utilization for sample in samples)),
        peak_bytes=_count(max(sample.peak_bytes for sample in samples)),
        least_bytes=_count(max(sample.least_bytes for sample in samples)),
        mini_batches=_count(slowest.iterations),
        ended_at=min(slowest.at, found[0].now),
        device_bytes=_count(max(sample.device_bytes for sample in samples)),
        host_bytes=_count(max(sample.host_bytes for sample in samples)),
        device=first.device,
        elastic=any(answer.elastic for answer in answers),
        workers=len(found) if all(answer.ranks == len(found) for answer in answers) else 0,
    )


def _count(number: int) -> int:
    return min(max(number, 0), _MOST)


def _seconds(number: float) -> float:
    return min(max(number, 0.0), _MOST_S)


def _part(number: float) -> float:
    return min(max(number, 0.0), 1.0)


def _kind_of(error: errors.TrainingError) -> Callable[[str], HivedError]:
    if isinstance(error, commands.NotYetError):
        return NotYetError
    if isinstance(error, commands.RefusedError):
        return RefusedError
    if isinstance(error, errors.NotFoundError):
        return NotFoundError
    return ConflictError if isinstance(error, errors.InputError) else UnavailableError
