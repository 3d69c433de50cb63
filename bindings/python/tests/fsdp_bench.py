"""The time of a training step under FSDP2 over gopccl, by that over Gloo: fsdp_bench.py [--world 4] [--steps 30].

Every process shards the same model twice, over a group of each backend, and takes steps with one and the other in turns. A
step counts from when all have begun until the slowest one has ended; the line at the end has the medians, and the median of
the ratios. It ends with 1 if a step over gopccl takes longer (--most), or if the losses differ.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import traceback
from typing import Any, Dict, List

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

BACKENDS = ("gopccl", "gloo")


class Trainer:
    """A model that is sharded over one group."""

    def __init__(self, group: Any, rank: int, a: argparse.Namespace) -> None:
        torch.manual_seed(3)
        self.model = nn.Sequential(*(nn.Sequential(nn.Linear(a.width, a.width), nn.Tanh()) for _ in range(a.layers)))
        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in self.model:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-2)
        self.x = torch.randn(a.batch, a.width, generator=torch.Generator().manual_seed(rank))

    def step(self) -> float:
        loss = (self.model(self.x) - self.x).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())


def run(rank: int, path: str, a: argparse.Namespace) -> None:
    import gopccl.torch  # noqa: F401 (the library must be loaded behind the fork)

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(path, -1), rank=rank, world_size=a.world)
    trainers = {b: Trainer(dist.new_group(backend=b), rank, a) for b in BACKENDS}
    took: Dict[str, List[float]] = {b: [] for b in BACKENDS}
    losses: Dict[str, float] = {}
    for turn in range(a.warm + a.steps):
        for b in BACKENDS if turn % 2 == 0 else BACKENDS[::-1]:
            dist.barrier()
            began = time.monotonic()
            losses[b] = trainers[b].step()
            slowest = torch.tensor([time.monotonic() - began])
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            if turn >= a.warm:
                took[b].append(float(slowest))
    if abs(losses["gopccl"] - losses["gloo"]) > 1e-5 * abs(losses["gloo"]):
        raise AssertionError(f"the losses differ: {losses}")
    if rank == 0:
        ours, gloo = took["gopccl"], took["gloo"]
        ratio = statistics.median(x / y for x, y in zip(ours, gloo))
        parameters = a.layers * a.width * (a.width + 1)
        print(
            f"FSDP2, world {a.world}, {4 * parameters / (1 << 20):.0f} MiB of parameters: gopccl {1000 * statistics.median(ours):.1f} ms a step, "
            f"Gloo {1000 * statistics.median(gloo):.1f} ms; median of the ratios {ratio:.2f}, {a.steps} steps each",
            flush=True,
        )
        if ratio > a.most:
            raise AssertionError(f"a step takes more than {a.most} times as long as over Gloo")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--world", type=int, default=4, help="processes (default %(default)s)")
    parser.add_argument("--steps", type=int, default=30, help="that are timed with each backend (default %(default)s)")
    parser.add_argument("--warm", type=int, default=3, help="steps before those (default %(default)s)")
    parser.add_argument("--layers", type=int, default=8, help="of the model (default %(default)s)")
    parser.add_argument("--width", type=int, default=1024, help="of a layer (default %(default)s)")
    parser.add_argument("--batch", type=int, default=8, help="samples of a process (default %(default)s)")
    parser.add_argument("--most", type=float, default=1.0, help="times Gloo's that a step may take (default %(default)s)")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        pids = []
        for rank in range(a.world):
            pid = os.fork()
            if not pid:
                try:
                    run(rank, os.path.join(directory, "store"), a)
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
            pids.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    sys.exit(any(codes))


if __name__ == "__main__":
    main()
