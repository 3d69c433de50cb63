"""The collectives of a group as calls of the communicator.

Every function describes one and launches nothing: what can never work is refused
here. Tensors are contiguous; blocks lie in the order of the ranks.
"""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Optional, Sequence

import torch
from torch import Tensor

from gopccl._buffers import buffer_of
from gopccl._comm import Communicator
from gopccl._types import ReduceOp

Start = Callable[[Communicator, int], Any]


class Place(NamedTuple):
    """This process in its group."""

    rank: int
    size: int
    order: Sequence[int]  # ranks of the members, in the order of the communicator


class Move(NamedTuple):
    """A collective that was not launched: ``start`` gets a tag, ``finish`` runs after success."""

    start: Optional[Start]
    finish: Optional[Callable[[], None]] = None


def as_bytes(t: Tensor) -> Tensor:
    """The memory of a contiguous tensor."""
    return t.detach().reshape(-1).view(torch.uint8)


def _sum(t: Tensor, op: ReduceOp, finish: Optional[Callable[[], None]] = None) -> Move:
    if not t.numel():
        return Move(None, finish)
    b = buffer_of(t, "tensor", writable=True)
    return Move(lambda comm, tag: comm.all_reduce_async(b, b, op=op, tag=tag), finish)


def all_reduce(at: Place, t: Tensor, op: ReduceOp) -> Move:
    """Reduce ``t`` in place."""
    return Move(None) if at.size == 1 else _sum(t, op)


def all_gather(at: Place, dst: Tensor, src: Tensor, counts: Sequence[int]) -> Move:
    """``dst`` gets the blocks ``src`` of all; counts in elements, by rank."""
    table = torch.zeros(dst.numel(), dtype=dst.dtype, device=dst.device)
    begin = sum(counts[: at.rank])
    table[begin : begin + src.numel()].copy_(src.detach().reshape(-1))

    def finish() -> None:
        dst.detach().copy_(table.view(dst.shape))

    return Move(None, finish) if at.size == 1 else _sum(as_bytes(table), ReduceOp.SUM, finish)


def reduce_scatter(at: Place, dst: Tensor, src: Tensor, counts: Sequence[int], op: ReduceOp) -> Move:
    """``dst`` gets the own block of ``src``, reduced over all."""
    table = src.detach().clone()
    begin = sum(counts[: at.rank])

    def finish() -> None:
        dst.detach().copy_(table.reshape(-1)[begin : begin + dst.numel()].view(dst.shape))

    return Move(None, finish) if at.size == 1 else _sum(table, op, finish)


def broadcast(at: Place, t: Tensor, root: int) -> Move:
    """``t`` gets what the root has in it."""
    if at.size == 1:
        return Move(None)
    copy = t.detach().clone() if at.rank == root else torch.zeros_like(t)

    def finish() -> None:
        if at.rank != root:
            t.detach().copy_(copy)

    return _sum(as_bytes(copy), ReduceOp.SUM, finish)


def reduce(at: Place, t: Tensor, op: ReduceOp, root: int) -> Move:
    """``t`` of the root gets the reduction; that of the others stays."""
    if at.size == 1:
        return Move(None)
    copy = t.detach().clone()

    def finish() -> None:
        if at.rank == root:
            t.detach().copy_(copy)

    return _sum(copy, op, finish)


def gather(at: Place, dst: Optional[Tensor], src: Tensor, root: int, counts: Sequence[int]) -> Move:
    """``dst`` of the root gets the blocks ``src`` of all."""
    if dst is None:
        dst = torch.empty(sum(counts), dtype=src.dtype, device=src.device)
    return all_gather(at, dst, src, counts)


def scatter(at: Place, dst: Tensor, src: Optional[Tensor], root: int) -> Move:
    """``dst`` gets the own block of the root's ``src``; all are of one size."""
    n = dst.numel()
    table = torch.zeros(n * at.size, dtype=dst.dtype, device=dst.device)
    if src is not None:
        table.copy_(src.detach().reshape(-1))

    def finish() -> None:
        dst.detach().copy_(table[n * at.rank : n * (at.rank + 1)].view(dst.shape))

    return Move(None, finish) if at.size == 1 else _sum(as_bytes(table), ReduceOp.SUM, finish)


def barrier(at: Place) -> Move:
    """Ends when all have come."""
    return Move(None) if at.size == 1 else _sum(torch.zeros(1, dtype=torch.uint8), ReduceOp.SUM)


def exchange(at: Place, comm: Communicator, record: bytes, tag: int) -> List[bytes]:
    """The records of all ranks; all have one length. Waits."""
    table = torch.zeros((at.size, len(record)), dtype=torch.uint8)
    table[at.rank].copy_(torch.frombuffer(bytearray(record), dtype=torch.uint8))
    comm.all_reduce(table, table, op=ReduceOp.SUM, tag=tag)
    return [bytes(row.tolist()) for row in table]
