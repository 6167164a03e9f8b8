"""A trainer with callbacks, on examples that are made as they are asked for; stops early on the validation loss."""

import copy
import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class SumOfPairs(IterableDataset):
    """Sequences of numbered cards; the label is the sum of the two that carry a flag."""

    def __init__(self, size, seed, length=10, cards=10):
        self.size, self.length, self.cards = size, length, cards
        self.rng = np.random.default_rng(seed)

    def __iter__(self):
        for _ in range(self.size):
            cards = self.rng.integers(0, self.cards, self.length)
            flags = self.rng.permutation(self.length) // (self.length - 2)
            yield torch.from_numpy(cards), torch.from_numpy(flags), int((cards * flags).sum())


class Pool(nn.Module):
    def __init__(self, width=320, cards=10):
        super().__init__()
        self.card = nn.Embedding(cards, width)
        self.flag = nn.Embedding(2, width)
        self.body = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, 2 * cards - 1)

    def forward(self, cards, flags):
        return self.head(self.body(self.card(cards) + self.flag(flags)).sum(dim=1))


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.waited = patience, 0
        self.best_loss, self.best_state = float("inf"), None

    def __call__(self, trainer, loss):
        print(f"epoch {trainer.epoch}: {loss:.4f}")
        if loss < self.best_loss:
            self.best_loss, self.waited = loss, 0
            self.best_state = copy.deepcopy(trainer.model.state_dict())
        else:
            self.waited += 1
            trainer.should_stop = self.waited >= self.patience


class Trainer:
    def __init__(self, model, optimizer, on_step, on_epoch, device):
        self.model, self.optimizer = model.to(device), optimizer
        self.on_step, self.on_epoch, self.device = on_step, on_epoch, device
        self.epoch, self.should_stop = 0, False

    def _loss(self, batch):
        cards, flags, target = (t.to(self.device) for t in batch)
        return nn.functional.cross_entropy(self.model(cards, flags), target)

    def training_step(self, batch):
        loss = self._loss(batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        for callback in self.on_step:
            callback(loss.item())

    @torch.no_grad()
    def validate(self, batches):
        return sum(self._loss(batch).item() for batch in batches) / len(batches)

    def fit(self, train_loader, val_batches, max_epochs):
        while self.epoch < max_epochs and not self.should_stop:
            for batch in train_loader:
                self.training_step(batch)
            self.epoch += 1
            loss = self.validate(val_batches)
            for callback in self.on_epoch:
                callback(self, loss)


if __name__ == "__main__":
    torch.manual_seed(21)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Pool().to(device)
    rates = {"card": 5e-3, "flag": 5e-3, "body": 1e-3, "head": 2e-3}
    groups = [{"params": getattr(model, layer).parameters(), "lr": lr} for layer, lr in rates.items()]
    losses, stopping = [], EarlyStopping(patience=2)
    trainer = Trainer(model, torch.optim.NAdam(groups), [losses.append], [stopping], device)
    train_loader = DataLoader(SumOfPairs(2000, seed=1), batch_size=64)
    trainer.fit(train_loader, list(DataLoader(SumOfPairs(256, seed=2), batch_size=128)), 5)
    numbers = {"losses": losses, "waited": stopping.waited, "best": stopping.best_loss}
    torch.save({"model": model.state_dict(), "best_state": stopping.best_state, **numbers}, sys.argv[1])
