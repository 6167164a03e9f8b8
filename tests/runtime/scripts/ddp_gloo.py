"""Data-parallel training over gloo. Start it with, for example: torchrun --nproc-per-node 2 ddp_gloo.py result.pt"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Teacher(Dataset):
    """Random inputs, labelled by a random network that is the same in every process."""

    def __init__(self, size, seed, features=128, classes=10):
        fixed = torch.Generator().manual_seed(0)
        first = torch.randn(features, 64, generator=fixed) / features**0.5
        second = torch.randn(64, classes, generator=fixed)
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(size, features, generator=g)
        self.y = (torch.tanh(2 * self.x @ first) @ second).argmax(dim=1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def reduce_mean(value, count, device):
    """The mean over all processes of a sum that was taken over `count` samples in this one."""
    total = torch.tensor([value, count], dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def train_epoch(model, loader, optimizer, scheduler, device):
    model.train()
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


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    correct, samples = 0, 0
    for x, y in loader:
        correct += (model(x.to(device)).argmax(1) == y.to(device)).sum().item()
        samples += len(x)
    return reduce_mean(correct, samples, device)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("--epochs", type=int, default=7)
    parser.add_argument("--batch-size", type=int, default=64, help="for each process")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    else:
        device = torch.device("cpu")

    torch.manual_seed(3)
    hidden = 1024
    net = nn.Sequential(
        nn.Linear(128, hidden),
        nn.GELU(),
        nn.Dropout(0.1),
        nn.Linear(hidden, hidden),
        nn.GELU(),
        nn.Linear(hidden, 10),
    ).to(device)
    model = DistributedDataParallel(net)
    torch.manual_seed(3 + rank)  # dropout differs between the processes

    train_set, test_set = Teacher(6000, seed=1), Teacher(1000, seed=2)
    sampler = DistributedSampler(train_set, shuffle=True, seed=3)
    loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)
    test_loader = DataLoader(test_set, batch_size=100, sampler=DistributedSampler(test_set, shuffle=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * world_size, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs * len(loader))

    best, history = 0.0, []
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, loader, optimizer, scheduler, device)
        accuracy = evaluate(model, test_loader, device)
        best = max(best, accuracy)
        history.append({"loss": loss, "accuracy": accuracy, "lr": scheduler.get_last_lr()[0]})
        if rank == 0:
            print(f"epoch {epoch}: loss {loss:.4f}, accuracy {accuracy:.3f}", flush=True)

    if rank == 0:
        numbers = {"best": best, "history": history, "steps": args.epochs * len(loader), "world_size": world_size}
        torch.save({"model": model.module.state_dict(), **numbers}, args.output)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
