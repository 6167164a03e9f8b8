"""A small convolutional network on synthetic images: keep the best weights, lower the rate on a plateau."""

import argparse
from copy import deepcopy

import torch
import torch.nn as nn
import torch.nn.functional as F  # noqa: N812
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, num_classes=8):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(64)
        self.drop = nn.Dropout2d(0.1)
        self.fc1 = nn.Linear(64 * 4 * 4, 256)
        self.bn3 = nn.BatchNorm1d(256)
        self.fc2 = nn.Linear(256, num_classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        x = torch.flatten(self.drop(x), 1)
        x = F.dropout(F.relu(self.bn3(self.fc1(x))), p=0.4, training=self.training)
        return self.fc2(x)


def synthetic_images(n, patterns, generator):
    """Each image is its class's pattern, shifted, dimmed and buried in noise."""
    labels = torch.randint(len(patterns), (n,), generator=generator)
    shifts = torch.randint(-3, 4, (n, 2), generator=generator).tolist()
    images = torch.stack(
        [patterns[k].roll(tuple(s), dims=(1, 2)) for k, s in zip(labels.tolist(), shifts, strict=True)]
    )
    dim = torch.rand(n, 1, 1, 1, generator=generator)
    return TensorDataset(images * dim + torch.randn(images.shape, generator=generator), labels)


def train(model, device, loader, optimizer, epoch):
    model.train()
    total_loss = 0.0
    for batch_idx, (data, target) in enumerate(loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        optimizer.step()
        total_loss += loss.item() * len(data)
        if batch_idx % 25 == 0:
            print(f"train epoch {epoch} [{batch_idx * len(data)}/{len(loader.dataset)}] loss {loss.item():.4f}")
    return total_loss / len(loader.dataset)


def test(model, device, loader):
    model.eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for data, target in loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            loss += F.cross_entropy(output, target, reduction="sum").item()
            correct += output.argmax(1).eq(target).sum().item()
    return loss / len(loader.dataset), correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("--epochs", type=int, default=6)
    args = parser.parse_args()

    torch.manual_seed(42)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(7)
    patterns = torch.randn(8, 3, 16, 16, generator=generator)
    train_loader = DataLoader(synthetic_images(2000, patterns, generator), batch_size=32, shuffle=True)
    test_loader = DataLoader(synthetic_images(500, patterns, generator), batch_size=100)

    model = Net().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    scheduler = ReduceLROnPlateau(optimizer, mode="max", factor=0.3, patience=0, threshold=0.02)

    best_acc, best_epoch, best_state = 0.0, -1, None
    history = {"train_loss": [], "test_loss": [], "accuracy": [], "lr": []}
    for epoch in range(1, args.epochs + 1):
        history["train_loss"].append(train(model, device, train_loader, optimizer, epoch))
        test_loss, accuracy = test(model, device, test_loader)
        scheduler.step(accuracy)
        history["test_loss"].append(test_loss)
        history["accuracy"].append(accuracy)
        history["lr"].append(optimizer.param_groups[0]["lr"])
        if accuracy > best_acc:
            best_acc, best_epoch = accuracy, epoch
            best_state = deepcopy(model.state_dict())
        print(f"test epoch {epoch}: loss {test_loss:.4f} accuracy {accuracy:.3f} (best {best_acc:.3f})")

    result = {"last": model.state_dict(), "best": best_state, "best_acc": best_acc, "best_epoch": best_epoch}
    torch.save({**result, "history": history}, args.output)


if __name__ == "__main__":
    main()
