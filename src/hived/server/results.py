"""A finished simulation as the dashboard asks for it: the folder that ``hived simulate`` wrote."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path

from hived.errors import InputError, NotFoundError
from hived.simulator.output import FILES
from hived.words import counted

from . import pictures
from . import results_files as files
from .results_files import ClusterFile
from .results_runs import Placements, read_runs
from .results_view import RunView
from .results_words import length, moments, stays

#: of a run, in the comparison as it is in its file
_SHOWN = {"utilization", "opportunistic", "fragmentation", "preemptions", "finished", "unfinished"}


class ResultsSource:
    """Implements :class:`~hived.server.sources.Source` over a folder of results, a view per scheme and policy.

    Raises :class:`~hived.errors.InputError` for whatever is wrong with the folder. Reading costs O(runs log runs),
    about four seconds per million rows of both tables; afterwards everything is in memory.
    """

    live = False

    def __init__(self, folder: Path, progress: Callable[[str], None] | None = None) -> None:
        """``progress`` hears which file is read."""
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
        self._layout = self._make_layout(cluster)

    def _make_layout(self, cluster: ClusterFile) -> pictures.Layout:
        trace = self._summary.trace
        return pictures.Layout(
            title=trace.name,
            clock="trace",
            synthetic=trace.synthetic,
            start=0.0,
            end=(end := max(run.makespan_s for run in self._summary.runs)),
            arrivals_end=min(trace.window_s, end),
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

    def layout(self) -> pictures.Layout:
        """The clusters of all schemes, and the virtual clusters."""
        return self._layout

    def picture(self, view: str, at: float | None = None) -> pictures.Picture:
        """Any moment from 0 to the layout's end; another is taken for the nearest. None: the end."""
        return self._view(view).picture(self._moment(at))

    def _moment(self, at: float | None) -> float | None:
        if at is not None and not math.isfinite(at):
            raise InputError(f"at: {at} is no moment; give seconds from 0 to {self._layout.end:g}")
        return at

    def update(self, view: str, seq: int) -> pictures.Update | None:
        """Nothing changes: ``None``."""
        self._view(view)
        return None

    async def changed(self, seq: int) -> None:
        """Never returns."""
        await asyncio.Event().wait()

    def curves(self, view: str) -> pictures.Curves:
        """``series.csv`` over the time in which jobs arrive, and who waits to the end."""
        return self._view(view).curves()

    def story(self, view: str, job: str) -> pictures.Story:
        """A job's life in this view, and how it fared in the others. O(its runs)."""
        of = self._view(view)
        number = self._jobs.number.get(job)
        if number is None:
            raise NotFoundError(f"no job {job[:60]!r} in these results")
        life = of.life(number)
        return pictures.Story(
            **of.of(number),
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
        lines = [f"Asks for {counted(gpus, 'GPU')} of {of.of(job)['vc']}, for {length(work)}."]
        held = max((sum(part[3] for part in span.parts) for span in life.spans), default=gpus)
        if held > gpus:
            lines.append(f"Holds {held:,}: a job larger than a node takes whole nodes.")
        lines.append(self._course(of, job))
        others = [
            f"{other.label} {length(other.waited(job)) if other.finished(job) else 'not finished'}"
            for key, other in self._views.items()
            if key != view
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

    def queue(self, view: str, at: float | None, offset: int, limit: int) -> pictures.Queue:
        """Who waits at a moment."""
        return self._view(view).queue(self._moment(at), offset, limit)

    def ended(self, view: str, at: float | None, offset: int, limit: int) -> pictures.EndedJobs:
        """Who has finished by a moment, the latest first."""
        return self._view(view).ended(self._moment(at), offset, limit)

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
                    overall=view.summary.overall.of("all"),
                    tenants=[delays.of(name) for name, delays in view.summary.tenants.items()],
                )
                for key, view in self._views.items()
            ]
        )


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
