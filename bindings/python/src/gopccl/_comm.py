"""The communicator and the master."""

from __future__ import annotations

import itertools
import logging
import math
import os
import threading
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, TypeVar, Union

from gopccl import _address, _lib, cuda
from gopccl._buffers import Buffer, buffer_of, plain_pair
from gopccl._collect import Collectives, Group, Request, group_of
from gopccl._errors import ArgumentError, PCCLError, Result
from gopccl._flight import AsyncReduceHandle, Flight
from gopccl._lib import call, ffi
from gopccl._message import AnyHandle, Letter, Message, MessageHandle, Messages
from gopccl._state import SharedState
from gopccl._types import (
    Attribute,
    DataType,
    QuantizationAlgorithm,
    QuantizationOptions,
    ReduceDescriptor,
    ReduceInfo,
    ReduceOp,
    ReduceOperandDescriptor,
    SharedStateSyncInfo,
    SharedStateSyncStrategy,
    member,
)

_log = logging.getLogger("gopccl")

F = TypeVar("F", bound=Flight)


class ReduceOpDescriptor:
    """One all-reduce of a list: addresses of the buffers and what to do with them."""

    def __init__(self, sendbuf_ptr: int, recvbuf_ptr: int, reduce_descriptor: ReduceDescriptor) -> None:
        self.sendbuf_ptr = sendbuf_ptr
        self.recvbuf_ptr = recvbuf_ptr
        self.reduce_descriptor = reduce_descriptor
        self._owners: Any = None
        self._streams: Tuple[Any, ...] = ()

    @staticmethod
    def from_buffers(send: Any, recv: Any, reduce_descriptor: ReduceDescriptor) -> "ReduceOpDescriptor":
        """Describe an all-reduce of arrays, tensors or buffers; ``recv`` may be ``send``."""
        src, dst = _pair(send, recv, reduce_descriptor.operand_descriptor.datatype)
        if reduce_descriptor.count > src.numel:
            raise ArgumentError(f"reduce_descriptor.count is {reduce_descriptor.count}, send has {src.numel} elements")
        d = ReduceOpDescriptor(src.address, dst.address, reduce_descriptor)
        d._owners = (src.owner, dst.owner)
        d._streams = _streams(src, dst)
        return d

    @staticmethod
    def from_torch(send: Any, recv: Any, reduce_descriptor: ReduceDescriptor) -> "ReduceOpDescriptor":
        """Describe an all-reduce of PyTorch tensors; those of CUDA are used behind what the current stream holds now."""
        return ReduceOpDescriptor.from_buffers(send, recv, reduce_descriptor)

    @staticmethod
    def from_numpy(send: Any, recv: Any, reduce_descriptor: ReduceDescriptor) -> "ReduceOpDescriptor":
        """Describe an all-reduce of NumPy arrays."""
        return ReduceOpDescriptor.from_buffers(send, recv, reduce_descriptor)


# Type names parsed once: in a small all-reduce every microsecond counts.
_POINTER = ffi.typeof("void *")
_DESCRIPTOR = ffi.typeof("pcclReduceDescriptor_t *")
_REDUCE_INFO = ffi.typeof("pcclReduceInfo_t *")


class _Launch(NamedTuple):
    src: int
    dst: int
    descriptor: Any
    owners: Any


def _streams(src: Buffer, dst: Buffer) -> Tuple[Any, ...]:
    """The streams behind which memory of a device is used; nothing for memory of the host."""
    return () if src.device is None else (src.stream, dst.stream)


def _pair(send: Any, recv: Any, dtype: Optional[DataType]) -> Tuple[Buffer, Buffer]:
    src = buffer_of(send, "send", writable=False)
    dst = buffer_of(recv, "recv", writable=True)
    if src.dtype is not dst.dtype:
        raise ArgumentError(f"send has element type {src.dtype.name}, recv {dst.dtype.name}")
    if src.numel != dst.numel:
        raise ArgumentError(f"send has {src.numel} elements, recv {dst.numel}")
    if (src.device is None) != (dst.device is None):
        raise ArgumentError(f"send is on {src.where()}, recv on {dst.where()}: both must be on the CPU, or on CUDA devices")
    if dtype is not None:
        member(dtype, DataType, "operand_descriptor.datatype")
        if dtype.itemsize != src.dtype.itemsize:
            raise ArgumentError(f"operand_descriptor.datatype is {dtype.name}, the buffers hold {src.dtype.name}")
    return src, dst


def _launch(
    send: Any,
    recv: Any,
    op: ReduceOp,
    tag: int,
    operand: Optional[ReduceOperandDescriptor],
    quantization: Optional[QuantizationOptions],
) -> _Launch:
    src, dst = _pair(send, recv, operand.datatype if operand is not None else None)
    if src.device is not None:
        cuda.order(_streams(src, dst))
    if operand is None and quantization is None and 0 <= tag < 1 << 64:  # the common case, made quick
        c = ffi.new(_DESCRIPTOR)
        c.count, c.op, c.tag = src.numel, member(op, ReduceOp, "op"), tag
        c.src_descriptor.datatype = c.quantization_options.quantized_datatype = src.dtype._value_
        return _Launch(ffi.cast(_POINTER, src.address), ffi.cast(_POINTER, dst.address), c, (src.owner, dst.owner))
    if operand is None:
        operand = ReduceOperandDescriptor(src.dtype)
    if quantization is None:
        quantization = QuantizationOptions(operand.datatype, QuantizationAlgorithm.NONE)
    c = ffi.new(_DESCRIPTOR)
    ReduceDescriptor(src.numel, op, tag, operand, quantization).fill(c)
    return _Launch(ffi.cast(_POINTER, src.address), ffi.cast(_POINTER, dst.address), c, (src.owner, dst.owner))


# The descriptor of the last plain all-reduce, which trainers repeat. Nobody writes to it.
_last: Tuple[Any, Any] = (None, None)


def _described(count: int, dtype: DataType, op: ReduceOp, tag: int) -> Any:
    global _last
    key = (count, dtype, op, tag)
    known, c = _last
    if known != key:
        c = ffi.new(_DESCRIPTOR)
        c.count, c.op, c.tag = count, member(op, ReduceOp, "op"), tag
        c.src_descriptor.datatype = c.quantization_options.quantized_datatype = dtype._value_
        _last = (key, c)
    return c


def _info(c: Any) -> ReduceInfo:
    return ReduceInfo(c.local_world_size, c.tx_bytes, c.rx_bytes)


_list = _lib.extra("gopcclListAsyncReduces")
_close = _lib.extra("gopcclClose")
_set_masters = _lib.extra("gopcclSetMasters")
_set_reattach = _lib.extra("gopcclSetReattachTimeout")


class _Membership:
    """What the library holds of a communicator, and what it must not outlive.

    The library writes to the buffers of an operation until its verdict, whatever has
    dropped the handle or the communicator, and whatever exception has ended the
    call that launched it: this object is in a table of the module until the
    communicator was destroyed.
    """

    def __init__(self, c: Any) -> None:
        self.c = c
        self.over = False
        self.flights: Dict[int, Flight] = {}
        self.look = _LOOK  # with how many flights to look for those that have ended
        self.key = next(_keys)
        _memberships[self.key] = self

    def destroy(self) -> None:
        """Leave the run; if a signal handler raises meanwhile, it can be called again."""
        if self.over:
            return
        code = 0
        if _lib.in_home_process():
            self._await_all()
            code = _lib.raw_call("pcclDestroyCommunicator", self.c)
        self.over = True
        if code in (0, Result.INVALID_ARGUMENT.value):  # INVALID_ARGUMENT: it has ended since an earlier try
            _memberships.pop(self.key, None)
            self.flights.clear()
        # Else something has not ended, and may use its buffers yet: they are kept for good.

    def _await_all(self) -> None:
        """Leave the run and get every verdict: what had its result before must not count as failed."""
        flights = [f for f in list(self.flights.values()) if not f.launching]
        if flights and _close is not None and _lib.raw_call("gopcclClose", self.c) == 0:
            for f in flights:
                f.settle()

    def release(self) -> None:
        """Let go of the buffers of all operations that have ended, and of launches that came to nothing."""
        # Noted before the library is asked: what another thread launches meanwhile is not in its answer.
        flights = [(key, f, f.launching) for key, f in list(self.flights.items())]
        known = self.ended()
        if known is None:
            return
        used = 0
        for key, f, launching in flights:
            if launching:
                used += 1
                continue
            ended = known.get(f.op.tag)
            if ended is None:  # refused, or taken back, before the caller was told
                self.flights.pop(key, None)
            elif ended:
                f.owners = None
            else:
                used += 1
        self.look = max(_LOOK, 2 * used)

    def ended(self) -> Optional[Dict[int, bool]]:
        """By tag, whether an operation that was not awaited has ended; None if the library does not say."""
        if _list is None or not _lib.in_home_process():
            return None
        count = ffi.new("size_t *")
        room = len(self.flights)
        while True:
            found = ffi.new("gopcclAsyncReduce_t[]", max(1, room))
            if _lib.C.gopcclListAsyncReduces(self.c, found, room, count) != 0:
                return None
            if count[0] <= room:
                return {r.tag: r.ended for r in found[0 : count[0]]}
            room = count[0]


_LOOK = 8
_keys = itertools.count(1)
_memberships: Dict[int, _Membership] = {}


def _destroy_all() -> None:
    for m in list(_memberships.values()):
        m.destroy()


_lib.at_exit(_destroy_all)


def dump_state() -> str:
    """The state of every communicator and running master of this process, as text for people.

    Operations and what they wait for, connections, clients. It waits for no peer, so
    it works while another thread hangs in a call. With ``GOPCCL_DUMP_SIGNAL=10`` in the
    environment the library writes it to standard error whenever that signal comes.
    Empty with a plain libpccl.
    """
    if _lib.extra("gopcclDumpState") is None or not _lib.in_home_process():
        return ""
    size = 1 << 16
    while True:
        text = ffi.new("char[]", size)
        need = _lib.C.gopcclDumpState(text, size)
        if need < size:
            found: str = ffi.string(text).decode("utf-8", "replace")
            return found
        size = 2 * need


def secure(function: str, handle: Any, *texts: Union[None, str, "os.PathLike[str]"]) -> None:
    """Pass what TLS takes to ``function``, if there is any."""
    if any(t is not None for t in texts):
        call(function, handle, *(ffi.NULL if t is None else os.fsencode(t) for t in texts))


class Communicator(Collectives, Messages):
    """One peer's membership in a run.

    ``address`` is HOST:PORT of the master (IPv4, ``[IPv6]`` or a name), or those of all
    masters of a run that has several, with commas between them: it connects to the one that
    leads, and goes on with the next one that does. Collectives
    and shared state stay inside ``peer_group``. ``p2p_connection_pool_size`` is the
    number of connections to the next peer; 0 means as many as help.

    With ``credential``, the path of a file (``gopccl keys issue``), connections are in
    TLS. ``join`` is a join token (``gopccl keys token``), or ``@`` and the path of a file
    that has it: with it the peer gets the credential from the master at ``connect``, and
    writes it to that file unless it is there. None: as the configuration and the
    environment say.

    ``reattach_timeout`` is how many seconds it goes on without a master, which may be started
    again, or another one may lead: calls wait, and operations in flight go on. 0 ends it with
    its master. None: a minute, unless the configuration or the environment says otherwise.

    Usable as a context manager; leaving it closes. What is not closed is closed when
    the interpreter ends.
    """

    def __init__(
        self,
        address: str,
        peer_group: int = 0,
        p2p_connection_pool_size: int = 0,
        *,
        credential: Union[None, str, "os.PathLike[str]"] = None,
        join: Optional[str] = None,
        reattach_timeout: Optional[float] = None,
    ) -> None:
        self._member: Optional[_Membership] = None
        several = "," in address
        if several and _set_masters is None:
            raise ArgumentError(f"address is {address!r}: several masters need libgopccl")
        ip, port = _address.parse("127.0.0.1:0" if several else address, "address")
        for name, value in (("peer_group", peer_group), ("p2p_connection_pool_size", p2p_connection_pool_size)):
            if not 0 <= value < 1 << 32:
                raise ArgumentError(f"{name} is {value}, must be a 32 bit number, at least 0")
        if reattach_timeout is not None and not 0 <= reattach_timeout <= 86400:
            raise ArgumentError(f"reattach_timeout is {reattach_timeout}, must be 0 to 86400 seconds")
        params = ffi.new("pcclCommCreateParams_t *")
        _address.fill(params.master_address, ip, port)
        params.peer_group = peer_group
        params.p2p_connection_pool_size = p2p_connection_pool_size
        out = ffi.new("pcclComm_t **")
        call("pcclCreateCommunicator", params, out)
        self._member = _Membership(out[0])
        if several:  # they are resolved when it connects: one that cannot be does not stop the others
            call("gopcclSetMasters", self._handle, address.encode())
        secure("gopcclSetCredential", self._handle, credential, join)
        if reattach_timeout is not None and (reattach_timeout > 0 or _set_reattach is not None):
            call("gopcclSetReattachTimeout", self._handle, math.ceil(reattach_timeout * 1000))

    @property
    def _handle(self) -> Any:
        m = self._member
        return ffi.NULL if m is None else m.c

    @property
    def _in_flight(self) -> Dict[int, Flight]:
        m = self._member
        return {} if m is None else m.flights

    def close(self) -> None:
        """Leave the run and free everything; a second call does nothing.

        If a signal handler raises meanwhile, the communicator closes without the
        caller, and close can be called again to wait for it.
        """
        m = self._member
        if m is not None:
            m.destroy()
            self._member = None

    def leave(self) -> None:
        """Leave the run between two operations of the others, and free everything.

        It waits until operations that were launched have their verdicts, and until the
        others can go on without this peer: no all-reduce of theirs is aborted for it, as
        it is for ``close``. Raises PCCLError: the only peer that has the group's shared
        state stays while there are others (synchronise once more, or ``close`` to give it
        up); so does one of which another call runs.
        """
        self._release()
        call("gopcclLeave", self._handle)
        self.close()

    def in_flight(self) -> List[AnyHandle]:
        """The asynchronous operations that were not awaited, in the order of their launches.

        Also those whose handle nobody has, because it was dropped or because a signal
        handler raised between the launch and the assignment: as long as one is not
        awaited, its tag is taken, and the topology cannot be updated.
        """
        m = self._member
        if m is None:
            return []
        m.release()
        return [f.handle(self, key) for key, f in list(m.flights.items()) if not f.launching]

    def _release(self) -> None:
        m = self._member
        if m is not None and m.flights:
            m.release()

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def get_attribute(self, attribute: Attribute) -> int:
        """A number of the last round that this peer took part in."""
        out = ffi.new("int *")
        call("pcclGetAttribute", self._handle, member(attribute, Attribute, "attribute"), out)
        value: int = out[0]
        return value

    @property
    def rank(self) -> int:
        """This peer's place in the ring of its group, as of the last round."""
        out = ffi.new("int *")
        call("gopcclGetRank", self._handle, ffi.NULL, out)
        return int(out[0])

    def connect(self, n_attempts: int = 5) -> None:
        """Join the run; returns when the accepted peers have let this one in.

        Tries ``n_attempts`` times, a second apart, and raises the last error.
        """
        for attempt in range(max(1, n_attempts)):
            try:
                call("pcclConnect", self._handle)
                return
            except PCCLError as err:
                if attempt + 1 >= n_attempts:
                    raise
                _log.warning("connect, attempt %d of %d: %s", attempt + 1, n_attempts, err)
                time.sleep(1)

    def update_topology(self) -> None:
        """Let waiting peers in; every accepted peer of every group must call it."""
        self._release()
        call("pcclUpdateTopology", self._handle)

    def are_peers_pending(self) -> bool:
        """True if peers wait to be let in."""
        self._release()
        out = ffi.new("bool *")
        call("pcclArePeersPending", self._handle, out)
        return bool(out[0])

    def wait_for_peers(self, n: int) -> None:
        """Return when the group has at least ``n`` members, at once if it has.

        Until then it lets in who waits to be let in. All peers of the run must call it,
        or ``are_peers_pending`` and ``update_topology``, at the same place of their loops.
        In front of every step it makes training pause while the group is too small. While
        the group is large enough it lets nobody in: ask ``are_peers_pending`` at every step
        as well, for newcomers and for other groups that wait.
        Raises PCCLError as ``update_topology`` does.
        """
        if not 0 <= n < 1 << 32:
            raise ArgumentError(f"n is {n}, must be a 32 bit number, at least 0")
        self._release()
        call("gopcclWaitForPeers", self._handle, n)

    def optimize_topology(self) -> None:
        """Measure bandwidths and order the ring by them; every accepted peer must call it."""
        call("pcclOptimizeTopology", self._handle)

    def sync_shared_state(
        self,
        shared_state: SharedState,
        strategy: SharedStateSyncStrategy = SharedStateSyncStrategy.ENFORCE_POPULAR,
    ) -> SharedStateSyncInfo:
        """Make a shared state equal on all peers of the group.

        Every accepted peer of the group must call it with the same names in the same
        order. Contents and revision of outdated peers are overwritten. If it fails, or is
        interrupted, while contents are being received, they are a mixture of two states:
        ``shared_state.torn`` names the tensors, and ``shared_state`` only receives until a
        call has succeeded or a checkpoint was loaded (:meth:`SharedState.restored`).
        """
        self._release()
        kind = member(strategy, SharedStateSyncStrategy, "strategy")
        shared_state.order()
        shared_state._prepare()
        state, *keep = shared_state.to_c()
        info = ffi.new("pcclSharedStateSyncInfo_t *")
        try:
            call("pcclSynchronizeSharedState", self._handle, state, kind, info)
        except BaseException:
            shared_state._failed(state)
            raise
        finally:
            del keep
            # Only success changes it, also one behind which a signal handler has raised.
            shared_state.revision = state.revision
        shared_state._torn = ()
        return SharedStateSyncInfo(info.tx_bytes, info.rx_bytes)

    def all_reduce(
        self,
        send: Any,
        recv: Any,
        *,
        op: ReduceOp,
        tag: int = 0,
        operand_descriptor: Optional[ReduceOperandDescriptor] = None,
        quantization_options: Optional[QuantizationOptions] = None,
    ) -> ReduceInfo:
        """Combine ``send`` of all peers of the group into every ``recv`` and wait.

        ``send`` and ``recv`` are contiguous and have the same element type and number of
        elements, any shape; ``recv`` may be ``send``. After a failure (PCCLError) a ``recv``
        that is ``send`` is what it was before; any other ``recv`` is undefined, and ``send``
        untouched. If a signal handler raises, the operation may have succeeded all the same.
        ``tag`` must not be that of an operation that was launched and not awaited. None means
        the type of ``send`` and no quantization. Both may be on CUDA devices: they are used
        behind what PyTorch's current stream holds, and the result is complete for every stream.
        """
        info = ffi.new(_REDUCE_INFO)
        plain = None
        if operand_descriptor is None and quantization_options is None and 0 <= tag < 1 << 64:
            plain = plain_pair(send, recv)
        if plain is not None:
            src, dst, count, dtype = plain
            call("pcclAllReduce", src, dst, _described(count, dtype, op, tag), self._handle, info)
        else:
            a = _launch(send, recv, op, tag, operand_descriptor, quantization_options)
            call("pcclAllReduce", a.src, a.dst, a.descriptor, self._handle, info)
        return _info(info)

    def all_reduce_async(
        self,
        send: Any,
        recv: Any,
        *,
        op: ReduceOp,
        tag: int = 0,
        operand_descriptor: Optional[ReduceOperandDescriptor] = None,
        quantization_options: Optional[QuantizationOptions] = None,
    ) -> AsyncReduceHandle:
        """Launch an all-reduce and return at once, with a tag that no other one has that was not awaited.

        Leave the buffers alone until ``wait`` (and do not resize tensors: that frees their
        memory); dropping them, or the handle, is safe. All peers wait in the same order. After
        a failure they are as after one of ``all_reduce``.
        """
        a = _launch(send, recv, op, tag, operand_descriptor, quantization_options)
        flight = Flight(self._handle, a.descriptor.tag, a.owners)
        return AsyncReduceHandle(self, *self._fly(flight, "pcclAllReduceAsync", a.src, a.dst, a.descriptor, self._handle))

    def _fly(self, flight: F, name: str, *args: Any) -> Tuple[int, F]:
        """Call a function of the library that launches an operation and takes its handle last."""
        m = self._member
        if m is None:
            raise PCCLError(Result.INVALID_ARGUMENT, name, "the communicator was closed")
        if len(m.flights) >= m.look:
            m.release()
        # The library uses the buffers from inside the call on, and an exception may
        # be raised at any moment behind it: they have an owner before.
        key = next(_keys)
        m.flights[key] = flight
        try:
            call(name, *args, flight.op)
        except PCCLError:
            m.flights.pop(key, None)
            raise
        finally:
            flight.launching = False
        return key, flight

    def _send_or_receive(self, name: str, message: Message, *more: Any) -> None:
        try:
            message.order()
            call(name, self._handle, message.c, *more)
        except PCCLError as err:
            message.explain(err, self)
            raise

    def _post(self, name: str, message: Message) -> MessageHandle:
        try:
            message.order()
            return MessageHandle(self, *self._fly(Letter(self._handle, message), name, self._handle, message.c))
        except PCCLError as err:
            message.explain(err, self)
            raise

    def _collect(self, request: Request) -> ReduceInfo:
        info = ffi.new(_REDUCE_INFO)
        try:
            request.order()
            call("gopcclCollect", self._handle, request.c, info)
        except PCCLError as err:
            request.explain(err, self)
            raise
        return _info(info)

    def _collect_async(self, request: Request) -> AsyncReduceHandle:
        try:
            request.order()
            flight = Flight(self._handle, request.c.tag, request.owners)
            return AsyncReduceHandle(self, *self._fly(flight, "gopcclCollectAsync", self._handle, request.c))
        except PCCLError as err:
            request.explain(err, self)
            raise

    @property
    def group(self) -> Group:
        """The members of the group as collectives know them, as of the last round."""
        return group_of(self._handle)

    def all_reduce_multiple_with_retry(
        self, descriptors: Sequence[ReduceOpDescriptor], *, max_in_flight: int = 4
    ) -> ReduceInfo:
        """All-reduce a list, at most ``max_in_flight`` at a time, and retry with the survivors.

        Raises TOO_FEW_PEERS when this peer is alone; what is not done then is as before.
        Returns the sums of the byte counters.
        """
        if not 0 < max_in_flight < 1 << 31:
            raise ArgumentError(f"max_in_flight is {max_in_flight}, must be at least 1")
        items: List[ReduceOpDescriptor] = list(descriptors)
        array = ffi.new("pcclReduceOpDescriptor_t[]", max(1, len(items)))
        for c, d in zip(array, items):
            c.sendbuf = ffi.cast(_POINTER, d.sendbuf_ptr)
            c.recvbuf = ffi.cast(_POINTER, d.recvbuf_ptr)
            d.reduce_descriptor.fill(c.descriptor)
        streams = [s for d in items for s in d._streams]
        if streams:
            cuda.order(streams)
        info = ffi.new(_REDUCE_INFO)
        call("pcclAllReduceMultipleWithRetry", array, len(items), self._handle, info, max_in_flight)
        return _info(info)
