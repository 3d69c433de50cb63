"""One membership of a process group: from its forming until it fails or is replaced."""

from __future__ import annotations

import collections
import json
import logging
import os
import socket
import threading
import time
import uuid
from datetime import timedelta
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple

from gopccl._comm import Communicator
from gopccl._errors import PCCLError, Result
from gopccl._flight import AsyncReduceHandle
from gopccl._message import MessageHandle
from gopccl._node import MasterNode
from gopccl._types import Attribute
from gopccl.torch import _moves
from gopccl.torch._moves import Move, Place, Post
from gopccl.torch._work import Deadlines, Failure, GopcclWork, Waiters

_log = logging.getLogger("gopccl")

_PATIENCE = 10.0  # seconds for threads to end once the communicator is closed
_TICK = 0.05  # seconds after which a work that nobody waits for is completed
_RECORD = 256  # bytes by which the members make themselves known to each other
# Milliseconds, in groups that can be reconfigured: there a member that is given up in vain costs a reconfiguration, and in others the run.
_HEARTBEAT, _SILENCE = 500, 1500
_GRACE = 0.25  # seconds for the others to see that a member is lost; then their session with the master is not kept


def local_host() -> str:
    """The address under which the other ranks reach this process.

    ``GOPCCL_HOST`` if set, else the local address towards MASTER_ADDR.
    """
    host = os.environ.get("GOPCCL_HOST")
    if host:
        return host
    target = os.environ.get("MASTER_ADDR", "127.0.0.1")
    try:
        found = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)
        found.sort(key=lambda entry: entry[0] != socket.AF_INET)
        with socket.socket(found[0][0], socket.SOCK_DGRAM) as s:
            s.connect(found[0][4])
            return str(s.getsockname()[0])
    except OSError as err:
        _log.warning("no route to MASTER_ADDR %s (%s); set GOPCCL_HOST; going on with 127.0.0.1", target, err)
        return "127.0.0.1"


def start_master(elastic: bool) -> Tuple[MasterNode, str]:
    """A master on a free port, and the address of it that others can use."""
    host = local_host()
    master = MasterNode("[::]:0" if ":" in host else "0.0.0.0:0")
    if elastic:
        master._default_heartbeat(_HEARTBEAT, _SILENCE)
    master.run()
    return master, f"[{host}]:{master.port}" if ":" in host else f"{host}:{master.port}"


class _Fewer(Failure):
    """A collective has succeeded without some of the members."""


class Item:
    """A work, and what it takes to complete it."""

    __slots__ = ("handles", "moves", "work", "since", "open")

    def __init__(self, handles: List[AsyncReduceHandle], moves: Sequence[Move], work: GopcclWork) -> None:
        self.handles = handles
        self.moves = moves
        self.work = work
        self.since = time.monotonic()
        self.open = True  # until its handles have ended and its moves were finished


class Delivery:
    """A message in flight; completes its work."""

    def __init__(self, session: "Session", post: Post, handle: MessageHandle, work: GopcclWork) -> None:
        self.session = session
        self.post = post
        self.handle = handle
        self.work = work
        self.since = time.monotonic()
        self._turn = threading.Lock()
        self._awaited = False  # it is there, or has failed with
        self._error: Optional[BaseException] = None
        self._served = False  # a thread has it

    def drive(self, work: GopcclWork) -> None:
        """Wait for the message."""
        with self._turn:
            if not self._awaited:  # interrupted, it is called again
                self._error = self.session.await_message(self)
                self._awaited = True
        self.session.delivered(self, self._error)
        work.ended()

    def hurry(self, work: GopcclWork) -> None:
        """Have a thread wait for the message."""
        if not self._served:
            self._served = True  # two threads may get here: the second has nothing left to do
            self.session.waiters.run(lambda: self.drive(work))

    def bound(self, work: GopcclWork, limit: timedelta) -> None:
        """End the message after ``limit``."""
        self.session.bound(work, limit)


class Session:
    """A formed membership. ``failed`` is called once, with a reason, when a collective has failed."""

    def __init__(self, rank: int, size: int, keep: bool, failed: "Callable[[Session, str], None]") -> None:
        self.place = Place(rank, size, range(size), keep)
        self.why: Optional[str] = None  # why it is over
        self.comm: Optional[Communicator] = None
        self.address = ""  # of its master
        self.lost = False  # a member was, and nothing else has failed
        self.kept = False  # it is over, and its communicator can be used for another membership
        self.barriers = 0  # monitored ones
        self._known: Dict[uuid.UUID, str] = {}  # who the members are
        self._failed = failed
        self._tag = 0
        self._lock = threading.Lock()
        self._items: Deque[Item] = collections.deque()  # in the order of their launch, and completed in it
        self._turn = threading.Lock()  # of the thread that awaits the first of them
        self._open: Dict[GopcclWork, Item] = {}
        self._deadlines = Deadlines()
        self.waiters = Waiters()
        self._posted: Dict[GopcclWork, Delivery] = {}  # messages in flight
        # Of the completing thread.
        self._wake = threading.Event()
        self._asleep = False  # nothing was launched lately
        self._hurried = False
        self._ended = False
        self._thread: Optional[threading.Thread] = None
        self._closers: List[threading.Thread] = []
        self._settled = threading.Event()  # nothing of it runs any more
        # Of comm, kept and _gone, and never held for long: what closes does not wait for a launch.
        self._hold = threading.Lock()
        self._gone = False  # its communicator is closed

    def form(
        self, address: str, number: int, limit: timedelta, name: str = "", comm: Optional[Communicator] = None, left: Optional[float] = None
    ) -> None:
        """Meet the other members at the master at ``address``; ``number`` is the same for all, and only theirs.

        ``name`` is this process's. ``comm`` is that of a membership before, whose members
        are all there; newcomers come to them. ``left`` is how many seconds of ``limit`` it may take; None: all.
        """
        at = self.place
        # A collective of a membership before, which the others may never join, has another tag.
        self._tag = number << 16
        if at.size > 1:
            # A call of the library has no limit of its own: closing the communicator ends it.
            over = threading.Event()

            def end() -> None:
                over.set()
                self._close_comm()

            timer = threading.Timer(min(limit.total_seconds() if left is None else left, threading.TIMEOUT_MAX), end)
            timer.daemon = True
            timer.name = "gopccl-form"
            timer.start()
            try:
                self._meet(address, {"rank": at.rank, "number": number, "name": name}, over, comm)
            except (PCCLError, TimeoutError) as err:
                if over.is_set():
                    ms = int(limit.total_seconds() * 1000)
                    raise Failure(f"gopccl: timed out after {ms}ms: not all {at.size} ranks came to {address}") from None
                raise Failure(f"gopccl: no group of {at.size} ranks at {address}: {self.why or err}") from None
            finally:
                timer.cancel()
                timer.join()
        t = threading.Thread(target=self._complete, name="gopccl-complete", daemon=True)
        t.start()
        self._thread = t

    def _meet(self, address: str, mine: Dict[str, Any], over: threading.Event, comm: Optional[Communicator]) -> None:
        at, used = self.place, comm is not None
        if comm is None:
            # The master is in the process of a member, and nobody starts it again.
            comm = Communicator(address, reattach_timeout=0)
        with self._hold:
            why, late = self.why, over.is_set()
            if why is None and not late:
                self.comm, self.address = comm, address
        if why is not None or late:  # what ends the forming has not seen it
            comm.close()
            if why is None:
                raise TimeoutError
            raise Failure(f"gopccl: {why}")
        if not used:
            comm.connect()
        before = comm.group.members if used else ()
        # Every accepted peer votes; waiting peers are let in, until all are there.
        while comm.get_attribute(Attribute.GLOBAL_WORLD_SIZE) < at.size:
            comm.update_topology()
            if not set(before) <= set(comm.group.members):
                raise Failure("gopccl: a member has gone")  # it makes a new session, and waits for the others there
            if over.wait(0.002):
                raise TimeoutError
        records = [json.loads(r) for r in _moves.exchange(at, comm, json.dumps(mine).encode().ljust(_RECORD))]
        self.place = at._replace(order=[int(r["rank"]) for r in records])
        if sorted(self.place.order) != list(range(at.size)) or any(r["number"] != mine["number"] for r in records):
            raise Failure(f"gopccl: the members do not agree: {[(r['rank'], r['number']) for r in records]}")
        self._known = {u: r["name"] for u, r in zip(comm.group.members, records)}

    def drop(self) -> None:
        """Let go of a communicator that was of no use; ``form`` may be called again."""
        with self._hold:
            comm, self.comm = self.comm, None
        if comm is not None:
            comm.close()

    def members(self) -> List[str]:
        """The names of those who are in the session with the master, if it can be used for another membership."""
        if self.why is not None:
            if not self.lost:
                return []
            self._settled.wait(_PATIENCE)
            if not self.kept:
                return []
        elif self._items or self._posted:
            return []  # nobody knows whether the others will come to it
        return self._present()

    def _present(self) -> List[str]:
        comm = self.comm
        try:
            here = () if comm is None else comm.group.members
        except PCCLError:
            return []
        known = [self._known.get(u) for u in here]
        return [] if None in known else sorted(n for n in known if n is not None)

    def release(self) -> Optional[Communicator]:
        """End the membership and give its communicator away; None, and it is closed, if something runs that does not end."""
        if self.why is None:
            self.lost = True
            self.suspend("the process group was reconfigured", vote=False)
        self._settled.wait(_PATIENCE)
        with self._hold:
            if not self.kept:
                return None
            comm, self.comm = self.comm, None
        return comm

    def check(self, what: str) -> None:
        """Raise if nothing can be launched any more."""
        if self._misses():
            self._failed(self, str(self.why))
        if self.why is not None:
            raise Failure(f"gopccl: {what}: the process group has failed: {self.why}")

    def _misses(self) -> bool:
        """Whether a member is gone that was there the last time. Then ``why`` says so, and it is for the caller to tell."""
        comm = self.comm
        if self.why is not None or comm is None:
            return False
        n = comm.get_attribute(Attribute.LOCAL_WORLD_SIZE)
        if n == self.place.size:
            return False
        self.lost, self.why = True, f"{n} of {self.place.size} ranks are left"
        return True

    def launch(self, moves: Sequence[Move], work: GopcclWork, limit: timedelta) -> None:
        """Launch ``moves``; ``work`` is complete when all have ended."""
        handles: List[AsyncReduceHandle] = []
        error: Optional[BaseException] = None
        late = False
        with self._lock:
            news = self._misses()
            begun = self.why is None
            if begun:
                error = self._start(moves, handles)
                if error is not None:
                    # Some of it may be launched, here or by the other ranks: nothing can follow it.
                    if self.why is None:
                        self.why = f"{work.what}: {str(error) or type(error).__name__}"
                    news = True
                self._queue(Item(handles, moves if error is None else [], work))
                late = self._ended
        # From here on: what is told may call what the program has given us, which may wait for other works.
        if news:
            self._failed(self, str(self.why))
        if not begun:
            raise Failure(f"gopccl: {work.what}: the process group has failed: {self.why}")
        if late:  # the completing thread is gone
            self.waiters.run(lambda: self.drive(work))
        if error is not None:
            self.hurry(work)
            if isinstance(error, PCCLError):
                raise Failure(f"gopccl: {self.why}") from None
            raise error
        if handles:
            self._deadlines.add(work, limit)

    def _start(self, moves: Sequence[Move], handles: List[AsyncReduceHandle]) -> Optional[BaseException]:
        """Begin ``moves`` in their order; what has kept one of them from it. The lock is held."""
        try:
            for m in moves:
                if m.start is not None:
                    assert self.comm is not None
                    self._tag += 1
                    handles.append(m.start(self.comm, self._tag))
        except BaseException as err:
            return err
        return None

    def _queue(self, item: Item) -> None:
        """Have it completed, behind those before it. The lock is held."""
        self._open[item.work] = item
        item.work.driven(self)
        self._items.append(item)
        self._rouse()

    def post(self, post: Post, work: GopcclWork, limit: Optional[timedelta]) -> None:
        """Begin a message; ``work`` is complete when it is there, or has failed, at the latest after ``limit`` if there is one."""
        self.check(work.what)
        assert self.comm is not None
        if limit is not None:
            self._deadlines.add(work, limit)  # to begin it may take a while
        try:
            handle = post.start(self.comm)
        except BaseException as err:
            if not isinstance(err, PCCLError):
                work.finish(err)
                raise
            failure = self._undelivered(work, err)
            work.finish(failure)
            raise failure from None
        delivery = Delivery(self, post, handle, work)
        with self._lock:
            self._posted[work] = delivery
        work.driven(delivery)
        self._rouse()

    def await_message(self, d: Delivery) -> Optional[BaseException]:
        """Wait for a message, and put it where it belongs; what went wrong."""
        work = d.work
        try:
            work.source = self.place.order[d.handle.result()]
            if d.post.finish is not None:
                with work.placing():
                    d.post.finish()
        except Exception as err:
            return err
        return None

    def delivered(self, d: Delivery, error: Optional[BaseException]) -> None:
        """Complete the work of a message."""
        work = d.work
        if isinstance(error, PCCLError):
            error = self._undelivered(work, error)
        elif error is not None:
            error = Failure(f"gopccl: {work.what}: {error}")
        work.finish(error)
        with self._lock:
            self._posted.pop(work, None)

    def _undelivered(self, work: GopcclWork, err: PCCLError) -> Failure:
        """Why a message has failed. Bad input concerns that message alone, anything else all members."""
        why = self.why or str(err)
        self._note(err)
        if err.result not in (Result.INVALID_ARGUMENT, Result.INVALID_USAGE):
            self._failed(self, f"{work.what}: {err}")
        return Failure(f"gopccl: {work.what}: {why}")

    def drive(self, work: GopcclWork) -> None:
        """Complete ``work`` and those before it in this thread, or wait until others have."""
        while True:
            done: Optional[Item] = None
            error: Optional[Exception] = None
            with self._turn:
                mine = self._open.get(work)
                if mine is None or not mine.open:
                    break
                item = self._items[0]
                error = self._await(item)
                self._items.popleft()
                item.open = False
                done = item
            self._end(done, error)
            if done is mine:
                return
        work.ended()

    def hurry(self, work: GopcclWork) -> None:
        """Have the completing thread complete what there is."""
        self._hurried = True
        self._wake.set()

    def bound(self, work: GopcclWork, limit: timedelta) -> None:
        """Have ``work`` ended after ``limit``."""
        self._deadlines.add(work, limit)

    def _await(self, item: Item) -> Optional[Exception]:
        """Wait for the handles of an item, and finish its moves. Interrupted, it can be called again."""
        error: Optional[Exception] = None
        for h in item.handles:
            try:
                info = h.result()
                if info.local_world_size != self.place.size:
                    raise _Fewer(f"{info.local_world_size} of {self.place.size} ranks are left")
            except Exception as err:
                error = error or err
        if error is None and not (self.why is not None and len(item.handles) < sum(m.start is not None for m in item.moves)):
            try:
                with item.work.placing():
                    for m in item.moves:
                        if m.finish is not None:
                            m.finish()
            except Exception as err:
                error = err
        return error

    def _end(self, item: Item, error: Optional[Exception]) -> None:
        """Complete the work of an item. What is called from here may wait for other works."""
        work = item.work
        if error is not None:
            # What has ended the membership before is why this one has failed, whatever it says itself.
            why = self.why or error
            self._note(error)
            self._failed(self, f"{work.what}: {error}")
            error = Failure(f"gopccl: {work.what}: {why}")
        work.finish(error)
        with self._lock:
            self._open.pop(work, None)

    def _note(self, error: BaseException) -> None:
        """Remember whether what fails the membership is that a member is lost."""
        if self.why is None:
            self.lost = isinstance(error, _Fewer) or isinstance(error, PCCLError) and error.result is Result.RANK_CONNECTION_LOST

    # The completing thread completes what nobody waits for. It looks only now and then,
    # unless somebody has asked, so that a launch need not wake it.

    def _complete(self) -> None:
        while not self._ended:
            self._rest(None)
            looked = self._ended  # roused for that: it has waited enough
            while True:
                if not looked:
                    self._rest(_TICK)
                looked = False
                hurried, self._hurried = self._hurried, False
                self._sweep(0.0 if hurried or self._ended else _TICK)
                if not self._items and not self._posted:
                    break
        self._sweep(0.0)  # what was launched before the end

    def _rest(self, seconds: Optional[float]) -> None:
        if seconds is None:
            self._asleep = True
            if self._items or self._posted or self._hurried or self._ended:
                self._asleep = False
                return
        self._wake.wait(seconds)
        self._wake.clear()
        self._asleep = False

    def _rouse(self) -> None:
        """Something was launched."""
        if self._asleep:
            self._wake.set()

    def _sweep(self, age: float) -> None:
        """Complete what is that old."""
        until = time.monotonic() - age
        with self._lock:
            posted = [d for d in self._posted.values() if d.since <= until]
        for d in posted:
            d.hurry(d.work)
        while self._items:
            try:
                item = self._items[0]
            except IndexError:  # another thread has completed it
                return
            if item.since > until:
                return
            self.drive(item.work)

    def stop(self, why: str) -> None:
        """End every operation, at once and without waiting; ``why`` is what they say."""
        if self.why is None:
            self.why = why
        self.lost = False
        self._close_by(self._close)

    def suspend(self, why: str, vote: bool = True) -> None:
        """Let every operation end, which they do soon if a member is lost, and keep the communicator; else ``stop``. It does not wait.

        With ``vote`` the group goes on without the member that is lost.
        """
        if self.why is None:
            self.why = why
        self._close_by(lambda: self._settle(vote))

    def _close_by(self, end: Callable[[], None]) -> None:
        t = threading.Thread(target=end, name="gopccl-close", daemon=True)
        with self._hold:  # who joins it finds it started
            self._closers.append(t)
            t.start()

    def _settle(self, vote: bool) -> None:
        late = threading.Timer(_GRACE, self._close)
        late.daemon, late.name = True, "gopccl-grace"
        late.start()
        self._finish()
        if self._thread is not None:
            self._thread.join(_PATIENCE)
        comm, n = self.comm, self.place.size
        try:
            # Nobody waits for this member any more: it votes, and the others go on with what is left.
            if vote and comm is not None and len(self._present()) == n:
                comm.update_topology()
            ended = not self._posted
        except PCCLError:
            ended = False
        late.cancel()
        late.join()
        with self._hold:
            self.kept = ended and self.lost and comm is not None and not self._gone
        if not self.kept:
            self._close()
        self.waiters.close()
        self._deadlines.close()
        self._settled.set()

    def _close(self) -> None:
        with self._hold:
            self._gone, self.kept = True, False
        self._close_comm()
        self._finish()
        self.waiters.close()
        self._deadlines.close()
        self._settled.set()

    def _close_comm(self) -> None:
        with self._hold:
            comm = self.comm
        if comm is not None:
            comm.close()

    def _finish(self) -> None:
        """End the completing thread once everything is complete."""
        with self._lock:
            self._ended = True
        self._wake.set()

    def drain(self) -> None:
        """Wait until what was launched has ended, messages that are being sent included."""
        end = time.monotonic() + _PATIENCE
        with self._lock:
            sends = [w for w in list(self._posted) if w.what.startswith("send")]
        for w in sends:
            w.settled(max(0.0, end - time.monotonic()))
        if self.why is None and self._thread is not None and self._thread is not threading.current_thread():
            self._finish()
            self._thread.join(_PATIENCE)

    def join(self) -> None:
        """Wait until ``stop`` has ended everything."""
        end = time.monotonic() + _PATIENCE
        with self._hold:
            closers = list(self._closers)
        for t in (*closers, self._thread):
            if t is not None and t is not threading.current_thread():
                t.join(max(0.0, end - time.monotonic()))
