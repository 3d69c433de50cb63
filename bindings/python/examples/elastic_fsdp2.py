"""FSDP2 inside of a site, and an average of gradients between sites that die and join.

    python elastic_fsdp2.py

Three sites of two processes train together. One site is killed on the way, another is
added, which gets parameters and optimizer from the others. All of it runs on this
machine; in earnest a site is a job of its own, and a scheduler or a lighthouse says
which sites there are. What a site does is the function ``site``, and
needs no change for that.
"""

import argparse
import hashlib
import os
import signal
import sys
import tempfile
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

SHARDS = 2
MEMBERSHIPS = 3  # three sites, two are left, three again
LIMIT = timedelta(seconds=120)


def local(tensors: list) -> list:
    """This process's shards."""
    return [t.to_local() if hasattr(t, "to_local") else t for t in tensors]


def site(name: str, shard: int, store: dist.Store, steps: int) -> None:
    """One process of a site; ``store`` is what the sites have in common."""
    from gopccl.torch import ElasticMesh  # behind the fork, which the library does not survive

    torch.set_num_threads(1)
    inside = dist.PrefixStore(f"inside/{name}", store)
    dist.init_process_group("gloo", store=inside, rank=shard, world_size=SHARDS, timeout=LIMIT)
    mesh = ElasticMesh(init_device_mesh("cpu", (SHARDS,), mesh_dim_names=("shard",)), timeout=LIMIT)

    torch.manual_seed(0 if name != "late" else 1)  # what a newcomer begins with does not matter
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh["shard"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0)
    for p in model.parameters():  # a step that moves nothing, so that a newcomer has the same state tensors
        p.grad = torch.zeros_like(p)
    optimizer.step()
    state = [*model.parameters(), *(t for s in optimizer.state.values() for t in s.values())]

    step, end, known = 0, 0, 0
    while step < end or known < MEMBERSHIPS:
        # The first process of a site asks which generation there is; reconfigure tells the others.
        now = torch.tensor([int(store.get("generation"))])
        dist.broadcast(now, 0)
        if int(now) > known:
            known = int(now)
            members = store.get(f"members/{known}").decode().split(",")
            store.set(f"handle/{known}/{name}", mesh.handle())
            try:
                mesh.reconfigure(known, [store.get(f"handle/{known}/{m}").decode() for m in members])
                step = mesh.sync(local(state), step)
                end = step + steps
            except dist.DistBackendError:
                await_change(store, shard, known)
                continue
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1000 * step + 10 * int.from_bytes(name.encode(), "big") + shard))
        loss = (model(x) - x[:, :8]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        if not mesh.average(local([p.grad for p in model.parameters()])):
            await_change(store, shard, known)
            continue
        optimizer.step()
        step += 1
        bits = hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in local(state))).hexdigest()[:12]
        print(f"step {step} site {name} shard {shard} replicas {mesh.size('replica')} state {bits}\n", end="", flush=True)
        store.set(f"trained/{known}/{name}", str(step))
    dist.barrier()
    mesh.close()
    dist.destroy_process_group()


def await_change(store: dist.Store, shard: int, known: int) -> None:
    """Somebody has died: wait until it is said who is left."""
    if shard == 0:
        store.wait([f"members/{known + 1}"], LIMIT)
    dist.barrier()


class Sites:
    """What starts sites and says which there are."""

    def __init__(self, path: str, steps: int) -> None:
        self.path, self.steps, self.generation = path, steps, 0
        self.store = dist.FileStore(path, -1)
        self.pids: dict = {}

    def start(self, name: str) -> None:
        """Start a site."""
        self.pids[name] = [self._fork(name, shard) for shard in range(SHARDS)]

    def _fork(self, name: str, shard: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            site(name, shard, dist.FileStore(self.path, -1), self.steps)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)

    def kill(self, name: str) -> None:
        """End a site without a word."""
        for pid in self.pids[name]:
            os.kill(pid, signal.SIGKILL)
        for pid in self.pids.pop(name):
            os.waitpid(pid, 0)

    def tell(self) -> None:
        """Say which sites there are."""
        self.generation += 1
        self.store.set(f"members/{self.generation}", ",".join(self.pids))
        self.store.set("generation", str(self.generation))

    def trained(self) -> None:
        """Wait until all sites that there are have done a step together."""
        for name, pids in self.pids.items():
            while not self.store.check([f"trained/{self.generation}/{name}"]):
                for pid in pids:
                    if os.waitpid(pid, os.WNOHANG) != (0, 0):
                        sys.exit(f"a process of site {name} has ended")
                time.sleep(0.01)

    def end(self) -> int:
        """Wait for all; the number of processes that have failed."""
        return sum(os.waitpid(pid, 0)[1] != 0 for pids in self.pids.values() for pid in pids)


def main() -> None:
    parser = argparse.ArgumentParser(description="FSDP2 with elastic replicas")
    parser.add_argument("--steps", type=int, default=20, help="with the same sites, at least")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        sites = Sites(f"{directory}/store", args.steps)
        for name in ("a", "b", "c"):
            sites.start(name)
        sites.tell()
        sites.trained()
        sites.kill("a")  # the one that runs the masters
        sites.tell()
        sites.trained()
        sites.start("late")
        sites.tell()
        sys.exit(sites.end())


if __name__ == "__main__":
    main()
