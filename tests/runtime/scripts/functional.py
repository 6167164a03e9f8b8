"""A classifier without modules: the parameters are plain tensors in a list, the network is a function of them."""

import math
import sys
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

torch.manual_seed(17)
rng = np.random.default_rng(17)
device = "cuda" if torch.cuda.is_available() else "cpu"

SIZES = [64, 640, 640, 640, 3]
N_TRAIN, BATCH = 5000, 96

# three arms of a spiral in the plane, seen through 64 random cosine features
directions, offsets = rng.normal(0, 3, (2, SIZES[0])), rng.uniform(0, 2 * np.pi, SIZES[0])
labels = rng.integers(0, 3, N_TRAIN)
radius = np.sqrt(rng.uniform(0.05, 1, N_TRAIN))
angle = 4 * radius + 2 * np.pi * labels / 3 + rng.normal(0, 0.5, N_TRAIN)
plane = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
points = torch.tensor(np.cos(plane @ directions + offsets), dtype=torch.float32, device=device)
labels = torch.tensor(labels, device=device)


def init_layer(fan_in, fan_out):
    weight = torch.randn(fan_out, fan_in, device=device) * math.sqrt(2 / fan_in)
    return [weight.requires_grad_(), torch.zeros(fan_out, device=device, requires_grad=True)]


params = [p for fan_in, fan_out in pairwise(SIZES) for p in init_layer(fan_in, fan_out)]
scale = torch.ones(SIZES[0], device=device, requires_grad=True)
params.insert(0, scale)


def forward(params, x):
    scale, *layers = params
    h = x * scale
    for weight, bias in zip(layers[:-2:2], layers[1:-2:2], strict=True):
        h = F.relu(F.linear(h, weight, bias))
        h = F.dropout(F.layer_norm(h, h.shape[1:]), p=0.2)
    return F.linear(h, layers[-2], layers[-1])


optimizer = torch.optim.Adam(params, lr=1e-3, amsgrad=True)
curve = []
for epoch in range(4):
    order = torch.from_numpy(rng.permutation(N_TRAIN)).to(device)
    epoch_loss = 0.0
    for start in range(0, N_TRAIN, BATCH):
        batch = order[start : start + BATCH]
        penalty = sum(p.square().sum() for p in params if p.dim() > 1)
        loss = F.cross_entropy(forward(params, points[batch]), labels[batch]) + 1e-5 * penalty
        grads = torch.autograd.grad(loss, params)
        for p, g in zip(params, grads, strict=True):
            p.grad = g
        optimizer.step()
        epoch_loss += float(loss.detach()) * len(batch)
    curve.append(epoch_loss / N_TRAIN)
    print(f"epoch {epoch:2d}  loss {curve[-1]:.4f}")
    optimizer.param_groups[0]["lr"] *= 0.8

weights = {f"p{i}": p.detach().cpu() for i, p in enumerate(params)}
torch.save({"params": weights, "curve": curve, "lr": optimizer.param_groups[0]["lr"]}, sys.argv[1])
