"""A generative adversarial network that learns to draw bright discs, from an endless stream, with averaged weights."""

import copy
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(99)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

SIDE, LATENT, BATCH, STEPS = 16, 64, 64, 180


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


def cycle(loader):
    while True:
        yield from loader


def draw_discs(n):
    grid = torch.arange(SIDE, dtype=torch.float32)
    cx, cy = 4 + 8 * torch.rand(2, n, 1, 1)
    radius = 2 + 2.5 * torch.rand(n, 1, 1)
    distance = ((grid[None, None, :] - cx) ** 2 + (grid[None, :, None] - cy) ** 2).sqrt()
    return (2 * torch.sigmoid(2 * (radius - distance)) - 1).flatten(1)


def build_generator():
    hidden = [nn.Linear(LATENT, 384), nn.BatchNorm1d(384), nn.ReLU(True)]
    return nn.Sequential(*hidden, nn.Linear(384, 768), nn.ReLU(True), nn.Linear(768, SIDE * SIDE), nn.Tanh())


def build_discriminator():
    hidden = [nn.Linear(SIDE * SIDE, 640), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(640, 256), nn.LeakyReLU(0.2)]
    return nn.Sequential(*hidden, nn.Linear(256, 1), nn.Flatten(0))


batches = cycle(DataLoader(TensorDataset(draw_discs(3000)), batch_size=BATCH, shuffle=True, drop_last=True))
generator, discriminator = build_generator().to(device), build_discriminator().to(device)
ema = EMA(generator)
criterion = nn.BCEWithLogitsLoss()
opt_g = torch.optim.RMSprop(generator.parameters(), lr=4e-4, alpha=0.95, momentum=0.5)
opt_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
fixed_noise = torch.randn(32, LATENT, device=device)
real_label = torch.full((BATCH,), 0.9, device=device)
fake_label = torch.zeros(BATCH, device=device)

means = {"G": 0.0, "D": 0.0, "fooled": 0.0}
samples, history, step = [], [], 0
while step < STEPS:
    (real,) = next(batches)
    real = real.to(device)
    # the discriminator: real ones up, made ones down
    discriminator.zero_grad()
    loss_real = criterion(discriminator(real), real_label)
    loss_real.backward()
    fake = generator(torch.randn(BATCH, LATENT, device=device))
    loss_fake = criterion(discriminator(fake.detach()), fake_label)
    loss_fake.backward()
    opt_d.step()
    # the generator: made ones up
    generator.zero_grad()
    verdict = discriminator(fake)
    loss_g = criterion(verdict, torch.ones_like(fake_label))
    loss_g.backward()
    opt_g.step()
    ema.update(generator)
    step += 1

    seen = {"G": loss_g.item(), "D": loss_real.item() + loss_fake.item(), "fooled": (verdict > 0).float().mean().item()}
    for name, value in seen.items():
        means[name] += 0.05 * (value - means[name])
    if step % 45 == 0:
        with torch.no_grad():
            samples.append(ema.model(fixed_noise).cpu())
        history.append(dict(means))
        print(f"{step}/{STEPS} {history[-1]}")
    if step == STEPS // 2:
        for group in opt_g.param_groups:
            group["lr"] *= 0.3

networks = {"generator": generator, "discriminator": discriminator, "averaged": ema.model}
weights = {name: network.state_dict() for name, network in networks.items()}
torch.save({**weights, "samples": samples, "history": history}, sys.argv[1])
