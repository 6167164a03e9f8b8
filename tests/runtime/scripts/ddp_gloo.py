"""Data-parallel training over gloo. Start it with, for example: torchrun --nproc-per-node 2 ddp_gloo.py result.pt"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

EPOCHS = 7


def teacher(size, seed, features=128, classes=10):
    """Random inputs, labelled by a random network that is the same in every process."""
    fixed = torch.Generator().manual_seed(0)
    first = torch.randn(features, 64, generator=fixed) / features**0.5
    second = torch.randn(64, classes, generator=fixed)
    x = torch.randn(size, features, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (torch.tanh(2 * x @ first) @ second).argmax(dim=1))


def reduce_mean(value, count, device):
    """The mean over all processes of a sum that was taken over `count` samples in this one."""
    total = torch.tensor([value, count], dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def train_epoch(model, loader, optimizer, scheduler, device):
    loss_sum, samples = 0.0, 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        loss_sum += loss.item() * len(x)
        samples += len(x)
    return reduce_mean(loss_sum, samples, device)


def main(output):
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    else:
        device = torch.device("cpu")

    torch.manual_seed(3)
    hidden = 1024
    net = nn.Sequential(
        nn.Linear(128, hidden), nn.GELU(), nn.Dropout(0.1), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, 10)
    )
    model = DistributedDataParallel(net.to(device))
    torch.manual_seed(3 + rank)  # dropout differs between the processes

    train_set = teacher(6000, seed=1)
    sampler = DistributedSampler(train_set, shuffle=True, seed=3)
    loader = DataLoader(train_set, batch_size=64, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * world_size, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS * len(loader))

    history = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, loader, optimizer, scheduler, device)
        history.append({"loss": loss, "lr": scheduler.get_last_lr()[0]})
        if rank == 0:
            print(f"epoch {epoch}: loss {loss:.4f}", flush=True)

    if rank == 0:
        torch.save({"model": model.module.state_dict(), "history": history, "world_size": world_size}, output)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
