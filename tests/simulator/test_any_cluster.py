"""The promises of the result files, on any small cluster and any small trace."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from hived.scheduling import Scheduler

from .helpers import simulated
from .strategies import Case, cases


@given(cases(), st.sampled_from(["resume", "restart"]), st.sampled_from([None, None, 5, 20.5]))
def test_results_keep_their_promises(case: Case, preempted: str, until_s: float | None) -> None:
    with TemporaryDirectory() as folder:
        simulated(Path(folder), case.spec, case.trace, preempted=preempted, until_s=until_s)


@given(cases())
def test_without_lending_every_job_starts_under_hived_when_it_starts_in_private(case: Case) -> None:
    with TemporaryDirectory() as folder:
        found = simulated(Path(folder), case.spec, case.trace, opportunistic=False)
    private, hived = found["private"].jobs, found["hived"].jobs
    assert {n: (j.start, j.finish) for n, j in hived.items()} == {n: (j.start, j.finish) for n, j in private.items()}


@given(cases(max_jobs=25), st.sampled_from(["private", "quota", "hived"]), st.booleans())
def test_every_index_is_right_after_every_event(case: Case, scheme: str, opportunistic: bool) -> None:
    with TemporaryDirectory() as folder:
        simulated(
            Path(folder), case.spec, case.trace, schemes=[scheme], opportunistic=opportunistic,
            after_event=Scheduler.validate,
        )  # fmt: skip
