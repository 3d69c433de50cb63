"""One membership of a process group: from its forming until it fails or is replaced."""

from __future__ import annotations

import json
import logging
import os
import queue
import socket
import threading
import time
from datetime import timedelta
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Set, Tuple

from gopccl._comm import Communicator, MasterNode
from gopccl._errors import PCCLError, Result
from gopccl._flight import AsyncReduceHandle
from gopccl._message import MessageHandle
from gopccl._types import Attribute
from gopccl.torch import _moves
from gopccl.torch._moves import Move, Place, Post
from gopccl.torch._work import Deadlines, Failure, GopcclWork, Waiters

_log = logging.getLogger("gopccl")

_PATIENCE = 10.0  # seconds for threads to end once the communicator is closed
_RECORD = 256  # bytes by which the members make themselves known to each other


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


def start_master() -> Tuple[MasterNode, str]:
    """A master on a free port, and the address of it that others can use."""
    host = local_host()
    master = MasterNode("[::]:0" if ":" in host else "0.0.0.0:0")
    master.run()
    return master, f"[{host}]:{master.port}" if ":" in host else f"{host}:{master.port}"


class Item(NamedTuple):
    """What the completing thread awaits, does then, and completes."""

    handles: List[AsyncReduceHandle]
    moves: Sequence[Move]
    work: GopcclWork


class Session:
    """A formed membership. ``failed`` is called once, with a reason, when a collective has failed."""

    def __init__(self, rank: int, size: int, keep: bool, failed: "Callable[[Session, str], None]") -> None:
        self.place = Place(rank, size, range(size), keep)
        self.why: Optional[str] = None  # why it is over
        self.comm: Optional[Communicator] = None
        self.barriers = 0  # monitored ones
        self._failed = failed
        self._tag = 0
        self._lock = threading.Lock()
        self._items: "queue.SimpleQueue[Optional[Item]]" = queue.SimpleQueue()
        self._deadlines = Deadlines()
        self._waiters = Waiters()
        self._posted: Set[GopcclWork] = set()  # messages in flight
        self._thread: Optional[threading.Thread] = None
        self._closer: Optional[threading.Thread] = None

    def form(self, address: str, number: int, limit: timedelta) -> None:
        """Meet the other members at the master at ``address``; ``number`` is the same for all, and only theirs."""
        at = self.place
        if at.size > 1:
            # A call of the library has no limit of its own: closing the communicator ends it.
            over = threading.Event()

            def end() -> None:
                over.set()
                if self.comm is not None:
                    self.comm.close()

            timer = threading.Timer(min(limit.total_seconds(), threading.TIMEOUT_MAX), end)
            timer.daemon = True
            timer.name = "gopccl-form"
            timer.start()
            try:
                self._meet(address, number, over)
            except PCCLError as err:
                if over.is_set():
                    ms = int(limit.total_seconds() * 1000)
                    raise Failure(f"gopccl: timed out after {ms}ms: not all {at.size} ranks came to {address}") from None
                raise Failure(f"gopccl: no group of {at.size} ranks at {address}: {self.why or err}") from None
            finally:
                timer.cancel()
                timer.join()
        self._thread = threading.Thread(target=self._complete, name="gopccl-complete", daemon=True)
        self._thread.start()

    def _meet(self, address: str, number: int, over: threading.Event) -> None:
        at = self.place
        with self._lock:
            if self.why is not None:
                raise Failure(f"gopccl: {self.why}")
            comm = self.comm = Communicator(address)
        comm.connect()
        # Every accepted peer votes; waiting peers are let in, until all are there.
        while comm.get_attribute(Attribute.GLOBAL_WORLD_SIZE) < at.size:
            comm.update_topology()
            over.wait(0.002)
        mine = {"rank": at.rank, "number": number}
        records = [json.loads(r) for r in _moves.exchange(at, comm, json.dumps(mine).encode().ljust(_RECORD))]
        self.place = at._replace(order=[int(r["rank"]) for r in records])
        if sorted(self.place.order) != list(range(at.size)) or any(r["number"] != number for r in records):
            raise Failure(f"gopccl: the members do not agree: {[(r['rank'], r['number']) for r in records]}")

    def check(self, what: str) -> None:
        """Raise if nothing can be launched any more."""
        if self.why is None and self.comm is not None:
            n = self.comm.get_attribute(Attribute.LOCAL_WORLD_SIZE)
            if n != self.place.size:
                self._failed(self, f"{n} of {self.place.size} ranks are left")
        if self.why is not None:
            raise Failure(f"gopccl: {what}: the process group has failed: {self.why}")

    def launch(self, moves: Sequence[Move], work: GopcclWork, limit: timedelta) -> None:
        """Launch ``moves``; ``work`` is complete when all have ended."""
        with self._lock:
            self.check(work.what)
            handles: List[AsyncReduceHandle] = []
            try:
                for m in moves:
                    if m.start is not None:
                        assert self.comm is not None
                        self._tag += 1
                        handles.append(m.start(self.comm, self._tag))
            except BaseException as err:
                # Some of it may be launched, here or by the other ranks: nothing can follow it.
                why = f"{work.what}: {err or type(err).__name__}"
                self._failed(self, why)
                self._items.put(Item(handles, [], work))
                if isinstance(err, PCCLError):
                    raise Failure(f"gopccl: {why}") from None
                raise
            self._items.put(Item(handles, moves, work))
        if handles:
            self._deadlines.add(work, limit)

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
        with self._lock:
            self._posted.add(work)
        self._waiters.run(lambda: self._deliver(post, handle, work))

    def _deliver(self, post: Post, handle: MessageHandle, work: GopcclWork) -> None:
        error: Optional[BaseException] = None
        try:
            work.source = self.place.order[handle.result()]
            if post.finish is not None:
                with work.placing():
                    post.finish()
        except PCCLError as err:
            error = self._undelivered(work, err)
        except Exception as err:
            error = Failure(f"gopccl: {work.what}: {err}")
        work.finish(error)
        with self._lock:
            self._posted.discard(work)

    def _undelivered(self, work: GopcclWork, err: PCCLError) -> Failure:
        """Why a message has failed. Bad input concerns that message alone, anything else all members."""
        why = self.why or str(err)
        if err.result not in (Result.INVALID_ARGUMENT, Result.INVALID_USAGE):
            self._failed(self, f"{work.what}: {err}")
        return Failure(f"gopccl: {work.what}: {why}")

    def _complete(self) -> None:
        while True:
            item = self._items.get()
            if item is None:
                return
            self._await(item)
            del item

    def _await(self, item: Item) -> None:
        handles, moves, work = item
        error: Optional[BaseException] = None
        for h in handles:
            try:
                info = h.result()
                if info.local_world_size != self.place.size:
                    raise Failure(f"{info.local_world_size} of {self.place.size} ranks are left")
            except Exception as err:
                error = error or err
        if error is None and not (self.why is not None and len(handles) < sum(m.start is not None for m in moves)):
            try:
                with work.placing():
                    for m in moves:
                        if m.finish is not None:
                            m.finish()
            except Exception as err:
                error = err
        if error is not None:
            # What has ended the membership before is why this one has failed, whatever it says itself.
            why = self.why or error
            self._failed(self, f"{work.what}: {error}")
            error = Failure(f"gopccl: {work.what}: {why}")
        work.finish(error)

    def stop(self, why: str) -> None:
        """End every operation, at once and without waiting; ``why`` is what they say."""
        if self.why is None:
            self.why = why
        if self._closer is None:
            self._closer = threading.Thread(target=self._close, name="gopccl-close", daemon=True)
            self._closer.start()

    def _close(self) -> None:
        if self.comm is not None:
            self.comm.close()
        self._items.put(None)
        self._waiters.close()
        self._deadlines.close()

    def drain(self) -> None:
        """Wait until what was launched has ended, messages that are being sent included."""
        end = time.monotonic() + _PATIENCE
        with self._lock:
            sends = [w for w in self._posted if w.what.startswith("send")]
        for w in sends:
            w.settled(max(0.0, end - time.monotonic()))
        if self.why is None and self._thread is not None and self._thread is not threading.current_thread():
            self._items.put(None)
            self._thread.join(_PATIENCE)

    def join(self) -> None:
        """Wait until ``stop`` has ended everything."""
        end = time.monotonic() + _PATIENCE
        for t in (self._closer, self._thread):
            if t is not None and t is not threading.current_thread():
                t.join(max(0.0, end - time.monotonic()))
