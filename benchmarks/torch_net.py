"""The tutorial's network in PyTorch, an optional package."""
import time

import torch
from torch import nn


def _network():
    # PyTorch divides alpha by the number of channels, 9; TensorFlow does not.
    norm = nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1.0)
    return nn.Sequential(
        nn.Conv2d(3, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2, 1), norm,
        nn.Conv2d(64, 64, 5, padding=2), nn.ReLU(), norm, nn.MaxPool2d(3, 2, 1),
        nn.Flatten(), nn.Linear(2304, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(),
        nn.Linear(192, 10))


class Trainer:
    """Trains the network on one batch of noise, with weight decay and moving averages.

    Args:
        batch_size: images per step of this process.
        compiled: whether to use `torch.compile`.
        device: 'cpu' or 'cuda'.
        distributed: whether to average gradients over the process group, which must exist.
    """

    def __init__(self, batch_size, compiled, device='cpu', distributed=False):
        self._network = _network().to(device)
        self._averages = [p.detach().clone() for p in self._network.parameters()]
        decayed = [self._network[9].weight, self._network[11].weight]
        others = [p for p in self._network.parameters() if all(p is not d for d in decayed)]
        self._optimizer = torch.optim.SGD(
            [{'params': decayed, 'weight_decay': 0.004}, {'params': others}], lr=0.1)
        self._forward = (
            nn.parallel.DistributedDataParallel(self._network) if distributed else self._network)
        if compiled:
            self._forward = torch.compile(self._forward)
        self._images = torch.randn(batch_size, 3, 24, 24, device=device)
        self._labels = torch.randint(0, 10, [batch_size], device=device)

    def step(self):
        """Trains for one step; returns its duration in seconds."""
        start = time.perf_counter()
        loss = nn.functional.cross_entropy(self._forward(self._images), self._labels)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        with torch.no_grad():
            for average, parameter in zip(self._averages, self._network.parameters()):
                average.lerp_(parameter, 1e-4)
        loss.item()
        return time.perf_counter() - start
