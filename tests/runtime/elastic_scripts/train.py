"""A training script for one device that declares itself elastic. It writes which samples each worker trains on.

Its result is FOLDER/result.pt, its records are FOLDER/PID.jsonl. Mini-batches take their time until
the file FOLDER/hurry is there.
"""

# mypy: ignore-errors

import atexit
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import light_torch  # noqa: F401, first
import torch
from pacing import pace
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hived_runtime as runtime
from hived_runtime.elasticity import group, recruiter

SAMPLES, BATCH, EPOCHS = 98, 12, 60  # the last global batch of an epoch has two samples: fewer than workers
BATCHES = -(-SAMPLES // BATCH)


class Model(nn.Module):
    def __init__(self, conditional):
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 3)
        self.rare, self.never = nn.Linear(16, 3), nn.Linear(16, 3)
        self.conditional = conditional

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        out = self.second(hidden)
        chosen = x[:, 0] > 1.5
        if self.conditional and chosen.any():  # a branch that only some of the workers take in a mini-batch
            out = out + torch.where(chosen[:, None], self.rare(hidden), 0.0)
        return out


class Plain:
    """What the script would be without a team."""

    rank, workers, part = 0, 1, None

    def epochs(self, count):
        for self.epoch in range(count):
            yield self.epoch

    def loader(self, data, shuffle, seed, num_workers):
        self.data, self.seed = data, seed
        return self

    def __len__(self):
        return BATCHES

    def __iter__(self):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.seed + self.epoch)).tolist()
        batches = [order[first : first + BATCH] for first in range(0, SAMPLES, BATCH)]
        return iter(DataLoader(self.data, batch_sampler=batches, generator=torch.Generator()))


def record_exit_codes(file):
    """Write the exit codes of all processes that this one has started, when it ends."""
    started = []

    class Recorded(subprocess.Popen):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            started.append(self)

    subprocess.Popen = Recorded
    atexit.register(lambda: file.write_text(json.dumps([each.returncode for each in started])))


def failing(folder):
    """How new workers are to fail, as the test says it; "": they are not."""
    file = folder / "failing"
    return file.read_text() if file.exists() else ""


def fail(how):
    """In a new worker."""
    if how == "crash":
        raise ValueError("this worker cannot start")
    if how == "hang":
        time.sleep(1000)
    if how == "lost":
        torch.distributed.init_process_group = lambda *_, **__: os._exit(7)


def main(folder, *extra):
    joins = "HIVED_ELASTIC_JOIN" in os.environ
    if joins:
        fail(failing(folder))
    elif os.environ.get("RANK", "0") == "0":
        record_exit_codes(folder / "codes.json")

    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    data = TensorDataset(torch.arange(SAMPLES), torch.randn(SAMPLES, 6), torch.randint(0, 3, (SAMPLES,)))
    torch.manual_seed(2 if joins else 1)  # new workers have other weights until they join
    model = Model("conditional" in extra)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    if "adamw" in extra:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=EPOCHS * BATCHES)
    every = torch.optim.lr_scheduler.StepLR(optimizer, step_size=20, gamma=0.9)

    if "plain" in extra:
        team = Plain()
    else:
        team = runtime.elastic(model, optimizer, global_batch=BATCH, also=[scheduler, every])
    record = (folder / f"{os.getpid()}.jsonl").open("w", buffering=1)
    loader = team.loader(data, shuffle=True, seed=3, num_workers=int("loader" in extra))
    total = EPOCHS * len(loader)
    for epoch in team.epochs(EPOCHS):
        for numbers, x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            part = team.part
            if "accumulate" in extra:
                (loss / 2).backward()
                if part.batch % 2 or part.batch == BATCHES - 1:
                    if "clip" in extra:
                        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                    optimizer.step()
                    optimizer.zero_grad()
            else:
                optimizer.zero_grad()
                if "assign" in extra:  # gradients that no backward pass has accumulated
                    there = list(model.parameters())
                    for each, grad in zip(there, torch.autograd.grad(loss, there, allow_unused=True), strict=True):
                        each.grad = grad
                else:
                    loss.backward()
                optimizer.step()
            scheduler.step()
            if part is not None:
                assert not part.indices or list(part.indices) == numbers.tolist()
                line = {"epoch": epoch, "batch": part.batch, "indices": part.indices, "workers": team.workers}
                record.write(json.dumps(line) + "\n")
            if "fails-to-join" in extra:
                recruiter.READY_S = 2.0 if failing(folder) == "hang" else 300.0
                group.CONNECT_S = 3.0 if failing(folder) == "lost" else 120.0
            ends = (folder / "end").exists()
            if {"dies", "unnoticed"} & set(extra) and team.rank == 1 and ends:
                rank_0 = os.getppid()
                if "unnoticed" in extra and os.fork() == 0:
                    while Path(f"/proc/{rank_0}").exists():
                        time.sleep(0.1)  # with the sockets of the process group: they are not closed
                os._exit(9)
            if {"fails", "leaves"} & set(extra) and team.rank == 0 and ends:
                Plain.kept = torch.distributed.group.WORLD  # so its sockets are not closed
                if "fails" in extra:
                    raise ValueError("rank 0 has failed")
                break
            pace(epoch * len(loader) + (part.batch if part else 0), total, folder / "hurry")
        if "leaves" in extra and hasattr(Plain, "kept"):
            break
        every.step()
    if team.rank == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rates": scheduler.get_last_lr()}
        torch.save({**state, "random": torch.rand(1)}, folder / "result.pt")
    record.write(json.dumps("end of the script") + "\n")


main(Path(sys.argv[1]), *sys.argv[2:])
