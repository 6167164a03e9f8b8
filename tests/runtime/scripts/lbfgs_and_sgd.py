"""Fit a function in two phases: SGD on mini-batches to come near, then L-BFGS on all the data to finish."""

import sys

import torch
from torch import nn


def target_function(x):
    return torch.sin(3 * x[:, 0]) * torch.cos(2 * x[:, 1]) + 0.3 * x[:, 2] ** 2 - 0.5 * (x[:, 3] * x[:, 4])


class SirenLike(nn.Module):
    """A network with sine activations."""

    def __init__(self, width=512):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, width), nn.Linear(width, width), nn.Linear(width, width)])
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        for layer in self.layers:
            x = torch.sin(1.5 * layer(x))
        return self.last(x).squeeze(1)


def phase_one(model, x, y, loss_fn, epochs=6, batch_size=256):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[4, 5], gamma=0.3)
    losses = []
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(batch_size):
            optimizer.zero_grad()
            loss = loss_fn(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        schedule.step()
    print(f"sgd: {losses[-1]:.5f}")
    return losses


def phase_two(model, x, y, loss_fn, iterations=15):
    optimizer = torch.optim.LBFGS(
        model.parameters(), lr=1.0, max_iter=3, max_eval=4, history_size=8, line_search_fn="strong_wolfe"
    )
    evaluations = 0
    losses = []
    for _ in range(iterations):

        def closure():
            nonlocal evaluations
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            evaluations += 1
            return loss

        losses.append(optimizer.step(closure).item())
    print(f"l-bfgs: {losses[-1]:.6f} after {evaluations} evaluations")
    return losses, evaluations


def main():
    torch.manual_seed(8)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.rand(4000, 6, device=device) * 2 - 1
    y = target_function(x)
    model = SirenLike().to(device)
    loss_fn = nn.MSELoss()
    sgd_losses = phase_one(model, x, y, loss_fn)
    after_sgd = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
    subset = torch.randperm(len(x))[:512]
    lbfgs_losses, evaluations = phase_two(model, x[subset], y[subset], loss_fn)

    numbers = {"sgd_losses": sgd_losses, "lbfgs_losses": lbfgs_losses, "evaluations": evaluations}
    torch.save({"model": model.state_dict(), "after_sgd": after_sgd, **numbers}, sys.argv[1])


if __name__ == "__main__":
    main()
