"""Prints, as JSON, what an elastic job answers to what it cannot do."""

# mypy: ignore-errors

import json

import torch
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

import hived_runtime as runtime


def answer(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


def twice_in_one_epoch():
    for _ in team.epochs(1):
        list(loader)
        list(loader)


model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
embedding = nn.Embedding(3, 3, sparse=True)
answers = {
    "sparse": answer(lambda: runtime.elastic(embedding, torch.optim.SGD(embedding.parameters(), lr=0.1), 4)),
    "lbfgs": answer(lambda: runtime.elastic(model, torch.optim.LBFGS(model.parameters()), 4)),
    "empty batch": answer(lambda: runtime.elastic(model, optimizer, 0)),
}
team = runtime.elastic(model, optimizer, 4)
loader = team.loader(TensorDataset(torch.zeros(9, 1)))
answers |= {
    "second team": answer(lambda: runtime.elastic(model, optimizer, 4)),
    "stream": answer(lambda: team.loader(Stream())),
    "batch size": answer(lambda: team.loader(TensorDataset(torch.zeros(9, 1)), batch_size=3)),
    "outside epochs": answer(lambda: list(loader)),
    "two passes": answer(twice_in_one_epoch),
    "two loops": answer(lambda: list(team.epochs(1))),
    "short batch": len(loader),
    "dropped batch": len(team.loader(TensorDataset(torch.zeros(9, 1)), drop_last=True)),
}
print(json.dumps(answers))
