# One rank of PyTorch's Gloo: gloo.py RANK WORLD INIT_METHOD. Orders come in and answers go out as lines of JSON.
import json
import resource
import sys
import time

import torch
import torch.distributed as dist

rank, world, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)


def cpu():
    u = resource.getrusage(resource.RUSAGE_SELF)
    return u.ru_utime + u.ru_stime


def once(tensors):
    if len(tensors) == 1:
        dist.all_reduce(tensors[0])
        return
    for work in [dist.all_reduce(t, async_op=True) for t in tensors]:
        work.wait()


print(json.dumps("ready"), flush=True)
last, tensors = None, []
for line in sys.stdin:
    o = json.loads(line)
    rounds, warmup = o.pop("Rounds"), o.pop("Warmup", 1)
    if o != last:
        tensors = [torch.zeros(o["Bytes"] // 4) for _ in range(o["Concurrent"])]
        last = o
    seconds, used = [], 0.0
    for k in range(warmup + rounds):
        dist.barrier()
        before, start = cpu(), time.perf_counter()
        once(tensors)
        if k >= warmup:
            seconds.append(time.perf_counter() - start)
            used += cpu() - before
    print(json.dumps({"Seconds": seconds, "CPU": used}), flush=True)
