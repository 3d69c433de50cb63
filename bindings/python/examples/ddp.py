"""Trains a small character model on Newton's "Opticks" with DistributedDataParallel.

    torchrun --nproc-per-node 2 ddp.py                     # over gopccl
    torchrun --nproc-per-node 2 ddp.py --backend gloo      # the same over Gloo

Nothing in here knows gopccl but the name of the backend. It needs the installed
package and PyTorch 2.5; with older ones add "import gopccl.torch".
"""

import argparse
import gzip
import hashlib
from pathlib import Path
from typing import Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CONTEXT = 16
TEXT = Path(__file__).resolve().parents[3] / "examples" / "charlm" / "opticks.txt.gz"


def corpus() -> torch.Tensor:
    """The text as numbers 0 to 255, one per byte."""
    with gzip.open(TEXT) as f:
        return torch.frombuffer(bytearray(f.read()), dtype=torch.uint8).long()


def batch(text: torch.Tensor, size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Random windows [size, CONTEXT] and the characters [size] that follow them."""
    at = torch.randint(len(text) - CONTEXT, (size, 1), generator=generator)
    window = text[at + torch.arange(CONTEXT + 1)]
    return window[:, :-1], window[:, -1]


def build() -> nn.Module:
    """Logits [n, 256] of the next character from windows [n, CONTEXT]."""
    return nn.Sequential(
        nn.Embedding(256, 24),
        nn.Flatten(),
        nn.Linear(24 * CONTEXT, 128),
        nn.Tanh(),
        nn.Linear(128, 256),
    )


def digest(parameters: Iterable[torch.Tensor]) -> str:
    """A hash of all parameters, bit for bit."""
    h = hashlib.sha256()
    for p in parameters:
        h.update(p.detach().numpy().tobytes())
    return h.hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description="DDP on Opticks")
    parser.add_argument("--backend", default="gopccl")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()

    dist.init_process_group(args.backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1704)
    model = DistributedDataParallel(build())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    text, data = corpus(), torch.Generator().manual_seed(1 + rank)

    for step in range(1, args.steps + 1):
        past, following = batch(text, args.batch, data)
        loss = nn.functional.cross_entropy(model(past), following)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or step == args.steps:
            mean = loss.detach() / world
            dist.all_reduce(mean)
            if rank == 0:
                print(f"step {step} loss {mean.item():.6f}", flush=True)

    digests = [None] * world
    dist.all_gather_object(digests, digest(model.parameters()))
    if rank == 0:
        print(f"parameters {digests[0]} equal {len(set(digests)) == 1}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
