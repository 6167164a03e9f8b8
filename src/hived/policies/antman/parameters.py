"""The parameters of guests. What the paper does not give is ours, and says so."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import inf

from hived.errors import InputError
from hived.scheduling.numbers import check_number


@dataclass(frozen=True, slots=True)
class GuestSharing:
    """How the jobs of a VC are guests, and how guests are limited. Times in seconds."""

    most_utilization: float = 0.8  #: of a GPU, by all its jobs, for one more (3.3)
    window_s: float = 10.0  #: over which that is measured (3.3)
    #: the predicted wait from which on a job that may be either is opportunistic; 0: any wait. Ours (3.3: a long one)
    wait_s: float = 0.0
    #: how long guests are held after an owner came: it initialises its model, and its mini-batch time has to be stable.
    #: Ours
    settle_s: float = 20.0
    step_s: float = 5.0  #: between two steps of their limit of compute. Ours
    steps: int = 4  #: number of them, from none of the owner's idle time to all. Ours
    gpu_memory_gib: float = 32.0  #: of a GPU; 32 is that of a V100 (5)
    #: whether a guest whose turn comes moves to free cells of its VC where an owner has its GPUs. Ours: the paper knows
    #: upgrades in place alone; without, jobs behind it get these cells first
    moves: bool = True
    #: whether guests are limited. Without, all jobs of a GPU are equal, and a job is packed on the GPUs of the least
    #: utilization whose memory has room for the most of all: Gandiva's packing with profiles, the paper's baseline
    #: (5.2). A profile is of a job alone: what a set gains is known once it runs
    limits: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            if not isinstance(field.default, bool):
                check_number("guests", field.name, getattr(self, field.name), field.name in ("window_s", "wait_s"))
        if self.steps != int(self.steps) or (self.limits and self.most_utilization > 1):
            raise InputError("guests: steps must be a whole number, and most_utilization at most 1")

    def limit(self, since: float, per_second: float = 1.0) -> float:
        """The part of the owner's idle time for a guest whose limit began to rise ``since`` ago. 0 before that."""
        if since < 0:
            return 0.0
        return min(self.steps, 1 + since // (self.step_s * per_second)) / self.steps

    def next_step(self, since: float, per_second: float = 1.0) -> float:
        """How long until the limit changes; infinity: it does not."""
        if since < 0:
            return -since
        step = self.step_s * per_second
        done = since // step + 1
        return done * step - since if done < self.steps else inf
