"""Messages from one member of the group to another."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Optional, Tuple, Union

from gopccl import _lib, cuda
from gopccl._buffers import buffer_of
from gopccl._errors import ArgumentError, PCCLError, Result
from gopccl._flight import BARRIER_TAG, AsyncReduceHandle, Flight
from gopccl._lib import ffi
from gopccl._types import ReduceInfo

if TYPE_CHECKING:
    from gopccl._collect import Group
    from gopccl._comm import Communicator

_ANY = -1

_MESSAGE = ffi.typeof("gopcclMessage_t *")
_RECEIPT = ffi.typeof("gopcclReceipt_t *")
_INT = ffi.typeof("int *")
_POINTER = ffi.typeof("void *")
_SIZE = ffi.sizeof("gopcclMessage_t")


class Message:
    """One message as the library takes it. ``owner`` keeps its buffer alive."""

    __slots__ = ("c", "owner", "peer", "_streams")

    def __init__(self, obj: Any, what: str, peer: Optional[int], tag: int, *, writable: bool) -> None:
        if not 0 <= tag < 1 << 64:
            raise ArgumentError(f"tag is {tag}, must be a 64 bit number, at least 0")
        try:
            self.peer = None if peer is None and writable else operator.index(peer)  # type: ignore[arg-type]
        except TypeError:
            raise ArgumentError(f"peer is {peer!r}, must be the index of a member (see Communicator.group)") from None
        if self.peer is not None and not 0 <= self.peer < 1 << 31:
            raise ArgumentError(f"peer is {peer}, must be the index of a member (see Communicator.group)")
        b = buffer_of(obj, what, writable=writable, moved=True)
        self.owner = b.owner
        self._streams = () if b.device is None else (b.stream,)
        self.c = c = ffi.new(_MESSAGE)
        c.size, c.tag = _SIZE, tag
        c.peer = _ANY if self.peer is None else self.peer
        c.data, c.bytes = ffi.cast(_POINTER, b.address), b.numel * b.dtype.itemsize

    def order(self) -> None:
        """Make this thread's next call wait for what is queued for memory of a device."""
        if self._streams:
            cuda.order(self._streams)

    def explain(self, err: PCCLError, comm: "Messages") -> None:
        """Raise ArgumentError if ``err`` comes from the index of the other end."""
        if err.result is not Result.INVALID_ARGUMENT or self.peer is None:
            return
        try:
            g = comm.group
        except PCCLError:
            return
        if g.collectives and (self.peer >= g.size or self.peer == g.index):
            raise ArgumentError(
                f"peer is {self.peer}, must be the index of another member: this one has {g.index}, the group {g.size} members"
            ) from err


class Letter(Flight):
    """A message in flight."""

    __slots__ = ("tag", "receipt", "peer")

    def __init__(self, comm: Any, message: Message) -> None:
        super().__init__(comm, BARRIER_TAG, message.owner)  # the library puts another tag into the handle
        self.tag: int = message.c.tag
        self.receipt = ffi.new(_RECEIPT)
        self.peer = _ANY

    def handle(self, comm: "Communicator", key: int) -> "MessageHandle":
        """What a caller has of it."""
        return MessageHandle(comm, key, self)

    def _wait(self) -> None:
        r = self.receipt
        # Whatever interrupts us behind this call, what became of it is in r then.
        code = r.result if r.known else _lib.raw_call("gopcclAwaitMessage", self.op, r)
        if code:
            self.detail = _lib.last_error_message()
        if r.known:
            self.owners = None
            self.peer = r.peer
        self.result = (code == 0, code, ReduceInfo())


class MessageHandle:
    """A message in flight. Made by ``Communicator.send_async`` and ``recv_async``."""

    def __init__(self, comm: "Communicator", key: int, flight: Letter) -> None:
        self._comm = comm
        self._key = key
        self._flight = flight

    @property
    def tag(self) -> int:
        """The tag of the message."""
        return self._flight.tag

    def done(self) -> bool:
        """Whether ``wait`` returns at once, and the buffer is the caller's again. It never waits."""
        return self._flight.done(self._comm)

    def wait(self) -> Tuple[bool, int, int]:
        """Block until the message is there, or has failed: (success, result code, index of the other end).

        Raises nothing but what a signal handler raises (KeyboardInterrupt); the handle can
        then be waited for again. Later calls, and those of other threads, return the same.
        The index is -1 if there is no other end.
        """
        ok, code, _ = self._flight.wait()
        self._comm._in_flight.pop(self._key, None)
        return ok, code, self._flight.peer

    def result(self) -> int:
        """Like ``wait``, but returns the index alone, and raises PCCLError on failure."""
        ok, code, peer = self.wait()
        if not ok:
            raise PCCLError(Result(code), "gopcclAwaitMessage", self._flight.detail)
        return peer


AnyHandle = Union[AsyncReduceHandle, MessageHandle]


class Messages:
    """The messages of a communicator.

    They need what collectives besides all-reduce need (:attr:`Communicator.group`). Members
    are named by their index. ``data`` and ``buffer`` are contiguous memory of the CPU, or of a CUDA
    device, for which a call waits as long as PyTorch's current stream is busy, with as many bytes at both ends, of any element type with a fixed size and of any shape; if the
    numbers differ both ends raise INVALID_ARGUMENT, and nothing is written. Messages of one
    sender with the same ``tag`` are received in the order in which they were sent; any number
    may have it. No vote is taken, and no other member hears of a message.

    A failure is PCCLError: RANK_CONNECTION_LOST if the other end has left or a round has
    begun, and for a message from any member if one has left. After it ``buffer`` is undefined.
    """

    if TYPE_CHECKING:

        def _send_or_receive(self, name: str, message: Message, *more: Any) -> None: ...

        def _post(self, name: str, message: Message) -> MessageHandle: ...

        @property
        def group(self) -> Group: ...

    def send(self, data: Any, *, peer: int, tag: int = 0) -> None:
        """Send ``data`` to member ``peer``, and return when it has received all of it.

        Two members that send to each other have to receive at the same time: see ``send_async``.
        """
        self._send_or_receive("gopcclSend", Message(data, "data", peer, tag, writable=False))

    def recv(self, buffer: Any, *, peer: Optional[int] = None, tag: int = 0) -> int:
        """Receive a message of member ``peer``, or of any, into ``buffer``; return its sender's index."""
        sender = ffi.new(_INT)
        self._send_or_receive("gopcclReceive", Message(buffer, "buffer", peer, tag, writable=True), sender)
        return int(sender[0])

    def send_async(self, data: Any, *, peer: int, tag: int = 0) -> MessageHandle:
        """Begin to send ``data`` to member ``peer``; leave it alone until ``wait``.

        The first message to a member that is not a neighbour waits until all members have
        connected with each other.
        """
        return self._post("gopcclSendAsync", Message(data, "data", peer, tag, writable=False))

    def recv_async(self, buffer: Any, *, peer: Optional[int] = None, tag: int = 0) -> MessageHandle:
        """Begin to receive a message of member ``peer``, or of any, into ``buffer``; leave it alone until ``wait``."""
        return self._post("gopcclReceiveAsync", Message(buffer, "buffer", peer, tag, writable=True))
