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


class AttentionPool(nn.Module):
    def __init__(self, width=320, cards=10):
        super().__init__()
        self.card = nn.Embedding(cards, width)
        self.flag = nn.Embedding(2, width)
        self.body = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.score = nn.Linear(width, 1)
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2 * cards - 1))

    def forward(self, cards, flags):
        h = self.body(self.card(cards) + self.flag(flags))
        return self.head((torch.sigmoid(self.score(h)) * h).sum(dim=1))


class History:
    def __init__(self):
        self.losses, self.epochs = [], []

    def on_step_end(self, trainer, loss):
        if trainer.step % 10 == 0:
            self.losses.append(loss)

    def on_epoch_end(self, trainer, metrics):
        self.epochs.append(dict(metrics))
        print(" ".join(f"{name}={value:.4f}" for name, value in metrics.items()))


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.waited = patience, 0
        self.best_loss, self.best_state = float("inf"), None

    def on_step_end(self, trainer, loss):
        pass

    def on_epoch_end(self, trainer, metrics):
        if metrics["val_loss"] < self.best_loss:
            self.best_loss, self.waited = metrics["val_loss"], 0
            self.best_state = copy.deepcopy(trainer.model.state_dict())
        else:
            self.waited += 1
            trainer.should_stop = self.waited >= self.patience


class Trainer:
    def __init__(self, model, optimizer, callbacks, device):
        self.model, self.optimizer = model.to(device), optimizer
        self.callbacks, self.device = callbacks, device
        self.step, self.epoch, self.should_stop = 0, 0, False

    def _loss_and_hits(self, batch):
        cards, flags, target = (t.to(self.device) for t in batch)
        logits = self.model(cards, flags)
        return nn.functional.cross_entropy(logits, target), (logits.argmax(1) == target).sum().item()

    def training_step(self, batch):
        loss, _ = self._loss_and_hits(batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1
        for callback in self.callbacks:
            callback.on_step_end(self, loss.item())

    @torch.no_grad()
    def validate(self, batches):
        self.model.eval()
        results = [self._loss_and_hits(batch) for batch in batches]
        self.model.train()
        loss = sum(loss.item() for loss, _ in results) / len(results)
        return {"val_loss": loss, "val_acc": sum(hits for _, hits in results) / sum(len(b[-1]) for b in batches)}

    def fit(self, train_loader, val_batches, max_epochs):
        self.model.train()
        while self.epoch < max_epochs and not self.should_stop:
            for batch in train_loader:
                self.training_step(batch)
            self.epoch += 1
            metrics = {"epoch": self.epoch, **self.validate(val_batches)}
            for callback in self.callbacks:
                callback.on_epoch_end(self, metrics)


if __name__ == "__main__":
    torch.manual_seed(21)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AttentionPool().to(device)
    rates = {"card": 5e-3, "flag": 5e-3, "body": 1e-3, "score": 1e-3, "head": 2e-3}
    groups = [{"params": getattr(model, layer).parameters(), "lr": lr} for layer, lr in rates.items()]
    history, stopping = History(), EarlyStopping(patience=2)
    trainer = Trainer(model, torch.optim.NAdam(groups), [history, stopping], device)
    train_loader = DataLoader(SumOfPairs(3200, seed=1), batch_size=64)
    val_batches = list(DataLoader(SumOfPairs(512, seed=2), batch_size=128))
    trainer.fit(train_loader, val_batches, 8)
    counts = {"steps": trainer.step, "epochs": trainer.epoch, "waited": stopping.waited, "best": stopping.best_loss}
    logs = {"losses": history.losses, "history": history.epochs}
    torch.save({"model": model.state_dict(), "best_state": stopping.best_state, **counts, **logs}, sys.argv[1])
