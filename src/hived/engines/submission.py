"""What a user submits, once: the body of ``POST /v1/jobs``, what a plan is about, and what the engine keeps of a job.

The types of the API build on it (:mod:`hived.server.schema`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StringConstraints

from hived.cluster.requests import OPPORTUNISTIC, Member, Request
from hived.errors import RequestError


class Model(BaseModel):
    """Of all requests and answers: strict in what they have. The API document has the text under a field as well."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


NAME = r"^[A-Za-z][A-Za-z0-9._-]{0,62}$"  #: a letter first, so that no name looks like an id
VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]{0,254}$"
FOLDER = r"^/[^\x00]{0,4095}$"
ANY_TEXT = r"^[^\x00]*$"
ARRAY = (
    r"^[0-9]{1,9}(-[0-9]{1,9}(:[1-9][0-9]{0,8})?)?(,[0-9]{1,9}(-[0-9]{1,9}(:[1-9][0-9]{0,8})?)?)*(%[1-9][0-9]{0,5})?$"
)
Name = Annotated[str, StringConstraints(pattern=NAME)]
#: or the value of a variable: as long as the system takes for one
Argument = Annotated[str, StringConstraints(max_length=131_071, pattern=ANY_TEXT)]
VariableName = Annotated[str, StringConstraints(pattern=VARIABLE)]


class After(Model):
    """Another job that a job waits for."""

    job: Annotated[str, StringConstraints(min_length=1, max_length=1_024, pattern=ANY_TEXT)]
    """By its id or name. An array by the id of its first job, or by its name, is all of it."""
    when: Literal["any", "ok", "fail"] = "any"
    """Once it has ended: in any way; well; or not, where it was cancelled too."""


class Submission(Model):
    """A job to run."""

    vc: Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=ANY_TEXT)]
    command: Annotated[tuple[Argument, ...], Field(min_length=1, max_length=1024)]
    gpus: Annotated[int, Field(strict=True, ge=1, le=1_048_576)] = 1
    """Per task."""
    tasks: Annotated[int, Field(strict=True, ge=1, le=4096)] = 1
    """Processes of the gang, placed and started all or none."""
    priority: Annotated[int, Field(strict=True, ge=-1, le=1000)] = 0
    """-1: opportunistic."""
    name: Name | None = None
    cwd: Annotated[str, StringConstraints(pattern=FOLDER)] | None = None
    """None: the engine's own."""
    environment: Annotated[dict[VariableName, Argument], Field(max_length=4096, repr=False)] = Field(
        default_factory=dict
    )
    retries: Annotated[int, Field(strict=True, ge=0, le=1000)] = 0
    backoff_s: Annotated[float, Field(strict=True, ge=0, le=300)] = 5.0
    time_limit_s: Annotated[float, Field(strict=True, gt=0, le=31_536_000)] | None = None
    grace_s: Annotated[float, Field(strict=True, ge=0, le=3600)] | None = None
    """None: 30, or for a job that may run on a loan what its virtual cluster allows, if that is less."""
    checkpoint_signal: Literal["USR1", "USR2", "HUP", "INT"] | None = None
    """That its programs get first, in place of TERM, where they are to make room and start anew elsewhere: they save
    their state and exit, or are killed after their grace. None: TERM."""
    limit_signal: Literal["USR1", "USR2", "HUP", "INT", "TERM"] | None = None
    """That its program gets ``limit_signal_s`` before its time limit ends it; None: none."""
    limit_signal_s: Annotated[float, Field(strict=True, gt=0, le=86_400)] = 60.0
    after: Annotated[tuple[After, ...], Field(max_length=100)] = ()
    """It is held until these have ended. Where one ends otherwise than it is to, it is cancelled."""
    hold: StrictBool = False
    """It is held until it is released."""
    array: Annotated[str, StringConstraints(max_length=4_096, pattern=ARRAY)] | None = None
    """So many jobs, one for each index: ``1-40``, ``0-9:3``, ``1,5,7``; ``1-40%4``: at most four of them at a time."""
    lazy_preemption: StrictBool = False
    early: StrictBool = False
    """It may start before its turn, on GPUs that others leave idle. At its turn it stays there or, where its virtual
    cluster's cells cannot be had there, is preempted and started anew on others."""

    share: StrictBool | None = None
    """Whether it runs under the runtime of training jobs, by which it can be suspended and limited, and share GPUs.
    None: where the policy of its virtual cluster has jobs share them."""

    requeue: StrictBool = True
    """Whether it is queued again where it is stopped for others, or its machine is started anew; else it ends so."""
    umask: Annotated[int, Field(strict=True, ge=0, le=0o777)] | None = None
    """Of its processes; None: 022 for jobs of other users than the engine's, the engine's for its own."""

    @property
    def opportunistic(self) -> bool:
        """Whether it asks for idle GPUs of any tenant, by its priority."""
        return self.priority == OPPORTUNISTIC

    def request(self, group: str = "(this job)") -> Request:
        """What the core is asked for it; ``group``: the name of the job."""
        members = (Member(self.tasks, self.gpus),)
        saves = self.checkpoint_signal is not None
        return Request(group, self.vc, self.priority, members, lazy_preemption=self.lazy_preemption, saves_work=saves)


#: jobs of one array
MOST_OF_AN_ARRAY = 10_000
#: of the jobs of one submission, pairs of one that waits and one that it waits for
MOST_AWAITED = 100_000


def text_of(indexes: Sequence[int]) -> str:
    """Ascending indexes as an array has them.

    >>> text_of([1, 2, 3, 5, 7, 8])
    '1-3,5,7-8'
    """
    spans: list[tuple[int, int]] = []
    for index in indexes:
        first = spans.pop()[0] if spans and spans[-1][1] == index - 1 else index
        spans.append((first, index))
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in spans)


def indexes_of(array: str) -> tuple[list[int], int]:
    """The indexes of an array, ascending, and how many of its jobs may be out at a time (0: all).

    Raises :class:`~hived.errors.RequestError`.

    >>> indexes_of("1-3,7%2"), indexes_of("0-9:3")
    (([1, 2, 3, 7], 2), ([0, 3, 6, 9], 0))
    """
    text, _, most = array.partition("%")
    found: set[int] = set()
    many = 0
    for part in text.split(","):
        span, _, step = part.partition(":")
        low, _, high = span.partition("-")
        first, last = int(low), int(high or low)
        if last < first:
            raise RequestError("array", f"{part} goes backward; write {last}-{first}")
        many += (last - first) // int(step or 1) + 1
        if many > MOST_OF_AN_ARRAY:
            raise RequestError("array", f"more than {MOST_OF_AN_ARRAY:,} indexes; submit it in parts")
        found.update(range(first, last + 1, int(step or 1)))
    return sorted(found), int(most or 0)
