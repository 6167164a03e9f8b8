"""Mixed precision in bfloat16: a mixer over patches, on images whose class is a combination of two marks."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SEED = 1234
EPOCHS = 2
BATCH = 32
PATCHES, PATCH_DIM, WIDTH = 8, 24, 16


class MixerBlock(nn.Module):
    def __init__(self, tokens, width):
        super().__init__()
        self.token_norm = nn.LayerNorm(width)
        self.token_mlp = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.channel_norm = nn.LayerNorm(width)
        self.channel_mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.token_mlp(self.token_norm(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel_mlp(self.channel_norm(x))


class Mixer(nn.Module):
    def __init__(self, classes, depth=2):
        super().__init__()
        self.embed = nn.Linear(PATCH_DIM, WIDTH)
        self.blocks = nn.ModuleList(MixerBlock(PATCHES, WIDTH) for _ in range(depth))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(dim=1))


def make_dataset(n, marks):
    """Two marks, each on a random patch of its own, in noise; the class is which two they are."""
    first, second = torch.randint(len(marks), (2, n))
    x = torch.randn(n, PATCHES, PATCH_DIM)
    x[torch.arange(n), torch.randint(PATCHES // 2, (n,))] += 2 * marks[first]
    x[torch.arange(n), torch.randint(PATCHES // 2, PATCHES, (n,))] += 2 * marks[second]
    return TensorDataset(x, first * len(marks) + second)


def main(path):
    torch.manual_seed(SEED)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    marks = torch.randn(4, PATCH_DIM)
    train_loader = DataLoader(make_dataset(4000, marks), batch_size=BATCH, shuffle=True)
    val_x, val_y = (t.to(device) for t in make_dataset(512, marks).tensors)

    model = Mixer(classes=16).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))
    scaler = torch.amp.GradScaler(device)

    steps, best_acc, smoothed, losses = 0, 0.0, None, []
    for epoch in range(EPOCHS):
        model.train()
        for x, y in train_loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            with torch.autocast(device, dtype=torch.bfloat16):
                logits = model(x)
                loss = criterion(logits, y)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            steps += 1
            smoothed = loss.item() if smoothed is None else 0.9 * smoothed + 0.1 * loss.item()
            if steps % 10 == 0:
                losses.append(round(smoothed, 6))

        model.eval()
        with torch.inference_mode(), torch.autocast(device, dtype=torch.bfloat16):
            accuracy = (model(val_x).argmax(-1) == val_y).float().mean().item()
        best_acc = max(best_acc, accuracy)
        print(f"epoch {epoch}: loss {smoothed:.4f}, accuracy {accuracy:.3f}")

    result = {"steps": steps, "best_acc": best_acc, "smoothed_loss": smoothed, "losses": losses}
    result["lr"] = optimizer.param_groups[0]["lr"]
    result["scale"] = scaler.get_scale()
    torch.save({"model": model.state_dict(), **result}, path)


if __name__ == "__main__":
    main(sys.argv[1])
