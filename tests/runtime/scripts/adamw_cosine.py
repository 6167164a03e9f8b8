"""Regression with a residual network: AdamW, linear warm-up, cosine decay, clipped gradients."""

import argparse
import math
import random

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader, TensorDataset, random_split


class ResidualBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 2 * width)
        self.contract = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.contract(nn.functional.gelu(self.expand(self.norm(x))))


class ResidualNet(nn.Module):
    def __init__(self, features, width, depth):
        super().__init__()
        self.stem = nn.Linear(features, width)
        self.blocks = nn.Sequential(*[ResidualBlock(width) for _ in range(depth)])
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x))).squeeze(-1)


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def make_data(n=6000, features=32):
    x = np.random.randn(n, features).astype(np.float32)
    y = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] - 0.5 * np.abs(x[:, 3]) + 0.1 * np.random.randn(n)
    return TensorDataset(torch.from_numpy(x), torch.from_numpy(y.astype(np.float32)))


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    total = 0.0
    for x, y in loader:
        total += nn.functional.mse_loss(model(x.to(device)), y.to(device), reduction="sum").item()
    return total / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", help="where to save the result")
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--max-norm", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    set_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_set, val_set = random_split(make_data(), [5000, 1000])
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, batch_size=250)

    model = ResidualNet(32, 320, 3).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    total_steps = args.epochs * len(train_loader)
    warmup_steps = total_steps // 10
    scheduler = SequentialLR(
        optimizer,
        [
            LinearLR(optimizer, start_factor=0.01, total_iters=warmup_steps),
            CosineAnnealingLR(optimizer, T_max=total_steps - warmup_steps, eta_min=1e-5),
        ],
        milestones=[warmup_steps],
    )

    step, best_loss, clipped, history = 0, math.inf, 0, []
    for epoch in range(args.epochs):
        model.train()
        epoch_loss = 0.0
        for x, y in train_loader:
            loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)
            clipped += int(norm > args.max_norm)
            optimizer.step()
            scheduler.step()
            epoch_loss += loss.item()
            step += 1
        val_loss = evaluate(model, val_loader, device)
        best_loss = min(best_loss, val_loss)
        history.append((epoch_loss / len(train_loader), val_loss, optimizer.param_groups[0]["lr"]))
        print(f"epoch {epoch + 1}/{args.epochs}: train {history[-1][0]:.4f} val {val_loss:.4f} lr {history[-1][2]:.2e}")

    summary = {"best_loss": best_loss, "steps": step, "clipped": clipped, "lr": scheduler.get_last_lr()[0]}
    torch.save({"state_dict": model.state_dict(), "history": history, **summary}, args.output)


if __name__ == "__main__":
    main()
