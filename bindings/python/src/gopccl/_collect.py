"""Collectives besides all-reduce: what they are given, and how it is said when that is wrong."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Tuple, Union
from uuid import UUID

from gopccl import cuda
from gopccl._buffers import Buffer, buffer_of
from gopccl._errors import ArgumentError, PCCLError, Result
from gopccl._flight import BARRIER_TAG
from gopccl._lib import call, ffi
from gopccl._types import DataType, QuantizationAlgorithm, QuantizationOptions, ReduceInfo, ReduceOp, member

if TYPE_CHECKING:
    from gopccl._flight import AsyncReduceHandle


@dataclass(frozen=True)
class Group:
    """The members of a group as collectives know them.

    ``size`` members; ``index`` is this peer's among them, -1 if the group has no
    collectives besides all-reduce. ``collectives`` says that it has: every member and the
    master are gopccl peers that know them. ``mesh`` says that all members are connected
    with each other, as they are once a gather, scatter or all_to_all was asked for. ``members`` are their numbers in the order of their blocks.
    """

    size: int
    index: int
    collectives: bool
    mesh: bool
    members: Tuple[UUID, ...]


def group_of(handle: Any) -> Group:
    """The group of a communicator of the library."""
    g, room = ffi.new("gopcclGroup_t *"), 0
    while True:
        found = ffi.new("uint8_t[][16]", max(1, room))
        call("gopcclGetGroup", handle, g, found, room)
        if not g.collectives or g.size <= room:
            break
        room = g.size
    n = g.size if g.collectives else 0
    return Group(g.size, g.index, bool(g.collectives), bool(g.mesh), tuple(UUID(bytes=bytes(found[i])) for i in range(n)))


_ALL_GATHER, _REDUCE_SCATTER, _BROADCAST, _REDUCE, _GATHER, _SCATTER, _ALL_TO_ALL, _BARRIER = range(1, 9)
_NAMES = ("", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "all_to_all", "barrier")
_COMBINING = (_REDUCE_SCATTER, _REDUCE)

_POINTER = ffi.typeof("void *")
_COLLECTIVE = ffi.typeof("gopcclCollective_t *")
_COUNTS = ffi.typeof("size_t[]")
_SIZE = ffi.sizeof("gopcclCollective_t")


def _side(obj: Any, what: str, kind: int, writable: bool) -> Optional[Buffer]:
    if obj is None:
        return None
    return buffer_of(obj, what, writable=writable, moved=kind not in _COMBINING)


def _counts(list_of: Sequence[int], what: str, scale: int) -> Any:
    counts: List[int] = []
    for n in list_of:
        try:
            count = operator.index(n)
        except TypeError:
            raise ArgumentError(f"{what} has {n!r}, must have a number of elements for each member") from None
        if not 0 <= count * scale < 1 << 63:
            raise ArgumentError(f"{what} has {count}, must have a number of elements, at least 0, for each member")
        counts.append(count * scale)
    return ffi.new(_COUNTS, counts or [0]), len(counts)


# What quantization= takes: the options of an all-reduce, or the name of a quantizer, or name and type ("minmax:uint16").
Quantization = Union[QuantizationOptions, str]

_QUANTIZERS = {QuantizationAlgorithm.MIN_MAX: "minmax", QuantizationAlgorithm.ZERO_POINT_SCALE: "zeropoint"}
_WIRE_NAMES = {DataType.FLOAT: "float32", DataType.DOUBLE: "float64"}


def _quantization(given: Quantization) -> Tuple[Any, Any]:
    """Name of the quantizer and of the type on the wire, as the library takes them."""
    if isinstance(given, QuantizationOptions):
        member(given.algorithm, QuantizationAlgorithm, "quantization.algorithm")
        member(given.quantized_datatype, DataType, "quantization.quantized_datatype")
        name = _QUANTIZERS.get(given.algorithm, "none")
        wire = _WIRE_NAMES.get(given.quantized_datatype, given.quantized_datatype.name.lower())
    elif isinstance(given, str):
        name, _, wire = given.partition(":")
    else:
        raise ArgumentError(f"quantization is a {type(given).__name__}, must be QuantizationOptions or the name of a quantizer")
    if "\0" in name + wire:
        raise ArgumentError(f"quantization is {given!r}, which names no quantizer")
    return ffi.new("char[]", name.encode()), ffi.new("char[]", wire.encode()) if wire else ffi.NULL


class Request:
    """One collective as the library takes it. ``owners`` keep its buffers alive."""

    __slots__ = ("kind", "c", "owners", "src", "dst", "_lists", "_names")

    def __init__(
        self,
        kind: int,
        send: Any = None,
        recv: Any = None,
        *,
        tag: int = 0,
        root: int = 0,
        op: Optional[ReduceOp] = None,
        preserve: bool = False,
        counts: Optional[Sequence[int]] = None,
        send_counts: Optional[Sequence[int]] = None,
        recv_counts: Optional[Sequence[int]] = None,
        quantization: Optional[Quantization] = None,
    ) -> None:
        if not 0 <= tag < 1 << 64:
            raise ArgumentError(f"tag is {tag}, must be a 64 bit number, at least 0")
        if not 0 <= root < 1 << 31:
            raise ArgumentError(f"root is {root}, must be the index of a member (see Communicator.group)")
        self.kind = kind
        self.src = src = _side(send, "send" if kind != _BROADCAST else "buffer", kind, writable=False)
        self.dst = dst = _side(recv, "recv" if kind != _BROADCAST else "buffer", kind, writable=True)
        self.owners = (src and src.owner, dst and dst.owner)
        self.c = c = ffi.new(_COLLECTIVE)
        c.size, c.kind, c.tag, c.root, c.preserve = _SIZE, kind, tag, root, preserve
        if op is not None:
            c.op = member(op, ReduceOp, "op")
        scale = 1
        for b in (src, dst):
            if b is not None:
                c.datatype, scale = b.dtype._value_, b.scale
        if src is not None:
            c.src, c.src_count = ffi.cast(_POINTER, src.address), src.numel
        if dst is not None:
            c.dst, c.dst_count = ffi.cast(_POINTER, dst.address), dst.numel
        if src is not None and dst is not None and (src.dtype is not dst.dtype or src.moved != dst.moved):
            raise ArgumentError(f"send has element type {src.type_name}, recv {dst.type_name}")
        self._names = None if quantization is None else _quantization(quantization)  # read inside the call, as the lists
        if self._names is not None:
            c.quantizer, c.quantized_type = self._names
        self._lists: List[Any] = []  # the library reads them inside the call
        for what, given in (("counts", counts), ("send_counts", send_counts), ("recv_counts", recv_counts)):
            if given is None:
                continue
            array, n = _counts(given, what, scale)
            if self._lists and n != c.members:
                raise ArgumentError(f"send_counts has {c.members} entries, recv_counts {n}: both have one for each member")
            self._lists.append(array)
            setattr(c, what, array)
            c.members = n

    def order(self) -> None:
        """Make this thread's next call wait for what is queued for memory of devices."""
        streams = [b.stream for b in (self.src, self.dst) if b is not None and b.device is not None]
        if streams:
            cuda.order(streams)

    def explain(self, err: PCCLError, comm: "Collectives") -> None:
        """Raise ArgumentError if ``err`` comes from sizes, saying which they must be."""
        if err.result is not Result.INVALID_ARGUMENT or "invalid argument" not in err.detail or self.kind == _BARRIER:
            return
        try:
            g = comm.group
        except PCCLError:
            return
        text = self._wrong(g)
        if text:
            raise ArgumentError(f"{_NAMES[self.kind]}: {text}") from err

    def _wrong(self, g: Group) -> str:
        if not g.collectives:
            return ""
        n, c, kind, root = g.size, self.c, self.kind, g.index == self.c.root
        if self._lists and c.members != n:
            return f"there are counts for {c.members} members, the group has {n}"
        if kind in (_BROADCAST, _REDUCE, _GATHER, _SCATTER) and c.root >= n:
            return f"root is {c.root}, the group has {n} members, numbered from 0"
        if kind in (_REDUCE, _GATHER) and root and self.dst is None:
            return "recv is None at the root, which gets the result"
        if kind == _SCATTER and root and self.src is None:
            return "send is None at the root, which has the blocks"
        src, dst = self.src, self.dst
        if src is None or dst is None:
            return ""
        if src.numel and dst.numel and (src.device is None) != (dst.device is None):
            return f"send is on {src.where()}, recv on {dst.where()}: both must be on the CPU, or on CUDA devices"
        scale, counts = src.scale, c.counts
        if kind == _REDUCE and root and src.numel != dst.numel:
            return f"send has {src.elements} elements, recv {dst.elements}"
        if kind in (_ALL_GATHER, _GATHER) and (root or kind == _ALL_GATHER):
            return _blocks("recv", dst.elements, "send", src.elements, counts, n, g.index, scale)
        if kind in (_REDUCE_SCATTER, _SCATTER) and (root or kind == _REDUCE_SCATTER):
            return _blocks("send", src.elements, "recv", dst.elements, counts, n, g.index, scale)
        if kind != _ALL_TO_ALL:
            return ""
        if (c.send_counts == ffi.NULL) != (c.recv_counts == ffi.NULL):
            return "send_counts and recv_counts are both needed, or none"
        for what, b, list_of in (("send", src, c.send_counts), ("recv", dst, c.recv_counts)):
            if list_of != ffi.NULL and sum(list_of[0:n]) != b.numel:
                return f"{what} has {b.elements} elements, the sum of {what}_counts is {sum(list_of[0:n]) // scale}"
            if list_of == ffi.NULL and b.elements % n:
                return f"{what} has {b.elements} elements, which do not divide into {n} equal blocks: pass send_counts and recv_counts"
        return ""


def _blocks(all_name: str, whole: int, own_name: str, own: int, counts: Any, n: int, me: int, scale: int) -> str:
    """What is wrong with a buffer of all blocks and one of the own block."""
    if counts == ffi.NULL:
        if whole != n * own:
            return f"{all_name} has {whole} elements, {own_name} {own}: with {n} members {all_name} has {n} times as many, or pass counts"
        return ""
    if sum(counts[0:n]) != whole * scale:
        return f"{all_name} has {whole} elements, the sum of counts is {sum(counts[0:n]) // scale}"
    if counts[me] != own * scale:
        return f"{own_name} has {own} elements, the count of this peer (counts[{me}]) is {counts[me] // scale}"
    return ""


class Collectives:
    """The collectives of a communicator besides all-reduce.

    All members of the group must be gopccl peers that have them, and the master too
    (:attr:`Communicator.group`); else PCCLError with INVALID_USAGE names who does not.
    Members are named by their index, ``Communicator.group.index``, and blocks lie in that
    order, one behind the other. Buffers are contiguous memory of the CPU, or of CUDA devices
    as those of an all-reduce, of any shape: only the number of elements counts. ``counts`` are the elements of the blocks, by
    member; None: all are equal. What is only moved may be of any element type with a
    fixed size, bool and complex numbers included.

    The own block may be at its place in the other buffer (in place); any other overlap is
    refused. After a failure all that was input is as it was; what is output alone is
    undefined, and as it was with ``preserve``, which costs a copy. ``tag`` must not be that
    of an operation that was launched and not awaited. The functions that end in ``_async``
    launch and return; leave the buffers alone until ``wait``, in the same order on all peers.
    """

    if TYPE_CHECKING:

        def _collect(self, request: Request) -> ReduceInfo: ...

        def _collect_async(self, request: Request) -> "AsyncReduceHandle": ...

        @property
        def group(self) -> Group: ...

    def all_gather(
        self,
        send: Any,
        recv: Any,
        *,
        counts: Optional[Sequence[int]] = None,
        tag: int = 0,
        preserve: bool = False,
        quantization: Optional[Quantization] = None,
    ) -> ReduceInfo:
        """Give ``recv`` the blocks ``send`` of all members.

        With ``quantization`` blocks of floats travel encoded, and ``recv`` gets the same bits on
        all members, its own block included. It is QuantizationOptions, or the name of a quantizer,
        also with the type on the wire: ``"blocks"``, ``"minmax:uint16"``.
        """
        return self._collect(
            Request(_ALL_GATHER, send, recv, counts=counts, tag=tag, preserve=preserve, quantization=quantization)
        )

    def all_gather_async(
        self,
        send: Any,
        recv: Any,
        *,
        counts: Optional[Sequence[int]] = None,
        tag: int = 0,
        preserve: bool = False,
        quantization: Optional[Quantization] = None,
    ) -> "AsyncReduceHandle":
        """Launch an :meth:`all_gather`."""
        return self._collect_async(
            Request(_ALL_GATHER, send, recv, counts=counts, tag=tag, preserve=preserve, quantization=quantization)
        )

    def reduce_scatter(
        self,
        send: Any,
        recv: Any,
        *,
        op: ReduceOp,
        counts: Optional[Sequence[int]] = None,
        tag: int = 0,
        preserve: bool = False,
        quantization: Optional[Quantization] = None,
    ) -> ReduceInfo:
        """Give ``recv`` the own block of ``send``, combined over all members; ``quantization`` as of :meth:`all_gather`."""
        return self._collect(
            Request(_REDUCE_SCATTER, send, recv, op=op, counts=counts, tag=tag, preserve=preserve, quantization=quantization)
        )

    def reduce_scatter_async(
        self,
        send: Any,
        recv: Any,
        *,
        op: ReduceOp,
        counts: Optional[Sequence[int]] = None,
        tag: int = 0,
        preserve: bool = False,
        quantization: Optional[Quantization] = None,
    ) -> "AsyncReduceHandle":
        """Launch a :meth:`reduce_scatter`."""
        return self._collect_async(
            Request(_REDUCE_SCATTER, send, recv, op=op, counts=counts, tag=tag, preserve=preserve, quantization=quantization)
        )

    def broadcast(self, buffer: Any, *, root: int, tag: int = 0, preserve: bool = False) -> ReduceInfo:
        """Give ``buffer`` what the root has in it."""
        return self._collect(Request(_BROADCAST, buffer, buffer, root=root, tag=tag, preserve=preserve))

    def broadcast_async(self, buffer: Any, *, root: int, tag: int = 0, preserve: bool = False) -> "AsyncReduceHandle":
        """Launch a :meth:`broadcast`."""
        return self._collect_async(Request(_BROADCAST, buffer, buffer, root=root, tag=tag, preserve=preserve))

    def reduce(
        self, send: Any, recv: Any, *, op: ReduceOp, root: int, tag: int = 0, preserve: bool = False
    ) -> ReduceInfo:
        """Combine ``send`` of all members into ``recv`` of the root; that of the others may be None."""
        return self._collect(Request(_REDUCE, send, recv, op=op, root=root, tag=tag, preserve=preserve))

    def reduce_async(
        self, send: Any, recv: Any, *, op: ReduceOp, root: int, tag: int = 0, preserve: bool = False
    ) -> "AsyncReduceHandle":
        """Launch a :meth:`reduce`."""
        return self._collect_async(Request(_REDUCE, send, recv, op=op, root=root, tag=tag, preserve=preserve))

    def gather(
        self,
        send: Any,
        recv: Any,
        *,
        root: int,
        counts: Optional[Sequence[int]] = None,
        tag: int = 0,
        preserve: bool = False,
    ) -> ReduceInfo:
        """Give ``recv`` of the root the blocks ``send`` of all members; that of the others may be None."""
        return self._collect(Request(_GATHER, send, recv, root=root, counts=counts, tag=tag, preserve=preserve))

    def gather_async(
        self,
        send: Any,
        recv: Any,
        *,
        root: int,
        counts: Optional[Sequence[int]] = None,
        tag: int = 0,
        preserve: bool = False,
    ) -> "AsyncReduceHandle":
        """Launch a :meth:`gather`."""
        return self._collect_async(Request(_GATHER, send, recv, root=root, counts=counts, tag=tag, preserve=preserve))

    def scatter(
        self,
        send: Any,
        recv: Any,
        *,
        root: int,
        counts: Optional[Sequence[int]] = None,
        tag: int = 0,
        preserve: bool = False,
    ) -> ReduceInfo:
        """Give ``recv`` the own block of the root's ``send``; that of the others may be None."""
        return self._collect(Request(_SCATTER, send, recv, root=root, counts=counts, tag=tag, preserve=preserve))

    def scatter_async(
        self,
        send: Any,
        recv: Any,
        *,
        root: int,
        counts: Optional[Sequence[int]] = None,
        tag: int = 0,
        preserve: bool = False,
    ) -> "AsyncReduceHandle":
        """Launch a :meth:`scatter`."""
        return self._collect_async(Request(_SCATTER, send, recv, root=root, counts=counts, tag=tag, preserve=preserve))

    def all_to_all(
        self,
        send: Any,
        recv: Any,
        *,
        send_counts: Optional[Sequence[int]] = None,
        recv_counts: Optional[Sequence[int]] = None,
        tag: int = 0,
        preserve: bool = False,
    ) -> ReduceInfo:
        """Give member i block i of ``send``, and ``recv`` the own blocks of all members; never in place."""
        return self._collect(
            Request(_ALL_TO_ALL, send, recv, send_counts=send_counts, recv_counts=recv_counts, tag=tag, preserve=preserve)
        )

    def all_to_all_async(
        self,
        send: Any,
        recv: Any,
        *,
        send_counts: Optional[Sequence[int]] = None,
        recv_counts: Optional[Sequence[int]] = None,
        tag: int = 0,
        preserve: bool = False,
    ) -> "AsyncReduceHandle":
        """Launch an :meth:`all_to_all`."""
        return self._collect_async(
            Request(_ALL_TO_ALL, send, recv, send_counts=send_counts, recv_counts=recv_counts, tag=tag, preserve=preserve)
        )

    def barrier(self) -> None:
        """Return when every member of the group has called it. A peer has one at a time."""
        self._collect(Request(_BARRIER))

    def barrier_async(self) -> "AsyncReduceHandle":
        """Launch a :meth:`barrier`."""
        return self._collect_async(Request(_BARRIER, tag=BARRIER_TAG))
