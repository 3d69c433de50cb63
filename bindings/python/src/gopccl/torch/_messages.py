"""Messages between two ranks: ``send`` and ``recv``.

Every rank opens a listener; the members tell each other its address and a secret
when the group is formed. A rank that sends opens one connection per receiver. A
message is a header (secret, source, tag, length) and its bytes.
"""

from __future__ import annotations

import ctypes
import queue
import secrets
import socket
import struct
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Mapping, NamedTuple, Optional, Tuple

import torch

_HEADER = struct.Struct("<16sIqQ")

_PATIENCE = 5.0  # seconds for threads to end once their sockets are closed

_CONNECT = 10.0  # seconds for a connection to a member, whose listener is open

Done = Callable[[Optional[BaseException]], None]


class Peer(NamedTuple):
    """Where a rank receives, and the secret that proves who sends."""

    host: str
    port: int
    secret: str


def _view(t: Any) -> memoryview:
    """The bytes of a contiguous CPU tensor."""
    n = t.numel() * t.element_size()
    return memoryview((ctypes.c_ubyte * n).from_address(t.data_ptr())).cast("B") if n else memoryview(b"")


def _read(conn: socket.socket, into: memoryview) -> int:
    """Fill ``into``; return how many bytes came before the connection ended."""
    got = 0
    while got < len(into):
        n = conn.recv_into(into[got:])
        if n == 0:
            break
        got += n
    return got


class _Cut(Exception):
    """A connection ended in the middle of a message."""


class Messages:
    """The mailbox of one rank in one process group."""

    def __init__(self, rank: int, host: str) -> None:
        self._rank = rank
        self._lock = threading.Lock()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        self._listener.bind(("", 0))
        self._listener.listen(128)
        self._secret = secrets.token_bytes(16)
        self.peer = Peer(host, self._listener.getsockname()[1], self._secret.hex())
        self._peers: Mapping[int, Peer] = {}
        self._listening = False
        self._outboxes: Dict[int, "queue.SimpleQueue[Any]"] = {}
        self._arrived: Deque[Tuple[int, int, bytearray]] = deque()
        self._wanted: Deque[Tuple[Optional[int], int, List[Any], Any]] = deque()
        self._gone: Dict[int, str] = {}  # whose connection has ended, and how
        self._conns: List[socket.socket] = []
        self._threads: List[threading.Thread] = []
        self._closed: Optional[str] = None  # why

    def know(self, peers: Mapping[int, Peer]) -> None:
        """Tell the addresses of the members, by rank."""
        self._peers = peers

    def _start(self, target: Callable[..., None], args: Tuple[Any, ...], name: str) -> None:
        t = threading.Thread(target=target, args=args, name=name, daemon=True)
        self._threads.append(t)
        t.start()

    def send(self, dst: int, tag: int, parts: List[Any], done: Done) -> None:
        """Queue a message; ``done`` is called when it was handed to the network."""
        with self._lock:
            self._check_open()
            box = self._outboxes.get(dst)
            if box is None:
                box = self._outboxes[dst] = queue.SimpleQueue()
                self._start(self._deliver, (dst, box), f"gopccl-send-{dst}")
            box.put((tag, parts, done))

    def _check_open(self) -> None:
        if self._closed is not None:
            raise torch.distributed.DistBackendError(f"gopccl: {self._closed}")

    def _adopt(self, conn: socket.socket) -> None:
        """Have ``close`` end this connection."""
        with self._lock:
            if self._closed is not None:
                conn.close()
            self._check_open()
            self._conns.append(conn)

    def _deliver(self, dst: int, box: "queue.SimpleQueue[Any]") -> None:
        conn: Optional[socket.socket] = None
        secret = b""
        while True:
            item = box.get()
            if item is None:
                return
            tag, parts, done = item
            try:
                if conn is None:
                    to = self._peers[dst]
                    secret = bytes.fromhex(to.secret)
                    conn = socket.create_connection((to.host, to.port), timeout=_CONNECT)
                    conn.settimeout(None)
                    conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._adopt(conn)
                views = [_view(p) for p in parts]
                conn.sendall(_HEADER.pack(secret, self._rank, tag, sum(len(v) for v in views)))
                for v in views:
                    conn.sendall(v)
                done(None)
            except Exception as err:
                if conn is not None:  # half a message may be on its way
                    conn.close()
                    conn = None
                done(torch.distributed.DistBackendError(f"gopccl: send to rank {dst}: {err}"))
            del item, parts, done

    def recv(self, src: Optional[int], tag: int, tensors: List[Any], work: Any) -> None:
        """Fill ``tensors`` with the next message of ``src`` (None: of any rank) and ``tag``, then finish ``work``."""
        with self._lock:
            self._check_open()
            if not self._listening:
                self._listening = True
                self._start(self._accept, (self._listener,), "gopccl-mail")
            why: Optional[str] = None
            for i, (from_rank, t, data) in enumerate(self._arrived):
                if t == tag and src in (None, from_rank):
                    del self._arrived[i]
                    break
            else:
                why = None if src is None else self._gone.get(src)
                if why is None:
                    self._wanted.append((src, tag, tensors, work))
                    return
        if why is not None:
            work.finish(_failure(src, f"no message with tag {tag}: {why}"))
            return
        _hand_over(from_rank, data, tensors, work)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                conn, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                if self._closed is not None:
                    conn.close()
                    return
                self._conns.append(conn)
                self._start(self._receive, (conn,), "gopccl-recv")

    def _receive(self, conn: socket.socket) -> None:
        header = bytearray(_HEADER.size)
        src: Optional[int] = None  # who sends here
        why = ""
        try:
            while True:
                got = _read(conn, memoryview(header))
                if got == 0:
                    break  # it ended between two messages
                if got < len(header):
                    raise _Cut(f"the connection ended after {got} bytes of a header of {len(header)}")
                secret, rank, tag, length = _HEADER.unpack(header)
                if not secrets.compare_digest(secret, self._secret):
                    return
                src = rank
                with self._lock:
                    self._gone.pop(rank, None)  # it is back, behind a connection that had failed
                data = bytearray(length)
                got = _read(conn, memoryview(data))
                if got < length:
                    raise _Cut(f"the connection ended after {got} of {length} bytes of a message with tag {tag}")
                self._arrive(rank, tag, data)
        except (_Cut, OSError) as err:
            why = str(err)
        finally:
            conn.close()
        if src is not None:
            self._lost(src, why or "its connection ended")

    def _lost(self, src: int, why: str) -> None:
        """Fail what waits for a rank whose connection is gone; it has sent all that it will."""
        with self._lock:
            if self._closed is not None:
                return
            self._gone[src] = why
            waiting = [w for w in self._wanted if w[0] == src]
            self._wanted = deque(w for w in self._wanted if w[0] != src)
        for _, tag, _, work in waiting:
            work.finish(_failure(src, f"no message with tag {tag}: {why}"))

    def _arrive(self, src: int, tag: int, data: bytearray) -> None:
        with self._lock:
            for i, (wanted_src, wanted_tag, tensors, work) in enumerate(self._wanted):
                if wanted_tag == tag and wanted_src in (None, src):
                    del self._wanted[i]
                    break
            else:
                self._arrived.append((src, tag, data))
                return
        _hand_over(src, data, tensors, work)

    def close(self, why: str) -> None:
        """Close every connection and wait for the threads; what waits for a message fails.

        A thread that is inside PyTorch while the interpreter ends takes the process with
        it: PyTorch waits for the GIL in destructors, and there Python ends the thread.
        """
        with self._lock:
            if self._closed is not None:
                return
            self._closed = why
            wanted, self._wanted = self._wanted, deque()
            for box in self._outboxes.values():
                box.put(None)
            for s in [*self._conns, self._listener]:
                try:
                    s.shutdown(socket.SHUT_RDWR)  # wakes who waits in accept, recv or send
                except OSError:
                    pass  # the other end was faster
                s.close()
            threads = list(self._threads)
        for src, _, _, work in wanted:
            work.finish(_failure(src, why))
        end = time.monotonic() + _PATIENCE
        for t in threads:
            if t is not threading.current_thread():
                t.join(max(0.0, end - time.monotonic()))


def _failure(src: Optional[int], why: str) -> BaseException:
    whom = "any rank" if src is None else f"rank {src}"
    failure: BaseException = torch.distributed.DistBackendError(f"gopccl: recv from {whom}: {why}")
    return failure


def _hand_over(src: int, data: bytearray, tensors: List[Any], work: Any) -> None:
    want = sum(t.numel() * t.element_size() for t in tensors)
    if want != len(data):
        work.finish(_failure(src, f"{len(data)} bytes came, {want} expected"))
        return
    at = 0
    with work.placing():
        for t in tensors:
            n = t.numel() * t.element_size()
            if n:
                part = torch.frombuffer(data, dtype=torch.uint8, count=n, offset=at)
                t.detach().copy_(part.clone().view(t.dtype).view(t.shape))
            at += n
    work.source = src
    work.finish()
