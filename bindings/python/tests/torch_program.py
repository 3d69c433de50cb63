"""Every collective, and FSDP2, checked against what they must give: torchrun ... torch_program.py BACKEND [cuda] [die]."""

import os
import signal
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


DEVICE = "cuda" if "cuda" in sys.argv else "cpu"


def value(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.arange(torch.Size(shape).numel()).reshape(shape) + 10 * rank).to(dtype)


def reductions(rank: int, world: int, gopccl: bool) -> None:
    dtypes = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.int8]
    if gopccl:
        dtypes.append(torch.int16)
    for dtype in dtypes:
        every = torch.stack([value(r, 3, 2, dtype=dtype) for r in range(world)])
        for op, want in [
            (dist.ReduceOp.SUM, every.sum(0).to(dtype)),
            (dist.ReduceOp.MAX, every.amax(0)),
            (dist.ReduceOp.MIN, every.amin(0)),
        ]:
            t = value(rank, 3, 2, dtype=dtype)
            dist.all_reduce(t, op=op)
            assert torch.equal(t, want), (dtype, op, t, want)
    t = value(rank, 5)
    dist.all_reduce(t, op=dist.ReduceOp.PRODUCT)
    assert torch.equal(t, torch.stack([value(r, 5) for r in range(world)]).prod(0))
    if gopccl:
        t = value(rank, 4)
        dist.all_reduce(t, op=dist.ReduceOp.AVG)
        assert torch.equal(t, torch.stack([value(r, 4) for r in range(world)]).mean(0))
        b = torch.tensor([rank == 0, False, True])
        dist.all_reduce(b, op=dist.ReduceOp.SUM)
        assert b.tolist() == [True, False, True]
        turned = value(rank, 3, 4).t()
        dist.all_reduce(turned)
        assert torch.equal(turned, sum(value(r, 3, 4) for r in range(world)).t())
    c = torch.full((3,), complex(rank, 1), dtype=torch.complex64)
    dist.all_reduce(c)
    assert c[0] == complex(sum(range(world)), world)
    empty = torch.zeros(0)
    dist.all_reduce(empty)
    for root in range(world):
        t = value(rank, 7)
        dist.reduce(t, root)
        if rank == root:
            assert torch.equal(t, sum(value(r, 7) for r in range(world)))


def moves(rank: int, world: int) -> None:
    for root in range(world):
        for dtype in (torch.float32, torch.bool, torch.int64):
            t = value(rank, 3, 3, dtype=dtype)
            dist.broadcast(t, root)
            assert torch.equal(t, value(root, 3, 3, dtype=dtype))
    negative = torch.tensor([-0.0, float("nan"), float("inf")]) if rank == 1 else torch.ones(3)
    dist.broadcast(negative, 1)
    assert negative.view(torch.int32).tolist() == torch.tensor([-0.0, float("nan"), float("inf")]).view(torch.int32).tolist()
    scalar = torch.tensor(float(rank))
    dist.broadcast(scalar, 1)
    assert scalar.item() == 1
    parts = [torch.zeros(2, 3) for _ in range(world)]
    dist.all_gather(parts, value(rank, 2, 3))
    assert all(torch.equal(p, value(r, 2, 3)) for r, p in enumerate(parts))
    whole = torch.zeros(world * 2, 3)
    dist.all_gather_into_tensor(whole, value(rank, 2, 3))
    assert torch.equal(whole, torch.cat([value(r, 2, 3) for r in range(world)]))
    out = torch.zeros(4)
    dist.reduce_scatter(out, [value(rank, 4) + 100 * r for r in range(world)])
    assert torch.equal(out, sum(value(r, 4) for r in range(world)) + 100 * rank * world)
    dist.reduce_scatter_tensor(out, torch.cat([value(rank, 4) + 100 * r for r in range(world)]))
    assert torch.equal(out, sum(value(r, 4) for r in range(world)) + 100 * rank * world)
    got = [torch.zeros(2) for _ in range(world)] if rank == 1 else None
    dist.gather(value(rank, 2), got, dst=1)
    if got is not None:
        assert all(torch.equal(p, value(r, 2)) for r, p in enumerate(got))
    mine = torch.zeros(2)
    dist.scatter(mine, [value(r, 2) for r in range(world)] if rank == 0 else None, src=0)
    assert torch.equal(mine, value(rank, 2))
    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
    assert objects == [{"rank": r, "text": "x" * r} for r in range(world)]
    listed = [{"a": 1}, "b"] if rank == 0 else [None, None]
    dist.broadcast_object_list(listed, 0)
    assert listed == [{"a": 1}, "b"]


def messages(rank: int, world: int) -> None:
    nxt, prev = (rank + 1) % world, (rank - 1) % world
    for tag in (0, 5):
        sent = dist.isend(value(rank, 1000), nxt, tag=tag)
        t = torch.zeros(1000)
        dist.recv(t, prev, tag=tag)
        sent.wait()
        assert torch.equal(t, value(prev, 1000))

    anywhere = torch.zeros(3)
    if rank == 0:
        froms = {dist.recv(anywhere, tag=9) for _ in range(world - 1)}
        assert froms == set(range(1, world)), froms
    else:
        dist.send(value(rank, 3), 0, tag=9)
    got = torch.zeros(4)
    ops = [dist.P2POp(dist.isend, value(rank, 4), nxt), dist.P2POp(dist.irecv, got, prev)]
    for w in dist.batch_isend_irecv(ops):
        w.wait()
    assert torch.equal(got, value(prev, 4))


def objects(rank: int, world: int) -> None:
    got = [None] * world if rank == 0 else None
    dist.gather_object({"rank": rank}, got, dst=0)
    assert rank or got == [{"rank": r} for r in range(world)]
    mine = [None]
    dist.scatter_object_list(mine, [f"for {r}" for r in range(world)] if rank == 0 else [None], src=0)
    assert mine == [f"for {rank}"]


def coalesced(rank: int, world: int, gopccl: bool) -> None:
    ts = [value(rank, n) for n in (1, 100, 3)]
    with dist._coalescing_manager(async_ops=True) as cm:
        for t in ts:
            dist.all_reduce(t)
    cm.wait()
    assert all(torch.equal(t, sum(value(r, t.numel()) for r in range(world))) for t in ts)
    outs = [torch.zeros(world * n) for n in (2, 5)]
    with dist._coalescing_manager(async_ops=True) as cm:
        for out in outs:
            dist.all_gather_into_tensor(out, value(rank, out.numel() // world))
    cm.wait()
    assert all(torch.equal(out, torch.cat([value(r, out.numel() // world) for r in range(world)])) for out in outs)
    if gopccl:
        parts = [value(rank, 3), value(rank, 4)]
        with dist._coalescing_manager(device=torch.device(DEVICE), async_ops=True) as cm:
            for t in parts:
                dist.broadcast(t, 1)
        cm.wait()
        assert all(torch.equal(t, value(1, t.numel())) for t in parts)


def all_to_all(rank: int, world: int, gopccl: bool) -> None:
    def block(a: int, b: int, n: int) -> torch.Tensor:
        return value(10 * a + b, n, 2)

    got = torch.zeros(world * 3, 2)
    dist.all_to_all_single(got, torch.cat([block(rank, r, 3) for r in range(world)]))
    assert torch.equal(got, torch.cat([block(r, rank, 3) for r in range(world)]))
    out = [rank + r for r in range(world)]  # rows from a to b: a + b
    got = torch.zeros(sum(out), 2)
    dist.all_to_all_single(got, torch.cat([block(rank, r, n) for r, n in enumerate(out)]), out, out)
    assert torch.equal(got, torch.cat([block(r, rank, n) for r, n in enumerate(out)]))
    if gopccl:
        parts = [torch.zeros(n, 2) for n in out]
        dist.all_to_all(parts, [block(rank, r, n) for r, n in enumerate(out)])
        assert all(torch.equal(p, block(r, rank, out[r])) for r, p in enumerate(parts))


def in_place(rank: int, world: int) -> None:
    """The own block is part of the output, as FSDP has it."""
    whole = torch.zeros(world, 5)
    whole[rank] = value(rank, 5)
    dist.all_gather_into_tensor(whole, whole[rank])
    assert torch.equal(whole, torch.stack([value(r, 5) for r in range(world)]))
    blocks = torch.stack([value(rank + r, 5) for r in range(world)])
    dist.reduce_scatter_tensor(blocks[rank], blocks)
    assert torch.equal(blocks[rank], sum(value(rank + r, 5) for r in range(world)))
    works = [dist.barrier(async_op=True) for _ in range(3)]
    assert all(w.wait() for w in works)


def shapes(rank: int, world: int, gopccl: bool) -> None:
    """Types and layouts, and lists whose tensors differ in size."""
    z = torch.full((2,), complex(rank, -rank), dtype=torch.complex64)
    every = [torch.zeros(2, dtype=torch.complex64) for _ in range(world)]
    dist.all_gather(every, z)
    assert [e[0].item() for e in every] == [complex(r, -r) for r in range(world)]
    flags = torch.tensor([rank == 0, True])
    dist.broadcast(flags, 0)
    assert flags.tolist() == [True, True]
    if not gopccl:
        return
    uneven = [torch.zeros(r + 1) for r in range(world)]
    dist.all_gather(uneven, value(rank, rank + 1))
    assert all(torch.equal(t, value(r, r + 1)) for r, t in enumerate(uneven))
    out = torch.zeros(rank + 1)
    dist.reduce_scatter(out, [value(rank, r + 1) for r in range(world)])
    assert torch.equal(out, sum(value(r, rank + 1) for r in range(world)))
    turned = torch.zeros(3, 2).t()
    dist.broadcast(turned.copy_(value(rank, 2, 3)), 1)
    assert torch.equal(turned, value(1, 2, 3)) and not turned.is_contiguous()


def asynchronous(rank: int, world: int) -> None:
    ts = [value(rank, 1000 + k) for k in range(20)]
    works = [dist.all_reduce(t, async_op=True) for t in ts]
    for k, w in enumerate(works):
        w.wait()
        assert w.get_future().done() and w.is_completed() and w.is_success()
        assert torch.equal(ts[k], sum(value(r, 1000 + k) for r in range(world)))
    t = torch.ones(3)
    future = dist.all_reduce(t, async_op=True).get_future().then(lambda f: f.value()[0] * 2)
    assert future.wait().tolist() == [2.0 * world] * 3


def waits(rank: int, world: int) -> None:
    """To wait completes the works before it, too; what nobody waits for completes by itself."""
    ts = [value(rank, 100 + k) for k in range(6)]
    works = [dist.all_reduce(t, async_op=True) for t in ts]
    works[4].wait()
    assert all(w.over() for w in works[:4])
    while not works[5].over():  # no call asks for it
        time.sleep(0.01)
    assert all(torch.equal(t, sum(value(r, 100 + k) for r in range(world))) for k, t in enumerate(ts))

    def more(f: Any) -> torch.Tensor:
        t = f.value()[0].clone()
        dist.all_reduce(t)  # waits in a callback
        return t

    t = torch.ones(3)
    future = dist.all_reduce(t, async_op=True).get_future().then(more)
    assert future.wait().tolist() == [float(world * world)] * 3

    works = [dist.all_reduce(t, async_op=True) for t in ts[:4]]
    threads = [threading.Thread(target=w.wait) for w in reversed(works)]
    for th in threads:
        th.start()
    for th in threads:
        th.join()
    assert all(w.is_success() for w in works)


def groups(rank: int, world: int) -> None:
    pair = dist.new_group([0, world - 1])
    alone = [dist.new_group([r]) for r in range(world)][rank]
    t = torch.ones(3)
    if rank in (0, world - 1):
        dist.all_reduce(t, group=pair)
        assert t.tolist() == [2.0] * 3
    t = value(rank, 3)
    dist.all_reduce(t, group=alone)
    dist.broadcast(t, rank, group=alone)
    assert torch.equal(t, value(rank, 3))
    dist.barrier()
    dist.monitored_barrier(timeout=timedelta(seconds=60))
    if dist.get_backend() == "gopccl":
        half = dist.split_group(split_ranks=[[r for r in range(world) if r != 1]])
        if rank != 1:
            t = torch.ones(2)
            dist.all_reduce(t, group=half)
            assert t.tolist() == [float(world - 1)] * 2 and dist.get_world_size(half) == world - 1
        before = dist.group.WORLD._get_sequence_number_for_group()
        dist.barrier()
        assert dist.group.WORLD._get_sequence_number_for_group() == before + 1


def fsdp(rank: int, world: int) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8))
    mesh = init_device_mesh(DEVICE, (world,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    g = torch.Generator(device=DEVICE).manual_seed(rank)
    for _ in range(10):
        x = torch.randn(8, 16, generator=g)
        loss = (model(x) - x[:, :8]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    loss = loss.detach()
    dist.all_reduce(loss)
    if rank == 0:
        print(f"fsdp loss {loss.item():.6f}", flush=True)


def die(rank: int, world: int) -> None:
    t = torch.ones(10)
    victim = world - 1
    works = [] if rank == victim else [dist.irecv(torch.zeros(3), victim, tag=3), dist.irecv(torch.zeros(3), tag=4)]
    dist.all_reduce(t)
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    for w in works:  # it has sent nothing
        try:
            w.wait()
        except RuntimeError as err:
            print(f"no message: {err}", flush=True)
    try:
        for _ in range(2):
            dist.all_reduce(t)
    except RuntimeError as err:
        print(f"survivor {type(err).__name__}: {err}", flush=True)
        sys.stdout.flush()
        os._exit(0)


def main() -> None:
    backend = sys.argv[1]
    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    rank, world = dist.get_rank(), dist.get_world_size()
    if DEVICE == "cuda":  # several ranks may share a device
        torch.cuda.set_device(rank % torch.cuda.device_count())
        torch.set_default_device(torch.device("cuda", torch.cuda.current_device()))
    if "die" in sys.argv:
        die(rank, world)
    assert dist.get_backend() == backend
    reductions(rank, world, backend == "gopccl")
    moves(rank, world)
    messages(rank, world)
    objects(rank, world)
    coalesced(rank, world, backend == "gopccl")
    shapes(rank, world, backend == "gopccl")
    all_to_all(rank, world, backend == "gopccl")
    if backend == "gopccl":
        in_place(rank, world)
    asynchronous(rank, world)
    if backend == "gopccl":
        waits(rank, world)
    groups(rank, world)
    fsdp(rank, world)
    dist.barrier()
    dist.destroy_process_group()
    # A thread that is in PyTorch while the interpreter ends aborts the process.
    left = [t.name for t in threading.enumerate() if t.name.startswith("gopccl")]
    assert not left, left
    print(f"done {rank}", flush=True)


if __name__ == "__main__":
    main()
