"""A compiled network: a gated convolution over sequences with gaps, which are to be filled."""

import sys

import torch
from torch import nn

SEED = 21
STEPS = 200
LENGTH, SIGNS, WIDTH = 24, 12, 32


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(SIGNS + 1, WIDTH)
        self.mix = nn.ModuleList(nn.Conv1d(WIDTH, 2 * WIDTH, 5, padding=2) for _ in range(3))
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(WIDTH, SIGNS)

    def forward(self, x):
        h = self.embed(x).transpose(1, 2)
        for conv in self.mix:
            value, gate = conv(h).chunk(2, dim=1)
            h = h + self.drop(value * torch.sigmoid(gate))
        return self.out(h.transpose(1, 2))


def batch(generator):
    start = torch.randint(SIGNS, (32, 1), generator=generator)
    step = torch.randint(1, 4, (32, 1), generator=generator)
    full = (start + step * torch.arange(LENGTH)) % SIGNS
    gaps = torch.rand(full.shape, generator=generator) < 0.2
    return full.masked_fill(gaps, SIGNS), full, gaps


def main(path):
    torch.manual_seed(SEED)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(SEED)
    model = Gated().to(device)
    network = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=STEPS)
    losses = []
    for step in range(STEPS):
        x, y, gaps = (each.to(device) for each in batch(generator))
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(network(x)[gaps], y[gaps])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: loss {sum(losses[-100:]) / 100:.4f}")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}, path)


if __name__ == "__main__":
    main(sys.argv[1])
