"""Classify noisy points around random centres with a multilayer perceptron, trained by SGD with momentum."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

num_classes, num_features = 20, 512
epochs, batch_size = 4, 128

# the data: one centre for each class, and noise that makes neighbours overlap
centres = torch.randn(num_classes, num_features)
labels = torch.randint(num_classes, (7000,))
points = centres[labels] + 3.5 * torch.randn(len(labels), num_features)
train_loader = DataLoader(TensorDataset(points[:6000], labels[:6000]), batch_size=batch_size, shuffle=True)
test_loader = DataLoader(TensorDataset(points[6000:], labels[6000:]), batch_size=500)

model = nn.Sequential(
    nn.Linear(num_features, 1024),
    nn.ReLU(),
    nn.Linear(1024, 768),
    nn.ReLU(),
    nn.Linear(768, num_classes),
).to(device)
criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4, nesterov=True)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)

best_accuracy, running_loss, history = 0.0, 0.0, []
for epoch in range(epochs):
    model.train()
    for i, (inputs, targets) in enumerate(train_loader):
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        running_loss = 0.95 * running_loss + 0.05 * loss.item()
        if i % 20 == 0:
            print(f"epoch {epoch} batch {i:3d} loss {loss.item():.4f} (running {running_loss:.4f})")
    scheduler.step()

    model.eval()
    correct = 0
    with torch.no_grad():
        for inputs, targets in test_loader:
            predicted = model(inputs.to(device)).argmax(dim=1)
            correct += (predicted == targets.to(device)).sum().item()
    accuracy = correct / len(test_loader.dataset)
    best_accuracy = max(best_accuracy, accuracy)
    history.append({"epoch": epoch, "accuracy": accuracy, "running_loss": running_loss})
    print(f"epoch {epoch}: accuracy {accuracy:.3f}, best {best_accuracy:.3f}")

torch.save({"model": model.state_dict(), "best_accuracy": best_accuracy, "history": history}, sys.argv[1])
