"""Images loaded and augmented by two worker processes; the last batch of each epoch is short."""

import random
import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

EPOCHS = 4


class AugmentedStripes(Dataset):
    """Stripes of four kinds in noise, made once; flipped, shifted and dimmed anew at each visit."""

    def __init__(self, size, side=20):
        rng = np.random.default_rng(0)
        self.labels = rng.integers(0, 4, size)
        self.images = rng.normal(0, 0.6, (size, 1, side, side)).astype(np.float32)
        for image, label in zip(self.images[:, 0], self.labels, strict=True):
            image[rng.integers(3, 8) :: label + 2] += 1

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if random.random() < 0.5:
            image = image[:, ::-1]
        image = np.roll(image, np.random.randint(-2, 3), axis=2)
        gain = 0.7 + 0.6 * torch.rand(1)
        return torch.from_numpy(image.copy()) * gain + 0.1 * torch.randn(image.shape), int(self.labels[index])


def seed_worker(worker_id):
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed + worker_id)


def main(save_to):
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(2024)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    train_set = AugmentedStripes(1260)
    train_loader = DataLoader(train_set, batch_size=32, shuffle=True, num_workers=2, worker_init_fn=seed_worker)

    first = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(64 * 5 * 5, 256), nn.ReLU(), nn.Linear(256, 4))
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.7)

    seen, history = 0, []
    for epoch in range(EPOCHS):
        total = 0.0
        for images, labels in train_loader:
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * labels.size(0)
            seen += labels.size(0)
        scheduler.step()
        history.append(total / len(train_set))
        print(f"epoch {epoch}: loss {history[-1]:.4f}")

    numbers = {"seen": seen, "history": history, "lr": scheduler.get_last_lr()}
    torch.save({"model_state": model.state_dict(), "optimizer_state": optimizer.state_dict(), **numbers}, save_to)


if __name__ == "__main__":
    main(sys.argv[1])
