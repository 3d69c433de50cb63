"""What a fault costs a program that uses torch.distributed: fault_bench.py [--backend gopccl] [WHAT ...].

Three processes reconfigure one group over and over (PyTorch 2.15 and later). WHAT is some of:

reconfigure: the same members, a member less that has died, a member more: milliseconds of ``_reconfigure(...).wait()``
kill, stop:  a member is killed, or stopped (SIGSTOP), in the middle of sums of 64 MiB: seconds until the others have the
             result of the next sum in the smaller group
abort:       ``abort()`` while threads wait for sums that cannot end: milliseconds until it has returned, and until the
             last waiter is free

With kill, stop and abort it counts how often the buffers of what has failed had the bits from before. Every line has the
slowest of the processes: median and worst. It ends with 1 if one of the bounds below is missed, for gopccl.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
import traceback
from datetime import timedelta
from typing import Any, Dict, List

import torch
import torch.distributed as dist

WORLD = 3
VICTIM = 2
WAITERS = 10
# Of one trial: seconds to the next result, seconds until a call or a waiter is free.
BOUNDS = {"kill": 0.20, "stop": 2.0, "abort": 0.050}


class Rank:
    """One process of the group."""

    def __init__(self, rank: int, store: Any, a: argparse.Namespace) -> None:
        self.rank, self.store, self.a = rank, store, a
        self.limit = timedelta(seconds=a.timeout)
        dist.init_process_group(a.backend, store=dist.PrefixStore("group", store), rank=rank, world_size=WORLD, enable_reconfigure=True, timeout=self.limit)
        self.n = a.bytes // 4
        g = torch.Generator().manual_seed(1)
        self.ones = torch.rand(self.n, generator=g)
        self.buffer = self.ones.clone()
        self.said: Dict[str, List[float]] = {}
        self.uuid = 0

    def meet(self, key: str, members: List[int]) -> float:
        """Form the group; returns seconds."""
        self.store.set(f"{key}/h/{self.rank}", dist._get_reconfigure_handle())
        handles = [self.store.get(f"{key}/h/{r}").decode() for r in members]
        self.together(key, members)
        began = time.monotonic()
        uuid = int.from_bytes(key.encode()[-7:], "big")
        dist._reconfigure(uuid, handles, timeout=timedelta(seconds=60)).wait()
        took = time.monotonic() - began
        if dist.get_world_size() != len(members) or dist.get_rank() != members.index(self.rank):
            raise AssertionError("rank or size are not those that were asked for")
        return took

    def together(self, key: str, members: List[int]) -> None:
        self.store.set(f"{key}/t/{self.rank}", "")
        for r in members:
            self.store.get(f"{key}/t/{r}")

    def slowest(self, key: str, members: List[int], value: float) -> float:
        """The largest value of the members."""
        self.store.set(f"{key}/v/{self.rank}", json.dumps(value))
        return max(json.loads(self.store.get(f"{key}/v/{r}")) for r in members)

    def note(self, what: str, value: float) -> None:
        self.said.setdefault(what, []).append(value)

    def sum(self) -> bool:
        """One sum; False if it failed."""
        self.buffer.copy_(self.ones)
        try:
            dist.all_reduce(self.buffer)
            return True
        except RuntimeError:
            self.note("bits", float(torch.equal(self.buffer, self.ones)))
            return False

    # What is measured. A victim takes part in one trial, the others in all.

    def reconfigure(self, trial: int) -> None:
        k, all_, two = f"r{trial:06d}", list(range(WORLD)), [0, 1]
        self.note("a member more", self.slowest(k + "a", all_, self.meet(k + "a", all_)))
        self.sum()
        for i in range(5):
            self.note("the same members", self.slowest(f"{k}{i}", all_, self.meet(f"{k}{i}", all_)))
            self.sum()
        if self.rank == VICTIM:
            os.kill(os.getpid(), signal.SIGKILL)
        while self.sum():
            pass
        self.note("a member less", self.slowest(k + "l", two, self.meet(k + "l", two)))
        self.sum()

    def fault(self, trial: int, what: str) -> None:
        k, all_, two = f"{what[0]}{trial:06d}", list(range(WORLD)), [0, 1]
        self.store.set(f"{k}/pid/{self.rank}", str(os.getpid()))
        victim = int(self.store.get(f"{k}/pid/{VICTIM}"))
        self.meet(k + "a", all_)
        self.sum()
        self.together(k + "b", all_)
        if self.rank == VICTIM:
            while True:
                self.sum()
        if self.rank == 0:
            def strike() -> None:
                time.sleep(random.Random(trial).uniform(0.01, 0.1))
                at = time.monotonic()
                os.kill(victim, signal.SIGKILL if what == "kill" else signal.SIGSTOP)
                self.store.set(k + "/at", repr(at))

            threading.Thread(target=strike).start()
        while self.sum():
            pass
        self.meet(k + "c", two)
        if not self.sum():
            raise AssertionError("the sum of those who are left has failed")
        took = time.monotonic() - float(self.store.get(k + "/at"))
        self.note(what, self.slowest(k + "d", two, took))
        if self.rank == 0 and what == "stop":
            os.kill(victim, signal.SIGKILL)

    def abort(self, trial: int) -> None:
        k, two = f"a{trial:06d}", [0, 1]
        self.meet(k + "a", two)
        if self.rank == 0:  # the other one never comes to it
            self.buffer.copy_(self.ones)
            work = dist.all_reduce(self.buffer, async_op=True)
            free: List[float] = []

            def wait() -> None:
                try:
                    work.wait()
                except RuntimeError:
                    free.append(time.monotonic())

            threads = [threading.Thread(target=wait) for _ in range(WAITERS)]
            for t in threads:
                t.start()
            time.sleep(random.Random(trial).uniform(0.0, 0.01))
            began = time.monotonic()
            dist.group.WORLD.abort()
            self.note("abort returns", time.monotonic() - began)
            for t in threads:
                t.join(self.a.timeout + 5)
            if len(free) != WAITERS:
                raise AssertionError(f"{len(free)} of {WAITERS} waiters have failed")
            self.note("abort", max(free) - began)
            self.note("bits", float(torch.equal(self.buffer, self.ones)))
        self.together(k + "b", two)

    def run(self, what: str, first: int, trials: int) -> None:
        for trial in range(first, first + trials):
            if what == "reconfigure":
                self.reconfigure(trial)
            elif what == "abort":
                self.abort(trial)
            else:
                self.fault(trial, what)


def fork(rank: int, path: str, a: argparse.Namespace, what: str, first: int, trials: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if a.backend == "gopccl":
            import gopccl.torch  # noqa: F401 (the library must be loaded behind the fork)
        store = dist.FileStore(path, -1)
        store.set_timeout(timedelta(seconds=120))
        r = Rank(rank, store, a)
        r.run(what, first, trials)
        store.set(f"said/{rank}", json.dumps(r.said))
        r.together("end", [0, 1])
        dist.destroy_process_group()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def measure(what: str, a: argparse.Namespace) -> bool:
    """Run the trials of ``what``, and print; whether all are within the bounds."""
    path = os.path.join(tempfile.mkdtemp(), "store")
    trials = {"reconfigure": a.trials, "kill": a.trials, "stop": a.trials, "abort": a.aborts}[what]
    left = [fork(r, path, a, what, 0, trials) for r in (0, 1)]
    if what != "abort":
        for trial in range(trials):
            os.waitpid(fork(VICTIM, path, a, what, trial, 1), 0)
    if any(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in left):
        sys.exit(f"{what}: a process has failed")
    store = dist.FileStore(path, -1)
    said = [json.loads(store.get(f"said/{r}")) for r in (0, 1)]
    ok = True
    for name, values in said[0].items():
        if name == "bits":
            continue
        bound = BOUNDS.get("abort" if name == "abort returns" else name)
        within = "" if bound is None else f", within {1000 * bound:.0f} ms {sum(v <= bound for v in values)} of {len(values)}"
        ok = ok and (bound is None or max(values) <= bound)
        print(f"{a.backend}: {name}: median {1000 * statistics.median(values):.1f} ms, worst {1000 * max(values):.1f} ms, {len(values)} times{within}", flush=True)
    bits = [v for s in said for v in s.get("bits", [])]
    if bits:
        print(f"{a.backend}: {what}: buffers with the bits from before: {sum(v == 1.0 for v in bits)} of {len(bits)}", flush=True)
    return (ok and all(v == 1.0 for v in bits)) or a.backend != "gopccl"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="gopccl")
    parser.add_argument("--bytes", type=int, default=64 << 20, help="of the sums (default %(default)s)")
    parser.add_argument("--trials", type=int, default=10, help="of reconfigure, kill and stop (default %(default)s)")
    parser.add_argument("--aborts", type=int, default=1000, help="trials of abort (default %(default)s)")
    parser.add_argument("--timeout", type=float, default=20, help="of the group, in seconds (default %(default)s)")
    parser.add_argument("what", nargs="*", default=["reconfigure", "kill", "stop", "abort"])
    a = parser.parse_args()
    os.environ.setdefault("GOPCCL_MASTER_HEARTBEAT_INTERVAL", "500ms")
    os.environ.setdefault("GOPCCL_MASTER_HEARTBEAT_TIMEOUT", "1500ms")
    torch.set_num_threads(1)
    sys.exit(not all([measure(what, a) for what in a.what]))


if __name__ == "__main__":
    main()
