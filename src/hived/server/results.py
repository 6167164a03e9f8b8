"""A finished simulation as the dashboard asks for it: the folder that ``hived simulate`` wrote."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path

from hived.errors import InputError, NotFoundError
from hived.simulator.output import FILES
from hived.words import counted

from .pictures import (
    Comparison,
    Curves,
    EndedJobs,
    Layout,
    Outcome,
    Picture,
    Queue,
    Reserved,
    Story,
    TenantOutcome,
    Update,
    View,
    VirtualCluster,
)
from .results_files import (
    AGAIN,
    ClusterFile,
    Delays,
    RunSummary,
    Summary,
    read_jobs,
    read_json,
    read_series,
    refusing,
    verify,
)
from .results_runs import Places, read_runs
from .results_view import RunView
from .results_words import length, moments, stays

_WORDS = {"private": "Private clusters", "quota": "Quota", "hived": "HiveD"}


class ResultsSource:
    """Implements :class:`~hived.server.sources.Source` over a folder of results, a view per scheme and policy.

    Raises :class:`~hived.errors.InputError` for whatever is wrong with the folder. Reading costs O(runs log runs),
    about four seconds per million rows of both tables; afterwards everything is in memory.
    """

    live = False

    def __init__(self, folder: Path, progress: Callable[[str], None] | None = None) -> None:
        """``progress`` hears which file is read."""
        _check_folder(folder)
        verify(folder)
        say = progress or (lambda _: None)
        cluster = read_json(folder / "cluster.json", ClusterFile)
        self._summary = read_json(folder / "summary.json", Summary)
        keys = [(run.scheme, run.policy) for run in self._summary.runs]
        names = [tenant.name for tenant in cluster.virtual_clusters]
        say("jobs.csv")
        self._jobs, fates = read_jobs(folder / "jobs.csv", keys, names)
        with refusing(folder / "cluster.json"):
            by_scheme = {scheme: Places(cluster.schemes[scheme]) for scheme, _ in keys}
        places = {key: by_scheme[key[0]] for key in keys}
        say("runs.csv")
        runs = read_runs(folder / "runs.csv", self._jobs, places)
        say("series.csv")
        series = read_series(folder / "series.csv", keys, names)
        never_fit = frozenset(
            number
            for job in self._summary.never_fit_private
            if (number := self._jobs.number.get(job.job_id)) is not None
        )
        trace, lends = self._summary.trace, self._summary.options.opportunistic
        self._views: dict[str, RunView] = {}
        for run, key in zip(self._summary.runs, keys, strict=True):
            self._views[" ".join(key)] = RunView(
                run, cluster.virtual_clusters, self._jobs, fates[key], places[key], runs[key], series[key],
                trace.window_s, lends, never_fit,
            )  # fmt: skip
        self._names = names
        self._layout = self._make_layout(cluster)

    def _make_layout(self, cluster: ClusterFile) -> Layout:
        trace = self._summary.trace
        return Layout(
            title=trace.name,
            clock="trace",
            synthetic=trace.synthetic,
            start=0.0,
            end=(end := max(run.makespan_s for run in self._summary.runs)),
            arrivals_end=min(trace.window_s, end),
            vcs=[
                VirtualCluster(
                    name=tenant.name,
                    gpus=tenant.gpus,
                    reserved=[
                        Reserved(cell_type=c.cell_type, gpus=c.gpus, number=c.number, pinned=c.pinned)
                        for c in tenant.reserved
                    ],
                )
                for tenant in cluster.virtual_clusters
            ],
            views=[
                View(key=key, label=_label(run), chains=cluster.schemes[run.scheme])
                for key, run in zip(self._views, self._summary.runs, strict=True)
            ],
        )

    def _view(self, key: str) -> RunView:
        view = self._views.get(key)
        if view is None:
            raise NotFoundError(f"no view {key[:60]!r}; there is {', '.join(map(repr, self._views))}")
        return view

    def layout(self) -> Layout:
        """The clusters of all schemes, and the virtual clusters."""
        return self._layout

    def picture(self, view: str, at: float | None = None) -> Picture:
        """Any moment from 0 to the layout's end; another is taken for the nearest. None: the end."""
        return self._view(view).picture(self._moment(at))

    def _moment(self, at: float | None) -> float | None:
        if at is not None and not math.isfinite(at):
            raise InputError(f"at: {at} is no moment; give seconds from 0 to {self._layout.end:g}")
        return at

    def update(self, view: str, seq: int) -> Update | None:
        """Nothing changes: ``None``."""
        self._view(view)
        return None

    async def changed(self, seq: int) -> None:
        """Never returns."""
        await asyncio.Event().wait()

    def curves(self, view: str) -> Curves:
        """``series.csv`` over the time in which jobs arrive, and who waits to the end."""
        return self._view(view).curves()

    def story(self, view: str, job: str) -> Story:
        """A job's life in this view, and how it fared in the others. O(its runs)."""
        of = self._view(view)
        number = self._jobs.number.get(job)
        if number is None:
            raise NotFoundError(f"no job {job[:60]!r} in these results")
        life = of.life(number)
        return Story(
            id=job,
            name=job,
            vc=self._names[self._jobs.tenant[number]],
            gpus=int(self._jobs.gpus[number]),
            priority=0,
            state=life.state,
            command="",
            explanation="\n".join(self._explanation(view, number)),
            stays=stays(life),
            moments=moments(life, of.places.chains),
        )

    def _explanation(self, view: str, job: int) -> list[str]:
        of, jobs = self._views[view], self._jobs
        life = of.life(job)
        gpus, work = int(jobs.gpus[job]), int(jobs.duration[job])
        lines = [f"Asks for {counted(gpus, 'GPU')} of {self._names[jobs.tenant[job]]}, for {length(work)}."]
        held = max((sum(part[3] for part in span.parts) for span in life.spans), default=gpus)
        if held > gpus:
            lines.append(f"Holds {held:,}: a job larger than a node takes whole nodes.")
        lines.append(self._course(of, job))
        others = [
            f"{label} {length(other.waited(job))}" if other.finished(job) else f"{label} not finished"
            for key, other in self._views.items()
            if key != view
            for label in [_label_of(self._layout, key)]
        ]
        if others:
            lines.append(f"Waiting elsewhere: {'; '.join(others)}.")
        return lines

    def _course(self, view: RunView, job: int) -> str:
        life = view.life(job)
        times = int(view.fates.preemptions[job])
        preempted = f", and was preempted {counted(times, 'time')}" if times else ""
        if life.state == "finished":
            waited = view.waited(job)
            ran = sum(span.end - span.start for span in life.spans)
            again = ran - int(self._jobs.duration[job])
            lost = f", {length(again)} of it for work that it had to do again" if again else ""
            return f"Waited {length(waited)} in all{lost}{preempted}."
        if life.state == "not submitted":
            return "The simulation stopped before it was submitted."
        if life.state == "running":
            return f"Still ran when the simulation stopped{preempted}."
        if view.outsized(job):
            return f"Is too large for its virtual cluster, and never finished{preempted}."
        return f"Still waited when the simulation stopped{preempted}."

    def queue(self, view: str, at: float | None, offset: int, limit: int) -> Queue:
        """Who waits at a moment."""
        return self._view(view).queue(self._moment(at), offset, limit)

    def ended(self, view: str, at: float | None, offset: int, limit: int) -> EndedJobs:
        """Who has finished by a moment, the latest first."""
        return self._view(view).ended(self._moment(at), offset, limit)

    def comparison(self) -> Comparison | None:
        """``summary.json``'s runs side by side."""
        if len(self._views) < 2:
            return None
        return Comparison(
            outcomes=[
                Outcome(
                    view=key,
                    label=_label(run),
                    utilization=run.utilization,
                    opportunistic=run.opportunistic,
                    fragmentation=run.fragmentation,
                    preemptions=run.preemptions,
                    finished=run.finished,
                    unfinished=run.unfinished,
                    overall=_outcome("all", run.overall),
                    tenants=[_outcome(name, delays) for name, delays in run.tenants.items()],
                )
                for key, run in zip(self._views, self._summary.runs, strict=True)
            ]
        )


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "is not there"
        raise InputError(f"{folder}: {what}; give the folder that hived simulate wrote (its --out)")
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing == ["cluster.json"]:
        raise InputError(f"{folder}: has no cluster.json, so an older hived wrote it; {AGAIN}")
    if missing:
        raise InputError(
            f"{folder}: holds no results: {', '.join(missing)} not there; give the --out of hived simulate"
        )


def _label(run: RunSummary) -> str:
    return f"{_WORDS.get(run.scheme, run.scheme)} ({run.policy})"


def _label_of(layout: Layout, key: str) -> str:
    return next(view.label for view in layout.views if view.key == key)


def _outcome(tenant: str, delays: Delays) -> TenantOutcome:
    return TenantOutcome(
        tenant=tenant,
        jobs=delays.jobs,
        mean_delay_s=delays.mean_s,
        p95_delay_s=delays.p95_s,
        to_private=delays.queue_to_private,
        worse_jobs=None if delays.anomalies is None else delays.anomalies.jobs,
    )
