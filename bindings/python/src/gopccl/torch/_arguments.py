"""What the calls of ``torch.distributed`` are given: forms that are taken, and what is refused."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import Tensor

from gopccl import cuda
from gopccl._types import ReduceOp
from gopccl.torch._moves import Move, Place

_REAL = {"SUM": ReduceOp.SUM, "AVG": ReduceOp.AVG, "PRODUCT": ReduceOp.PROD, "MAX": ReduceOp.MAX, "MIN": ReduceOp.MIN}
_BOOL = {
    "SUM": ReduceOp.MAX,
    "MAX": ReduceOp.MAX,
    "BOR": ReduceOp.MAX,
    "PRODUCT": ReduceOp.MIN,
    "MIN": ReduceOp.MIN,
    "BAND": ReduceOp.MIN,
}
_COMPLEX = {"SUM": ReduceOp.SUM, "AVG": ReduceOp.AVG}
BITS = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}


class Refused(ValueError, RuntimeError):
    """Arguments that can never work; nothing was launched. What PyTorch's own backends raise is a RuntimeError, in these words."""


def _op_of(opts: Any) -> Any:
    if opts is None:
        return dist.ReduceOp.SUM
    return getattr(opts, "reduceOp", opts)


def real(t: Tensor, opts: Any) -> Tuple[Tensor, ReduceOp]:
    """The real tensor and operation that reduce ``t``, which is contiguous."""
    name = name_of(opts)
    if t.dtype is torch.bool:
        if name in _BOOL:
            return t.detach().view(torch.uint8), _BOOL[name]
    elif t.is_complex():
        if name in _COMPLEX:
            return torch.view_as_real(t.detach()), _COMPLEX[name]
    elif name in _REAL:
        return t.detach(), _REAL[name]
    raise Refused(f"gopccl: {name} of {t.dtype} tensors is not supported")


def name_of(opts: Any) -> str:
    """The name of a reduction."""
    op = _op_of(opts)
    kind = getattr(op, "op", op)  # ReduceOp wraps its enum
    return str(getattr(kind, "name", kind))


def fold_of(t: Tensor, opts: Any) -> Optional[Callable[..., Tensor]]:
    """How blocks are combined here, if the library does not reduce ``t`` so."""
    name = name_of(opts)
    if t.is_floating_point() or t.is_complex() or (t.dtype is torch.bool and name in _BOOL):
        return None
    return BITS.get(name)


def folded(t: Tensor, room: Tensor, move: Move, fold: Callable[..., Tensor]) -> Move:
    """``move`` brings the blocks of all into ``room``; then ``t`` becomes what they combine to."""

    def finish() -> None:
        if move.finish is not None:
            move.finish()
        if not t.numel():
            return
        first, *others = room.view(-1, *t.shape)
        total = first.clone()
        for block in others:
            fold(total, block, out=total)
        t.copy_(total)

    return Move(move.start, finish)


def check(tensors: Sequence[Tensor]) -> None:
    for t in tensors:
        if t.device.type == "cuda":
            cuda.require(str(t.device))
        elif t.device.type != "cpu":
            raise Refused(f"gopccl: a tensor is on {t.device}; the backend takes CPU and CUDA tensors")
        if t.layout is not torch.strided:
            raise Refused(f"gopccl: invalid tensor layout: {t.layout}; the backend takes dense tensors")


def tensors_of(x: Any) -> List[Tensor]:
    return [x] if isinstance(x, Tensor) else list(x)


def rows_of(x: Any) -> List[List[Tensor]]:
    """Lists of tensors, from one list or several."""
    return [list(x)] if x and isinstance(x[0], Tensor) else [list(row) for row in x]


def equal_parts(what: str, t: Tensor, size: int) -> List[int]:
    n, left = divmod(t.numel(), size)
    if left:
        raise Refused(f"gopccl: {what}: {t.numel()} elements do not divide by {size} ranks")
    return [n] * size


def split(t: Tensor, rows: Any, at: Place) -> List[int]:
    """Bytes of the parts of ``t`` that have so many rows."""
    if not rows:
        return [n * t.element_size() for n in equal_parts("all_to_all", t, at.size)]
    have = t.shape[0] if t.dim() else 0
    fits("all_to_all", len(rows) == at.size and sum(rows) == have, f"the splits {list(rows)} are not those of {have} rows for {at.size} ranks")
    row = t.numel() // have * t.element_size() if have else 0
    return [n * row for n in rows]


def fits(what: str, ok: bool, says: str) -> None:
    if not ok:
        raise Refused(f"gopccl: {what}: {says}")


def typed(what: str, tensors: Sequence[Tensor]) -> None:
    """Bytes are moved between them, so they need one type."""
    types = sorted({str(t.dtype) for t in tensors})
    fits(what, len(types) < 2, f"invalid tensor type: the tensors are of {' and '.join(types)}")


def alike(what: str, tensors: Sequence[Tensor]) -> None:
    """Tensors of one type and size."""
    typed(what, tensors)
    sizes = sorted({t.numel() for t in tensors})
    fits(what, len(sizes) < 2, f"invalid tensor size: the tensors have {' and '.join(map(str, sizes))} elements")


def single(what: str, ts: Sequence[Any], name: str) -> None:
    fits(what, len(ts) == 1, f"requires a single-element {name}, has one of {len(ts)}")
