"""Parts of the process group by themselves: what happens when something goes wrong in the middle."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from datetime import timedelta
from typing import Any, Iterator, List, Tuple

import pytest
from conftest import TIMEOUT

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from gopccl import ArgumentError  # noqa: E402
from gopccl.torch._core import Core  # noqa: E402
from gopccl.torch._group import GopcclGroup  # noqa: E402
from gopccl.torch._messages import _HEADER, Messages  # noqa: E402
from gopccl.torch._work import Failure, GopcclWork  # noqa: E402

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
        one.allreduce(tensors)
    work = two.allreduce(others)
    with pytest.raises(Failure):
        work.wait(LIMIT)
    session.join()
    assert not comm.in_flight()
    assert tensors[0][0] in (1, 11) and tensors[1][0] == 2 and others[1][0] == 10
    with pytest.raises(Failure, match="has failed"):
        one.allreduce(tensors)


def test_what_can_never_work_breaks_nothing(group: Tuple[GopcclGroup, GopcclGroup]) -> None:
    one, two = group
    good, bad = torch.ones(3), torch.ones(3).to(torch.float8_e4m3fn)
    with pytest.raises(ArgumentError):
        one.allreduce([good, bad])
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


@pytest.fixture
def mail() -> Iterator[Tuple[Messages, Any]]:
    """The mailbox of rank 0, and a connection as rank 1 opens it, with the secret."""
    box = Messages(0, "127.0.0.1")

    def connect() -> Tuple[socket.socket, bytes]:
        return socket.create_connection((box.peer.host, box.peer.port)), bytes.fromhex(box.peer.secret)

    yield box, connect
    box.close("it is over")


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (_HEADER.size + 7, "after 7 of 12 bytes of a message with tag 5"),
        (_HEADER.size, "after 0 of 12 bytes"),
        (_HEADER.size + 12 + 9, "after 9 bytes of a header"),
        (_HEADER.size + 12, "its connection ended"),
    ],
)
def test_a_connection_that_ends(mail: Tuple[Messages, Any], sent: int, says: str) -> None:
    """A rank that waits for its message is told at once, before it ends and after."""
    box, connect = mail
    first, second, third = (GopcclWork("recv", [], LIMIT) for _ in range(3))
    t, u = torch.zeros(3), torch.zeros(3)
    box.recv(1, 5, [t], first)
    box.recv(1, 5, [u], second)
    conn, secret = connect()
    message = _HEADER.pack(secret, 1, 5, 12) + torch.ones(3).numpy().tobytes()
    conn.sendall((message + message)[:sent])
    conn.close()
    if sent >= len(message):
        assert first.wait(LIMIT) and bool((t == 1).all())
    else:
        with pytest.raises(dist.DistBackendError, match=says):
            first.wait(LIMIT)
    with pytest.raises(dist.DistBackendError, match=says):
        second.wait(LIMIT)
    box.recv(1, 5, [u], third)
    with pytest.raises(dist.DistBackendError, match=says):
        third.wait(LIMIT)
    # A sender whose connection had failed comes back with a new one.
    conn, secret = connect()
    conn.sendall(message)
    while True:
        again = GopcclWork("recv", [], LIMIT)
        box.recv(1, 5, [u], again)
        try:
            again.wait(LIMIT)
            break
        except dist.DistBackendError:
            pass  # it is not here yet
    assert bool((u == 1).all())
    conn.close()


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
