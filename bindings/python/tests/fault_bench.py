"""What a fault costs a program that uses torch.distributed: fault_bench.py [--backend gopccl] [WHAT ...].

Three processes reconfigure one group over and over (PyTorch 2.15 and later). WHAT is some of:

reconfigure: the same members, a member less that has died, a member more: milliseconds of ``_reconfigure(...).wait()``
kill, stop:  a member is killed, or stopped (SIGSTOP), in the middle of sums of 64 MiB: seconds until the others have the
             result of the next sum in the smaller group
abort:       ``abort()`` while threads wait for sums that cannot end: milliseconds until it has returned, and until the
             last waiter is free

With kill, stop and abort it counts how often the buffers of what has failed had the bits from before. Every line has the
slowest of the processes: median and worst. It ends with 1 if gopccl misses one of the bounds below, or loses a buffer. With
--table both backends are measured in turns (make faultbench).
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
from typing import Any, Dict, List, NamedTuple

import torch
import torch.distributed as dist

WORLD = 3
VICTIM = 2
WAITERS = 10
# Seconds to the next result (of the median), and until a call has returned or a waiter is free (of every one).
BOUNDS = {"kill": 0.20, "stop": 2.0, "abort returns": 0.050, "abort": 0.050}
EVERY = ("abort returns", "abort")


class Rank:
    """One process of the group."""

    def __init__(self, rank: int, store: Any, backend: str, a: argparse.Namespace) -> None:
        self.rank, self.store, self.a = rank, store, a
        self.limit = timedelta(seconds=a.timeout)
        dist.init_process_group(backend, store=dist.PrefixStore("group", store), rank=rank, world_size=WORLD, enable_reconfigure=True, timeout=self.limit)
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


def fork(rank: int, path: str, a: argparse.Namespace, backend: str, what: str, first: int, trials: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        if backend == "gopccl":
            import gopccl.torch  # noqa: F401 (the library must be loaded behind the fork)
        store = dist.FileStore(path, -1)
        store.set_timeout(timedelta(seconds=120))
        r = Rank(rank, store, backend, a)
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


class Result(NamedTuple):
    """What the trials of one fault have shown, of the slowest of the processes in each."""

    times: Dict[str, List[float]]  # seconds, by what was timed
    bits: List[float]  # of each buffer of what has failed: 1 if it was as before

    def within(self, name: str) -> int:
        """How many were within the bound."""
        return sum(v <= bound(name) for v in self.times[name])

    def good(self) -> bool:
        """Whether the bounds are kept, and no buffer was lost."""
        for name, values in self.times.items():
            v = max(values) if name in EVERY else statistics.median(values)
            if v > bound(name):
                return False
        return all(v == 1.0 for v in self.bits)


def bound(name: str) -> float:
    return BOUNDS.get(name, float("inf"))


def measure(what: str, backend: str, trials: int, a: argparse.Namespace) -> Result:
    """Run the trials of ``what``, and print."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "store")
        left = [fork(r, path, a, backend, what, 0, trials) for r in (0, 1)]
        if what != "abort":
            for trial in range(trials):
                os.waitpid(fork(VICTIM, path, a, backend, what, trial, 1), 0)
        if any(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in left):
            sys.exit(f"{what}: a process has failed")
        store = dist.FileStore(path, -1)
        said = [json.loads(store.get(f"said/{r}")) for r in (0, 1)]
    result = Result({name: v for name, v in said[0].items() if name != "bits"}, [v for s in said for v in s.get("bits", [])])
    for name, values in result.times.items():
        within = f", within {1000 * bound(name):.0f} ms {result.within(name)} of {len(values)}" if name in BOUNDS else ""
        print(f"{backend}: {name}: median {1000 * statistics.median(values):.1f} ms, worst {1000 * max(values):.1f} ms, {len(values)} times{within}", flush=True)
    if result.bits:
        print(f"{backend}: {what}: buffers with the bits from before: {sum(v == 1.0 for v in result.bits)} of {len(result.bits)}", flush=True)
    return result


# The table.

BEGIN, END = "<!-- make faultbench: begin -->", "<!-- make faultbench: end -->"
FAULTS = ("kill", "stop", "abort")


def span(values: List[float]) -> str:
    """The median, as people write it."""
    v = statistics.median(values)
    return f"{v:.2f} s" if v >= 0.1 else f"{1000 * v:.1f} ms"


def freed(r: Result) -> str:
    values = r.times["abort"]
    return f"{r.within('abort'):,} of {len(values):,} times; median {span(values)}, slowest {span([max(values)])}"


def kept(results: Dict[str, Result]) -> str:
    every = [v for r in results.values() for v in r.bits]
    return f"{sum(v == 1.0 for v in every):,} of {len(every):,}"


def table(ours: Dict[str, Result], gloo: Dict[str, Result], a: argparse.Namespace) -> str:
    """The rows for the README."""
    rows = [
        (f"three ranks, sums of {a.bytes >> 20} MiB", "Gloo", "gopccl"),
        ("---", "---:", "---:"),
        ("a rank is killed in a sum: until the others have the next one", span(gloo["kill"].times["kill"]), span(ours["kill"].times["kill"])),
        (f"a rank is stopped in a sum (Gloo: timeout {a.timeout:g} s)", span(gloo["stop"].times["stop"]), span(ours["stop"].times["stop"])),
        (f"`abort()` has returned, and {WAITERS} waiters are free, within {1000 * BOUNDS['abort']:.0f} ms", freed(gloo["abort"]), freed(ours["abort"])),
        ("buffers of what failed that have the bits from before", kept(gloo), kept(ours)),
    ]
    kills, stops = len(ours["kill"].times["kill"]), len(gloo["stop"].times["stop"])
    many = f"medians of {kills}; Gloo's rank that is stopped: of {stops}"
    head = f"What a fault costs where the others go on with `_reconfigure` (PyTorch {torch.__version__.split('+')[0]}, {many}):"
    tail = f"`make faultbench`, {os.cpu_count()} cores, loopback."
    return "\n".join([head, "", *("| " + " | ".join(r) + " |" for r in rows), "", tail])


def both(a: argparse.Namespace) -> bool:
    """Measure both backends in turns, print the table, and put it into the file that was named; whether our bounds are kept."""
    load = os.getloadavg()[0]
    print(f"load average {load:.1f}", flush=True)
    if a.write and load > 0.5:
        sys.exit(f"the load average is {load:.1f}: what a busy machine gives is not written to {a.write}")
    ours: Dict[str, Result] = {}
    gloo: Dict[str, Result] = {}
    for what in FAULTS:
        ours[what] = measure(what, "gopccl", a.aborts if what == "abort" else a.trials, a)
        gloo[what] = measure(what, "gloo", a.trials if what == "kill" else 3, a)  # of the others each takes a timeout
    text = table(ours, gloo, a)
    print(text, flush=True)
    if a.write:
        with open(a.write, encoding="utf-8") as f:
            before, _, rest = f.read().partition(BEGIN)
            _, _, behind = rest.partition(END)
        if not behind:
            sys.exit(f"{a.write} has no {BEGIN} and {END}")
        with open(a.write, "w", encoding="utf-8") as f:
            f.write(f"{before}{BEGIN}\n\n{text}\n\n{END}{behind}")
    return all(r.good() for r in ours.values())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="gopccl")
    parser.add_argument("--bytes", type=int, default=64 << 20, help="of the sums (default %(default)s)")
    parser.add_argument("--trials", type=int, default=10, help="of reconfigure, kill and stop (default %(default)s)")
    parser.add_argument("--aborts", type=int, default=1000, help="trials of abort (default %(default)s)")
    parser.add_argument("--timeout", type=float, default=20, help="of the group, in seconds (default %(default)s)")
    parser.add_argument("--table", action="store_true", help="kill, stop and abort with both backends in turns, as a table")
    parser.add_argument("--write", metavar="FILE", help="put the table between the markers in FILE, if the machine is idle")
    parser.add_argument("what", nargs="*", default=["reconfigure", *FAULTS])
    a = parser.parse_args()
    torch.set_num_threads(1)
    if a.table or a.write:
        sys.exit(not both(a))
    results = [measure(what, a.backend, a.aborts if what == "abort" else a.trials, a) for what in a.what]
    sys.exit(a.backend == "gopccl" and not all(r.good() for r in results))


if __name__ == "__main__":
    main()
