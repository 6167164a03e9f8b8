"""A denoising autoencoder, trained for a number of steps on an endless stream, with averaged weights."""

import argparse
import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def cycle(loader):
    while True:
        yield from loader


def make_curves(n, length=256):
    """Random smooth curves: a few cosines with random weights."""
    basis = torch.cos(torch.pi * torch.arange(1, 9)[:, None] * torch.linspace(0, 1, length))
    return torch.randn(n, 8) / torch.arange(1, 9).sqrt() @ basis


class AutoEncoder(nn.Module):
    def __init__(self, length=256, code=24):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(length, 896), nn.ELU(), nn.Linear(896, code))
        self.decoder = nn.Sequential(nn.Linear(code, 896), nn.ELU(), nn.Linear(896, length))

    def forward(self, x):
        return self.decoder(self.encoder(x))


class EMA:
    """An exponential moving average of a model's weights, kept in a copy of the model."""

    def __init__(self, model, decay=0.99):
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.updates = 0

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for averaged, current in zip(self.model.parameters(), model.parameters(), strict=True):
            averaged.lerp_(current, 1 - decay)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("result", help="path of the result")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--noise", type=float, default=0.5)
    args = parser.parse_args()

    torch.manual_seed(31)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(TensorDataset(make_curves(5000)), batch_size=128, shuffle=True)
    held_out = make_curves(500).to(device)

    model = AutoEncoder().to(device)
    ema = EMA(model)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-4, alpha=0.95, momentum=0.5)
    criterion = nn.SmoothL1Loss()
    batches = cycle(loader)

    step = 0
    window, history = [], []
    best = {"step": 0, "error": float("inf")}
    while step < args.steps:
        (clean,) = next(batches)
        clean = clean.to(device)
        noisy = clean + args.noise * torch.randn_like(clean)
        loss = criterion(model(noisy), clean)

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update(model)
        step += 1

        window.append(loss.item())
        if step % 40 == 0:
            with torch.no_grad():
                error = criterion(ema.model(held_out), held_out).item()
            if error < best["error"]:
                best = {"step": step, "error": error}
            history.append((step, sum(window) / len(window), error))
            window.clear()
            print("step {:4d} train {:.4f} held out {:.4f}".format(*history[-1]))
        if step == args.steps // 2:
            for group in optimizer.param_groups:
                group["lr"] *= 0.3

    models = {"model": model.state_dict(), "ema": ema.model.state_dict()}
    torch.save({**models, "ema_updates": ema.updates, "best": best, "history": history}, args.result)


if __name__ == "__main__":
    main()
