"""A convolutional network on images, in mixed precision: keep the best weights, lower the rate on a plateau."""

import sys
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
        self.fc2 = nn.Linear(256, num_classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        x = torch.flatten(self.drop(x), 1)
        return self.fc2(F.dropout(F.relu(self.fc1(x)), p=0.4, training=self.training))


def synthetic_images(n, patterns, generator):
    """Each image is its class's pattern, dimmed and buried in noise."""
    labels = torch.randint(len(patterns), (n,), generator=generator)
    dim = torch.rand(n, 1, 1, 1, generator=generator)
    return TensorDataset(patterns[labels] * dim + torch.randn(n, 3, 16, 16, generator=generator), labels)


def train(model, device, loader, optimizer, scaler):
    model.train()
    total_loss = 0.0
    for data, target in loader:
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(data), target)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        total_loss += loss.item() * len(data)
    return total_loss / len(loader.dataset)


def test(model, device, loader):
    model.eval()
    correct = 0
    with torch.inference_mode(), torch.autocast(device, dtype=torch.bfloat16):
        for data, target in loader:
            correct += model(data.to(device)).argmax(1).eq(target.to(device)).sum().item()
    return correct / len(loader.dataset)


def main(output, epochs=4):
    torch.manual_seed(42)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(7)
    patterns = torch.randn(8, 3, 16, 16, generator=generator)
    train_loader = DataLoader(synthetic_images(1600, patterns, generator), batch_size=32, shuffle=True)
    test_loader = DataLoader(synthetic_images(200, patterns, generator), batch_size=100)

    model = Net().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    scheduler = ReduceLROnPlateau(optimizer, mode="max", factor=0.3, patience=0, threshold=0.02)
    scaler = torch.amp.GradScaler(device)

    best_acc, best_state, history = 0.0, None, []
    for epoch in range(1, epochs + 1):
        loss = train(model, device, train_loader, optimizer, scaler)
        accuracy = test(model, device, test_loader)
        scheduler.step(accuracy)
        history.append((loss, accuracy, optimizer.param_groups[0]["lr"], scaler.get_scale()))
        if accuracy > best_acc:
            best_acc, best_state = accuracy, deepcopy(model.state_dict())
        print(f"epoch {epoch}: loss {loss:.4f} accuracy {accuracy:.3f} (best {best_acc:.3f})")
    torch.save({"last": model.state_dict(), "best": best_state, "best_acc": best_acc, "history": history}, output)


if __name__ == "__main__":
    main(sys.argv[1])
