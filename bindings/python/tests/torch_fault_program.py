"""PyTorch's contract of fault tolerance, step by step, in four processes: torch_fault_program.py FILE.

They are forks of this one, which has loaded PyTorch but not the library. Rank 1 is killed in the middle of a collective; the others go on without it, take
in a newcomer (which is the last rank), split, and come together again. Then two are stopped, one after the other.
"""

import os
import signal
import sys
import threading
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

RANK, WORLD = -1, 4
VICTIM = 1
STORE = dist.HashStore()  # another in every rank
LIMIT = timedelta(seconds=60)
N = 1 << 18


def meet(uuid: int, members: list, *, ranked: bool = True) -> None:
    STORE.set(f"{uuid}/{RANK}", dist._get_reconfigure_handle())
    handles = [STORE.get(f"{uuid}/{r}").decode() for r in members]
    work = dist._reconfigure(uuid, handles if ranked else set(handles), timeout=LIMIT)
    work.wait()
    assert work.is_completed() and work.is_success()
    assert dist.get_world_size() == len(members)
    if ranked:
        assert dist.get_rank() == members.index(RANK), (dist.get_rank(), members)


def value(rank: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(rank)
    return torch.randn(N, generator=g)


def bits(t: torch.Tensor) -> bytes:
    return t.numpy().tobytes()


def agree(members: list) -> None:
    """The next collective works, and gives all the same bits."""
    t = value(RANK)
    dist.all_reduce(t)
    assert torch.allclose(t, sum(value(r) for r in members), atol=1e-4)
    every = [torch.empty(N) for _ in members]
    dist.all_gather(every, t)
    assert all(bits(e) == bits(t) for e in every)
    if len(members) > 1:
        at, n = dist.get_rank(), len(members)
        got = torch.empty(1, dtype=torch.int64)
        ops = [dist.P2POp(dist.isend, torch.tensor([RANK]), (at + 1) % n), dist.P2POp(dist.irecv, got, (at - 1) % n)]
        for w in dist.batch_isend_irecv(ops):
            w.wait()
        assert got.item() in members and got.item() != RANK


def killed_in_the_middle(victim: int, members: list) -> None:
    whole = sum(value(r) for r in members)
    buffers = [value(RANK) for _ in range(6)]
    works = [dist.all_reduce(t, async_op=True) for t in buffers]
    if RANK == victim:
        works[1].wait()
        os.kill(os.getpid(), signal.SIGKILL)
    failed = 0
    for w, t in zip(works, buffers):
        try:
            w.wait()
            assert torch.allclose(t, whole, atol=1e-4), "a collective without the victim has succeeded"
        except dist.DistBackendError as err:
            failed += 1
            assert "gopccl: all_reduce" in str(err), err
            assert w.is_completed() and not w.is_success() and w.exception() is not None
            assert bits(t) == bits(value(RANK)), "the buffer is not what it was"
    while not failed:  # the death came behind the last of them
        t = value(RANK)
        try:
            dist.all_reduce(t)
        except dist.DistBackendError:
            failed += 1
            assert bits(t) == bits(value(RANK)), "the buffer is not what it was"
    group = dist.group.WORLD
    assert group.get_error().name == "COMM_ERROR"
    refused(lambda: dist.all_reduce(torch.ones(3)), "has failed")


def refused(f, text: str) -> None:
    try:
        f()
    except RuntimeError as err:
        assert text in str(err), err
    else:
        raise AssertionError(f"nothing said {text!r}")


def alone(key: str, mine: bool, f) -> None:
    """One rank does ``f``, the others leave the group as it is until it has."""
    if mine:
        f()
        STORE.set(key, "")
    STORE.get(key)


def aborted() -> None:
    """This rank calls a collective that the others do not, and revokes it."""
    t = value(RANK)
    work = dist.all_reduce(t, async_op=True)
    said = []

    def wait() -> None:
        try:
            work.wait()
        except dist.DistBackendError as err:
            said.append(str(err))

    threads = [threading.Thread(target=wait) for _ in range(50)]
    for h in threads:
        h.start()
    dist.group.WORLD.abort()
    for h in threads:
        h.join()
    assert len(said) == 50 and all("aborted" in s for s in said), said
    assert bits(t) == bits(value(RANK)), "the buffer is not what it was"
    assert dist.group.WORLD.get_error().name == "SUCCESS"
    refused(lambda: dist.all_reduce(t), "aborted")


def timed_out() -> None:
    hooked = []
    group = dist.group.WORLD
    group.register_abort_hook(7, lambda: hooked.append(1))
    t = value(RANK)
    opts = dist.AllreduceOptions()
    opts.timeout = timedelta(milliseconds=50)
    work = group.allreduce([t], opts)
    future = work.get_future()
    refused(future.wait, "timed out after 50ms")  # nobody waits for the work itself
    refused(work.wait, "timed out after 50ms")
    assert hooked == [1] and group.get_error().name == "TIMEOUT"
    assert bits(t) == bits(value(RANK)), "the buffer is not what it was"
    refused(lambda: dist.all_reduce(t), "timed out")
    group.unregister_abort_hook(7)


def stopped(uuid: int, victim: int, members: list) -> None:
    """A process that stops in a collective is given up long before that takes too long, and is taken in when it goes on."""
    STORE.set(f"{uuid}/pid/{RANK}", str(os.getpid()))
    pid = int(STORE.get(f"{uuid}/pid/{victim}"))
    t = value(RANK)
    work = dist.all_reduce(t, async_op=True)
    if RANK == victim:
        os.kill(pid, signal.SIGSTOP)
    failed = False
    while not failed:
        try:
            work.wait()
            t = value(RANK)
            work = dist.all_reduce(t, async_op=True)
        except dist.DistBackendError:
            failed = True
    assert bits(t) == bits(value(RANK)), "the buffer is not what it was"
    assert dist.group.WORLD.get_error().name == "COMM_ERROR"  # and not TIMEOUT
    left = [r for r in members if r != victim]
    if RANK != victim:
        meet(uuid, left)
        agree(left)
    if RANK == left[0]:
        os.kill(pid, signal.SIGCONT)
    meet(uuid + 1, members)
    agree(members)


def main() -> None:
    STORE.set_timeout(LIMIT)
    dist.init_process_group(
        "gopccl", store=dist.PrefixStore("group", STORE), rank=RANK, world_size=WORLD, enable_reconfigure=True, timeout=LIMIT
    )
    assert dist._supports_reconfigure()
    late, victim = WORLD - 1, VICTIM
    first = list(range(WORLD - 1))
    left = [r for r in first if r != victim]
    refused(lambda: dist.all_reduce(torch.ones(3)), "call torch.distributed._reconfigure first")
    meet(100 + RANK, [RANK])  # alone
    agree([RANK])
    if RANK != late:
        meet(1, first)
        agree(first)
        refused(lambda: meet(1, first), "already used")
        killed_in_the_middle(victim, first)
        meet(2, left)
        agree(left)
        alone("aborted", RANK == left[0], aborted)
    now = [late, *left]
    meet(3, now)  # the newcomer is rank 0
    agree(now)
    alone("timed out", RANK == left[-1], timed_out)
    if RANK == late:  # split: the newcomer alone, the others without it
        meet(5, [late])
        agree([late])
    else:
        meet(4, left)
        agree(left)
    meet(6, now, ranked=False)
    agree(now)
    meet(7, now)  # the first one runs the master
    stopped(8, left[-1], now)
    stopped(10, late, now)
    dist.barrier()
    dist.destroy_process_group()
    names = [t.name for t in threading.enumerate() if t.name.startswith("gopccl")]
    assert not names, names
    print(f"done {RANK}", flush=True)


def fork(rank: int, path: str) -> int:
    global RANK, STORE
    pid = os.fork()
    if pid:
        return pid
    RANK, STORE, code = rank, dist.FileStore(path, -1), 1
    try:
        main()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def watch() -> None:
    ranks = {fork(r, sys.argv[1]): r for r in range(WORLD)}
    while ranks:
        pid, status = os.wait()
        rank, code = ranks.pop(pid), os.waitstatus_to_exitcode(status)
        if code != (-signal.SIGKILL if rank == VICTIM else 0):
            for other in ranks:
                os.kill(other, signal.SIGKILL)
            sys.exit(f"rank {rank} has ended with {code}")


if __name__ == "__main__":
    watch()
