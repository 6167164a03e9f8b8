"""REINFORCE on a walk along a line, simulated in numpy: episodes end when the walker has left it."""

import sys
from collections import deque

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical


class Walk:
    """A walker is pushed to the left or to the right at each step, and drifts."""

    def __init__(self, rng, max_steps):
        self.rng = rng
        self.max_steps = max_steps

    def reset(self):
        self.state = self.rng.uniform(-0.05, 0.05, size=4)
        self.steps = 0
        return self.state.astype(np.float32)

    def step(self, action):
        self.state = np.roll(self.state, 1)
        self.state[0] = self.state[1] + (0.1 if action == 1 else -0.1) + self.rng.normal(0, 0.05)
        self.steps += 1
        return self.state.astype(np.float32), 1.0, bool(abs(self.state[0]) > 0.8 or self.steps >= self.max_steps)


class Policy(nn.Module):
    def __init__(self, hidden=448):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.action = nn.Linear(hidden, 2)

    def forward(self, state):
        return Categorical(logits=self.action(self.body(state)))


def discounted(rewards, gamma):
    returns, total = deque(), 0.0
    for reward in reversed(rewards):
        total = reward + gamma * total
        returns.appendleft(total)
    return torch.tensor(list(returns))


def main(output, episodes=60, max_steps=50, gamma=0.98):
    torch.manual_seed(543)
    rng = np.random.default_rng(543)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    env = Walk(rng, max_steps)
    policy = Policy().to(device)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)

    running_reward, best_mean, baseline = 10.0, 0.0, 5.0
    lengths, losses = [], []
    for episode in range(episodes):
        state, done = env.reset(), False
        log_probs, entropies, rewards = [], [], []
        while not done:
            distribution = policy(torch.from_numpy(state).to(device))
            action = distribution.sample()
            log_probs.append(distribution.log_prob(action))
            entropies.append(distribution.entropy())
            state, reward, done = env.step(action.item())
            rewards.append(reward)

        returns = discounted(rewards, gamma).to(device)
        advantage = (returns - baseline) / (baseline + 1.0)
        baseline += 0.05 * (returns.mean().item() - baseline)
        loss = -(torch.stack(log_probs) * advantage).sum() - 0.01 * torch.stack(entropies).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        running_reward = 0.95 * running_reward + 0.05 * sum(rewards)
        lengths.append(len(rewards))
        losses.append(loss.item())
        best_mean = max(best_mean, sum(lengths[-10:]) / len(lengths[-10:]))
        if episode % 20 == 0:
            print(f"episode {episode}: running {running_reward:.2f}, best of ten {best_mean:.1f}")

    numbers = {"running_reward": running_reward, "best_mean": best_mean, "baseline": baseline}
    torch.save({"policy": policy.state_dict(), "lengths": lengths, "losses": losses, **numbers}, output)


if __name__ == "__main__":
    main(sys.argv[1])
