"""Training scripts that know nothing of hived end with the same weights, bit for bit, however they are interrupted."""

from __future__ import annotations

import contextlib
import random
import socket
import sys
import time
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from hived_control.commands import NotYetError, RefusedError
from hived_control.errors import ConflictError, NotFoundError, TrainingError
from hived_control.page import State

from .jobs import PATIENCE_S, SCRIPTS, Job, alone, differences, started
from .plain import run_plain

ALONE = sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem != "ddp_gloo")
#: of a command for a job that ends, or is somewhere else, meanwhile
ENDS_MEANWHILE = (ConflictError, NotFoundError, NotYetError, ProcessLookupError)


def command(name: str, result: Path) -> list[str]:
    return [sys.executable, str(SCRIPTS / f"{name}.py"), str(result)]


def suspends(job: Job, chance: random.Random) -> None:
    job.job.suspend(PATIENCE_S)
    before = job.mini_batches()
    time.sleep(chance.uniform(0.0, 0.2))
    assert {each.answer.state for each in job.job.status().processes} == {State.SUSPENDED}
    assert job.mini_batches() == before
    job.job.resume(PATIENCE_S)


def limits(job: Job, chance: random.Random) -> None:
    memory = chance.choice([None, 0, 1 << 20, 1 << 30])
    job.job.limit(memory, chance.choice([None, 0.1, 0.15]))


ACTS = {"suspend": suspends, "limit": limits}


def meddle(job: Job, expected: Any, seed: int) -> None:
    """Interrupt it at random until it ends, or that was enough; then it trains on as fast as it can, to its result.

    It names no state: a move is refused, and changes nothing.
    """
    chance = random.Random(seed)
    done: Counter[str] = Counter()
    job.trains()
    while job.runs() and (done["suspend"] < 4 or done["limit"] < 3):
        kind = chance.choice(["suspend", "limit"])
        with contextlib.suppress(*ENDS_MEANWHILE):
            ACTS[kind](job, chance)
            done[kind] += 1
            if done["suspend"] == 2 and not done["refused"]:
                with pytest.raises(RefusedError, match="its script names no state"):
                    job.job.migrate("cpu", PATIENCE_S)
                done["refused"] += 1
        if job.runs():
            time.sleep(chance.uniform(0.05, 0.4))
    with contextlib.suppress(*ENDS_MEANWHILE):
        job.job.limit(share=1.0)
    job.ended()
    what = done, job.output()[-3000:]
    assert differences(expected, torch.load(job.result, weights_only=False)) == [], what
    assert done["suspend"] >= 2, what
    assert done["limit"], what


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.smoke] if name == "conv_batchnorm_dropout" else []) for name in ALONE],
)
def test_interrupted_script_same_weights(name: str, tmp_path: Path) -> None:
    expected = alone(SCRIPTS / f"{name}.py", tmp_path / "alone.pt")
    words = command(name, tmp_path / "result.pt")
    with started(tmp_path / "jobs", name.replace("_", "-"), words, "--share", "10%") as job:
        meddle(job, expected, zlib.crc32(name.encode()))


def test_interrupted_ranks_same_weights(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "3"}

    def rank_alone(rank: int) -> None:
        words = [str(tmp_path / "alone.pt")]
        run_plain(SCRIPTS / "ddp_gloo.py", words, tmp_path / f"{rank}.log", RANK=str(rank), **place)

    with ThreadPoolExecutor(3) as ranks:
        list(ranks.map(rank_alone, range(3)))
    expected = torch.load(tmp_path / "alone.pt", weights_only=False)
    words = [*launcher, *command("ddp_gloo", tmp_path / "result.pt")[1:]]
    with started(tmp_path / "jobs", "ddp", words, "--share", "12%") as job:
        meddle(job, expected, seed=5)


@pytest.mark.parametrize("name", ["conv_batchnorm_dropout", "loader_workers"])
def test_paged_script_same_weights(name: str, fake: Path, tmp_path: Path) -> None:
    """The whole runtime on the pager, which has the fake driver: tensors of the CPU are its device memory."""
    expected = alone(SCRIPTS / f"{name}.py", tmp_path / "alone.pt")
    words = command(name, tmp_path / "result.pt")
    variables = {"HIVED_RUN_PAGER": str(fake), "HIVED_SPILL": "/nowhere"}
    with started(tmp_path / "jobs", "paged", words, "--share", "20%", **variables) as job:
        job.trains()
        tiers, overflow, rounds = set(), 0, 0
        draws = random.Random(zlib.crc32(name.encode()))
        with contextlib.suppress(TrainingError, ProcessLookupError):
            while job.runs() and (rounds < 6 or not overflow):
                rounds += 1
                limit = draws.choice([1 << 20, 4 << 20, 16 << 20, 0])
                job.job.limit(limit, memory_most=draws.choice([None, 8 << 20]))
                time.sleep(draws.uniform(0.1, 1.3))
                overflow = max([overflow, *(each.sample.host_bytes for each in job.job.status().processes)])
                job.job.suspend(PATIENCE_S)
                answer = job.first().answer
                tiers.add(answer.tier)
                assert answer.moved_bytes > 0 or limit
                job.job.resume(PATIENCE_S)
            job.job.limit(share=1.0)  # what is left, as fast as it can, and on the host where there is too little
        job.ended()
    assert differences(expected, torch.load(tmp_path / "result.pt", weights_only=False)) == []
    assert tiers == {"pager"}
    assert overflow > 0, "a limit below what it needs puts tensors on the host"
