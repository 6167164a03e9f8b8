"""A small GPT-like language model of characters, compiled, on a toy grammar's text; gradients are accumulated."""

import math
import random
import sys

import torch
import torch.nn as nn
from torch.nn import functional as F  # noqa: N812

# hyperparameters
batch_size, block_size, accumulation = 4, 48, 3
n_embd, n_head, n_layer, dropout = 128, 4, 2, 0.1
max_iters = 120
learning_rate, min_lr, warmup_iters = 2e-3, 1e-4, 20
device = "cuda" if torch.cuda.is_available() else "cpu"

random.seed(1337)
torch.manual_seed(1337)

subjects = ["the cat", "a farmer", "my neighbour", "the old king", "one small bird"]
verbs = ["sees", "follows", "paints", "forgets", "sings for"]
objects = ["the river", "a red door", "two friends", "the quiet town", "nobody"]
text = " ".join(f"{random.choice(subjects)} {random.choice(verbs)} {random.choice(objects)}." for _ in range(4000))
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
data = torch.tensor([stoi[c] for c in text])


def get_batch():
    offsets = torch.randint(len(data) - block_size - 1, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in offsets])
    y = torch.stack([data[i + 1 : i + block_size + 1] for i in offsets])
    return x.to(device), y.to(device)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.qkv = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.proj = nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (h.view(b, t, n_head, c // n_head).transpose(1, 2) for h in self.qkv(self.ln1(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout if self.training else 0.0, is_causal=True)
        x = x + self.drop(self.proj(y.transpose(1, 2).reshape(b, t, c)))
        return x + self.drop(self.mlp(self.ln2(x)))


class GPT(nn.Module):
    def __init__(self, vocab_size):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, n_embd)
        self.positions = nn.Embedding(block_size, n_embd)
        self.blocks = nn.Sequential(*[Block() for _ in range(n_layer)])
        self.head = nn.Linear(n_embd, vocab_size, bias=False)
        self.head.weight = self.tokens.weight  # one matrix for both ends

    def forward(self, idx, targets):
        x = self.tokens(idx) + self.positions(torch.arange(idx.size(1), device=idx.device))
        return F.cross_entropy(self.head(self.blocks(x)).flatten(0, 1), targets.flatten())


def lr_at(step):
    if step < warmup_iters:
        return learning_rate * (step + 1) / warmup_iters
    ratio = (step - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


model = GPT(len(chars)).to(device)
network = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.1)
losses, ema_loss = [], 0.0
for step in range(max_iters):
    for group in optimizer.param_groups:
        group["lr"] = lr_at(step)
    for _ in range(accumulation):
        loss = network(*get_batch()) / accumulation
        loss.backward()
        ema_loss = 0.98 * ema_loss + 0.02 * loss.item()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    losses.append(ema_loss)
    if step % 30 == 0:
        print(f"step {step}: loss {ema_loss:.4f}")

torch.save({"model": model.state_dict(), "losses": losses, "lr": lr_at(step)}, sys.argv[1])
