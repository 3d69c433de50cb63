"""A barrier that names the ranks that do not come.

Rank 0 waits for a message of each other rank, in their order, and answers all of them
when they are there. What PyTorch's programs look for in the errors is worded as there. A
rank that comes too late fails the barrier and not the group.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Dict, List, Optional

import torch

from gopccl.torch import _moves
from gopccl.torch._core import Core
from gopccl.torch._moves import Post
from gopccl.torch._session import Session
from gopccl.torch._work import Failure, GopcclWork

_TAG = 1 << 62  # of the first one; PyTorch's tags for messages are numbers of 32 bits


def monitored_barrier(core: Core, timeout: Optional[timedelta], wait_all_ranks: bool) -> None:
    """Return when every rank of the group has called it, or raise after ``timeout`` (None: the group's)."""
    session = core.session("monitored_barrier")
    limit = core.limit(None) if timeout is None else timeout
    if session.place.size == 1:
        return
    barrier = _Barrier(core, session, limit)
    if session.place.rank == 0:
        barrier.collect(wait_all_ranks)
    else:
        barrier.report()


class _Barrier:
    def __init__(self, core: Core, session: Session, limit: timedelta) -> None:
        self._core, self._session, self._limit = core, session, limit
        self._end = time.monotonic() + limit.total_seconds()
        self._ms = int(limit.total_seconds() * 1000)
        session.barriers += 1
        self._tag = _TAG + session.barriers

    def collect(self, wait_all_ranks: bool) -> None:
        """Rank 0's part."""
        if self._limit <= timedelta(0):
            raise Failure(f"gopccl: Rank 0 timed out in monitoredBarrier after {self._ms} ms")
        words = {r: self._recv(r) for r in range(1, self._session.place.size)}
        missing: Dict[int, str] = {}
        for rank, word in words.items():
            why = self._failure(word)
            if why is not None:
                missing[rank] = why
                if not wait_all_ranks:
                    break
        if missing:
            ranks = ", ".join(map(str, missing))
            who = f"Rank {ranks}" if len(missing) == 1 else f"Ranks {ranks}"
            causes = sorted({why for why in missing.values() if why})
            raise Failure(f"gopccl: {who} failed to pass monitoredBarrier in {self._ms} ms" + "".join(f": {c}" for c in causes))
        answers = [self._send(r) for r in words]
        for answer in answers:
            why = self._failure(answer)
            if why is not None:
                raise Failure(f"gopccl: monitoredBarrier: all ranks came, but one did not take the answer within {self._ms} ms {why}")

    def report(self) -> None:
        """The other ranks' part."""
        parts: List[GopcclWork] = [self._recv(0), self._send(0)]
        if any(self._failure(p) is not None for p in parts):
            raise Failure(
                f"gopccl: Rank {self._session.place.rank} successfully reached monitoredBarrier, but received errors while waiting "
                f"for send/recv from rank 0 in {self._ms} ms: see the error of rank 0, which names the rank that is missing"
            )

    def _failure(self, work: GopcclWork) -> Optional[str]:
        """None if ``work`` ends well in time, else its error; empty if there is none yet."""
        if not work.settled(max(0.0, self._end - time.monotonic())):
            return ""
        err = work.exception()
        return None if err is None else str(err)

    def _recv(self, rank: int) -> GopcclWork:
        return self._begin(f"monitored_barrier from rank {rank}", _moves.recv(self._session.place, [_word()], rank, self._tag))

    def _send(self, rank: int) -> GopcclWork:
        return self._begin(f"monitored_barrier to rank {rank}", _moves.send(self._session.place, [_word()], rank, self._tag))

    def _begin(self, what: str, post: Post) -> GopcclWork:
        work = GopcclWork(what, [], self._limit)  # it is given up by nobody: a late rank fails no group
        try:
            self._session.post(post, work, None)
        except Failure:
            if not work.is_completed():
                raise  # it was not begun
        return work


def _word() -> torch.Tensor:
    return torch.zeros(1, dtype=torch.uint8)
