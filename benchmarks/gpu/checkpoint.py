"""A job that imports nothing of ours is checkpointed by the driver; and jobs move from process to process on one GPU.

Driver checkpoints: ``cuCheckpointProcess*`` of the driver, release 570 or later. Moves: Gandiva (OSDI'18) Figures 12
and 13. On a CPU: the moves alone.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hived_control.checkpoint import Checkpoints
from hived_control.page import State

from .harness import Answers, Measurement, Row, Settings, run
from .jobs import Training, end_of, equal_to_plain, nvml, training

_GB = 1e9
_MIB = 1 << 20

# -- by the driver ----------------------------------------------------------------------------------------------------

_SIZES = {"0.3": "resnet50", "1.4": "lm-117m", "5.7": "lm-475m"}


def by_driver(size: str, settings: Settings, answers: Answers) -> None:
    """Lock, checkpoint, restore, unlock a training process, twice; it trains on, with a plain run's weights."""
    driver = Checkpoints()
    card = nvml(settings)
    before = card.used() if card is not None else 0
    with training(settings, _SIZES[size], "", "--deterministic") as job:
        job.trains(5)
        held = card.bytes_of(job.pid, before).value if card is not None else 0
        for turn in range(2):
            took = _checkpointed(driver, job, lambda: card.bytes_of(job.pid, before) if card is not None else None)
            name = "first" if not turn else "again"
            answers.put(f"{name}-out", took["checkpoint"], f"with a lock of {1000 * took['lock']:.0f} ms")
            answers.put(f"{name}-back", took["restore"], f"with an unlock of {1000 * took['unlock']:.0f} ms")
            found = took["found"]
            if found is not None:
                answers.put("bytes", found.value / _MIB, found.way)
            job.trains(3)
        answers.put("goes-on", True)
        if held:
            answers.put("rate-out", held / took["checkpoint"] / _GB, f"{held / _GB:.2f} GB, with the context's")
            answers.put("rate-back", held / took["restore"] / _GB)
        end = end_of(job.stop())
    with answers.part("equal"):
        answers.put("equal", *equal_to_plain(settings, _SIZES[size], {"driver": end})["driver"])


def _checkpointed(
    driver: Checkpoints, job: Training, look: Any, pairs: Sequence[tuple[bytes, bytes]] = ()
) -> dict[str, Any]:
    """Seconds of each step, and what ``look`` has found between."""
    took: dict[str, Any] = {}

    def timed(name: str, *arguments: Any) -> None:
        began = time.perf_counter()
        getattr(driver, name)(job.pid, *arguments)
        took[name] = time.perf_counter() - began

    timed("lock")
    timed("checkpoint")
    took["found"] = look()
    timed("restore", pairs)
    timed("unlock")
    return took


def pairs(settings: Settings, answers: Answers) -> None:
    """Restore on another GPU of this host."""
    driver = Checkpoints()
    count = len(driver.uuids())
    if count < 2:
        answers.needs_gpu("moved", "equal", note=f"two of them: this host shows {count}")
        return
    with training(settings, "resnet50", "", "--deterministic") as job:
        job.trains(5)
        took = _checkpointed(driver, job, lambda: None, driver.swapped(0, 1))
        job.trains(3)
        answers.put("moved", took["lock"] + took["checkpoint"] + took["restore"] + took["unlock"])
        end = end_of(job.stop())
    with answers.part("equal"):
        answers.put("equal", *equal_to_plain(settings, "resnet50", {"pair": end})["pair"])


def _driver_rows(size: str) -> tuple[Row, ...]:
    head = f"{size} GB ({_SIZES[size]}), by the driver:"
    rate = "about 5 GB/s by reports"
    return (
        Row("first-out", f"{head} checkpoint, the first time", "s"),
        Row("first-back", f"{head} restore, the first time", "s"),
        Row("again-out", f"{head} checkpoint, once more", "s"),
        Row("again-back", f"{head} restore, once more", "s"),
        Row("rate-out", f"{head} rate of the checkpoint", "GB/s", target=rate),
        Row("rate-back", f"{head} rate of the restore", "GB/s", target=rate),
        Row("bytes", f"{head} device bytes meanwhile", "MiB", target="0"),
        Row("goes-on", f"{head} training goes on", "", target="yes"),
        Row("equal", f"{head} weights equal to a plain run's", "", target="yes"),
    )


_PAIRS = (
    Row("moved", "ResNet-50, by the driver to another GPU", "s", target="< 2"),
    Row("equal", "ResNet-50, by the driver to another GPU: equal weights", "", target="yes"),
)

# -- process to process (Gandiva, Figures 12 and 13) ------------------------------------------------------------------

_MOVED = ("resnet50", "lm-117m")


def moves(model: str, settings: Settings, answers: Answers) -> None:
    """A job moves to a warm process; then it stops, writes its state, and a new process reads it: cold."""
    saved = Path(settings.folder) / f"{model}.state"
    with training(settings, model, "framework", "--deterministic", "--save", str(saved)) as job:
        job.trains(5)
        asked = time.monotonic()
        job.job.migrate(_here(settings), max(settings.left_s() - 10, 5))
        moved = time.monotonic()
        job.until(lambda: _at_its_new_place(job), "the new process")
        job.trains(5)
        warm = job.stop()
    spans = [span for span in warm["spans"] if span[0] == "train"]
    gaps = [(b[2] - a[2], a[2]) for a, b in itertools.pairwise(spans)]
    stop, since = max(gap for gap in gaps if asked <= gap[1] <= moved)
    usual = sorted(gap for gap, _ in gaps)[len(gaps) // 2]
    answers.put("warm", stop, f"a mini-batch of {1000 * usual:.0f} ms in it; {moved - asked:.1f} s from the command on")
    answers.put("trained-on", since - asked, "while the new process warmed up")
    with answers.part("cold", "hidden"):
        with training(settings, model, "", "--deterministic", "--load", str(saved)) as job:
            job.trains(1)
            first = job.stop()["spans"][0][2]
        cold = first - spans[-1][2]
        answers.put("cold", cold, "stop, write to a file, start, read, first mini-batch")
        answers.put("hidden", 100 * (1 - stop / cold))
    with answers.part("equal"):
        answers.put("equal", *equal_to_plain(settings, model, {"moved": end_of(warm)})["moved"])


def _here(settings: Settings) -> str:
    """The device that the job is on, as a target of a move."""
    if not settings.cuda:
        return "cpu"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
    return f"cuda:{visible}" if visible.isdigit() else visible


def _at_its_new_place(job: Training) -> bool:
    found = job.job.status().processes
    return bool(found) and found[0].pid != job.pid and found[0].answer.state is State.RUNNING


def _move_rows(model: str) -> tuple[Row, ...]:
    paper = "within 1 s, 6 of 10 models" if model == "resnet50" else "about 3.5 s, the largest (1.4 GB)"
    return (
        Row("warm", f"{model}: stop to first step, to a warm process", "s", paper, "< 2", "Gandiva Figure 13"),
        Row("cold", f"{model}: stop to first step, without warm-up", "s", "35 s with 8 GPUs", "", "Gandiva Figure 12"),
        Row("hidden", f"{model}: hidden by the warm-up", "%", "98 with 8 GPUs", "", "Gandiva Figure 12"),
        Row("trained-on", f"{model}: trained on meanwhile", "s"),
        Row("equal", f"{model}: weights equal to a plain run's", "", target="yes"),
    )


MEASUREMENTS = (
    *(
        Measurement(f"driver-{size}", partial(by_driver, size), _driver_rows(size), 110, gpu_only=True)
        for size in _SIZES
    ),
    Measurement("driver-pairs", pairs, _PAIRS, 60, gpu_only=True),
    *(
        Measurement(
            f"move-{model}", partial(moves, model), _move_rows(model), 110, like="" if not i else "move-resnet50"
        )
        for i, model in enumerate(_MOVED)
    ),
)

if __name__ == "__main__":
    sys.exit(run("checkpoint", __doc__ or "", MEASUREMENTS))
