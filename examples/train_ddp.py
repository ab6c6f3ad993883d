"""Data-parallel training with stock PyTorch: DistributedDataParallel over gloo. Knows nothing of ztdpu.

Reads what torchrun and every job scheduler set: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, and gloo's own
GLOO_SOCKET_IFNAME (which interface the ranks talk over). On two machines, here those of a lab:

    ztdpu lab exec blue-0 -- env RANK=0 WORLD_SIZE=2 MASTER_ADDR=blue-0 MASTER_PORT=29400 \
        GLOO_SOCKET_IFNAME=ztdpu0 python examples/train_ddp.py
    ztdpu lab exec blue-1 -- env RANK=1 WORLD_SIZE=2 MASTER_ADDR=blue-0 MASTER_PORT=29400 \
        GLOO_SOCKET_IFNAME=ztdpu0 python examples/train_ddp.py

Each rank prints one JSON object. `spread` is how far the ranks' models are apart at the end: 0 unless a
gradient was lost, doubled or mixed up on the way.
"""

import argparse
import json
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PICTURES, PIXELS, CLASSES = 4096, 64, 10


def make_data(rank: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's share of a made-up set: each class is a random picture, seen through noise."""
    random = torch.Generator().manual_seed(7)
    prototypes = torch.randn(CLASSES, PIXELS, generator=random)
    labels = torch.randint(CLASSES, (PICTURES,), generator=random)
    pictures = prototypes[labels] + 1.5 * torch.randn(PICTURES, PIXELS, generator=random)
    return pictures[rank::size], labels[rank::size]


def train(steps: int, batch: int, hidden: int) -> dict[str, float]:
    """Train with the other ranks and return what came of it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1 + rank)  # DDP itself must spread rank 0's start weights
    network = nn.Sequential(nn.Linear(PIXELS, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pictures, labels = make_data(rank, size)
    losses = []
    for step in range(steps):
        at = step * batch % (len(labels) - batch + 1)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pictures[at : at + batch]), labels[at : at + batch])
        loss.backward()  # the all-reduce of the gradients happens in here
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / size)
    return {"loss_first": losses[0], "loss_last": losses[-1], "spread": measure_spread(network)}


def measure_spread(network: nn.Module) -> float:
    """Return the largest difference of one weight between two ranks."""
    weights = torch.cat([weight.detach().ravel() for weight in network.parameters()])
    highest, lowest = weights.clone(), weights.clone()
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    dist.all_reduce(lowest, op=dist.ReduceOp.MIN)
    return (highest - lowest).max().item()


def main() -> None:
    """Meet the other ranks, train, say goodbye."""
    parser = argparse.ArgumentParser(description="DistributedDataParallel over gloo; ranks from the environment.")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=128, help="pictures per rank and step")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for the other ranks")
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=given.timeout))
    start = time.monotonic()
    report = {
        "rank": dist.get_rank(),
        "ranks": dist.get_world_size(),
        "interface": os.environ.get("GLOO_SOCKET_IFNAME", ""),
        **train(given.steps, given.batch, given.hidden),
        "seconds": round(time.monotonic() - start, 3),
    }
    dist.destroy_process_group()
    print(json.dumps(report), flush=True)
    # gloo's threads outlive the group (seen with torch 2.13): one that frees its last tensor while the interpreter
    # ends aborts the process, about once in ten runs on a busy machine. Everything is said and done by now.
    os._exit(0)


if __name__ == "__main__":
    main()
