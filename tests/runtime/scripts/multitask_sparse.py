"""A recommender with two tasks: sparse gradients for its big tables, dense ones for the rest."""

import random
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

USERS, ITEMS, DIM, GENRES, EPOCHS = 20_000, 3_000, 48, 5, 4


class Visits(Dataset):
    """A user with a history of items (of any length) looks at an item: is it clicked, and what is its genre?"""

    def __init__(self, size, seed):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(size):
            user, item = int(USERS * rng.random() ** 2), int(ITEMS * rng.random() ** 2)
            seen = [int(ITEMS * rng.random() ** 2) for _ in range(rng.randint(1, 12))]
            clicked = float(rng.random() < 0.3 + 0.5 * (user % 3 == item % 3))
            self.rows.append({"user": user, "seen": seen, "item": item, "clicked": clicked, "genre": item % GENRES})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def collate(rows):
    seen = [torch.tensor(row["seen"]) for row in rows]
    lengths = torch.tensor([0] + [len(s) for s in seen[:-1]])
    columns = {name: torch.tensor([row[name] for row in rows]) for name in ("user", "item", "clicked", "genre")}
    return {**columns, "seen": torch.cat(seen), "offsets": lengths.cumsum(0)}


class TwoTasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(USERS, DIM, sparse=True)
        self.item = nn.Embedding(ITEMS, DIM, sparse=True)
        self.seen = nn.EmbeddingBag(ITEMS, DIM, mode="mean", sparse=True)
        self.trunk = nn.Sequential(nn.Linear(3 * DIM, 640), nn.ReLU(), nn.Dropout(0.1), nn.Linear(640, 640), nn.ReLU())
        self.click = nn.Linear(640, 1)
        self.genre = nn.Linear(640, GENRES)

    def forward(self, batch):
        history = self.seen(batch["seen"], batch["offsets"])
        h = self.trunk(torch.cat([self.user(batch["user"]), self.item(batch["item"]), history], dim=1))
        return self.click(h).squeeze(1), self.genre(h)


def main():
    torch.manual_seed(77)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train_set = Visits(10_000, seed=1)
    loader = DataLoader(train_set, batch_size=256, shuffle=True, collate_fn=collate)
    model = TwoTasks().to(device)
    tables = [each.weight for each in (model.user, model.item, model.seen)]
    dense = [p for part in (model.trunk, model.click, model.genre) for p in part.parameters()]
    sparse_optimizer = torch.optim.SparseAdam(tables, lr=3e-3)
    dense_optimizer = torch.optim.AdamW(dense, lr=1e-3, weight_decay=0.01)

    genre_loss = nn.CrossEntropyLoss(weight=torch.linspace(0.5, 1.5, GENRES, device=device))
    click_loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(1.2, device=device))
    running, steps, history = {"click": 0.0, "genre": 0.0}, 0, []
    for epoch in range(EPOCHS):
        for batch in loader:
            batch = {key: value.to(device) for key, value in batch.items()}
            click, genre = model(batch)
            losses = {"click": click_loss(click, batch["clicked"]), "genre": genre_loss(genre, batch["genre"])}
            model.zero_grad()
            (losses["click"] + 0.5 * losses["genre"]).backward()
            sparse_optimizer.step()
            dense_optimizer.step()
            steps += 1
            for task, loss in losses.items():
                running[task] += 0.02 * (loss.item() - running[task])
        history.append([*running.values()])
        print(f"epoch {epoch}: clicks {running['click']:.3f}, genres {running['genre']:.3f}")

    torch.save({"model": model.state_dict(), "running": running, "steps": steps, "history": history}, sys.argv[1])


if __name__ == "__main__":
    main()
