"""Learn to reverse digit strings with an encoder and a decoder; decode the test set greedily after each epoch."""

import random
import sys

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset

PAD, SOS, EOS, VOCAB = 10, 11, 12, 13


class ReversedDigits(Dataset):
    def __init__(self, size, length=12, seed=0):
        rng = random.Random(seed)
        self.pairs = []
        for _ in range(size):
            digits = [rng.randrange(10) for _ in range(rng.randint(5, length))]
            padding = [PAD] * (length - len(digits))
            self.pairs.append((digits + padding, [*digits[::-1], EOS, *padding]))

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        return tuple(torch.tensor(tokens) for tokens in self.pairs[i])


class Encoder(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 64, padding_idx=PAD)
        self.gru = nn.GRU(64, hidden, batch_first=True)

    def forward(self, source):
        outputs, hidden = self.gru(self.embedding(source))
        return outputs, hidden[0]


class Decoder(nn.Module):
    """One token at a time, with dot-product attention over what the encoder wrote."""

    def __init__(self, hidden):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 64)
        self.cell = nn.GRUCell(64, hidden)
        self.combine = nn.Linear(2 * hidden, hidden)
        self.out = nn.Linear(hidden, VOCAB)

    def forward(self, token, hidden, memory):
        hidden = self.cell(self.embedding(token), hidden)
        weights = torch.softmax(torch.einsum("bh,bth->bt", hidden, memory), dim=1)
        context = torch.einsum("bt,bth->bh", weights, memory)
        return self.out(torch.tanh(self.combine(torch.cat([hidden, context], dim=1)))), hidden


def train_batch(source, target, encoder, decoder, optimizers, criterion, teacher_forcing):
    for optimizer in optimizers:
        optimizer.zero_grad()
    memory, hidden = encoder(source)
    token = torch.full((source.size(0),), SOS, device=source.device)
    loss, forced = 0.0, 0
    for t in range(target.size(1)):
        logits, hidden = decoder(token, hidden, memory)
        loss = loss + criterion(logits, target[:, t])
        if random.random() < teacher_forcing:
            token, forced = target[:, t], forced + 1
        else:
            token = logits.argmax(dim=1)
    loss = loss / (target != PAD).sum()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    return loss.item(), forced


@torch.no_grad()
def greedy_decode(encoder, decoder, source, max_length=20):
    memory, hidden = encoder(source.unsqueeze(0))
    token, decoded = torch.tensor([SOS], device=source.device), []
    while len(decoded) < max_length:
        logits, hidden = decoder(token, hidden, memory)
        token = logits.argmax(dim=1)
        if token.item() == EOS:
            break
        decoded.append(token.item())
    return decoded


random.seed(11)
torch.manual_seed(11)
device = "cuda" if torch.cuda.is_available() else "cpu"
loader = DataLoader(ReversedDigits(1664), batch_size=32, shuffle=True)
test_set = ReversedDigits(700, seed=1)
encoder, decoder = Encoder(160).to(device), Decoder(160).to(device)
optimizers = [optim.Adam(encoder.parameters(), lr=3e-3), optim.Adam(decoder.parameters(), lr=3e-3)]
criterion = nn.CrossEntropyLoss(ignore_index=PAD, reduction="sum")

best_exact, forced_steps, batches, history, teacher_forcing = 0.0, 0, 0, [], 0.9
for epoch in range(3):
    epoch_loss = 0.0
    for source, target in loader:
        source, target = source.to(device), target.to(device)
        loss, forced = train_batch(source, target, encoder, decoder, optimizers, criterion, teacher_forcing)
        epoch_loss, forced_steps, batches = epoch_loss + loss, forced_steps + forced, batches + 1
    exact = digits_right = digits_total = 0
    for source, target in test_set:
        decoded = greedy_decode(encoder, decoder, source.to(device))
        wanted = [d for d in target.tolist() if d < PAD]
        exact += decoded == wanted
        digits_right += sum(a == b for a, b in zip(decoded, wanted, strict=False))
        digits_total += len(wanted)
    best_exact = max(best_exact, exact / len(test_set))
    history.append([epoch_loss / len(loader), exact / len(test_set), digits_right / digits_total])
    teacher_forcing *= 0.8
    print(f"epoch {epoch}: loss {history[-1][0]:.4f}, exact {history[-1][1]:.3f}, digits {history[-1][2]:.3f}")

numbers = {"best_exact": best_exact, "forced_steps": forced_steps, "batches": batches, "history": history}
torch.save({"encoder": encoder.state_dict(), "decoder": decoder.state_dict(), **numbers}, sys.argv[1])
