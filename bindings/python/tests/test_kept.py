"""A reconfigured group goes on in the sessions that its members have with the master, where they can."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any, List, Optional, Sequence

import pytest
from conftest import TIMEOUT

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from gopccl.torch import _session  # noqa: E402
from gopccl.torch._core import Core, Handle, _digest, kept_master  # noqa: E402
from gopccl.torch._group import GopcclGroup  # noqa: E402
from gopccl.torch._work import Failure  # noqa: E402
from torch._C import _distributed_c10d as c10d  # noqa: E402

LIMIT = timedelta(seconds=TIMEOUT)


def handle(name: str, at: str = "", runs: str = "", members: Sequence[str] = ()) -> Handle:
    return Handle(name, f"own-{name}", at, runs, _digest(members) if members else "")


def test_who_keeps_a_session() -> None:
    a, b, c = (handle(x, "m", "m" if x == "a" else "", "abc") for x in "abc")
    assert kept_master([a, b, c]) == kept_master([c, a, b]) == "m", "all are there"
    assert kept_master([a, b]) == "", "c is alive and not asked: it would be waited for"
    two = [handle(x, "m", "m" if x == "a" else "", "ab") for x in "ab"]
    assert kept_master(two) == "m", "c is dead"
    assert kept_master([handle("d"), *two]) == kept_master([*two, handle("e"), handle("d")]) == "m", "newcomers join"
    assert kept_master([*two, handle("d", "n", "n", "de"), handle("e", "n", "", "de")]) == "", "two sessions do not become one"
    assert kept_master([handle("d"), two[0]]) == "", "b is alive and not asked"
    assert kept_master([*two, c]) == "", "they do not agree"
    assert kept_master([two[1], handle("a", "", "m")]) == "", "a has left by itself"
    assert kept_master([handle(x, "m", "", "ab") for x in "ab"]) == "", "nobody of them runs the master"
    assert kept_master(two[:1]) == "", "one process needs nobody"
    assert Handle.parse(a.encode()) == a
    with pytest.raises(ValueError):
        Handle.parse('{"v": 1, "id": "a", "master": "m"}')


class Ranks:
    """Elastic groups of this process, one for each rank."""

    def __init__(self, n: int) -> None:
        self.groups = [GopcclGroup(Core(dist.HashStore(), 0, 1, LIMIT, elastic=True)) for _ in range(n)]
        self.uuid = 0

    def meet(self, ranks: Sequence[int]) -> List[float]:
        """Form the group of some ranks; what the sum of a tensor of ones is then."""
        handles = [self.groups[r].get_reconfigure_handle() for r in ranks]
        return self.meet_with(ranks, handles)

    def meet_with(self, ranks: Sequence[int], handles: List[str]) -> List[float]:
        self.uuid += 1
        opts = c10d.ReconfigureOptions()
        opts.uuid, opts.handles, opts.timeout = self.uuid, handles, LIMIT
        works = [self.groups[r].reconfigure(opts) for r in ranks]
        for w in works:
            w.wait()
        assert [self.groups[r].rank() for r in ranks] == list(range(len(ranks)))
        return self.sum(ranks)

    def sum(self, ranks: Sequence[int]) -> List[float]:
        ts = [torch.ones(1) for _ in ranks]
        works = [self.groups[r].allreduce([t]) for r, t in zip(ranks, ts)]
        for w in works:
            w.wait()
        return [t.item() for t in ts]

    def fail(self, ranks: Sequence[int]) -> None:
        """The next sum of these fails."""
        works = [self.groups[r].allreduce([torch.ones(1)]) for r in ranks]
        for w in works:
            with pytest.raises(dist.DistBackendError) as err:
                w.wait()
            assert "timed out" not in str(err.value)

    def comm(self, rank: int) -> Any:
        session = self.groups[rank]._core._session
        return None if session is None else session.comm

    def end(self, ranks: Optional[Sequence[int]] = None) -> None:
        threads = [threading.Thread(target=self.groups[r].shutdown) for r in (range(len(self.groups)) if ranks is None else ranks)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(TIMEOUT)


@pytest.fixture
def four() -> Any:
    ranks = Ranks(4)
    yield ranks
    ranks.end()


def test_sessions_are_kept(four: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_session, "_GRACE", 10.0)  # a busy machine may take longer to see a loss
    assert four.meet([0, 1, 2]) == [3.0] * 3
    comms = [four.comm(r) for r in range(3)]
    assert four.meet([2, 0, 1]) == [3.0] * 3, "the same members in another order"
    assert [four.comm(r) for r in range(3)] == comms
    assert four.meet([3, 0, 1, 2]) == [4.0] * 4, "a newcomer, which is rank 0"
    assert [four.comm(r) for r in range(3)] == comms
    comms = [four.comm(r) for r in range(4)]
    four.groups[3].abort()
    four.fail([0, 1, 2])
    assert four.meet([0, 1, 2, 3]) == [4.0] * 4, "one has left by itself"
    assert four.comm(3) is not comms[3] and [four.comm(r) for r in range(3)] == comms[:3]
    assert four.meet([0, 1]) == [2.0] * 2 and four.meet([2, 3]) == [2.0] * 2, "a split needs sessions of its own"
    assert four.meet([0, 1, 2, 3]) == [4.0] * 4, "and a merge"
    four.end([3])
    four.fail([0, 1, 2])
    comms = [four.comm(r) for r in range(3)]
    assert four.meet([1, 2, 0]) == [3.0] * 3, "one has died"
    assert [four.comm(r) for r in range(3)] == comms


def test_a_rest_ends_with_the_membership(four: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that completes works, which sleeps when there are none, keeps nobody waiting."""
    monkeypatch.setattr(_session, "_GRACE", _session._PATIENCE / 2)
    assert four.meet([0, 1]) == [2.0] * 2
    comms = [four.comm(r) for r in range(2)]
    sessions = [four.groups[r]._core._session for r in range(2)]
    while not all(s is not None and s._asleep for s in sessions):
        time.sleep(0.01)
    monkeypatch.setattr(_session, "_TICK", 2 * _session._PATIENCE)
    assert four.meet([0, 1]) == [2.0] * 2
    assert [four.comm(r) for r in range(2)] == comms


def test_what_is_in_flight_ends(four: Ranks) -> None:
    """It may never end by itself: neither before the handles are given nor behind."""
    assert four.meet([0, 1, 2]) == [3.0] * 3
    stuck = torch.ones(4)
    work = four.groups[1].allreduce([stuck])
    assert four.meet([0, 1, 2]) == [3.0] * 3
    with pytest.raises(dist.DistBackendError, match="was reconfigured"):
        work.wait()
    handles = [four.groups[r].get_reconfigure_handle() for r in range(3)]
    work = four.groups[2].allreduce([stuck])
    assert four.meet_with([0, 1, 2], handles) == [3.0] * 3
    with pytest.raises(dist.DistBackendError, match="was reconfigured"):
        work.wait()
    assert stuck.tolist() == [1.0] * 4


def test_a_stray_failure_holds_nobody_up(four: Ranks) -> None:
    """A member that has failed by itself is not waited for."""
    assert four.meet([0, 1, 2]) == [3.0] * 3
    core = four.groups[0]._core
    session = core._session
    assert session is not None
    session.lost = True
    core._fail(session, "a test", "COMM_ERROR")
    four.fail([1, 2])
    assert four.meet([0, 1, 2]) == [3.0] * 3


def test_an_abort_waits_for_no_launch(four: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch may hang, and only the end of the communicator ends it."""
    assert four.meet([0, 1]) == [2.0] * 2
    session, comm, closed = four.groups[0]._core._session, four.comm(0), threading.Event()
    assert session is not None
    close = comm.close
    monkeypatch.setattr(comm, "close", lambda: (close(), closed.set()))
    with session._lock:  # as a launch has it
        four.groups[0].abort()
        assert closed.wait(TIMEOUT)


@pytest.mark.parametrize("gone", [0, 1])
def test_a_newcomer_waits_for_nobody_who_has_gone(four: Ranks, gone: int) -> None:
    """One of those whom it joins cannot go on in its session, the one that runs the master or another."""
    assert four.meet([0, 1, 2]) == [3.0] * 3
    handles = [four.groups[r].get_reconfigure_handle() for r in range(4)]
    stuck = four.groups[gone].allreduce([torch.ones(4)])  # never ends by itself
    began = time.monotonic()
    assert four.meet_with(range(4), handles) == [4.0] * 4
    assert time.monotonic() - began < TIMEOUT / 2
    with pytest.raises(dist.DistBackendError, match="was reconfigured"):
        stuck.wait()


def test_new_sessions_have_time(four: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kept ones come to nothing, not all of the limit has gone into them."""
    monkeypatch.setattr(_session, "_GRACE", 10.0)  # a busy machine may take longer to end a membership
    assert four.meet([0, 1]) == [2.0] * 2
    form, left = _session.Session.form, []

    def no_kept(session: Any, address: str, number: int, limit: timedelta, name: str = "", comm: Any = None, seconds: Any = None, **named: Any) -> None:
        if comm is None:
            form(session, address, number, limit, name, **named)
            return
        left.append(limit.total_seconds() if seconds is None else seconds)
        comm.close()
        raise Failure("gopccl: timed out")

    monkeypatch.setattr(_session.Session, "form", no_kept)
    assert four.meet([0, 1]) == [2.0] * 2
    assert len(left) == 2 and all(0 < s <= TIMEOUT / 2 for s in left), left


def test_an_end_that_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for the end may come before the thread that another one ends it with has started."""
    session, begun, go, errors = _session.Session(0, 1, False, lambda *_: None), threading.Event(), threading.Event(), []
    start = threading.Thread.start

    def late(t: threading.Thread) -> None:
        if t.name == "gopccl-close":
            begun.set()
            go.wait(TIMEOUT)
        start(t)

    def join() -> None:
        try:
            session.join()
        except RuntimeError as err:
            errors.append(err)
        finally:
            go.set()

    monkeypatch.setattr(threading.Thread, "start", late)
    threads = [threading.Thread(target=session.stop, args=("a test",)), threading.Thread(target=join), threading.Timer(0.2, go.set)]
    threads[0].start()
    assert begun.wait(TIMEOUT)
    for t in threads[1:]:
        t.start()
    for t in threads:
        t.join(TIMEOUT)
    assert not errors and session._settled.is_set()


def test_a_limit_that_is_over_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be over before there is a communicator to close."""
    real = _session.Communicator

    def late(*args: Any, **named: Any) -> Any:
        for t in threading.enumerate():
            if t.name == "gopccl-form":
                t.join()
        return real(*args, **named)

    monkeypatch.setattr(_session, "Communicator", late)
    session = _session.Session(0, 2, False, lambda *_: None)
    master, address = _session.start_master(True)
    with pytest.raises(Failure, match="timed out after 7000ms"):
        session.form(address, 1, timedelta(seconds=7), left=0.0)
    assert session.comm is None
    master.close()
