"""Parts of the process group by themselves: what happens when something goes wrong in the middle."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import timedelta
from typing import Any, Callable, Dict, Iterator, List, Tuple

import pytest
from conftest import TIMEOUT

torch = pytest.importorskip("torch")

import gopccl  # noqa: E402
import torch.distributed as dist  # noqa: E402
from gopccl import ArgumentError  # noqa: E402
from gopccl.torch import _core  # noqa: E402
from gopccl.torch._core import Core  # noqa: E402
from gopccl.torch._group import GopcclGroup  # noqa: E402
from gopccl.torch._work import Failure  # noqa: E402

LIMIT = timedelta(seconds=TIMEOUT)


@pytest.fixture
def group() -> Iterator[Tuple[GopcclGroup, GopcclGroup]]:
    """Two ranks in this process."""
    store = dist.HashStore()
    ranks: List[Any] = [None, None]

    def make(rank: int) -> None:
        ranks[rank] = GopcclGroup(Core(store, rank, 2, LIMIT))

    threads = [threading.Thread(target=make, args=(r,)) for r in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(TIMEOUT)
    yield ranks[0], ranks[1]
    threads = [threading.Thread(target=r.abort) for r in ranks]
    for t in threads:
        t.start()
    for t in threads:
        t.join(TIMEOUT)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ArgumentError, MemoryError])
def test_an_exception_between_two_launches(
    group: Tuple[GopcclGroup, GopcclGroup], monkeypatch: pytest.MonkeyPatch, error: type
) -> None:
    """What was launched ends, the tensors are as they were or reduced, and the group is broken, whatever was raised."""
    one, two = group
    session = one._core._session
    assert session is not None and session.comm is not None
    comm = session.comm
    real, calls = comm.all_reduce_async, []

    def failing(*args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise error()
        return real(*args, **options)

    monkeypatch.setattr(comm, "all_reduce_async", failing)
    tensors = [torch.full((1000,), 1.0 + k) for k in range(3)]
    others = [torch.full((1000,), 10.0) for _ in range(3)]
    with pytest.raises(error):
        one.allreduce_coalesced(tensors)
    work = two.allreduce_coalesced(others)
    with pytest.raises(Failure):
        work.wait(LIMIT)
    session.join()
    assert not comm.in_flight()
    assert tensors[0][0] in (1, 11) and tensors[1][0] == 2 and others[1][0] == 10
    with pytest.raises(Failure, match="has failed"):
        one.allreduce_coalesced(tensors)


def test_what_can_never_work_breaks_nothing(group: Tuple[GopcclGroup, GopcclGroup]) -> None:
    one, two = group
    good, bad = torch.ones(3), torch.ones(3).to(torch.float8_e4m3fn)
    with pytest.raises(ArgumentError):
        one.allreduce_coalesced([good, bad])
    works = [g.allreduce([t]) for g, t in zip(group, (torch.ones(3), torch.ones(3)))]
    assert all(w.wait(LIMIT) for w in works) and bool((good == 1).all())


@pytest.mark.parametrize("turned", [False, True])
def test_ranks_in_another_order_than_members(group: Tuple[GopcclGroup, GopcclGroup], turned: bool) -> None:
    """Members are numbered as they came; with either numbering of the ranks every block is at its place."""
    ranks = list(group)
    if turned:
        for g in group:
            session = g._core._session
            assert session is not None
            at = session.place
            session.place = at._replace(rank=1 - at.rank, order=[1 - r for r in at.order])
        ranks.reverse()
    assert [g.rank() for g in ranks] == [0, 1]

    def each(f: Any) -> List[Any]:
        works = [f(g, r) for r, g in enumerate(ranks)]
        assert all(w.wait(LIMIT) for w in works)
        return works

    def value(rank: int, n: int) -> Any:
        return torch.arange(n, dtype=torch.float32) + 10 * rank

    for r in (0, 1):
        t = torch.zeros(4)
        works = [ranks[1 - r].recv([t], r), ranks[r].send([value(r, 4)], 1 - r)]
        assert all(w.wait(LIMIT) for w in works) and torch.equal(t, value(r, 4)) and works[0].source_rank() == r
    whole = [torch.zeros(6) for _ in ranks]
    each(lambda g, r: g.all_gather_single(whole[r], value(r, 3)))
    assert all(torch.equal(w, torch.cat([value(0, 3), value(1, 3)])) for w in whole)
    parts = [[torch.zeros(1), torch.zeros(2)] for _ in ranks]
    each(lambda g, r: g.allgather([parts[r]], [value(r, r + 1)]))
    assert all(torch.equal(p[r], value(r, r + 1)) for p in parts for r in (0, 1))
    outs = [torch.zeros(1), torch.zeros(2)]
    each(lambda g, r: g.reduce_scatter([outs[r]], [[value(r, 1), value(r + 5, 2)]]))
    assert torch.equal(outs[0], value(0, 1) + value(1, 1)) and torch.equal(outs[1], value(5, 2) + value(6, 2))
    got = [torch.zeros(3) for _ in ranks]
    splits = [([1, 2], [1, 2]), ([2, 1], [2, 1])]  # what comes, what goes
    each(lambda g, r: g.all_to_all_single(got[r], value(r, 3), *splits[r]))
    assert torch.equal(got[0], torch.cat([value(0, 3)[:1], value(1, 3)[:2]])) and torch.equal(got[1], torch.cat([value(0, 3)[1:], value(1, 3)[2:]]))
    for root in (0, 1):
        ts = [value(r, 4) for r in (0, 1)]
        each(lambda g, r: g.broadcast(ts[r], root))
        assert all(torch.equal(t, value(root, 4)) for t in ts)
        opts = dist.GatherOptions()
        opts.rootRank = root
        rows = [[[torch.zeros(2), torch.zeros(2)]] if r == root else [] for r in (0, 1)]
        each(lambda g, r: g.gather(rows[r], [value(r, 2)], opts))
        assert all(torch.equal(t, value(r, 2)) for r, t in enumerate(rows[root][0]))
        sopts = dist.ScatterOptions()
        sopts.rootRank = root
        mine = [torch.zeros(2), torch.zeros(2)]
        each(lambda g, r: g.scatter([mine[r]], [[value(7, 2), value(8, 2)]] if r == root else [], sopts))
        assert torch.equal(mine[0], value(7, 2)) and torch.equal(mine[1], value(8, 2))
        ropts = dist.ReduceOptions()
        ropts.rootRank = root
        ts = [value(r, 4) for r in (0, 1)]
        each(lambda g, r: g.reduce([ts[r]], ropts))
        assert torch.equal(ts[root], value(0, 4) + value(1, 4)) and torch.equal(ts[1 - root], value(1 - root, 4))


def test_messages(group: Tuple[GopcclGroup, GopcclGroup]) -> None:
    """Of every form of tensor, of any rank, while a recv that gets nothing yet holds up nothing else."""
    one, two = group
    late, other = torch.zeros(2), torch.zeros(2)
    first = two.recv([late], 0, 9)
    works = [g.allreduce([t]) for g, t in zip(group, (torch.ones(3), torch.ones(3)))]
    assert all(w.wait(LIMIT) for w in works) and not first.is_completed()
    rows = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    forms = [
        (rows, torch.zeros(3, 4)),
        (rows.t(), torch.zeros(4, 3)),
        (rows.t(), torch.zeros(3, 4).t()),
        (torch.tensor([True, False]), torch.tensor([False, True])),
        (torch.tensor(1 + 2j), torch.tensor(0j)),
        (torch.zeros(0), torch.zeros(0)),
        (torch.full((1 << 18,), 2, dtype=torch.int8), torch.zeros(1 << 18, dtype=torch.int8)),
    ]
    for src, dst in forms:
        got = two.recv_anysource([dst], -1)
        sent = one.send([src], 1, -1)
        assert sent.wait(LIMIT) and got.wait(LIMIT) and got.source_rank() == 0
        assert torch.equal(src, dst)
    parts = [torch.zeros(1, dtype=torch.uint8), torch.zeros(3, dtype=torch.float64)]
    got = one.recv(parts, 1)
    assert two.send([torch.ones(1, dtype=torch.uint8), torch.full((3,), 2.0, dtype=torch.float64)], 0).wait(LIMIT)
    assert got.wait(LIMIT) and parts[0][0] == 1 and bool((parts[1] == 2).all())
    # Sizes that differ concern that message alone.
    got, sent = two.recv([other], 0, 5), one.send([torch.ones(3)], 1, 5)
    with pytest.raises(Failure, match="gopccl: recv from rank 0: .*sends 12 bytes, 8 are expected"):
        got.wait(LIMIT)
    with pytest.raises(Failure, match="gopccl: send to rank 1: .*receives 8 bytes, 12 are sent"):
        sent.wait(LIMIT)
    for bad in (lambda: one.send([other], 0), lambda: one.recv([other], 0), lambda: one.recv([other], 2)):
        with pytest.raises(ValueError, match="rank"):
            bad()
    assert one.send([torch.ones(2)], 1, 9).wait(LIMIT) and first.wait(LIMIT) and bool((late == 1).all())
    session = two._core._session
    assert session is not None and session.comm is not None and not session.comm.in_flight()


@pytest.mark.parametrize("leaves", ["the sender", "the receiver", "nobody"])
def test_a_recv_ends_with_its_sender(group: Tuple[GopcclGroup, GopcclGroup], leaves: str) -> None:
    """A message that nobody sends: a rank that leaves, or the time, ends all that wait for it, and the group has failed."""
    one, two = group
    tensors = [torch.zeros(3) for _ in range(3)]
    if leaves == "nobody":
        one.set_timeout(timedelta(milliseconds=50))
    works = [one.recv([tensors[0]], 1), one.recv_anysource([tensors[1]], 5), one.send([tensors[2]], 1, 6)]
    said: List[str] = []

    def wait(work: Any) -> None:
        try:
            work.wait(LIMIT)
        except Failure as err:
            said.append(str(err))

    threads = [threading.Thread(target=wait, args=(w,)) for w in works for _ in range(10)]
    for t in threads:
        t.start()
    if leaves != "nobody":
        (two if leaves == "the sender" else one).abort()
    for t in threads:
        t.join(TIMEOUT)
    assert len(said) == 30, said
    assert any("timed out after 50ms" in s for s in said) == (leaves == "nobody"), said
    for w in works:
        assert w.is_completed() and not w.is_success()
    with pytest.raises(Failure, match="aborted|destroyed" if leaves == "the receiver" else "has failed"):
        one.allreduce([torch.ones(3)])


FORK = """
import os, sys, threading
from datetime import timedelta
import torch, torch.distributed as dist
from gopccl.torch._core import Core
from gopccl.torch._group import GopcclGroup
store, ranks = dist.HashStore(), [None, None]
def make(r): ranks[r] = GopcclGroup(Core(store, r, 2, timedelta(seconds=60)))
threads = [threading.Thread(target=make, args=(r,)) for r in range(2)]
for t in threads: t.start()
for t in threads: t.join()
one, two = ranks
def pass_on(value):
    got = torch.zeros(3)
    work = two.recv([got], 0)
    one.send([torch.full((3,), value)], 1)
    assert work.wait() and got[0] == value
pass_on(1.0)
pid = os.fork()
if pid == 0:
    sys.exit(7)  # through the interpreter
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
pass_on(2.0)
works = [g.allreduce([torch.ones(3)]) for g in ranks]
assert all(w.wait() for w in works)
threads = [threading.Thread(target=g.shutdown) for g in ranks]
for t in threads: t.start()
for t in threads: t.join()
print("good", flush=True)
os._exit(0)
"""


def test_a_child_made_by_fork_leaves_the_group_alone() -> None:
    p = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=2 * TIMEOUT)
    assert (p.returncode, p.stdout) == (0, "good\n"), p.stderr


def test_a_monitored_barrier_names_who_is_missing(group: Tuple[GopcclGroup, GopcclGroup]) -> None:
    """A rank that does not come fails the barrier and not the group; when it comes late it hears of that."""
    one, two = group
    short = timedelta(milliseconds=50)
    with pytest.raises(Failure, match="Rank 1 failed to pass monitoredBarrier in 50 ms$"):
        one.monitored_barrier(short)
    with pytest.raises(Failure, match="Rank 1 successfully reached monitoredBarrier, but received errors .* from rank 0"):
        two.monitored_barrier(short)
    with pytest.raises(Failure, match="Rank 0 timed out in monitoredBarrier"):
        one.monitored_barrier(timedelta(0))
    with pytest.raises(Failure):
        two.monitored_barrier(timedelta(0))
    for every in (False, True):
        late = threading.Thread(target=two.monitored_barrier, args=(LIMIT,))
        late.start()
        one.monitored_barrier(None, wait_all_ranks=every)
        late.join(TIMEOUT)
        assert not late.is_alive()
    works = [g.allreduce([torch.ones(3)]) for g in group]
    assert all(w.wait(LIMIT) for w in works)
    two.abort()
    with pytest.raises(Failure, match="Rank 1 failed to pass monitoredBarrier|has failed"):
        one.monitored_barrier(LIMIT)


def within(f: Callable[[], Any]) -> None:
    """Call ``f`` in a thread, and wait for its end, which a lock that is held would keep it from."""
    errors: List[BaseException] = []

    def run() -> None:
        try:
            f()
        except BaseException as err:
            errors.append(err)

    t = threading.Thread(target=run, daemon=True)
    t.start()
    t.join(TIMEOUT)
    assert not t.is_alive(), "it hangs"
    if errors:
        raise errors[0]


@pytest.mark.parametrize("cause", ["a launch fails", "a member is gone"])
def test_an_abort_hook_may_wait(group: Tuple[GopcclGroup, GopcclGroup], monkeypatch: pytest.MonkeyPatch, cause: str) -> None:
    """It is called under no lock: here it has the other rank come to what was launched before, and waits for that."""
    one, two = group
    session = one._core._session
    assert session is not None and session.comm is not None
    mine, other = torch.ones(3), torch.ones(3)
    before = one.allreduce([mine])
    said: List[bool] = []

    def hook() -> None:
        joined = two.allreduce([other])
        said.append(before.wait() and joined.wait())

    one.register_abort_hook(1, hook)
    if cause == "a launch fails":

        def failing(*args: Any, **options: Any) -> Any:
            raise MemoryError

        monkeypatch.setattr(session.comm, "all_reduce_async", failing)
    else:
        monkeypatch.setattr(session.comm, "get_attribute", lambda which: 1)

    def fail() -> None:
        with pytest.raises((MemoryError, Failure)):
            one.allreduce([torch.ones(3)])

    within(fail)
    assert said == [True] and bool((mine == 2).all()) and bool((other == 2).all())
    assert "MemoryError" in str(one._core.why) or "1 of 2 ranks" in str(one._core.why)


@pytest.mark.parametrize("what", ["all_reduce", "recv", "coalesced"])
def test_a_callback_may_wait_for_its_own_work(group: Tuple[GopcclGroup, GopcclGroup], what: str) -> None:
    """What PyTorch calls when a future is done finds the work complete."""
    one, two = group
    t = torch.zeros(3)
    if what == "coalesced":
        one._start_coalescing(torch.device("cpu"))
    work = one.recv([t], 1) if what == "recv" else one.allreduce([t])
    if what == "coalesced":
        one.allreduce([torch.zeros(3)])
        work = one._end_coalescing(torch.device("cpu"))
    said: List[bool] = []
    over = threading.Event()

    def called(_: Any) -> None:
        said.append(work.is_completed() and work.is_success() and work.wait())
        over.set()

    work.get_future().add_done_callback(called)
    others = [two.send([torch.ones(3)], 0)] if what == "recv" else [two.allreduce([torch.ones(3)]) for _ in range(1 + (what == "coalesced"))]
    within(lambda: (work.wait(), [o.wait() for o in others]))
    assert over.wait(TIMEOUT) and said == [True] and bool((t == 1).all())


def test_abort_waits_for_no_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    """To make a handle may take as long as to look up an address."""
    core = Core(None, 0, 1, LIMIT, elastic=True)
    asked, found = threading.Event(), threading.Event()
    real = _core.start_master

    def slow(elastic: bool) -> Any:
        asked.set()
        assert found.wait(TIMEOUT)
        return real(elastic)

    monkeypatch.setattr(_core, "start_master", slow)
    handles: List[str] = []
    t = threading.Thread(target=lambda: handles.append(core.handle()), daemon=True)
    t.start()
    assert asked.wait(TIMEOUT)
    within(core.abort)
    found.set()
    t.join(TIMEOUT)
    assert len(handles) == 1
    core.shutdown()
    with pytest.raises(Failure, match="destroyed"):
        core.handle()


@pytest.mark.parametrize(
    "set_, elastic, want",
    [
        ({}, True, "heartbeats every 500ms, who is silent for 1.5s is dropped"),
        ({}, False, "heartbeats every 2s, who is silent for 8s is dropped"),
        ({"GOPCCL_MASTER_HEARTBEAT_TIMEOUT": "5s"}, True, "heartbeats every 2s, who is silent for 5s is dropped"),
    ],
)
def test_how_soon_a_silent_rank_is_given_up(monkeypatch: pytest.MonkeyPatch, set_: Dict[str, str], elastic: bool, want: str) -> None:
    """Soon where the group can be formed again, and whatever the environment says."""
    for name, value in set_.items():
        monkeypatch.setenv(name, value)
    master, address = _core.start_master(elastic)
    try:
        lines = gopccl.dump_state().splitlines()
        at = next(i for i, line in enumerate(lines) if line.startswith("gopccl: master at") and f":{address.rpartition(':')[2]}: " in line)
        assert lines[at + 1].strip() == want
    finally:
        master.close()
