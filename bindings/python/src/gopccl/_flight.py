"""Asynchronous operations: what the package holds of one, and what a caller has of it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Optional, Tuple

from gopccl import _lib
from gopccl._errors import PCCLError, Result
from gopccl._lib import ffi
from gopccl._types import ReduceInfo

if TYPE_CHECKING:
    from gopccl._comm import Communicator
    from gopccl._message import AnyHandle

BARRIER_TAG = (1 << 64) - 1  # of the handle of a barrier, which has none of its own

_await = _lib.extra("gopcclAwaitAsyncReduce")
_ASYNC_OP = ffi.typeof("pcclAsyncReduceOp_t *")
_VERDICT = ffi.typeof("gopcclVerdict_t *")

Verdict = Tuple[bool, int, ReduceInfo]


class Flight:
    """An asynchronous operation, from before its launch until it was awaited."""

    __slots__ = ("op", "owners", "launching", "lock", "verdict", "result", "detail")

    def __init__(self, comm: Any, tag: int, owners: Any) -> None:
        self.op = ffi.new(_ASYNC_OP)
        self.op.comm, self.op.tag = comm, tag
        self.owners = owners  # None once the library does not touch the buffers any more
        self.launching = True
        self.lock = threading.Lock()  # one thread waits, the others get what it got
        self.verdict = ffi.new(_VERDICT)
        self.result: Optional[Verdict] = None
        self.detail = ""

    def handle(self, comm: "Communicator", key: int) -> "AnyHandle":
        """What a caller has of it."""
        return AsyncReduceHandle(comm, key, self)

    def done(self, comm: "Communicator") -> bool:
        """Whether it has ended."""
        if self.result is not None:
            return True
        m = comm._member
        known = None if m is None else m.ended()
        return known is not None and known.get(self.op.tag, True)

    def wait(self) -> Verdict:
        """Wait until it has ended, and forget the buffers."""
        with self.lock:
            if self.result is None:
                self._wait()
        assert self.result is not None
        return self.result

    def settle(self) -> None:
        """Get the verdict of what has ended, for those who ask later."""
        # Another thread that waits has it in a moment. It may also be this one, below a signal handler.
        if self.lock.acquire(timeout=1.0):
            try:
                if self.result is None:
                    self._wait()
            finally:
                self.lock.release()

    def _wait(self) -> None:
        v = self.verdict
        if _await is None:  # a plain libpccl
            code = _lib.raw_call("pcclAwaitAsyncReduce", self.op, ffi.addressof(v, "info"))
            v.result, v.known = code, True
        elif not v.known:
            # Whatever interrupts us behind this call, the verdict is in v then.
            code = _lib.raw_call("gopcclAwaitAsyncReduce", self.op, v)
        else:
            code = v.result
        if code:
            self.detail = _lib.last_error_message()
        if v.known:
            self.owners = None
        i = v.info
        self.result = (code == 0, code, ReduceInfo(i.local_world_size, i.tx_bytes, i.rx_bytes) if code == 0 else ReduceInfo())


class AsyncReduceHandle:
    """An operation in flight. Made by ``Communicator.all_reduce_async`` and the others that end in ``_async``."""

    def __init__(self, comm: "Communicator", key: int, flight: Flight) -> None:
        self._comm = comm
        self._key = key
        self._flight = flight

    @property
    def tag(self) -> int:
        """The tag that the operation was launched with."""
        return int(self._flight.op.tag)

    def done(self) -> bool:
        """Whether ``wait`` returns at once, and the buffers are the caller's again. It never waits."""
        return self._flight.done(self._comm)

    def wait(self) -> Tuple[bool, int, ReduceInfo]:
        """Block until the operation has ended: (success, result code, info).

        Raises nothing but what a signal handler raises (KeyboardInterrupt); the
        handle can then be waited for again. Later calls, and those of other threads,
        return the same result.
        """
        result = self._flight.wait()
        self._comm._in_flight.pop(self._key, None)
        return result

    def result(self) -> ReduceInfo:
        """Like ``wait``, but raises PCCLError on failure."""
        ok, code, info = self.wait()
        if not ok:
            raise PCCLError(Result(code), "pcclAwaitAsyncReduce", self._flight.detail)
        return info
