"""The dashboard's source for a finished simulation: the folder that ``hived simulate`` wrote."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from hived.errors import InputError, NotFoundError
from hived.simulator.output import FILES
from hived.simulator.timeline import Recorded

from . import pictures
from . import results_files as files
from .results_files import ClusterFile, Placements, read_runs
from .results_view import RunView

#: of a run, in the comparison as it is in its file
_SHOWN = {
    "utilization", "opportunistic", "fragmentation", "internal", "external", "preemptions", "preempted_gpus",
    "lost_gpu_s", "guests", "makespan_s", "finished", "unfinished",
}  # fmt: skip


class ResultsSource:
    """Implements :class:`~hived.server.dashboard.Source` over a folder of results, a view per scheme and policy.

    Raises :class:`~hived.errors.InputError` for whatever is wrong with the folder. Reading costs O(runs log runs),
    about four seconds per million rows of both tables; afterwards everything is in memory.
    """

    live = False

    def __init__(self, folder: Path, progress: Callable[[str], None] | None = None) -> None:
        """``progress`` is called with each file that is read."""
        _check_folder(folder)
        files.verify(folder)
        say = progress or (lambda _: None)
        cluster = files.read_json(folder / "cluster.json", ClusterFile)
        self._summary = files.read_json(folder / "summary.json", files.Summary)
        keys = [(run.scheme, run.policy) for run in self._summary.runs]
        names = [tenant.name for tenant in cluster.virtual_clusters]
        say("jobs.csv")
        self._jobs, fates = files.read_jobs(folder / "jobs.csv", keys, names)
        with files.refusing(folder / "cluster.json"):
            by_scheme = {scheme: Placements(cluster.schemes[scheme]) for scheme, _ in keys}
        places = {key: by_scheme[key[0]] for key in keys}
        say("runs.csv")
        runs = read_runs(folder / "runs.csv", self._jobs, places)
        say("series.csv")
        series = files.read_series(folder / "series.csv", keys, names)
        self._views: dict[str, RunView] = {}
        vcs = cluster.virtual_clusters
        for run, key in zip(self._summary.runs, keys, strict=True):
            self._views[" ".join(key)] = RunView(
                run, self._summary, vcs, self._jobs, fates[key], places[key], runs[key], series[key]
            )
        end = max(run.makespan_s for run in self._summary.runs)
        self._layout = pictures.Layout(
            title=self._summary.title,
            clock="trace",
            synthetic=self._summary.synthetic,
            start=0.0,
            end=end,
            arrivals_end=min(self._summary.window_s, end),
            vcs=[
                pictures.VirtualCluster.model_validate(tenant, from_attributes=True)
                for tenant in cluster.virtual_clusters
            ],
            views=[
                pictures.View(key=key, label=view.label, chains=cluster.schemes[view.summary.scheme])
                for key, view in self._views.items()
            ],
        )

    def _view(self, key: str) -> RunView:
        view = self._views.get(key)
        if view is None:
            raise NotFoundError(f"no view {key[:60]!r}; there is {', '.join(map(repr, self._views))}")
        return view

    def recorded(self, scheme: str | None, policy: str | None) -> Recorded:
        """The runs of a view, the last of those meant. O(runs)."""
        found = [
            view
            for view in self._views.values()
            if scheme in (None, view.summary.scheme) and policy in (None, view.summary.policy)
        ]
        if not found:
            asked = " ".join(name for name in (scheme, policy) if name is not None)
            raise InputError(f"{asked[:60]}: not in these results, which have {', '.join(self._views)}")
        return found[-1].timelines.recorded()

    def layout(self) -> pictures.Layout:
        """The clusters of all schemes, and the virtual clusters."""
        return self._layout

    def picture(self, view: str, at: float | None = None) -> pictures.Picture:
        """The picture at a moment from 0 to the layout's end, or the nearest to it. None: the end."""
        return self._view(view).picture(at)

    def update(self, view: str, seq: int) -> pictures.Update | None:
        """``None``: nothing changes."""
        self._view(view)
        return None

    async def changed(self, seq: int) -> None:
        """Never returns."""
        await asyncio.Event().wait()

    def curves(self, view: str) -> pictures.Curves:
        """``series.csv`` over the time in which jobs arrive, and the number of waiting jobs to the end."""
        return self._view(view).curves()

    def story(self, view: str, job: str) -> pictures.Story:
        """A job's history in this view, and its waiting in the others. O(its runs)."""
        of = self._view(view)
        number = self._jobs.number.get(job)
        if number is None:
            raise NotFoundError(f"no job {job[:60]!r} in these results")
        others = [f"{other.label} {other.stories.waited(number)}" for other in self._views.values() if other is not of]
        return of.stories.story(number, others)

    async def timeline(self, view: str, node: str, start: float, end: float) -> pictures.GpuTimeline:
        """Who has the GPUs of a node from ``start`` to ``end``. O(runs) for the first of a view, then O(its runs)."""
        return self._view(view).timelines.of_node(node, start, end)

    def queue(self, view: str, at: float | None, offset: int, limit: int) -> pictures.Queue:
        """Jobs that wait at a moment."""
        return self._view(view).queue(at, offset, limit)

    def ended(self, view: str, at: float | None, offset: int, limit: int) -> pictures.EndedJobs:
        """Jobs that have finished by a moment, the latest first."""
        return self._view(view).ended(at, offset, limit)

    def comparison(self) -> pictures.Comparison | None:
        """``summary.json``'s runs side by side."""
        if len(self._views) < 2:
            return None
        return pictures.Comparison(
            outcomes=[
                pictures.Outcome(
                    view=key,
                    label=view.label,
                    **view.summary.model_dump(include=_SHOWN),
                    overall=_outcome("all", view.summary.overall),
                    tenants=[_outcome(name, delays) for name, delays in view.summary.tenants.items()],
                )
                for key, view in self._views.items()
            ]
        )


def _outcome(tenant: str, delays: files.Delays) -> pictures.TenantOutcome:
    worse = None if delays.anomalies is None else delays.anomalies.jobs
    return pictures.TenantOutcome(tenant=tenant, worse_jobs=worse, **delays.model_dump(exclude={"anomalies"}))


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "is not there"
        raise InputError(f"{folder}: {what}; give the folder that hived simulate wrote (its --out)")
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing == ["cluster.json"]:
        raise InputError(f"{folder}: has no cluster.json, so an older hived wrote it; {files.AGAIN}")
    if missing:
        raise InputError(
            f"{folder}: holds no results: {', '.join(missing)} not there; give the --out of hived simulate"
        )
