"""Jobs that share one GPU: under memory limits, in time slices, packed, beside a guaranteed job, more than fits.

AntMan (OSDI'20) Figures 10 and 12, Tables 2 and 5; Gandiva (OSDI'18) Figure 9, Table 1. On a CPU: the logic alone.
"""

from __future__ import annotations

import contextlib
import signal
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .harness import Answers, Measurement, Row, Settings, median, quantile, run
from .jobs import JobError, Training, nvml, spans_within, training
from .memory import UNLIMITED, install

_MIB = 1 << 20

# -- memory taken away (AntMan, Figure 10) ----------------------------------------------------------------------------

_PERCENT = (100, 90, 75, 50, 25, 10)
_SLOWEST_S = 15.0  #: a mini-batch that takes longer ends the row of limits

#: model; what the paper has at a percentage
_LIMITED = {
    "super-resolution": {10: "0.75"},
    "vgg16-cifar": {50: "about 1"},
    "resnet50": {90: "< 0.4"},
}


def limits(model: str, settings: Settings, answers: Answers) -> None:
    """Speed under a limit over the speed without one, for parts of the most memory that the job has held."""
    import torch

    from .models import make

    device = torch.device(settings.device)
    tier = install(settings)[0]()
    task, optimizer = make(model, settings.size, device)

    def mini_batch(step: int) -> float:
        began = time.monotonic()
        batch = task.batch(step, device)
        optimizer.zero_grad(set_to_none=True)
        tier.boundary()
        loss = task.loss(*batch)
        loss.backward()
        optimizer.step()
        loss.item()
        return time.monotonic() - began

    for step in range(6):
        mini_batch(step)
    optimizer.zero_grad(set_to_none=True)
    if settings.cuda:
        torch.cuda.empty_cache()
    free = median([mini_batch(step) for step in range(6, 12)])
    held = tier.held()
    most = max(held.peak, held.device)  # on a GPU what the cache holds after them
    for percent in _PERCENT:
        limit = most * percent // 100
        tier.limit(limit, limit)
        took = [mini_batch(12)]
        enough = time.monotonic() + settings.pick(8, 3, 0.2)
        while len(took) < 12 and time.monotonic() < enough and took[-1] < _SLOWEST_S:
            took.append(mini_batch(12 + len(took)))
        found = median(took[1:] or took)
        host = tier.held().host
        answers.put(
            str(percent),
            free / found,
            f"{1000 * found:.1f} ms, free {1000 * free:.1f}; limit {limit / _MIB:.0f} MiB, host {host / _MIB:.0f}",
        )
        if found > _SLOWEST_S:
            left = [str(each) for each in _PERCENT if each < percent]
            answers.fail(left, f"a mini-batch took {found:.0f} s at {percent}% already")
            return


def _limit_rows(model: str) -> tuple[Row, ...]:
    return tuple(
        Row(
            str(percent),
            f"{model}: speed at {percent}% of its most memory, over all of it",
            "x",
            paper := _LIMITED[model].get(percent, ""),
            "",
            "AntMan Figure 10" if paper else "",
        )
        for percent in _PERCENT
    )


# -- time slices (Gandiva, Figure 9) ----------------------------------------------------------------------------------

_JOBS = 3
_SLICE_S = 60.0  #: the paper's


def slices(settings: Settings, answers: Answers) -> None:
    """Three jobs in turns, by suspend and resume. Slices are shorter than the paper's; the loss of 60 s is computed."""
    slice_s = settings.pick(4.0, 2.0, 0.3)
    rounds = int(settings.pick(3, 2, 2))
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(training(settings, "resnet50-cifar", "pager")) for _ in range(_JOBS)]
        for each in jobs:
            each.trains()
        tier = jobs[0].status().answer.tier
        for each in jobs:
            _suspend(each)
        _resume(jobs[0])
        jobs[0].trains()
        alone = _window(slice_s * 1.5)
        _suspend(jobs[0])
        for each in jobs:  # once, so that memory of the host is pinned
            _resume(each)
            each.trains(1)
            _suspend(each)
        switches: list[float] = []
        began = time.monotonic()
        for _ in range(rounds):
            for each in jobs:
                since = time.monotonic()
                _resume(each)
                ended = since + slice_s
                switches.append(time.monotonic() - since)
                time.sleep(max(0.0, ended - time.monotonic()))
                since = time.monotonic()
                _suspend(each)
                switches[-1] += time.monotonic() - since
        whole = (began, time.monotonic())
        for each in jobs:
            _resume(each)
        results = [each.stop() for each in jobs]
    rate = len(spans_within(results[0], *alone)) / (alone[1] - alone[0])
    done = [len(spans_within(result, *whole)) for result in results]
    for number, count in enumerate(done, 1):
        answers.put(f"share-{number}", 100 * count / max(sum(done), 1), f"{count} mini-batches")
    together = sum(done) / (whole[1] - whole[0]) / rate
    switch = sum(switches) / len(switches)
    answers.put("sum", 100 * together, f"slices of {slice_s:g} s, not 60; {tier}")
    answers.put("switch", 1000 * switch, "a resume and a suspend, with the wait for the end of a mini-batch")
    answers.put("loss", 100 * switch / _SLICE_S, "computed from the time of a switch")


def _window(seconds: float) -> tuple[float, float]:
    began = time.monotonic()
    time.sleep(seconds)
    return began, time.monotonic()


def _suspend(job: Training) -> None:
    job.job.suspend(max(job.settings.left_s() - 2, 1))


def _resume(job: Training) -> None:
    job.job.resume(max(job.settings.left_s() - 2, 1))


_SLICES = (
    *(
        Row(
            f"share-{number}", f"job {number} of 3: share of the mini-batches", "%", "equal", "33.3", "Gandiva Figure 9"
        )
        for number in range(1, _JOBS + 1)
    ),
    Row("sum", "all in time slices, over one alone all the time", "%", "> 98", "", "Gandiva Figure 9"),
    Row("switch", "one switch", "ms"),
    Row("loss", "loss with slices of 60 s", "%", "< 2", "< 0.5", "Gandiva 4.1, Figure 9"),
)

# -- packing (Gandiva, Table 1) ---------------------------------------------------------------------------------------

#: the gain in percent that the paper has, and the utilization
_PACKED = {"vae": (412, 8.7), "super-resolution": (260, 14.1), "lstm": (-16, 87.2), "resnet50-cifar": (-13, 94.0)}


def packing(model: str, settings: Settings, answers: Answers) -> None:
    """Copies of a job at once: the sum of their mini-batches a second over one alone, which is what slices give."""
    copies = int(settings.pick(6, 3, 2))
    seconds = settings.pick(2.5, 1.5, 0.4)
    card = nvml(settings)
    windows: list[tuple[float, float]] = []
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(training(settings, model, "")) for _ in range(copies)]
        for each in jobs:
            each.trains(4)
        for each in jobs[1:]:
            each.signal(signal.SIGSTOP)
        used: list[int] = []
        for count in range(1, copies + 1):
            jobs[count - 1].signal(signal.SIGCONT)
            time.sleep(0.2 if settings.cuda else 0.05)
            windows.append(_window(seconds))
            if count == 1 and card is not None:
                used.append(card.utilization())
        results = [each.stop() for each in jobs]
    rates = [
        sum(len(spans_within(result, *window)) for result in results) / (window[1] - window[0]) for window in windows
    ]
    best = max(range(1, copies), key=lambda index: rates[index])
    gain = 100 * (rates[best] / rates[0] - 1)
    shown = ", ".join(f"{each:.1f}" for each in rates)
    answers.put("gain", gain, f"with {best + 1}; 1 to {copies} copies: {shown} mini-batches/s")
    answers.put("sign", (gain > 0) == (_PACKED[model][0] > 0))
    if used:
        answers.put("utilization", float(used[0]))
    else:
        answers.needs_gpu("utilization")


def _packing_rows(model: str) -> tuple[Row, ...]:
    gain, used = _PACKED[model]
    where = "Gandiva Table 1"
    return (
        Row("utilization", f"{model}: utilization of the GPU by one", "%", f"{used}", "", where),
        Row("gain", f"{model}: gain of the best number of copies", "%", f"{gain:+}", "", where),
        Row("sign", f"{model}: a gain, or none, as in the paper", "", target="yes"),
    )


# -- beside a guaranteed job (AntMan, Figure 12 and Table 5) ----------------------------------------------------------

_PERIOD_S = 0.25
_GAP_S = 0.010  #: a longer delay of a mini-batch counts (AntMan 5.3)


@dataclass(slots=True)
class Feedback:
    """The share of the other job, by the guaranteed job's mini-batch time (AntMan 3.3): slowly up, quickly down.

    >>> feedback = Feedback(usual_s=0.1, share=0.5)
    >>> round(feedback.heard(0.102), 3), round(feedback.heard(0.2), 3)
    (0.52, 0.312)
    """

    usual_s: float  #: of a mini-batch, alone
    share: float = 0.1

    def heard(self, seconds: float) -> float:
        """The share from now on, after mini-batches that took so long on average."""
        self.share = max(0.02, self.share * 0.6) if seconds > 1.05 * self.usual_s else min(1.0, self.share + 0.02)
        return self.share


def follow(guaranteed: Training, feedback: Feedback, apply: Callable[[float], None], until: Callable[[], bool]) -> None:
    """Set the share every quarter of a second, from the guaranteed job's mini-batches; without any it stays."""
    apply(feedback.share)
    while not until():
        # an interval with another phase in it is no mini-batch
        found = [each for each in guaranteed.intervals(_PERIOD_S) if each < 5 * feedback.usual_s]
        if found:
            apply(feedback.heard(sum(found) / len(found)))


_ARMS = ("unmanaged", "boundary", "paced")


def beside(settings: Settings, answers: Answers) -> None:
    """A guaranteed job of phases (CPU, training, decoding) beside ResNet-50, which is not limited, or in three ways."""
    phases = "1,40,60" if settings.cuda else "0.1,6,3"
    seconds = settings.pick(18, 9, 0.8)
    file = Path(settings.folder) / "share"
    file.write_bytes(struct.pack("<d", 1.0))
    with (
        training(settings, "resnet50", "framework", "--share-file", str(file)) as other,
        training(settings, "lm-bursty", "framework", "--phases", phases) as guaranteed,
    ):
        other.trains()
        guaranteed.trains()
        guaranteed.signal(signal.SIGSTOP)
        windows = {"other alone": _window(seconds / 2)}
        guaranteed.signal(signal.SIGCONT)
        other.signal(signal.SIGSTOP)
        time.sleep(0.3 if settings.cuda else 0.05)
        began = time.monotonic()
        usual = median(guaranteed.intervals(seconds))
        windows["alone"] = (began, time.monotonic())
        other.signal(signal.SIGCONT)
        windows["unmanaged"] = _window(seconds)
        for arm in ("boundary", "paced"):

            def apply(share: float, arm: str = arm) -> None:
                if arm == "paced":
                    other.job.limit(share=share)
                else:
                    with file.open("r+b") as opened:  # in place: the script reads it meanwhile
                        opened.write(struct.pack("<d", share))

            began = time.monotonic()

            def is_over(end: float = began + seconds) -> bool:
                return time.monotonic() > end

            follow(guaranteed, Feedback(usual), apply, is_over)
            windows[arm] = (began, time.monotonic())
            apply(1.0)
        other.job.limit(share=1.0)
        mine, theirs = guaranteed.stop(), other.stop()
    _report_beside(mine, theirs, windows, phases, answers)


def _report_beside(
    mine: dict[str, Any], theirs: dict[str, Any], windows: dict[str, tuple[float, float]], phases: str, answers: Answers
) -> None:
    """The rows of all arms, from the spans of both jobs."""
    _, in_turn, words = (float(each) for each in phases.split(","))
    alone_rate = len(spans_within(theirs, *windows["other alone"])) / _length(windows["other alone"])

    def took(arm: str, what: str) -> list[float]:
        found = [b - a for _, a, b in spans_within(mine, *windows[arm], what)]
        if not found:
            raise JobError(f"no span of {what} ended in the window of {arm}")
        return found

    def turn(arm: str) -> float:
        parts = (sum(took(arm, what)) / len(took(arm, what)) for what in ("cpu", "train", "decode"))
        return sum(mean * count for mean, count in zip(parts, (1, in_turn, words), strict=True))

    usual = median(took("alone", "train"))
    gpu = 1 - sum(took("alone", "cpu")) / len(took("alone", "cpu")) / turn("alone")
    answers.put("busy", 100 * gpu, f"a turn takes {turn('alone'):.2f} s, a mini-batch {1000 * usual:.1f} ms")
    for arm in _ARMS:
        with answers.part(*(f"{arm}-{each}" for each in ("turn", "p50", "p99", "gaps", "kept"))):
            times = took(arm, "train")
            answers.put(f"{arm}-turn", turn(arm) / turn("alone"))
            answers.put(f"{arm}-p50", median(times) / usual)
            answers.put(f"{arm}-p99", quantile(times, 0.99) / quantile(took("alone", "train"), 0.99))
            gaps = 100 * sum(each - usual > _GAP_S for each in times) / len(times)
            base = 100 * sum(each - usual > _GAP_S for each in took("alone", "train")) / len(took("alone", "train"))
            answers.put(f"{arm}-gaps", gaps, f"alone {base:.1f}%; {len(times)} mini-batches")
            kept = len(spans_within(theirs, *windows[arm])) / _length(windows[arm]) / alone_rate
            answers.put(f"{arm}-kept", 100 * kept, f"target {80 * (1 - gpu):.0f}%: 0.8 of what the other leaves idle")


def _length(window: tuple[float, float]) -> float:
    return window[1] - window[0]


_TURNS = {"unmanaged": "5.2 (105.2 / 20.1 min)", "paced": "1.03 (20.8 / 20.1 min)"}


def _beside_rows() -> tuple[Row, ...]:
    rows = [Row("busy", "the guaranteed job: its own share of the GPU's time, alone", "%")]
    for arm in _ARMS:
        turn = _TURNS.get(arm, "")
        rows.append(
            Row(f"{arm}-turn", f"{arm}: its time over alone", "x", turn, "", "AntMan Figure 12" if turn else "")
        )
        p50, p99, gaps, kept = (
            (f"{arm}: its mini-batches, p50 over alone", "x"),
            (f"{arm}: its mini-batches, p99 over alone", "x"),
            (f"{arm}: its mini-batches with a gap over 10 ms", "%"),
            (f"{arm}: what ResNet-50 keeps of its speed", "%"),
        )
        if arm == "paced":
            rows += [
                Row(f"{arm}-p50", *p50, target="1.02"),
                Row(f"{arm}-p99", *p99, target="1.05"),
                Row(f"{arm}-gaps", *gaps, "98.95% of jobs have none", "0", "AntMan Table 5"),
                Row(f"{arm}-kept", *kept, "57", "0.8 x (100 - busy)", "AntMan Figure 12"),
            ]
        else:
            parts = zip(("p50", "p99", "gaps", "kept"), (p50, p99, gaps, kept), strict=True)
            rows += [Row(f"{arm}-{key}", *what) for key, what in parts]
    return tuple(rows)


# -- more than fits (AntMan, Table 2) ---------------------------------------------------------------------------------

_ARRIVES = 26 / 43  #: of the time of the first job
_LONGER = 91 / 43  #: the second job, than the first


@dataclass(slots=True)
class _Load:
    """So many mini-batches of a job that runs: when they began, and when they had ended."""

    job: Training
    count: int
    first: int = -1
    began: float = 0.0
    ended: float = 0.0

    def begin(self) -> None:
        self.first, self.began = self.job.iterations(), time.monotonic()

    def is_done(self) -> bool:
        if self.first >= 0 and not self.ended and self.job.iterations() >= self.first + self.count:
            self.ended = time.monotonic()
        return self.ended > 0

    def seconds(self) -> tuple[float, str]:
        """Of all; computed from those that are done where the time was over."""
        if self.ended:
            return self.ended - self.began, ""
        done = self.job.iterations() - self.first
        if done <= 0:
            raise JobError("not one mini-batch was done in the time of this way")
        return (time.monotonic() - self.began) * self.count / done, f"computed from {done} of {self.count} mini-batches"


def more_than_fits(settings: Settings, answers: Answers) -> None:
    """Two jobs whose memory is 33.5/32 of a card, in five ways. The card is a limit of the pager."""
    seconds = settings.pick(6, 3, 0.5)  # of the first job, alone
    with (
        training(settings, "gcn", "pager") as first,
        training(settings, "resnet50-large-batch", "pager") as second,
    ):
        first.trains()
        second.trains()
        for each in (first, second):
            if each.status().answer.tier != "pager":
                raise JobError(f"the pager is not in force: {each.status().answer.note}")
        needs = []
        for each, rest in ((first, second), (second, first)):
            _suspend(rest)
            time.sleep(settings.pick(2.2, 2.2, 1.2))  # a sample of the page is a second old at most
            needs.append(each.status().sample.device_bytes)
            _resume(rest)
        card = int(sum(needs) * 32 / 33.5)
        counts = []
        for each, rest, length in ((first, second, 1.0), (second, first, _LONGER)):
            _suspend(rest)
            begun = each.iterations()
            time.sleep(seconds / 2)
            counts.append(max(3, int(2 * length * (each.iterations() - begun))))
            _resume(rest)
        note = f"{needs[0] / _MIB:.0f} + {needs[1] / _MIB:.0f} MiB on a card of {card / _MIB:.0f}"
        plan = _Plan(settings, first, second, counts, (needs[0], needs[1]), card)
        with answers.part("fifo-a", "fifo-b", "preempt-b"):
            alone = plan.fifo()
            answers.put("preempt-b", 1.0, f"by definition; {alone.b:.2f} s, as after the other was killed; {note}")
            answers.put("fifo-b", alone.b_waited / alone.b)
            answers.put("fifo-a", True, "by definition: nothing is done to it")
            for way in ("antman", "umem"):
                with answers.part(f"{way}-a", f"{way}-b"):
                    _suspend(first)
                    _suspend(second)
                    a, b, said = plan.together(way, alone)
                    answers.put(f"{way}-a", a / alone.a, said)
                    answers.put(f"{way}-b", b / alone.b, said)
        with answers.part("preempt-a"):
            first.close()  # killed when the second arrives: that is this way
            answers.put("preempt-a", False, "by definition: it is killed")
        with answers.part("pack-b"):
            _pack(settings, second.stop()["peak_bytes"], answers)


@dataclass(frozen=True, slots=True)
class _Alone:
    a: float
    b: float
    b_waited: float  #: from its arrival, with the wait for the first job


@dataclass(frozen=True, slots=True)
class _Plan:
    """The two jobs, and how the ways treat them."""

    settings: Settings
    first: Training
    second: Training
    counts: list[int]
    needs: tuple[int, int]
    card: int

    def fifo(self) -> _Alone:
        """One after the other."""
        _suspend(self.second)
        a = _Load(self.first, self.counts[0])
        a.begin()
        self._wait(a.is_done)
        _suspend(self.first)
        _resume(self.second)
        b = _Load(self.second, self.counts[1])
        b.begin()
        self._wait(b.is_done)
        took_a, took_b = a.seconds()[0], b.seconds()[0]
        return _Alone(took_a, took_b, took_b + (1 - _ARRIVES) * took_a)

    def together(self, way: str, alone: _Alone) -> tuple[float, float, str]:
        """The second arrives while the first runs. Seconds of both, and a note."""
        a, b = _Load(self.first, self.counts[0]), _Load(self.second, self.counts[1])
        most = time.monotonic() + self.settings.pick(35, 20, 2)
        _resume(self.first)
        a.begin()
        goal = a.first + int(a.count * _ARRIVES)
        self._wait(lambda: self.first.iterations() >= goal)
        if way == "antman":
            self.first.job.limit(memory_limit=max(self.card - self.needs[1], 1 << 20))
        else:
            self.second.job.limit(memory_limit=self.card - self.needs[0])
        _resume(self.second)
        b.begin()

        def over() -> bool:
            done = (a.is_done(), b.is_done())
            if done[0]:
                self.first.signal(signal.SIGSTOP)  # its work is done: it has left
            return all(done) or time.monotonic() > most

        if way == "antman":
            feedback = Feedback(alone.b / self.counts[1])
            follow(
                self.second, feedback, lambda share: self.first.job.limit(share=share), lambda: over() or b.is_done()
            )
            self.first.job.limit(memory_limit=UNLIMITED, share=1.0)
        self._wait(over)
        self.first.signal(signal.SIGCONT)
        for each in (self.first, self.second):
            each.job.limit(memory_limit=UNLIMITED, share=1.0)
        (took_a, note_a), (took_b, note_b) = a.seconds(), b.seconds()
        return took_a, took_b, "; ".join(filter(None, (note_a, note_b)))

    def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self.settings.left_s() < 3:
                raise JobError("the time of the measurement was over")
            time.sleep(0.005)


def _pack(settings: Settings, peak: int, answers: Answers) -> None:
    """The second job under the stock allocator, with the memory that the first has left of the card: it is to fail.

    That is 28.5 of the 30 GB that its tensors need at most.
    """
    if not settings.cuda:
        answers.needs_gpu("pack-b")
        return
    import torch

    fraction = f"{peak * 28.5 / 30 / torch.cuda.mem_get_info()[1]:.4f}"
    with training(settings, "resnet50-large-batch", "", "--memory-fraction", fraction, "--steps", "5") as job:
        code = job.process.wait(max(settings.left_s() - 2, 1))
        text = job.output()
    if code != 0 and "out of memory" not in text:
        raise JobError(f"it ended with exit code {code}, and not for lack of memory")
    answers.put("pack-b", code == 0, "out of memory" if code else "")


_FITS = (
    Row("preempt-a", "preempt: the first job ends well", "", "no", "no", "AntMan Table 2"),
    Row("preempt-b", "preempt: the second job, over itself alone", "x", "1 (91.1 min)", "1", "AntMan Table 2"),
    Row("fifo-a", "FIFO: the first job ends well", "", "yes (43.0 min)", "yes", "AntMan Table 2"),
    Row("fifo-b", "FIFO: the second job with its wait, over alone", "x", "1.19", "", "AntMan Table 2"),
    Row("pack-b", "pack: the second job ends well", "", "no", "no", "AntMan Table 2"),
    Row("umem-a", "memory over-subscribed for good: first job, over alone", "x", "1.01", "", "AntMan Table 2"),
    Row("umem-b", "memory over-subscribed for good: second job, over alone", "x", "5.9", "", "AntMan Table 2"),
    Row("antman-a", "AntMan: the first job, over alone", "x", "1.02", "", "AntMan Table 2"),
    Row("antman-b", "AntMan: the second job, over alone", "x", "1.008", "1.02", "AntMan Table 2"),
)

MEASUREMENTS = (
    *(
        Measurement(
            f"limits-{model}",
            partial(limits, model),
            _limit_rows(model),
            75,
            like="" if model == "resnet50" else "limits-resnet50",
        )
        for model in _LIMITED
    ),
    Measurement("slices", slices, _SLICES, 90),
    Measurement("beside", beside, _beside_rows(), 130),
    Measurement("more-than-fits", more_than_fits, _FITS, 170),
    *(
        Measurement(
            f"packing-{model}",
            partial(packing, model),
            _packing_rows(model),
            60,
            like="" if model == "vae" else "packing-vae",
        )
        for model in _PACKED
    ),
)

if __name__ == "__main__":
    sys.exit(run("sharing", __doc__ or "", MEASUREMENTS))
