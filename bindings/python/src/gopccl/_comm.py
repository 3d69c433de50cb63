"""The communicator and the master."""

from __future__ import annotations

import logging
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from gopccl import _address, _lib, cuda
from gopccl._buffers import Buffer, buffer_of, plain_pair
from gopccl._errors import ArgumentError, PCCLError
from gopccl._lib import call, ffi
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


class AsyncReduceHandle:
    """An all-reduce in flight; keeps its buffers alive. Made by ``Communicator.all_reduce_async``."""

    def __init__(self, comm: "Communicator", op: Any, launch: _Launch) -> None:
        self._comm = comm
        self._op = op
        self._key = id(self)
        self._result: Optional[Tuple[bool, int, ReduceInfo]] = None
        # The library writes to the buffers until the operation is awaited, whether
        # or not the caller keeps this handle.
        comm._in_flight[self._key] = launch.owners

    def wait(self) -> Tuple[bool, int, ReduceInfo]:
        """Block until the operation has ended: (success, result code, info).

        Raises nothing but what a signal handler raises (KeyboardInterrupt); the
        handle can then be waited for again. Later calls return the same result.
        """
        if self._result is None:
            c = ffi.new("pcclReduceInfo_t *")
            code = _lib.raw_call("pcclAwaitAsyncReduce", self._op, c)
            self._detail = _lib.last_error_message() if code else ""
            self._result = (code == 0, code, _info(c) if code == 0 else ReduceInfo())
            self._comm._in_flight.pop(self._key, None)
        return self._result

    def result(self) -> ReduceInfo:
        """Like ``wait``, but raises PCCLError on failure."""
        ok, code, info = self.wait()
        if not ok:
            from gopccl._errors import Result

            raise PCCLError(Result(code), "pcclAwaitAsyncReduce", self._detail)
        return info


class Communicator:
    """One peer's membership in a run.

    ``address`` is HOST:PORT of the master (IPv4, ``[IPv6]`` or a name). Collectives
    and shared state stay inside ``peer_group``. ``p2p_connection_pool_size`` is the
    number of connections to the next peer; 0 means 1.

    Usable as a context manager; leaving it closes.
    """

    def __init__(self, address: str, peer_group: int = 0, p2p_connection_pool_size: int = 0) -> None:
        self._c: Any = None
        self._in_flight: Dict[int, Any] = {}
        ip, port = _address.parse(address, "address")
        for name, value in (("peer_group", peer_group), ("p2p_connection_pool_size", p2p_connection_pool_size)):
            if not 0 <= value < 1 << 32:
                raise ArgumentError(f"{name} is {value}, must be a 32 bit number, at least 0")
        params = ffi.new("pcclCommCreateParams_t *")
        _address.fill(params.master_address, ip, port)
        params.peer_group = peer_group
        params.p2p_connection_pool_size = p2p_connection_pool_size or 1
        out = ffi.new("pcclComm_t **")
        call("pcclCreateCommunicator", params, out)
        self._c = out[0]

    @property
    def _handle(self) -> Any:
        if self._c is None:
            return ffi.NULL
        return self._c

    def close(self) -> None:
        """Leave the run and free everything; a second call does nothing."""
        c, self._c = self._c, None
        if c is not None and _lib.in_home_process():
            _lib.C.pcclDestroyCommunicator(c)
        self._in_flight.clear()

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
        call("pcclUpdateTopology", self._handle)

    def are_peers_pending(self) -> bool:
        """True if peers wait to be let in."""
        out = ffi.new("bool *")
        call("pcclArePeersPending", self._handle, out)
        return bool(out[0])

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
        order. Contents and revision of outdated peers are overwritten.
        """
        kind = member(strategy, SharedStateSyncStrategy, "strategy")
        shared_state.order()
        state, *keep = shared_state.to_c()
        info = ffi.new("pcclSharedStateSyncInfo_t *")
        try:
            call("pcclSynchronizeSharedState", self._handle, state, kind, info)
        finally:
            del keep
        shared_state.revision = state.revision
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
        elements, any shape; ``recv`` may be ``send``. After a failure ``recv`` is what it
        was before. None means the type of ``send`` and no quantization. Both may be on CUDA
        devices: they are used behind what PyTorch's current stream holds, and the result is
        complete for every stream.
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
        """Launch an all-reduce and return at once; tags in flight must differ.

        Leave the buffers alone until ``wait``; all peers wait in the same order.
        """
        a = _launch(send, recv, op, tag, operand_descriptor, quantization_options)
        handle = ffi.new("pcclAsyncReduceOp_t *")
        call("pcclAllReduceAsync", a.src, a.dst, a.descriptor, self._handle, handle)
        return AsyncReduceHandle(self, handle, a)

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


class MasterNode:
    """Coordinator of a run, listening at ``listen_address`` (HOST:PORT).

    Usable as a context manager; leaving it closes.
    """

    def __init__(self, listen_address: str) -> None:
        self._c: Any = None
        self._running = False
        ip, port = _address.parse(listen_address, "listen_address")
        address = ffi.new("ccoip_socket_address_t *")
        _address.fill(address, ip, port)
        out = ffi.new("pcclMasterInstance_t **")
        call("pcclCreateMaster", address[0], out)
        self._c = out[0]

    @property
    def _handle(self) -> Any:
        return ffi.NULL if self._c is None else self._c

    def run(self) -> None:
        """Serve in the background; INVALID_USAGE if the port is taken."""
        call("pcclRunMaster", self._handle)
        self._running = True

    @property
    def port(self) -> int:
        """Port that the running master listens on; port 0 of ``listen_address`` asks the system for one."""
        out = ffi.new("uint16_t *")
        call("gopcclGetMasterPort", self._handle, out)
        return int(out[0])

    def wait(self) -> None:
        """Block until the master has ended."""
        call("pcclMasterAwaitTermination", self._handle)

    def interrupt(self) -> None:
        """Tell the master to end; returns at once."""
        call("pcclInterruptMaster", self._handle)

    def close(self) -> None:
        """End the master and free it; a second call does nothing."""
        c, self._c = self._c, None
        if c is not None and _lib.in_home_process():
            if self._running:
                _lib.C.pcclInterruptMaster(c)
                _lib.C.pcclMasterAwaitTermination(c)
            _lib.C.pcclDestroyMaster(c)

    def __enter__(self) -> "MasterNode":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
