"""Events and jobs as sentences, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hived.engines.event import Event
from hived.words import counted, duration, ranges

from .model import Job

#: kinds whose sentence is their data put in
_SENTENCES = {
    "unreserved": "{job} waits again: {why}",
    "stopping": "{job} is told to stop: {why}",
    "downgraded": "{job} runs on as opportunistic: {why}",
    "restored": "{job} is guaranteed again: {why}",
    "promoted": "{job} is guaranteed from now on: {why}",
    "preempted": "{job} is back in line: {why}",
    "queued": "{job} is back in line, to be tried again",
    "succeeded": "{job} succeeded",
    "failed": "{job} failed: {why}",
    "cancelled": "{job} was {why}",
    "device_bad": "device {device} of {node} is bad: {why}",
    "device_healthy": "device {device} of {node} is healthy again",
    "drained": "{what} is drained: no new jobs there",
    "undrained": "{what} takes jobs again",
    "engine_started": "the engine started (pid {pid}, {devices})",
    "engine_stopped": "the engine stopped (pid {pid}); jobs run on",
}


def tell(event: Event, job: str = "") -> str:
    """One event in words; ``job`` is what the job it is about is called."""
    data: Mapping[str, Any] = event.data
    match event.kind:
        case "submitted":
            by = f" by {data['user']}" if data.get("user") else ""
            return f"{data['name']} was submitted{by}: {counted(data['gpus'], 'GPU')} of {data['vc']}"
        case "reserved":
            names = ", ".join(data["victims"])
            return f"{job} has {place_text(data['placement'])} reserved, and starts when {names} has made room"
        case "started":
            kind = "guaranteed" if data["placement"]["levels"] else "opportunistic"
            again = f" (start number {data['attempt']})" if data["attempt"] > 1 else ""
            return f"{job} runs on {place_text(data['placement'])}, {kind}{again}"
        case "task_ended":
            return f"task {data['rank']} of {job} ended with {_code(data)}"
        case "rebound":
            if not data["placement"]["levels"]:
                return f"{job} runs on where it is: {data['why']}"
            return f"{job} stands in other cells of its VC: {data['why']}"
        case "retrying":
            return f"{job} failed ({data['why']}), and is tried again in {data['at'] - event.at:.0f} s"
        case "recovered":
            return f"the engine took over {counted(data['active'], 'job')}, {data['running']} of them running"
        case "reconfigured":
            down = f", {counted(len(data['downgraded']), 'job')} as opportunistic" if data["downgraded"] else ""
            lost = f", {counted(len(data['lost']), 'job')} on devices that it lacks" if data["lost"] else ""
            return f"the cluster has a new spec; {counted(data['kept'], 'job')} went on as before{down}{lost}"
    return _SENTENCES.get(event.kind, event.kind).format(**{"job": job, **data})


def place_text(placement: Mapping[str, Any]) -> str:
    """``node GPUs 0-3``, of a placement as plain data; a node's name once per task."""
    return "; ".join(
        f"{node} {'GPU' if len(devices) == 1 else 'GPUs'} {ranges(devices)}" for node, devices in placement["pods"]
    )


def ended_text(job: Job) -> str:
    """How a job that has ended did."""
    ran = f" after {duration(job.ended_at - job.submitted_at)}" if job.ended_at is not None else ""
    why = f": {job.reason}" if job.reason and job.reason != job.state.value else ""
    again = f"; it was started {job.attempt} times" if job.attempt > 1 else ""
    return f"{job.name} {'was ' if job.state.value == 'cancelled' else ''}{job.state.value}{ran}{why}{again}"


def _code(data: Mapping[str, Any]) -> str:
    if data.get("error"):
        return f"an error: {data['error']}"
    if data.get("signal"):
        return f"signal {data['signal']}"
    return f"exit code {data['code']}"
