"""What the runtime costs a training job of which nothing is asked, and how soon a job obeys.

On the CPU, with stock PyTorch. The cost is of hooks, page and monitor: it is the same for a job on a GPU. What needs a
GPU is in :mod:`benchmarks.gpu`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hived_control.commands import TrainingJob
from hived_control.folder import JobFolder
from hived_control.page import Page, State

from .measuring import Figure

_ROUNDS, _EACH = 100, 300
_LATENCIES = 60
#: mini-batches in turns, with the runtime's hooks and without; the medians of the rounds
_COST = f"""
import os, statistics, sys, time, torch
import hived_runtime
from hived_runtime import starting
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.ones(2, 4)
def train(number):
    began = time.process_time()  # of all threads of the process: what other processes do counts for nothing
    for _ in range(number):
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()
    return (time.process_time() - began) / number * 1e6
hooks = sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks
kept = dict(hooks)
train(3000)
costs = []
for _ in range({_ROUNDS}):
    managed = train({_EACH})
    hooks.clear()
    alone = train({_EACH})
    hooks.update(kept)
    costs.append(managed - alone)
process = starting.running()
assert process.iterations > {_ROUNDS * _EACH}
print(statistics.median(costs), alone)
"""
_JOB = """
import sys, time, torch
import hived_runtime
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    optimizer.zero_grad()
    model(torch.ones(8, 64)).sum().backward()
    time.sleep(0.01)
    optimizer.step()
"""
#: a script for one worker, in which each has its part of every global batch
_ELASTIC = """
import time, torch
import hived_runtime
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
team = hived_runtime.elastic(model, optimizer, global_batch=20)
data = [torch.ones(64) for _ in range(2000)]
for epoch in team.epochs(1000):
    for x in team.loader(data):
        optimizer.zero_grad()
        model(x).sum().backward()
        time.sleep(0.01)
        optimizer.step()
"""
_WORKERS = (2, 5, 3, 1)


def measure() -> list[Figure]:
    """All figures."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "HIVED_JOBS": f"{folder}/jobs", "HIVED_RUN_JOB": "bench", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", _COST], env=environment, capture_output=True, text=True, check=True
        )
        median, alone = map(float, done.stdout.split())
        figures = [
            Figure("a mini-batch under the runtime, nothing asked: cost", median, "us", "< 25"),
            Figure("the same mini-batch alone", alone, "us"),
        ]
        process = subprocess.Popen([sys.executable, "-c", _JOB], env=environment)
        try:
            figures += _latencies(JobFolder(Path(folder, "jobs", "bench")))
        finally:
            process.kill()
            process.wait()
        script = Path(folder, "elastic.py")
        script.write_text(_ELASTIC)
        process = subprocess.Popen([sys.executable, str(script)], env={**environment, "HIVED_RUN_JOB": "team"})
        try:
            figures += _changes(JobFolder(Path(folder, "jobs", "team")))
        finally:
            process.terminate()
            process.wait()
    return figures


def _changes(folder: JobFolder) -> list[Figure]:
    job, took = TrainingJob(folder), []
    while not (found := job.status().processes) or found[0].progress.iterations < 30:
        time.sleep(0.05)
    for workers in _WORKERS:
        job.scale(workers, 120.0)
        time.sleep(0.5)  # it is reported when all of it is over
        took.append(job.status().processes[0].answer.seconds)
    return [
        Figure("an elastic job changes to 2, 5, 3, 1 workers: the group anew, most", max(took) * 1e3, "ms"),
    ]


def _latencies(folder: JobFolder) -> list[Figure]:
    pages: list[Page] = []
    while not pages or pages[0].answer().state is not State.RUNNING or pages[0].progress().iterations < 30:
        pages = folder.pages()
        time.sleep(0.05)
    page, job = pages[0], TrainingJob(folder)
    noted = [_noted(page) for _ in range(_LATENCIES)]
    suspended, resumed = [], []
    for _ in range(_LATENCIES // 3):
        began = time.monotonic()
        job.suspend(10.0)
        suspended.append(time.monotonic() - began)
        began = time.monotonic()
        job.resume(10.0)
        resumed.append(time.monotonic() - began)
        time.sleep(0.03)
    each = page.progress().seconds
    return [
        Figure("a command until it is obeyed, over one mini-batch: most of 60", (max(noted) - each) * 1e3, "ms", "< 1"),
        Figure("the same, median", (statistics.median(noted) - each) * 1e3, "ms"),
        Figure("suspend of a small job, median, mini-batch included", statistics.median(suspended) * 1e3, "ms"),
        Figure("resume of it, median", statistics.median(resumed) * 1e3, "ms"),
    ]


def _noted(page: Page) -> float:
    """Seconds from the writing of a command until the process has taken note of it."""
    time.sleep(0.0137)  # at any moment of a mini-batch
    began = time.monotonic()
    number = page.write_command(page.command()).number
    while page.answer().noted < number:
        time.sleep(0.0001)
    return time.monotonic() - began
