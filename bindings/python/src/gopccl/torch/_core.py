"""The state of one process group: its membership, and how it fails and comes back."""

from __future__ import annotations

import atexit
import hashlib
import json
import logging
import secrets
import threading
import time
import weakref
from datetime import timedelta
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from torch import Tensor
from torch._C import _distributed_c10d as c10d

from gopccl._lib import in_home_process
from gopccl._node import MasterNode
from gopccl.torch._moves import Move, Place, Post
from gopccl.torch._session import Session, start_master
from gopccl.torch._work import Failure, GopcclWork, JoinedWork

_log = logging.getLogger("gopccl")

_LINGER = 10.0  # seconds that rank 0 keeps the master for ranks that have not left yet
_UNSET = timedelta(0)  # options whose timeout is not above it have none


class Handle(NamedTuple):
    """What a process tells the others so that they can meet it."""

    id: str  # of the process in this group
    master: str  # address of a master that nobody has used yet
    at: str = ""  # address of the master with which it has a session that can go on
    runs: str = ""  # address of the master that it runs for a membership
    members: str = ""  # stands for those who are in that session, itself included

    @staticmethod
    def parse(text: str) -> "Handle":
        """A handle that ``encode`` has made; ValueError for anything else."""
        try:
            d = json.loads(text)
            if d.pop("v") == 2:
                return Handle(**{name: str(d[name]) for name in Handle._fields})
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        raise ValueError(f"gopccl: {text[:80]!r} is not a handle of this version of gopccl")

    def encode(self) -> str:
        """The handle as text."""
        return json.dumps({"v": 2, **self._asdict()}, sort_keys=True)


def _digest(ids: Sequence[str]) -> str:
    return hashlib.sha256(" ".join(sorted(ids)).encode()).hexdigest()[:32]


def kept_master(handles: Sequence[Handle]) -> str:
    """The address of the master whose sessions go on, for newcomers to join; empty if all processes make new ones.

    Handles must be given of all who are in the sessions, and one of them runs the
    master. All processes come to the same answer.
    """
    inside = [h for h in handles if h.at]
    whole = _digest([h.id for h in inside])
    same = len(inside) > 1 and len({h.at for h in inside}) == 1 and all(h.members == whole for h in inside)
    return inside[0].at if same and any(h.runs == inside[0].at for h in inside) else ""


class Core:
    """A process group without PyTorch's faces.

    It is fresh (no membership yet), ready, failed or revoked, and closed at the
    end. Only one with ``elastic`` becomes ready again, by ``reconfigure``.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, elastic: bool = False) -> None:
        self.store = store
        self.timeout = timeout
        self.elastic = elastic
        self.sequence = 0
        self.hooks: Dict[int, Callable[[], None]] = {}
        self._alone = Place(rank, size, range(size))
        self._lock = threading.RLock()
        self._session: Optional[Session] = None
        self._forming: Optional[Session] = None
        self._why: Optional[str] = None
        self._error = "SUCCESS"
        self._closed = False
        self._leaving = False
        self._master: Optional[MasterNode] = None  # that the membership uses
        self._runs = ""  # its address
        self._id = secrets.token_hex(16)
        self._offer: Optional[Tuple[MasterNode, str]] = None  # of the next handle
        self._used: Set[int] = set()
        self._batch = threading.local()
        self._ephemeral = _UNSET
        self._threads: List[threading.Thread] = []
        if not elastic:
            self._form_by_store(rank, size)
        atexit.register(_shutdown_if_alive, weakref.ref(self))

    def _form_by_store(self, rank: int, size: int) -> None:
        session = Session(rank, size, False, self._on_failure)
        address = ""
        if size > 1:
            if rank == 0:
                self._master, address = start_master(False)
                self.store.set("gopccl/master", address)
            else:
                address = self.store.get("gopccl/master").decode()
        try:
            session.form(address, 0, self.timeout)
        except BaseException:
            session.stop("the group was not formed")
            session.join()
            raise
        self._session = session

    @property
    def why(self) -> Optional[str]:
        """Why the membership has failed or was revoked; None if it works."""
        return self._why

    @property
    def place(self) -> Place:
        """Rank, size and order."""
        s = self._session
        return self._alone if s is None else s.place

    def session(self, what: str) -> Session:
        """The membership; raises if there is none that works."""
        with self._lock:
            if self._closed:
                raise Failure(f"gopccl: {what}: the process group was destroyed")
            if self._why is not None:
                hint = "; reconfigure it" if self.elastic else ""
                raise Failure(f"gopccl: {what}: the process group has failed: {self._why}{hint}")
            if self._session is None:
                raise Failure(f"gopccl: {what}: the process group has no members yet; call torch.distributed._reconfigure first")
            return self._session

    def limit(self, opts: Any) -> timedelta:
        """The time that an operation may take."""
        own = getattr(opts, "timeout", None)
        if own is not None and own > _UNSET:
            return own  # type: ignore[no-any-return]
        return self.timeout + self._ephemeral

    def submit(self, what: str, opts: Any, outputs: List[Tensor], plan: Callable[[Place], Sequence[Move]]) -> GopcclWork:
        """Launch what ``plan`` makes for this place in the group."""
        session = self.session(what)
        limit = self.limit(opts)
        moves = plan(session.place)
        work = self.work(session, what, outputs, limit)
        session.launch(moves, work, limit)
        self._batched(work)
        return work

    def work(self, session: Session, what: str, outputs: List[Tensor], limit: timedelta) -> GopcclWork:
        """A work of this group; one that waits too long fails the group."""
        with self._lock:
            self.sequence += 1
            number = self.sequence
        return self._new_work(what, outputs, limit, number, lambda why: self._fail(session, why, "TIMEOUT"))

    def _new_work(self, *args: Any) -> GopcclWork:
        return GopcclWork(*args)

    def message(self, what: str, tensors: List[Tensor], plan: Callable[[Place], Post]) -> GopcclWork:
        """Begin the message that ``plan`` makes for this place in the group."""
        session = self.session(what)
        limit = self.timeout + self._ephemeral
        post = plan(session.place)
        work = self.work(session, what, tensors, limit)
        session.post(post, work, limit)
        self._batched(work)
        return work

    # Coalescing: what a thread launches between begin and end is one work.

    def begin_batch(self) -> None:
        """Collect the works of this thread."""
        self._batch.works = []

    def end_batch(self) -> GopcclWork:
        """The works since ``begin_batch`` as one."""
        works: List[GopcclWork] = getattr(self._batch, "works", None) or []
        self._batch.works = None
        return works[0] if len(works) == 1 else JoinedWork(works, self.timeout)

    def _batched(self, work: GopcclWork) -> None:
        works = getattr(self._batch, "works", None)
        if works is not None:
            works.append(work)

    # Failing.

    def _on_failure(self, session: Session, why: str) -> None:
        self._fail(session, why, "COMM_ERROR")

    def _fail(self, session: Optional[Session], why: str, kind: str) -> None:
        with self._lock:
            if session is not self._session or self._why is not None or self._closed:
                return
            self._why, self._error = why, kind
            hooks = list(self.hooks.values())
        for h in hooks:
            try:
                h()
            except Exception:
                _log.exception("an abort hook has failed")
        if session is not None:
            if self.elastic and session.lost and kind == "COMM_ERROR":
                session.suspend(why)
            else:
                session.stop(why)

    def abort(self) -> None:
        """Revoke the membership: every operation ends with an error. Returns at once."""
        with self._lock:
            forming = self._forming
            if forming is not None:
                forming.stop("aborted")
        self._fail(self._session, "aborted", "SUCCESS")

    def error(self) -> Any:
        """What has gone wrong since the membership was formed, as torch.distributed names it."""
        return getattr(c10d.ErrorType, self._error)

    # Reconfiguring.

    def handle(self) -> str:
        """The handle by which the others reach this process at the next ``reconfigure``."""
        with self._lock:
            session = self._session
        members = [] if session is None else session.members()  # waits for what is ending
        spare: Optional[Tuple[MasterNode, str]] = None
        handle: Optional[Handle] = None
        while handle is None:
            with self._lock:
                if self._closed:
                    break
                if self._offer is None:
                    self._offer, spare = spare, None
                if self._offer is not None:
                    at = session.address if session is not None and members and session is self._session else ""
                    handle = Handle(self._id, self._offer[1], at, self._runs, _digest(members) if at else "")
                    break
            spare = start_master(True)  # to look up an address may take a while, and abort does not wait for that
        if spare is not None:
            spare[0].close()
        if handle is None:
            raise Failure("gopccl: handle: the process group was destroyed")
        return handle.encode()

    def reconfigure(self, opts: Any) -> GopcclWork:
        """Form a new membership of those whose handles ``opts`` has; returns before it is there."""
        if not self.elastic:
            raise RuntimeError("gopccl: reconfigure: the process group was made without enable_reconfigure=True")
        handles = [Handle.parse(h) for h in opts.handles]
        if isinstance(opts.handles, (set, frozenset)):
            handles.sort()
        ids = [h.id for h in handles]
        if len(set(ids)) != len(ids):
            raise ValueError("gopccl: reconfigure: a process is named twice")
        if self._id not in ids:
            raise ValueError("gopccl: reconfigure: the handle of this process is not among those given")
        uuid = int(opts.uuid)
        limit = opts.timeout if opts.timeout is not None and opts.timeout > _UNSET else self.timeout
        with self._lock:
            if self._closed:
                raise Failure("gopccl: reconfigure: the process group was destroyed")
            if uuid in self._used:
                raise RuntimeError(f"gopccl: reconfigure: uuid {uuid} was already used by this process")
            if self._forming is not None:
                raise RuntimeError("gopccl: reconfigure: another one is running")
            self._used.add(uuid)
            old = self._session
            new = self._forming = Session(ids.index(self._id), len(ids), True, self._on_failure)
            work = GopcclWork("reconfigure", [], limit, expire=lambda why: new.stop(why))
            t = threading.Thread(target=self._reform, args=(old, new, handles, uuid, limit, work), name="gopccl-reform", daemon=True)
            self._threads = [x for x in self._threads if x.is_alive()] + [t]
            t.start()
        return work

    def _reform(
        self, old: Optional[Session], new: Session, handles: List[Handle], uuid: int, limit: timedelta, work: GopcclWork
    ) -> None:
        error: Optional[BaseException] = None
        kept = kept_master(handles)
        # The same for all who were given the same: that tells the members of one attempt from those of another.
        text = f"{uuid} {[h.id for h in handles]}"
        number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")
        end = time.monotonic() + limit.total_seconds()
        try:
            if not kept or not self._go_on(old, new, kept, number, limit, end, next(h.at for h in handles if h.id == self._id)):
                if kept:
                    self._give_up(kept)
                kept = ""
                self._end(old)
                new.form(handles[0].master, number, limit, self._id, left=max(0.0, end - time.monotonic()))
        except BaseException as err:
            error = err
        with self._lock:
            self._forming = None
            retired = []
            if error is not None or self._runs != kept:
                retired.append(self._master)
                self._master, self._runs = None, ""
            if not kept and handles[0].id == self._id and self._offer is not None:
                if error is None:
                    self._master, self._runs = self._offer
                else:
                    retired.append(self._offer[0])
                self._offer = None
            if error is None and not self._closed:
                self._session, self._why, self._error = new, new.why, "SUCCESS"
            else:
                self._why = self._why or f"it was not reconfigured: {error}"
        if error is not None:
            new.stop(f"it was not formed: {error}")
            new.join()
        for m in retired:
            if m is not None:
                m.close()
        if error is not None and not isinstance(error, Failure):
            error = Failure(f"gopccl: reconfigure: {str(error) or type(error).__name__}")
        work.finish(error)

    def _go_on(
        self, old: Optional[Session], new: Session, address: str, number: int, limit: timedelta, end: float, at: str
    ) -> bool:
        """Form ``new`` in the sessions with the master at ``address``; False if all have to make new ones.

        ``at`` is the master at which the handle of this process has said to be; a newcomer joins.
        """
        comm = None
        if at == address:
            comm = old.release() if old is not None and old.address == address else None
            if comm is None:
                return False  # the others see that it is gone
        else:
            self._end(old)
        try:
            # Half of the time that is left: the other half is for new sessions.
            new.form(address, number, limit, self._id, comm, max(0.0, end - time.monotonic()) / 2)
        except Failure:
            if new.why is not None:
                raise
            new.drop()
            return False
        return True

    def _end(self, old: Optional[Session]) -> None:
        """End a membership that is of no use any more."""
        if old is not None:
            old.stop("the process group was reconfigured")
            old.join()

    def _give_up(self, address: str) -> None:
        """End the master at ``address`` if it is this process's, so that nobody waits there for others."""
        with self._lock:
            m = self._master if self._runs == address else None
            if m is not None:
                self._master, self._runs = None, ""
        if m is not None:
            m.close()

    # Leaving.

    def shutdown(self) -> None:
        """Leave the group; rank 0 waits a while for the others before it ends the master."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            session, forming = self._session, self._forming
            threads = list(self._threads)
        if forming is not None:
            forming.stop("the process group was destroyed")
        if session is not None:
            if self._why is None:
                session.drain()
            session.stop("the process group was destroyed")
            session.join()
        for t in threads:
            if t is not threading.current_thread():
                t.join(_LINGER)
        if not self.elastic and self.place.size > 1:
            self._linger()
        for m in (self._master, self._offer[0] if self._offer is not None else None):
            if m is not None:
                m.close()

    def _linger(self) -> None:
        try:
            self.store.add("gopccl/left", 1)
            end = time.monotonic() + (_LINGER if self._why is None else 0)
            while self._master and self.store.add("gopccl/left", 0) < self.place.size and time.monotonic() < end:
                time.sleep(0.01)
        except (RuntimeError, OSError) as err:  # the store may be gone already
            _log.debug("leaving: %s", err)


def _shutdown_if_alive(ref: "weakref.ref[Core]") -> None:
    core = ref()
    if core is not None and in_home_process():  # a child made by fork shares the sockets, and has left nothing
        core.shutdown()
