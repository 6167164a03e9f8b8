"""The parameters of time-slicing. What the paper does not give is ours, and says so."""

from __future__ import annotations

from dataclasses import dataclass, fields

from hived.errors import InputError
from hived.scheduling.numbers import check_number


@dataclass(frozen=True, slots=True)
class TimeSlicing:
    """How the jobs of a VC share GPUs (Gandiva, OSDI'18, 4.2). Times in seconds."""

    quantum_s: float = 60.0  #: a slice (4.1)
    packs: bool = True  #: whether jobs are packed where a server is overloaded
    migrates: bool = True  #: whether jobs move to another server, for locality and to lower the height
    grows: bool = True  #: whether elastic jobs grow into idle GPUs
    #: most GPUs that the jobs of a server ask for, over the server's GPUs. Ours: the paper has no limit; suspended jobs
    #: keep their states in the memory of the host, and 448 GB (6) has room for about three per GPU of 24 GB
    most_height: float = 4.0
    profile_s: float = 60.0  #: how long a job runs before it may be packed. Ours
    trial_s: float = 60.0  #: how long a packed set of jobs is measured before it is kept or undone. Ours
    most_trials: int = 3  #: packings of a job that may be undone before it is tried no more. Ours
    #: how long the destination of a migration is warmed up while the job runs on, so that both are held (4.1); 0: not
    #: at all. Ours: with 8 GPUs this hides nearly all of about 35 s (Figure 13)
    warm_s: float = 30.0
    idle_s: float = 60.0  #: how long nothing changes in a VC before elastic jobs grow. Ours
    #: whether every slice is carried out for itself, for small cases; else jobs have their shares of the time
    exact: bool = False
    gpu_memory_gib: float = 24.0  #: of a GPU; 24 is that of a P40 (6)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, bool):
                continue
            check_number("time-slicing", field.name, value, least_is_0=field.name == "warm_s")
        if self.most_height < 1:
            raise InputError(f"time-slicing: most_height is {self.most_height:g}; it must be at least 1")
