"""Events as sentences: one table for both engines, and for all that shows a history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hived.cluster.explain.sentences import MAX_NAMED
from hived.words import counted, duration, limits_text, ranges

from .job import Event
from .trading import EVENTS

#: shares and rates that say nothing
AS_GOOD_AS_ALONE = 0.9995
#: kinds of events whose sentence is a template of their data
_SENTENCES = {
    "unreserved": "{job} waits again: {why}",
    "suspended": "{job} is suspended: {why}",
    "resumed": "{job} goes on: {why}",
    "prioritized": "{job} has priority {priority} from now on: {why}",
    "stopping": "{job} is told to stop: {why}",
    "stop_cancelled": "{job} runs on: {why}",
    "downgraded": "{job} runs on as opportunistic: {why}",
    "restored": "{job} is guaranteed again: {why}",
    "promoted": "{job} is guaranteed from now on: {why}",
    "reshaped": "{job} has other GPUs: {why}",
    "requeued": "{job} is back in line: {why}",
    "queued": "{job} is in line again",
    "held": "{job} is held: {why}",
    "succeeded": "{job} succeeded",
    "failed": "{job} failed: {why}",
    "cancelled": "{job} was {why}",
    "ended": "{job} has ended: {why}",
    "device_bad": "device {device} of {node} is bad: {why}",
    "device_healthy": "device {device} of {node} is healthy again",
    "drained": "{what} is drained{by}: no new jobs there{why}",
    "undrained": "{what} takes jobs again{by}",
    "signed_in": "{user} signed in to the dashboard ({id})",
    "signed_out": "{of} was signed out of the dashboard ({id}){by}",
    "token_revoked": "token {id} of {of} was revoked{by}",
    "engine_started": "the engine started (pid {pid}, {devices})",
    "engine_stopped": "the engine stopped (pid {pid}); jobs run on",
}


def event_text(event: Event, job: str = "") -> str:
    """The sentence of an event; ``job``: the name of its job."""
    data: Mapping[str, Any] = event.data
    match event.kind:
        case "submitted":
            by = f" by {data['user']}" if data.get("user") else ""
            pods = f", for {counted(data['pods'], 'pod')}" if "pods" in data else ""
            return f"{job or data['name']} was submitted{by}: {counted(data['gpus'], 'GPU')} of {data['vc']}{pods}"
        case "reserved":
            names = ", ".join(data["victims"])
            have = "has" if len(data["victims"]) == 1 else "have"
            return f"{job} has {place_text(data['placement'])} reserved, and starts when {names} {have} made room"
        case "cancelled" if str(data["why"]).startswith("it "):
            return f"{job} was cancelled: {data['why']}"
        case "started":
            kind = "guaranteed" if data["placement"]["levels"] else "opportunistic"
            kind = "a guest" if data.get("guest") else kind
            again = f" (start number {data['attempt']})" if data.get("attempt", 1) > 1 else ""
            found = "; it ran already" if data.get("adopted") else ""
            return f"{job} runs on {place_text(data['placement'])}, {kind}{_pace(data)}{again}{found}"
        case "reshaped" if "why" not in data:
            return f"{job} goes on, on {place_text(data['placement'])}{_pace(data)}"
        case "pace":
            return f"{job} goes on {sharing_text(data['share'], data['rate']) or 'at full speed'} from now on"
        case "limited":
            return f"{job} {limits_text(data['memory'], data['share']) or 'has no limits any more'}: {data['why']}"
        case "shared":
            return f"{job} {beside_text(data['guest'], data['beside'])}"
        case "edited":
            changes = ", ".join(_changed(name, *of) for name, of in data["changes"].items())
            return f"{job} was edited{_by(data)}: {changes}"
        case "bound":
            return f"{data['pod']} is on {data['node'] or 'its node'}"
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
            changes = "; ".join(change_text(*of) for of in data.get("changes", ())) or "nothing has changed"
            new = f" ({changes})" if "changes" in data else ""
            kept = f"{counted(data['kept'], 'job')} went on as before"
            return f"the cluster has a new spec{_by(data)}{new}; {kept}{down}{lost}"
        case "token_created":
            until = "" if data["expires_at"] is None else f" for {duration(data['expires_at'] - event.at)}"
            only = "" if data["vcs"] is None else f", limited to {', '.join(data['vcs'])}"
            return f"{data['of']} has a new token, {data['id']}{until}{only}{_by(data)}"
        case "node":
            more = data["all"] - len(data["nodes"])
            return "; ".join(data["nodes"]) + (f"; and {more} more nodes have changed" if more else "")
        case "no_progress":
            return (
                f"policy {data['policy']} of {data['vc']} has displaced {data['job']} {data['runs']} times in a row, "
                f"each time after less than {duration(data['run_s'])}: its jobs may swap without work being done. A "
                "job that starts must keep its place before those that it displaces"
            )
    if event.kind in EVENTS:
        return _of_the_market(event)
    return _SENTENCES.get(event.kind, event.kind).format(
        **{"job": job, "by": _by(data), "why": f" ({data['reason']})" if data.get("reason") else "", **data}
    )


def _by(data: Mapping[str, Any]) -> str:
    return f" by {data['user']}" if data.get("user") else ""


#: what a job asks for
_ASKED = {
    "gpus": "GPUs of a task",
    "tasks": "tasks",
    "time_limit_s": "time limit",
    "retries": "retries",
    "grace_s": "time to stop in",
    "array_most": "of its array at a time",
}


def change_text(vc: str, key: str, was: object, has: object) -> str:
    """A change of the spec; see :class:`hived.spec.changes.Change`."""
    of = f"{vc}: " if vc else ""
    match key:
        case "new" | "gone":
            return f"{vc} is {'new' if key == 'new' else 'no more'}"
        case "order":
            return "the virtual clusters are in another order"
        case "nodes" | "cells" if was == has:
            return f"{of}other {'cells' if vc else 'nodes or cells'}"
        case "nodes":
            return f"the cluster has {has} GPUs (was {was})"
        case "cells":
            return f"{of}{has} reserved GPUs (was {was})"
    return f"{of}{key} {_value(has)} (was {_value(was)})"


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value) if value not in (None, "") else "none"


def _changed(name: str, before: float | None, now: float | None) -> str:
    if name == "array_most":  # 0: all
        before, now = before or None, now or None
    shown = duration if name.endswith("_s") else str
    none = "all" if name == "array_most" else "none"
    was, has = (none if value is None else shown(value) for value in (before, now))
    return f"{_ASKED[name]} {has} (was {was})"


def place_text(placement: Mapping[str, Any]) -> str:
    """``node GPUs 0-3``, for a placement as plain data; a node's name once per task, of many tasks the first few."""
    pods = placement["pods"]
    words = "; ".join(
        f"{node} {'GPU' if len(devices) == 1 else 'GPUs'} {ranges(devices)}" for node, devices in pods[:MAX_NAMED]
    )
    return words + (f" and {len(pods) - MAX_NAMED:,} more" if len(pods) > MAX_NAMED else "")


def sharing_text(share: float, rate: float) -> str:
    """``60% of the time, at 0.58 of its speed alone``; "" where both are 1.

    >>> sharing_text(0.6, 0.58), sharing_text(1.0, 0.75), sharing_text(1.0, 1.0)
    ('60% of the time, at 0.58 of its speed alone', 'at 0.75 of its speed alone', '')
    """
    if min(share, rate) >= AS_GOOD_AS_ALONE:
        return ""
    turns = "" if share >= AS_GOOD_AS_ALONE else f"{100 * share:.3g}% of the time, "
    return f"{turns}at {rate:.3g} of its speed alone"


def beside_text(guest: bool, beside: Sequence[str]) -> str:
    """How a job shares its GPUs with others.

    >>> beside_text(True, ["detection-23"]), beside_text(False, ["a", "b"]), beside_text(False, [])
    ('runs as a guest beside detection-23', 'shares its GPUs with a, b', 'has its GPUs for itself')
    """
    names = ", ".join(beside[:MAX_NAMED]) + (f" and {len(beside) - MAX_NAMED:,} more" * (len(beside) > MAX_NAMED))
    if not beside:
        return "has its GPUs for itself"
    return f"runs as a guest beside {names}" if guest else f"shares its GPUs with {names}"


def _pace(data: Mapping[str, Any]) -> str:
    words = sharing_text(data.get("share", 1.0), data.get("rate", 1.0))
    return f", {words}" if words else ""


def _code(data: Mapping[str, Any]) -> str:
    if data.get("error"):
        return f"an error: {data['error']}"
    if data.get("signal"):
        return f"signal {data['signal']}"
    return f"exit code {data['code']}"


def _of_the_market(event: Event) -> str:
    data = event.data
    if event.kind == "left_out":
        return f"the market goes on without {data['why']}"
    cells = f"{data['cells'][1]:,} x {data['cells'][0]}"
    why = data.get("why")
    if event.kind == "offer_refused":
        gone = f"{data['to']}'s request" if data["request"] else f"{data['vc']}'s offer"
        return f"{data['vc']}'s offer of {cells} is not given to {data['to']}, and {gone} is withdrawn: {why}"
    when = f" for {duration(data['end'] - data['start'])}"
    if data["start"] > event.at + 1:
        when += f", from in {duration(data['start'] - event.at)} on"
    if "trade" not in data:
        what = "offers" if data["offer"] else "asks for"
        other = data["for"]
        back = "" if other is None else f", for {other[1]:,} x {other[0]}"
        post = f"{data['vc']} {what} {cells}{back}"
        noun = f"{data['vc']}'s {'offer of' if data['offer'] else 'request for'} {cells}"
        match event.kind:
            case "withdrawn":
                return f"{noun} is withdrawn (number {data['post']})"
            case "post_over":
                return f"{noun} is over, and found nobody (number {data['post']})"
            case "post_dropped":
                return f"{noun} is dropped: {why}"
        return f"{post}{when} (number {data['post']})"
    name, back = f"trade {data['trade']}", data["back"]
    swap = "" if back is None else f", for {back[1]:,} x {back[0]}"
    match event.kind:
        case "trade_agreed":
            return f"{name}: {data['vc']} gives {data['to']} {cells}{swap}{when}, {data['gpu_hours']:,.1f} GPU hours"
        case "trade_begun":
            return f"{name} begins: {cells} of {data['vc']} are {data['to']}'s{swap}"
        case "trade_over":
            return f"{name} is over: {cells} are {data['vc']}'s again{swap}"
        case "trade_called_off":
            return f"{name} is called off, and paid back: {why}"
    return f"{name} ends: {why}"
