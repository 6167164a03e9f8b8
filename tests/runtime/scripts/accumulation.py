"""Gradient accumulation: four micro-batches for each step of the optimizer, on synthetic signals."""

import argparse
import math
import sys

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset


class Signals(Dataset):
    """Sums of two sine waves in noise; the label says in which band the faster one lies."""

    def __init__(self, size, length=128, bands=6, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(bands, (size,), generator=g)
        t = torch.linspace(0, 2 * math.pi, length)
        slow = 1 + 2 * torch.rand(size, 1, generator=g)
        fast = 4 + 2 * self.labels[:, None] + 1.5 * torch.rand(size, 1, generator=g)
        phase = 2 * math.pi * torch.rand(size, 1, generator=g)
        noise = 0.8 * torch.randn(size, length, generator=g)
        self.signals = torch.sin(slow * t) + torch.sin(fast * t + phase) + noise

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.signals[index].unsqueeze(0), self.labels[index]


def progress(iterable, desc, every=40):
    """Iterate as usual, with a line on stderr now and then."""
    total = len(iterable)
    for n, item in enumerate(iterable, start=1):
        yield item
        if n % every == 0 or n == total:
            filled = 20 * n // total
            print(f"{desc} |{'#' * filled:<20}| {n}/{total}", file=sys.stderr)


def build_model(classes=6):
    return nn.Sequential(
        nn.Conv1d(1, 48, 9, stride=2, padding=4),
        nn.GroupNorm(8, 48),
        nn.SiLU(),
        nn.Conv1d(48, 128, 7, stride=2, padding=3),
        nn.GroupNorm(8, 128),
        nn.SiLU(),
        nn.Conv1d(128, 256, 7, padding=3),
        nn.SiLU(),
        nn.AdaptiveAvgPool1d(4),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(256 * 4, classes),
    )


parser = argparse.ArgumentParser()
parser.add_argument("out")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--accum", type=int, default=4)
parser.add_argument("--micro-batch", type=int, default=16)
args = parser.parse_args()

torch.manual_seed(5)
device = "cuda" if torch.cuda.is_available() else "cpu"
loader = DataLoader(Signals(1250), batch_size=args.micro_batch, shuffle=True)
val_loader = DataLoader(Signals(400, seed=1), batch_size=100)
model = build_model().to(device)
criterion = nn.CrossEntropyLoss()
optimizer = optim.AdamW(model.parameters(), lr=1e-3)
steps_per_epoch = math.ceil(len(loader) / args.accum)
scheduler = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=args.epochs * steps_per_epoch)

updates = micro_batches = 0
history = []
best = {"accuracy": 0.0, "epoch": None}
for epoch in range(args.epochs):
    model.train()
    running = 0.0
    optimizer.zero_grad()
    for i, (x, y) in enumerate(progress(loader, f"epoch {epoch}")):
        loss = criterion(model(x.to(device)), y.to(device))
        (loss / args.accum).backward()
        running += loss.item()
        micro_batches += 1
        if (i + 1) % args.accum == 0:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            updates += 1
    left = len(loader) % args.accum
    if left:
        # what is left is a smaller group: its gradients become a mean over that group
        for p in model.parameters():
            p.grad.mul_(args.accum / left)
        optimizer.step()
        scheduler.step()
        updates += 1

    model.eval()
    with torch.no_grad():
        hits = sum((model(x.to(device)).argmax(1).cpu() == y).sum().item() for x, y in val_loader)
    accuracy = hits / len(val_loader.dataset)
    history.append([running / len(loader), accuracy])
    if accuracy > best["accuracy"]:
        best = {"accuracy": accuracy, "epoch": epoch}
    print(
        f"epoch {epoch}: loss {running / len(loader):.4f} accuracy {accuracy:.3f} lr {scheduler.get_last_lr()[0]:.5f}"
    )

counts = {"updates": updates, "micro_batches": micro_batches}
torch.save({"weights": model.state_dict(), "best": best, "history": history, **counts}, args.out)
