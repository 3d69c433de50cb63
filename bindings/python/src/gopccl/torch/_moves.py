"""The collectives of a group as calls of the communicator.

Every function describes one and launches nothing: what can never work is refused
here. Tensors are contiguous; blocks lie in the order of the ranks, which need not be
that of the communicator's members: then they are put in order in a copy. What is on a
device is reduced there by an all-reduce, and by way of the host otherwise.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor

from gopccl._buffers import buffer_of
from gopccl._comm import Communicator
from gopccl._message import MessageHandle
from gopccl._types import ReduceOp

Start = Callable[[Communicator, int], Any]
Finish = Callable[[], None]


class Place(NamedTuple):
    """This process in its group."""

    rank: int
    size: int
    order: Sequence[int]  # ranks of the members, in the order of the communicator
    keep: bool = False  # pure outputs are restored after a failure, too

    @property
    def sorted(self) -> bool:
        """Whether members and ranks have one order."""
        return all(r == i for i, r in enumerate(self.order))

    def member(self, rank: int) -> int:
        """The index of a rank among the members."""
        return list(self.order).index(rank)


class Move(NamedTuple):
    """A collective that was not launched: ``start`` gets a tag, ``finish`` runs after success."""

    start: Optional[Start]
    finish: Optional[Finish] = None


def as_bytes(t: Tensor) -> Tensor:
    """The memory of a contiguous tensor."""
    return t.detach().reshape(-1).view(torch.uint8)


def _input(t: Tensor) -> Tensor:
    """``t`` in memory of the host."""
    if t.device.type == "cpu":
        return t.detach().reshape(-1)
    h = torch.empty(t.numel(), dtype=t.dtype)
    h.copy_(t.detach().reshape(-1))
    return h


def _output(t: Tensor) -> Tuple[Tensor, Optional[Finish]]:
    """Memory of the host for what becomes ``t``, and what brings it there."""
    if t.device.type == "cpu":
        return t.detach().reshape(-1), None
    h = torch.empty(t.numel(), dtype=t.dtype)
    return h, lambda: _copy(t, h)


def _copy(t: Tensor, h: Tensor) -> None:
    t.detach().copy_(h.view(t.shape))


def _blocks(t: Tensor, counts: Sequence[int]) -> List[Tensor]:
    ends = list(itertools.accumulate(counts))
    return [t[end - n : end] for end, n in zip(ends, counts)]


def _by_member(at: Place, t: Tensor, counts: Sequence[int]) -> Tensor:
    """The blocks of ``t`` in the order of the members."""
    t = _input(t)
    if at.sorted:
        return t
    blocks = _blocks(t, counts)
    return torch.cat([blocks[r] for r in at.order])


def _by_rank(at: Place, t: Tensor, counts: Sequence[int]) -> Tuple[Tensor, Optional[Finish]]:
    """Memory for blocks in the order of the members, and what brings them into ``t``, which has that of the ranks."""
    if at.sorted:
        return _output(t)
    room = torch.empty(t.numel(), dtype=t.dtype)

    def finish() -> None:
        blocks = _blocks(t.detach().reshape(-1), counts)
        for r, block in zip(at.order, _blocks(room, [counts[r] for r in at.order])):
            blocks[r].copy_(block)

    return room, finish


def _members(at: Place, counts: Sequence[int]) -> Optional[List[int]]:
    """The counts by member; None if all are equal, which all ranks see alike."""
    return None if len(set(counts)) == 1 else [counts[r] for r in at.order]


def _apart(src: Tensor, dst: Tensor, own: Optional[int]) -> Tensor:
    """``src``, in a copy if it shares memory with ``dst`` and does not begin ``own`` bytes behind it."""
    a, b = src.data_ptr(), dst.data_ptr()
    n, m = src.numel() * src.element_size(), dst.numel() * dst.element_size()
    if not n or not m or a + n <= b or b + m <= a or (own is not None and a == b + own):
        return src
    return src.clone()


def _local(dst: Optional[Tensor], src: Optional[Tensor]) -> Move:
    """What a group of one does."""
    if dst is None or src is None:
        return Move(None)
    return Move(None, lambda: _copy(dst, src))


def all_reduce(at: Place, t: Tensor, op: ReduceOp) -> Move:
    """Reduce ``t`` in place."""
    if at.size == 1 or not t.numel():
        return Move(None)
    b = buffer_of(t, "tensor", writable=True)
    return Move(lambda comm, tag: comm.all_reduce_async(b, b, op=op, tag=tag))


def all_gather(at: Place, dst: Tensor, src: Tensor, counts: Sequence[int]) -> Move:
    """``dst`` gets the blocks ``src`` of all; counts in elements, by rank."""
    if at.size == 1:
        return _local(dst, src)
    if not dst.numel():
        return Move(None)
    to, finish = _by_rank(at, dst, counts)
    own = _apart(_input(src), to, sum(counts[: at.rank]) * dst.element_size())
    of = _members(at, counts)
    return Move(lambda comm, tag: comm.all_gather_async(own, to, counts=of, tag=tag, preserve=at.keep), finish)


def reduce_scatter(at: Place, dst: Tensor, src: Tensor, counts: Sequence[int], op: ReduceOp) -> Move:
    """``dst`` gets the own block of ``src``, reduced over all."""
    if at.size == 1:
        return _local(dst, src)
    if not src.numel():
        return Move(None)
    of = _members(at, counts)
    to, finish = _output(dst)
    blocks = _by_member(at, src, counts)
    blocks = _apart(blocks, to, -sum(counts[: at.rank]) * src.element_size())
    buffer_of(blocks, "tensor", writable=False)
    return Move(lambda comm, tag: comm.reduce_scatter_async(blocks, to, op=op, counts=of, tag=tag, preserve=at.keep), finish)


def broadcast(at: Place, t: Tensor, root: int) -> Move:
    """``t`` gets what the root has in it."""
    if at.size == 1 or not t.numel():
        return Move(None)
    to, finish = (_input(t), None) if at.rank == root else _output(t)
    index = at.member(root)
    return Move(lambda comm, tag: comm.broadcast_async(to, root=index, tag=tag, preserve=at.keep), finish)


def reduce(at: Place, t: Tensor, op: ReduceOp, root: int) -> Move:
    """``t`` of the root gets the reduction; that of the others stays."""
    if at.size == 1 or not t.numel():
        return Move(None)
    src, index = _input(t), at.member(root)
    buffer_of(src, "tensor", writable=False)
    to = src if at.rank == root else None
    finish = (lambda: _copy(t, src)) if to is not None and t.device.type != "cpu" else None
    return Move(lambda comm, tag: comm.reduce_async(src, to, op=op, root=index, tag=tag), finish)


def gather(at: Place, dst: Optional[Tensor], src: Tensor, root: int) -> Move:
    """``dst`` of the root gets the blocks ``src`` of all, which are of one size."""
    if at.size == 1:
        return _local(dst, src)
    if not src.numel():
        return Move(None)
    to, finish, own = None, None, _input(src)
    if dst is not None:
        to, finish = _by_rank(at, dst, [src.numel()] * at.size)
        own = _apart(own, to, at.rank * src.numel() * src.element_size())
    index = at.member(root)
    return Move(lambda comm, tag: comm.gather_async(own, to, root=index, tag=tag, preserve=at.keep), finish)


def scatter(at: Place, dst: Tensor, src: Optional[Tensor], root: int) -> Move:
    """``dst`` gets the own block of the root's ``src``; all are of one size."""
    if at.size == 1:
        return _local(dst, src)
    if not dst.numel():
        return Move(None)
    to, finish = _output(dst)
    blocks = None
    if src is not None:
        blocks = _by_member(at, src, [dst.numel()] * at.size)
        blocks = _apart(blocks, to, -at.rank * dst.numel() * dst.element_size())
    index = at.member(root)
    return Move(lambda comm, tag: comm.scatter_async(blocks, to, root=index, tag=tag, preserve=at.keep), finish)


def all_to_all(at: Place, dst: Tensor, src: Tensor, into: Sequence[int], out: Sequence[int], equal: bool) -> Move:
    """``dst`` gets a block of every rank, in elements ``into``, for the blocks ``out`` of ``src``.

    With ``equal`` all ranks know that all blocks are of one size.
    """
    if at.size == 1:
        return _local(dst, src)
    if equal and not dst.numel():
        return Move(None)
    to, finish = _by_rank(at, dst, into)
    blocks = _by_member(at, src, out)
    blocks = _apart(blocks, to, None)
    sent, got = (None, None) if equal else ([out[r] for r in at.order], [into[r] for r in at.order])
    return Move(
        lambda comm, tag: comm.all_to_all_async(
            blocks, to, send_counts=sent, recv_counts=got, tag=tag, preserve=at.keep
        ),
        finish,
    )


# A communicator has one barrier at a time; the next waits for it.
_barriers: "weakref.WeakKeyDictionary[Communicator, Any]" = weakref.WeakKeyDictionary()


def barrier(at: Place) -> Move:
    """Ends when all have come."""

    def start(comm: Communicator, tag: int) -> Any:
        last = _barriers.get(comm)
        if last is not None:
            last.wait()
        h = _barriers[comm] = comm.barrier_async()
        return h

    return Move(None) if at.size == 1 else Move(start)


class Post(NamedTuple):
    """A message that was not begun: ``start`` begins it, ``finish`` runs after success."""

    start: Callable[[Communicator], MessageHandle]
    finish: Optional[Finish] = None


def _whole(t: Tensor) -> bool:
    """Whether a message can go from, or to, the memory of ``t`` itself."""
    return t.device.type == "cpu" and t.is_contiguous()


def send(at: Place, tensors: Sequence[Tensor], dst: int, tag: int) -> Post:
    """All of ``tensors`` in one message to a rank."""
    parts = [as_bytes(_input(t.detach().contiguous())) for t in tensors]
    data = parts[0] if len(parts) == 1 else torch.cat(parts)
    peer = at.member(dst)
    return Post(lambda comm: comm.send_async(data, peer=peer, tag=tag % _TAGS))


def recv(at: Place, tensors: Sequence[Tensor], src: Optional[int], tag: int) -> Post:
    """All of ``tensors`` from one message of a rank, or of any."""
    peer = None if src is None else at.member(src)
    if len(tensors) == 1 and _whole(tensors[0]):
        room = as_bytes(tensors[0])
        return Post(lambda comm: comm.recv_async(room, peer=peer, tag=tag % _TAGS))
    sizes = [t.numel() * t.element_size() for t in tensors]
    room = torch.empty(sum(sizes), dtype=torch.uint8)

    def finish() -> None:
        for t, part in zip(tensors, _blocks(room, sizes)):
            _copy(t, part.clone().view(t.dtype))  # a view needs memory that is aligned

    return Post(lambda comm: comm.recv_async(room, peer=peer, tag=tag % _TAGS), finish)


_TAGS = 1 << 64  # PyTorch's may be below 0


def exchange(at: Place, comm: Communicator, record: bytes) -> List[bytes]:
    """The records of all members, in their order; all have one length. Waits."""
    table = bytearray(at.size * len(record))
    comm.all_gather(record, table)
    return [bytes(table[i : i + len(record)]) for i in range(0, len(table), len(record))]
