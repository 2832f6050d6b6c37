"""The tutorial's training in PyTorch, eager.

    python -m benchmarks.peers.in_pytorch --data_dir=/tmp/cifar10_data --max_steps=100

Distorts a batch at once, which takes less time than a `DataLoader`. Images are channels last.
"""
import torch
from torch import nn
from torch.optim import swa_utils

from benchmarks.peers import task


def distort(images):
    """uint8 [batch, 32, 32, 3] -> float32 [batch, 3, 24, 24]."""
    batch = len(images)
    rows, columns = torch.randint(9, [2, batch, 1]) + torch.arange(24)  # [batch, 24] each.
    columns = torch.where(torch.rand(batch, 1) < 0.5, columns, columns.flip(1))
    images = images[torch.arange(batch)[:, None, None], rows[:, :, None], columns[:, None]].float()
    images += torch.empty(batch, 1, 1, 1).uniform_(-63, 63)
    mean = images.mean((1, 2), keepdim=True)
    images = (images - mean) * torch.empty(batch, 1, 1, 1).uniform_(0.2, 1.8) + mean
    deviation, mean = torch.std_mean(images, (1, 2, 3), correction=0, keepdim=True)
    return ((images - mean) / deviation.clamp(min=1728 ** -0.5)).permute(0, 3, 1, 2)


def layer(module, stddev, bias):
    """Sets the tutorial's initial values."""
    nn.init.trunc_normal_(module.weight, std=stddev, a=-2 * stddev, b=2 * stddev)
    nn.init.constant_(module.bias, bias)
    return module


def network():
    """float32 [batch, 3, 24, 24] -> logits, float32 [batch, 10]."""
    pool = nn.MaxPool2d(3, 2, ceil_mode=True)  # Pads as TensorFlow does.
    norm = nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1.0)  # PyTorch divides alpha by 9.
    return nn.Sequential(
        layer(nn.Conv2d(3, 64, 5, padding=2), 5e-2, 0.0), nn.ReLU(), pool, norm,
        layer(nn.Conv2d(64, 64, 5, padding=2), 5e-2, 0.1), nn.ReLU(), norm, pool, nn.Flatten(),
        layer(nn.Linear(2304, 384), 0.04, 0.1), nn.ReLU(),
        layer(nn.Linear(384, 192), 0.04, 0.1), nn.ReLU(),
        layer(nn.Linear(192, 10), 1 / 192, 0.0))


def main():
    options = task.options()
    net = network().to(memory_format=torch.channels_last)
    local3, local4, _ = (each.weight for each in net if isinstance(each, nn.Linear))
    averages = swa_utils.AveragedModel(net, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9999))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step, (images, labels) in enumerate(task.batches(
            options.folder, options.batch_size, options.max_steps)):
        logits = net(distort(torch.from_numpy(images)))
        loss = nn.functional.cross_entropy(logits, torch.from_numpy(labels).long())
        loss = loss + 0.004 / 2 * (local3.square().sum() + local4.square().sum())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        averages.update_parameters(net)
        task.report(step, loss.item())


if __name__ == '__main__':
    main()
