"""Works: what ``torch.distributed`` waits for."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import queue
import threading
import time
from datetime import timedelta
from typing import Any, Callable, Iterable, Iterator, List, Optional, Protocol, Tuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch.futures import Future

from gopccl import cuda


class Failure(dist.DistBackendError):
    """A collective failed; the process group cannot be used until it is reconfigured."""


Expire = Callable[[str], None]


def _flat(outputs: Iterable[Any]) -> Iterable[Tensor]:
    """The tensors of a list that may have lists in it."""
    return itertools.chain.from_iterable(t if isinstance(t, list) else [t] for t in outputs)


class Driver(Protocol):
    """Completes works. A thread that waits does it itself, because to wake another one takes longer than a small operation."""

    def drive(self, work: "GopcclWork") -> None:
        """Complete ``work`` in this thread, or wait until another one has. Raises nothing but what a signal handler raises."""

    def hurry(self, work: "GopcclWork") -> None:
        """Have a thread complete ``work``: somebody wants to know, and will not wait. Returns at once."""

    def bound(self, work: "GopcclWork", limit: timedelta) -> None:
        """Have ``work`` ended after ``limit``."""


class GopcclWork(c10d.Work):
    """An operation in flight.

    ``expire`` is called with a reason when a wait has lasted for ``limit``; it has
    to end the operation, so that nothing touches the tensors behind the wait.
    """

    def __init__(
        self, what: str, outputs: List[Tensor], limit: timedelta, number: int = 0, expire: Optional[Expire] = None
    ) -> None:
        super().__init__()
        self.what = what
        self.source: Optional[int] = None  # of a message
        self._outputs = outputs
        self._limit = limit
        self._number = number
        self._expire = expire
        self._lock = threading.Lock()
        self._over = False
        self._finisher = 0  # the thread that has set it, and calls what waits for the future
        self._event = threading.Event()
        self._error: Optional[BaseException] = None
        self._streams = cuda.streams_of(outputs)
        self._future: Any = Future(devices=[s.device for s in self._streams]) if self._streams else Future()
        self._driver: Optional[Driver] = None

    def driven(self, driver: "Driver") -> None:
        """Have ``driver`` complete the work, in the thread that waits for it."""
        self._driver = driver

    @contextlib.contextmanager
    def placing(self) -> Iterator[None]:
        """For what writes to the output tensors: on the streams that were the caller's, and complete at the end."""
        with contextlib.ExitStack() as stack:
            for s in self._streams:
                stack.enter_context(torch.cuda.stream(s))
            if any(t.is_inference() for t in _flat(self._outputs)):
                stack.enter_context(torch.inference_mode())  # such tensors are written only in it, and it is the caller's thread's
            yield
            for s in self._streams:
                s.synchronize()

    def finish(self, error: Optional[BaseException] = None) -> None:
        """Complete the work; the first call counts."""
        with self._lock:
            if self._over:
                return
            self._over = True
            self._finisher = threading.get_ident()
            self._error = error
        try:
            if error is None:
                self._future.set_result(self._outputs)
            else:
                self._future.set_exception(error)
        finally:
            self._event.set()
            self._driver = None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Block until the operation has ended; raises if it failed or ``timeout`` (0: the group's) is over."""
        limit = timeout if timeout > timedelta(0) else self._limit
        driver = self._driver
        if driver is not None:
            if timeout > timedelta(0):
                driver.bound(self, timeout)
            driver.drive(self)
        elif not self.over() and not self._event.wait(min(limit.total_seconds(), threading.TIMEOUT_MAX)):
            self.overdue(limit)
        if self._error is not None:
            raise self._error
        return True

    def over(self) -> bool:
        """Whether it is complete: for the callbacks of its future, before all of them have run."""
        return self._event.is_set() or self._finisher == threading.get_ident()

    def ended(self) -> None:
        """Wait for another thread that completes it."""
        if not self.over():
            self._event.wait()

    def settled(self, seconds: float) -> bool:
        """Wait a while for the end, whatever it is."""
        self._hurry()
        return self.over() or self._event.wait(seconds)

    def overdue(self, limit: timedelta) -> None:
        """End an operation that has lasted for ``limit``."""
        why = f"timed out after {int(limit.total_seconds() * 1000)}ms"
        if self._expire is not None:
            self._expire(f"{self.what} {why}")
            self._event.wait(_PATIENCE)  # the engine gives the tensors back
        self.finish(Failure(f"gopccl: {self.what}: {why}"))

    def is_completed(self) -> bool:
        """True when the result or the failure is known."""
        self._hurry()
        return self.over()

    def is_success(self) -> bool:
        """True when it has ended well."""
        self._hurry()
        return self.over() and self._error is None

    def exception(self) -> Optional[BaseException]:
        """The failure, if there is one."""
        return self._error

    def result(self) -> List[Tensor]:
        """The output tensors."""
        return self._outputs

    def source_rank(self) -> int:
        """The rank that a received message came from."""
        if self.source is None:
            raise RuntimeError(f"gopccl: {self.what} has no source rank")
        return self.source

    _source_rank = source_rank

    def _get_sequence_number(self) -> int:
        return self._number

    def synchronize(self) -> None:
        """Nothing to do: what is complete is so for every stream."""

    def get_future(self) -> Any:
        """A future of the list of output tensors."""
        self._hurry()
        return self._future

    def _hurry(self) -> None:
        driver = self._driver
        if driver is not None:
            driver.hurry(self)


_PATIENCE = 10.0  # seconds for the engine to end what was aborted


class JoinedWork(GopcclWork):
    """Several works as one, as the coalescing manager wants it."""

    def __init__(self, parts: List[GopcclWork], limit: timedelta) -> None:
        super().__init__("coalesced", [t for p in parts for t in p.result()], limit)
        self._parts = parts
        self._left = len(parts)
        self._followed = False
        if parts:
            self.driven(self)
        else:
            self.finish()

    def drive(self, work: GopcclWork) -> None:
        """Wait for all parts."""
        for p in self._parts:
            with contextlib.suppress(Exception):  # it is the part's, and asked for below
                p.wait()
        self._join()

    def hurry(self, work: GopcclWork) -> None:
        """Be told when a part has ended."""
        with self._lock:
            followed, self._followed = self._followed, True
        if not followed:
            for p in self._parts:
                p.get_future().add_done_callback(lambda _: self._part_done())

    def bound(self, work: GopcclWork, limit: timedelta) -> None:
        """Nothing to do: every part is bounded."""

    def _part_done(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left:
                return
        self._join()

    def _join(self) -> None:
        self.finish(next((e for e in (p.exception() for p in self._parts) if e is not None), None))

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for all parts; raises the first failure."""
        for p in self._parts:
            p.wait(timeout)
        return super().wait(timeout)


class Waiters:
    """Threads that wait for messages: as many as were ever in flight at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: "queue.SimpleQueue[Optional[Callable[[], None]]]" = queue.SimpleQueue()
        self._threads: List[threading.Thread] = []
        self._idle = 0  # threads that no call in the queue is for
        self._closed = False

    def run(self, f: Callable[[], None]) -> None:
        """Have a thread call ``f``; this one does once it is closed, when nothing lasts any more."""
        with self._lock:
            closed = self._closed
            if not closed:
                if self._idle:
                    self._idle -= 1
                else:
                    t = threading.Thread(target=self._serve, name="gopccl-message", daemon=True)
                    self._threads.append(t)
                    t.start()
                self._calls.put(f)
        if closed:
            f()

    def _serve(self) -> None:
        while True:
            f = self._calls.get()
            if f is None:
                return
            f()
            del f
            with self._lock:
                self._idle += 1

    def close(self) -> None:
        """End the threads; what they wait for has ended."""
        with self._lock:
            self._closed = True
            threads = list(self._threads)
            for _ in threads:
                self._calls.put(None)
        end = time.monotonic() + _PATIENCE
        for t in threads:
            if t is not threading.current_thread():
                t.join(max(0.0, end - time.monotonic()))


class Deadlines:
    """Ends works that nobody waits for when their time is over."""

    def __init__(self) -> None:
        self._cond = threading.Condition()
        self._heap: List[Tuple[float, int, GopcclWork, timedelta]] = []
        self._ids = itertools.count()
        self._until = math.inf  # the thread sleeps till then
        self._thread: Optional[threading.Thread] = None
        self._closed = False

    def add(self, work: GopcclWork, limit: timedelta) -> None:
        """Have ``work`` ended after ``limit``."""
        at = time.monotonic() + limit.total_seconds()
        with self._cond:
            if self._closed:
                return
            while self._heap and self._heap[0][2].over():
                heapq.heappop(self._heap)
            heapq.heappush(self._heap, (at, next(self._ids), work, limit))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="gopccl-deadlines", daemon=True)
                self._thread.start()
            elif at < self._until:  # to wake it for every work takes longer than a small one
                self._cond.notify()

    def _run(self) -> None:
        while True:
            with self._cond:
                while self._heap and self._heap[0][2].over():
                    heapq.heappop(self._heap)
                if self._closed:
                    return
                self._until = self._heap[0][0] if self._heap else math.inf
                left = self._until - time.monotonic()
                if left > 0:
                    self._cond.wait(min(left, threading.TIMEOUT_MAX))
                    continue
                _, _, work, limit = heapq.heappop(self._heap)
            work.overdue(limit)
            del work

    def close(self) -> None:
        """End the thread."""
        with self._cond:
            self._closed = True
            self._heap.clear()
            self._cond.notify()
            t = self._thread
        if t is not None and t is not threading.current_thread():
            t.join(_PATIENCE)
