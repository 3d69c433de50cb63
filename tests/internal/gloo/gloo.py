# One rank of PyTorch's Gloo: gloo.py RANK WORLD INIT_METHOD. Orders come in and answers go out as lines of JSON.
# With "groups" behind them, each of several all-reduces at a time has a process group, and so a Gloo context, of its own.
import json
import resource
import sys
import time

import torch
import torch.distributed as dist

rank, world, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
several = "groups" in sys.argv[4:]
dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)


def cpu():
    u = resource.getrusage(resource.RUSAGE_SELF)
    return u.ru_utime + u.ru_stime


def once(tensors):
    if len(tensors) == 1:
        dist.all_reduce(tensors[0])
        return
    for work in [dist.all_reduce(t, group=g, async_op=True) for t, g in zip(tensors, groups)]:
        work.wait()


def value(i, member):
    return i % 8191 + 10000 * member


def other(pattern, size):
    """Returns one round of a collective besides all-reduce, and a check of its first result."""
    own = max(size // 4 // world, 1)
    count = own * world
    index = torch.arange(count, dtype=torch.int32)
    mine = value(index, rank).float()
    block, out = mine[:own].clone(), torch.zeros(count)
    parts = list(out.chunk(world)) if rank == 0 else None
    blocks = torch.cat([value(index[:own], m) for m in range(world)]).float()
    rows = slice(rank * own, (rank + 1) * own)
    total = sum(value(index, m) for m in range(world)).float() if pattern in ("reduce", "reduce-scatter") else None
    small = torch.zeros(own)
    if pattern == "barrier":
        return dist.barrier, lambda: True
    if pattern == "all-gather":
        return lambda: dist.all_gather_into_tensor(out, block), lambda: torch.equal(out, blocks)
    if pattern == "reduce-scatter":
        return lambda: dist.reduce_scatter_tensor(small, mine), lambda: torch.equal(small, total[rows])
    if pattern == "broadcast":
        return lambda: dist.broadcast(mine, 0), lambda: torch.equal(mine, value(index, 0).float())
    if pattern == "reduce":
        return lambda: dist.reduce(mine, 0), lambda: rank > 0 or torch.equal(mine, total)
    if pattern == "gather":
        return lambda: dist.gather(block, parts, 0), lambda: rank > 0 or torch.equal(out, blocks)
    if pattern == "scatter":
        whole = list(mine.chunk(world)) if rank == 0 else None
        return lambda: dist.scatter(small, whole, 0), lambda: torch.equal(small, value(index, 0).float()[rows])
    if pattern == "all-to-all":
        want = torch.cat([value(index, m)[rows] for m in range(world)]).float()
        return lambda: dist.all_to_all_single(out, mine), lambda: torch.equal(out, want)
    raise ValueError(pattern)


print(json.dumps("ready"), flush=True)
last, tensors, groups, move = None, [], [], None
for line in sys.stdin:
    o = json.loads(line)
    rounds, warmup, started = o.pop("Rounds"), o.pop("Warmup", 1), o.pop("Started", False)
    pattern = o.get("Pattern", "")
    if o != last and pattern:
        move, right = other(pattern, o["Bytes"])
        move()
        if not right():
            raise SystemExit(f"wrong result of {pattern}")
        last = o
    elif o != last:
        move = None
        tensors = [torch.zeros(o["Bytes"] // 4) for _ in range(o["Concurrent"])]
        while len(groups) < len(tensors):
            groups.append(dist.new_group() if several else dist.group.WORLD)
        last = o
    seconds, used = [], 0.0
    for k in range(warmup + rounds):
        if not started:
            dist.barrier()
        before, start = cpu(), time.perf_counter()
        move() if move else once(tensors)
        if k >= warmup:
            seconds.append(time.perf_counter() - start)
            used += cpu() - before
    print(json.dumps({"Seconds": seconds, "CPU": used, "Pattern": pattern, "Root": rank == 0}), flush=True)
