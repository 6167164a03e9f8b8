"""Table 1 of the HiveD paper: each tenant's jobs by number of GPUs, and its share of the cluster.

Source: Zhao et al., "HiveD: Sharing a GPU Cluster for Deep Learning with Guarantees", USENIX OSDI'20, Table
1: 141,950 jobs of 11 tenants (research ``res-``, production ``prod-``) of one production cluster in two
months.
"""

from __future__ import annotations

from dataclasses import dataclass

#: The paper's size classes, smallest first. A class holds every job above the class before it.
SIZE_CLASSES = ("1", "2", "4", "8", "16+")
_UP_TO = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class TenantRow:
    """One row of the table."""

    tenant: str
    jobs: tuple[int, int, int, int, int]  #: by :data:`SIZE_CLASSES`
    quota_percent: float  #: of the cluster's GPUs; the eleven sum to 100


TABLE1: tuple[TenantRow, ...] = (
    TenantRow("res-a", (429, 14, 260, 625, 40), 0.37),
    TenantRow("res-b", (18319, 1593, 931, 148, 238), 0.73),
    TenantRow("res-c", (3285, 161, 716, 185, 0), 0.73),
    TenantRow("res-d", (1754, 0, 0, 0, 0), 1.47),
    TenantRow("res-e", (2682, 110, 3005, 0, 0), 1.83),
    TenantRow("res-f", (8181, 88, 618, 1337, 559), 28.57),
    TenantRow("prod-a", (227, 54, 23, 1132, 138), 8.79),
    TenantRow("prod-b", (16446, 67, 605, 1344, 22), 10.62),
    TenantRow("prod-c", (4692, 301, 1905, 4415, 1206), 11.36),
    TenantRow("prod-d", (781, 6, 545, 650, 95), 15.75),
    TenantRow("prod-e", (58407, 532, 2118, 959, 2), 19.78),
)

TOTAL_JOBS = 141_950


def size_class(gpus: int) -> int:
    """The place in :data:`SIZE_CLASSES` of a job of ``gpus`` GPUs: 3 counts as 4, 5 to 7 as 8. O(1)."""
    for place, largest in enumerate(_UP_TO):
        if gpus <= largest:
            return place
    return len(_UP_TO)
