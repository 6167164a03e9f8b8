"""Jobs of FSDP2 move, each rank with its own shards, and end bit for bit as they do alone; what differs is refused."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

from hived_runtime.moving.named import MoveError, NamedState

from .jobs import PATIENCE_S, differences, started, until
from .plain import run_plain
from .test_moves import Moves, handed_over

FSDP = """
import os, sys, torch, torch.distributed as dist
import hived_runtime
from pacing import pace
from pathlib import Path
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
dist.init_process_group("gloo")
torch.manual_seed(3)
data = TensorDataset(torch.randn(480, 9), torch.randint(0, 3, (480,)))
first, last = torch.nn.Linear(9, 65), torch.nn.Linear(65, 3)
model = torch.nn.Sequential(first, torch.nn.PReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(65, 65), last)
last.bias.requires_grad_(False)
fully_shard(first)
fully_shard(model)
torch.manual_seed(3 + dist.get_rank())
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.9)
sampler = DistributedSampler(data, shuffle=True, seed=3)
loader = DataLoader(data, 8, sampler=sampler)
state = hived_runtime.state(model=model, optimizer=optimizer, scheduler=scheduler, step=0, losses=[], norm=None)
for epoch in state.range(12):
    sampler.set_epoch(epoch)
    for x, y in state.each(loader):
        state.step += 1
        ends = state.step % 2 == 0
        model.set_requires_gradient_sync(ends)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        state.losses.append(loss.item())
        if ends:
            state.norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            pace(state.step // 2, 180, Path(sys.argv[1] + ".hurry"))
weights = {name: each.full_tensor() for name, each in model.state_dict().items()}
if dist.get_rank() == 0:
    torch.save(dict(weights=weights, losses=state.losses), sys.argv[1])
dist.barrier()
dist.destroy_process_group()
"""


def test_moved_ranks_end_as_alone(tmp_path: Path) -> None:
    """Shards are uneven, one is empty, and gradients are not reduced between the two batches of a step."""
    file = tmp_path / "train.py"
    file.write_text(FSDP)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}

    def rank_alone(rank: int) -> None:
        run_plain(file, [str(tmp_path / "alone.pt")], tmp_path / f"{rank}.log", RANK=str(rank), **place)

    with ThreadPoolExecutor(2) as ranks:
        list(ranks.map(rank_alone, range(2)))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with started(tmp_path / "jobs", "fsdp", [*launcher, str(file), str(tmp_path / "result.pt")]) as job:
        job.trains(3)
        job.job.suspend(PATIENCE_S)
        processes = job.job.status().processes
        assert {each.answer.tier for each in processes} == {"framework"}, "shards leave memory"
        job.job.resume(PATIENCE_S)
        job.job.migrate("cpu", PATIENCE_S)
        before = {each.pid for each in processes}
        until(lambda: len({each.pid for each in job.job.status().processes} - before) == 2)
        expected = torch.load(tmp_path / "alone.pt", weights_only=False)
        assert differences(expected, job.finish()) == []


# -- the state, as data -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def alone_in_group() -> Iterator[None]:
    """This process is the one rank of a group."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Tied(torch.nn.Module):  # type: ignore[misc]
    """With weights that are tied, some that are not trained, and a buffer that is not kept."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)
        self.last = torch.nn.Linear(6, 6, bias=False)
        self.last.weight = self.middle.weight
        self.first.bias.requires_grad_(False)
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))


def model(**options: Any) -> torch.nn.Module:
    made = Tied()
    fully_shard(made.first, **options)
    return fully_shard(made, **options)


def named(**values: Any) -> NamedState:
    return NamedState(values, lambda: None)


def linear(inputs: int = 4, by: int = 0, **options: Any) -> torch.nn.Module:
    """Its weights are sharded by rows, or by columns."""
    module = torch.nn.Linear(inputs, 4, bias=False)
    return fully_shard(module, shard_placement_fn=lambda _: Shard(by), **options)


def in_two_dimensions() -> dict[str, Any]:
    return {"mesh": init_device_mesh("cpu", (1, 1), mesh_dim_names=("copies", "shards"))}


#: options of ``fully_shard``, an optimizer, and the batches of a step
JOBS: dict[str, tuple[Callable[[], dict[str, Any]], Callable[..., torch.optim.Optimizer], int]] = {
    "SGD": (dict, lambda of: torch.optim.SGD(of, 0.1, momentum=0.9), 1),
    "foreach, accumulated": (dict, lambda of: torch.optim.AdamW(of, foreach=True), 3),
    "fused, mixed precision, whole after a forward pass": (
        lambda: {"reshard_after_forward": False, "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)},
        lambda of: torch.optim.AdamW(of, fused=True),
        2,
    ),
    "two dimensions": (in_two_dimensions, torch.optim.Adam, 1),
}


@pytest.mark.parametrize("what", JOBS)
def test_moved_state_ends_as_alone(what: str) -> None:
    """At any point: gradients that are accumulated in shards, a sharded value, whole weights after an evaluation."""
    options, optimized, batches = JOBS[what]

    def script(name: Callable[..., NamedState], notes: list[Any]) -> None:
        network = model(**options())
        optimizer = optimized(network.parameters())
        state = name(model=network, optimizer=optimizer, step=0, norm=None)
        for _ in state.range(2):
            with torch.no_grad():
                network(torch.ones(2, 6))
            for _ in state.range(4):
                network(torch.rand(2, 6)).float().square().sum().mul(network.calls).backward()
                state.step += 1
                if state.step % batches == 0:
                    state.norm = torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                weights = [each.full_tensor().tolist() for each in network.state_dict().values()]
                notes.append((weights, state.norm is not None and state.norm.full_tensor().item()))

    for at in (1, 3, 4, 8):
        alone, moved = Moves().run(script, at, 1)
        assert moved == alone, at


IS = r"is \(4, 4\) as \(Shard\(dim=0\),\) over ranks \[0\] on cpu here, and"
REFUSED: dict[str, tuple[Callable[[], torch.nn.Module], str]] = {
    "placements": (lambda: linear(by=1), r"\(4, 4\) as \(Shard\(dim=1\),\) over ranks \[0\] on cpu there"),
    "shape": (lambda: linear(5), r"\(4, 5\) as .* there"),
    "mesh": (
        lambda: linear(**in_two_dimensions()), r"\(4, 4\) as .* over ranks \[\[0\]\] \(copies, shards\) on cpu there",
    ),
    "not sharded there": (lambda: torch.nn.Linear(4, 4, bias=False), "not sharded there"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_sharded_otherwise_is_refused(what: str) -> None:
    there, why = REFUSED[what]
    saved = handed_over(named(it=there()).saved())
    with pytest.raises(MoveError, match=rf"state\.it\.weight {IS} {why}"):
        named(it=linear()).load(saved, lambda: None, lambda _: None)


def test_optimizer_of_other_shards_is_refused() -> None:
    def optimizer(module: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(module.parameters())

    saved = handed_over(named(it=optimizer(linear(by=1))).saved())
    with pytest.raises(MoveError, match=rf"state\.it\.0\.params\.0 {IS}"):
        named(it=optimizer(linear())).load(saved, lambda: None, lambda _: None)


def test_shards_on_no_mesh_here_are_refused() -> None:
    saved = handed_over(named(it=linear().weight.detach(), other=0).saved())
    why = (
        r"state\.it cannot be taken over: .* over ranks \[0\] on cpu, and no module or optimizer that is named here is"
    )
    with pytest.raises(MoveError, match=why):
        named(it=torch.zeros(4, 4), other=0).load(saved, lambda: None, lambda _: None)


@pytest.mark.parametrize("syncs", ["set_requires_gradient_sync", "set_requires_all_reduce"])
def test_gradients_that_are_not_reduced_are_refused(syncs: str) -> None:
    network = model(**in_two_dimensions())
    state = named(it=network)
    getattr(network, syncs)(False)
    network(torch.ones(2, 6)).sum().backward()
    with pytest.raises(MoveError, match=r"state\.it has gradients that are not reduced over its ranks yet"):
        state.saved()
    getattr(network, syncs)(True)
    network(torch.ones(2, 6)).sum().backward()
    state.saved()


def test_named_shard_and_its_gradient() -> None:
    def weight(fill: float) -> torch.Tensor:
        return distribute_tensor(torch.full((4, 4), fill), init_device_mesh("cpu", (1,))).requires_grad_()

    there, here = weight(2.0), weight(1.0)
    there.grad = there.detach() * 3
    named(it=here).load(handed_over(named(it=there).saved()), lambda: None, lambda _: None)
    assert here.full_tensor().sum() == 32
    assert here.grad is not None
    assert here.grad.full_tensor().sum() == 96
