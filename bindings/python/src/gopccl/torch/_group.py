"""The collectives as ``torch.distributed`` calls them.

``GopcclGroup`` is the process group; ``GopcclBackend`` is what PyTorch's C++ finds
inside of it. Both are faces of one ``Core``. Where PyTorch takes several forms of
arguments (a tensor or a list, options or an operation) so do they.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Callable, List, Optional, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from gopccl.torch import _moves
from gopccl.torch._arguments import BITS, alike, check, equal_parts, fits, fold_of, folded, name_of, real, rows_of, single, split, tensors_of, typed
from gopccl.torch._core import Core
from gopccl.torch._monitored import monitored_barrier
from gopccl.torch._moves import Move, Place, Post
from gopccl.torch._work import GopcclWork

def _staged(t: Tensor) -> Tensor:
    return t.detach().contiguous()


def _back(t: Tensor, staged: Tensor, move: Move) -> Move:
    """``move``, and then what it has left in ``staged`` into ``t``."""
    if staged.data_ptr() == t.data_ptr() and t.is_contiguous():
        return move

    def finish() -> None:
        if move.finish is not None:
            move.finish()
        t.detach().copy_(staged.view(t.shape))

    return Move(move.start, finish)


def _apart(parts: Sequence[Tensor], whole: Tensor, move: Move) -> Move:
    """``move``, and then the pieces of ``whole`` into ``parts``."""

    def finish() -> None:
        if move.finish is not None:
            move.finish()
        at = 0
        for p in parts:
            p.detach().copy_(whole[at : at + p.numel()].view(p.shape))
            at += p.numel()

    return Move(move.start, finish)


def _flat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in parts]) if parts else torch.empty(0)


def _room(parts: Sequence[Tensor]) -> Tensor:
    return torch.empty(sum(t.numel() for t in parts), dtype=parts[0].dtype)


class Calls:
    """Every call of a process group; ``_core`` is the state."""

    _core: Core

    def _submit(self, what: str, opts: Any, outputs: List[Any], plan: Callable[[Place], Sequence[Move]]) -> GopcclWork:
        return self._core.submit(what, opts, outputs, plan)

    # Reductions.

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Optional[timedelta] = None) -> GopcclWork:
        """Reduce over the ranks, in place. Of several tensors each becomes the reduction of all of them, as with Gloo."""
        ts = tensors_of(tensors)
        fits("all_reduce", bool(ts), "requires non-empty tensor list")
        check(ts)
        alike("all_reduce", ts)
        if len(ts) > 1:
            return self._reduce_together(ts, opts)
        return self._reduce_each(ts, opts)

    def _reduce_together(self, ts: List[Tensor], opts: Any) -> GopcclWork:
        name = name_of(opts)
        local: Any = {"SUM": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum}.get(name) or BITS.get(name)
        fits("all_reduce", local is not None, f"{name} of several tensors is not supported")

        def plan(at: Place) -> List[Move]:
            total = ts[0].detach().clone()
            for t in ts[1:]:
                total = local(total, t.detach())
            move = self._all_reduce(at, total, opts)

            def finish() -> None:
                if move.finish is not None:
                    move.finish()
                for t in ts:
                    t.detach().copy_(total)

            return [Move(move.start, finish)]

        return self._submit("all_reduce", opts, ts, plan)

    def _reduce_each(self, ts: List[Tensor], opts: Any) -> GopcclWork:
        def plan(at: Place) -> List[Move]:
            seen: List[int] = []
            moves = []
            for t in ts:
                again = t.numel() > 0 and t.data_ptr() in seen
                seen.append(t.data_ptr())
                s = t.detach().clone() if again else t  # a buffer is in one operation at a time
                moves.append(_back(t, s, self._all_reduce(at, s, opts)) if again else self._all_reduce(at, t, opts))
            return moves

        return self._submit("all_reduce", opts, ts, plan)

    @staticmethod
    def _all_reduce(at: Place, t: Tensor, opts: Any) -> Move:
        s = _staged(t)
        fold = fold_of(s, opts)
        if fold is None:
            return _back(t, s, _moves.all_reduce(at, *real(s, opts)))
        room = torch.empty(at.size * s.numel(), dtype=s.dtype, device=s.device)
        n = s.numel() * s.element_size()
        return folded(t.detach(), room, _moves.all_gather(at, _moves.as_bytes(room), _moves.as_bytes(s), [n] * at.size), fold)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> GopcclWork:
        """Reduce every tensor over the ranks, in place."""
        ts = tensors_of(tensors)
        fits("all_reduce", bool(ts), "requires non-empty tensor list")
        check(ts)
        return self._reduce_each(ts, opts)

    def reduce(self, tensors: Any, opts: Any = None, *more: Any, **named: Any) -> GopcclWork:
        """Reduce over the ranks into the root's tensor; the others' stay as they are."""
        ts = tensors_of(tensors)
        single("reduce", ts, "tensor list")
        check(ts)
        root = opts if isinstance(opts, int) else opts.rootRank if opts is not None else named.get("root", 0)
        op = more[0] if more else named.get("op") if isinstance(opts, int) or opts is None else opts

        def plan(at: Place) -> List[Move]:
            self._root_is("reduce", root, opts, ts, at)
            t = ts[0]
            s = _staged(t)
            fold = fold_of(s, op)
            if fold is None:
                return [_back(t, s, _moves.reduce(at, *real(s, op), root))]
            if at.rank != root:
                return [_moves.gather(at, None, _moves.as_bytes(s), root)]
            room = torch.empty(at.size * s.numel(), dtype=s.dtype, device=s.device)
            return [folded(t.detach(), room, _moves.gather(at, _moves.as_bytes(room), _moves.as_bytes(s), root), fold)]

        return self._submit("reduce", opts, ts, plan)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, *more: Any) -> GopcclWork:
        """``outputs[i]`` becomes the reduction of all ranks' ``inputs[i][rank]``."""
        outs, rows = tensors_of(outputs), rows_of(inputs)
        check(outs)

        def plan(at: Place) -> List[Move]:
            moves = []
            for out, row in zip(outs, rows):
                check(row)
                typed("reduce_scatter", [out, *row])
                fits("reduce_scatter", len(row) == at.size, f"{len(row)} input tensors for {at.size} ranks")
                fits("reduce_scatter", out.numel() == row[at.rank].numel(), f"the output has {out.numel()} elements, the own input {row[at.rank].numel()}")
                moves.append(self._reduce_scatter(at, out, _flat(row), [t.numel() for t in row], opts))
            return moves

        return self._submit("reduce_scatter", opts, outs, plan)

    def _reduce_scatter(self, at: Place, out: Tensor, flat: Tensor, counts: List[int], opts: Any) -> Move:
        s = _staged(out)
        src, op = real(flat, opts)
        dst, _ = real(s, opts)
        per = src.numel() // flat.numel() if flat.numel() else 1
        return _back(out, s, _moves.reduce_scatter(at, dst, src, [n * per for n in counts], op))

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> GopcclWork:
        """Output i becomes this rank's part of the reduction of all ranks' input i."""
        outs, ins = tensors_of(outputs), tensors_of(inputs)
        check([*outs, *ins])

        def plan(at: Place) -> List[Move]:
            moves = []
            for out, t in zip(outs, ins):
                typed("reduce_scatter", [out, t])
                counts = equal_parts("reduce_scatter", t, at.size)
                fits("reduce_scatter", out.numel() == counts[0], f"the output has {out.numel()} elements, a part of the input {counts[0]}")
                moves.append(self._reduce_scatter(at, out, _staged(t).reshape(-1), counts, opts))
            return moves

        return self._submit("reduce_scatter", opts, outs, plan)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> GopcclWork:
        """``output`` becomes this rank's part of the reduction of all ranks' inputs."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # Moves: bytes of any type.

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Optional[timedelta] = None, *, root: int = 0) -> GopcclWork:
        """Copy the root's tensor to all ranks, bit for bit; to every tensor of a list, as with Gloo."""
        ts = tensors_of(tensors)
        check(ts)
        origin = opts if isinstance(opts, int) else root if opts is None else opts.rootRank

        def plan(at: Place) -> List[Move]:
            self._root_is("broadcast", origin, opts, ts, at)
            alike("broadcast", ts)
            t = ts[getattr(opts, "rootTensor", 0)]
            s = _staged(t)
            m = _moves.broadcast(at, _moves.as_bytes(s), origin)
            m = m if at.rank == origin else _back(t, s, m)
            if len(ts) == 1:
                return [m]

            def finish() -> None:
                if m.finish is not None:
                    m.finish()
                for other in ts:
                    if other is not t:
                        other.detach().copy_(t.detach())

            return [Move(m.start, finish)]

        return self._submit("broadcast", opts, ts, plan)

    @staticmethod
    def _rank_is(what: str, root: int, at: Place, name: str = "rank") -> None:
        fits(what, 0 <= root < at.size, f"invalid {name}: {root} is not one of {at.size}")

    def _root_is(self, what: str, root: int, opts: Any, ts: Sequence[Tensor], at: Place) -> None:
        self._rank_is(what, root, at, "root rank")
        i = getattr(opts, "rootTensor", 0)
        fits(what, 0 <= i < len(ts), f"invalid root tensor: {i} is not one of {len(ts)}")

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> GopcclWork:
        """Bring every rank's input to ``outputs[0][rank]``; n of them to every list, from ``rank * n`` on, as with Gloo."""
        rows, ins = rows_of(outputs), tensors_of(inputs)
        fits("all_gather", bool(ins), "requires non-empty input tensor list")
        fits("all_gather", len(rows) == len(ins), f"requires input/output tensor lists to have the same length, which are {len(ins)} and {len(rows)}")
        check([*ins, *(t for row in rows for t in row)])
        if len(ins) == 1:
            return self._gather_each(rows, ins, opts)

        def plan(at: Place) -> List[Move]:
            for row in rows:
                fits("all_gather", len(row) == at.size * len(ins), f"invalid output tensor list: it has {len(row)} tensors, {at.size} ranks have {at.size * len(ins)}")
            every = [t for row in rows for t in row]
            alike("all_gather", [*ins, *every])
            src, room = _flat(ins), _room(rows[0])
            n = src.numel() * src.element_size()
            m = _moves.all_gather(at, _moves.as_bytes(room), _moves.as_bytes(src), [n] * at.size)
            for row in rows:
                m = _apart(row, room, m)
            return [m]

        return self._submit("all_gather", opts, rows, plan)

    def _gather_each(self, rows: List[List[Tensor]], ins: List[Tensor], opts: Any) -> GopcclWork:
        """Every rank's input i to ``rows[i][rank]``."""

        def plan(at: Place) -> List[Move]:
            moves = []
            for row, t in zip(rows, ins):
                fits("all_gather", len(row) == at.size, f"invalid output tensor list: it has {len(row)} tensors for {at.size} ranks")
                typed("all_gather", [t, *row])
                fits("all_gather", row[at.rank].numel() == t.numel(), f"invalid tensor size: the own output has {row[at.rank].numel()} elements, the input {t.numel()}")
                room = _room(row)
                counts = [p.numel() * p.element_size() for p in row]
                moves.append(_apart(row, room, _moves.all_gather(at, _moves.as_bytes(room), _moves.as_bytes(_staged(t)), counts)))
            return moves

        return self._submit("all_gather", opts, [t for row in rows for t in row], plan)

    def allgather_coalesced(self, outputs: List[List[Tensor]], inputs: List[Tensor], opts: Any = None) -> GopcclWork:
        """``outputs[rank][i]`` becomes rank's input i."""
        ins, lists = tensors_of(inputs), [list(x) for x in outputs]
        what, n = "all_gather", self._core.place.size
        fits(what, len(lists) == n, f"output lists should be equal to world size: they are {len(lists)} of {n}")
        check([*ins, *(t for x in lists for t in x)])
        for x in lists:
            fits(what, len(x) == len(ins), f"invalid output tensor list: it has {len(x)} tensors for {len(ins)} inputs")
            for i, (t, own) in enumerate(zip(x, ins)):
                fits(what, t.numel() == own.numel(), f"invalid size of output tensor at index {i}: {t.numel()} elements, the input has {own.numel()}")
                fits(what, t.dtype == own.dtype, f"invalid tensor type at index {i}: {t.dtype}, the input has {own.dtype}")
        return self._gather_each([list(column) for column in zip(*lists)], ins, opts)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> GopcclWork:
        """Output i becomes all ranks' input i, concatenated."""
        outs, ins = tensors_of(outputs), tensors_of(inputs)
        check([*outs, *ins])

        def plan(at: Place) -> List[Move]:
            moves = []
            for out, t in zip(outs, ins):
                typed("all_gather", [out, t])
                fits("all_gather", out.numel() == at.size * t.numel(), f"the output has {out.numel()} elements, {at.size} inputs {at.size * t.numel()}")
                s, n = _staged(out), t.numel() * t.element_size()
                m = _moves.all_gather(at, _moves.as_bytes(s), _moves.as_bytes(_staged(t)), [n] * at.size)
                moves.append(_back(out, s, m))
            return moves

        return self._submit("all_gather", opts, outs, plan)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> GopcclWork:
        """``output`` becomes all ranks' inputs, concatenated."""
        return self.all_gather_single_coalesced([output], [input], opts)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, *more: Any) -> GopcclWork:
        """Bring every rank's input to the root."""
        ins = tensors_of(inputs)
        rows = rows_of(outputs)
        check([*ins, *(t for row in rows for t in row)])
        root = opts if isinstance(opts, int) else 0 if opts is None else opts.rootRank

        def plan(at: Place) -> List[Move]:
            self._rank_is("gather", root, at, "root rank")
            single("gather", ins, "input tensor list")
            src = _moves.as_bytes(_staged(ins[0]))
            if at.rank != root:
                fits("gather", not rows, "requires empty output on non-root")
                return [_moves.gather(at, None, src, root)]
            single("gather", rows, "output list")
            row = rows[0]
            fits("gather", len(row) == at.size, f"Incorrect output list size {len(row)}. Output list size should be {at.size}")
            alike("gather", [*ins, *row])
            room = _room(row)
            return [_apart(row, room, _moves.gather(at, _moves.as_bytes(room), src, root))]

        return self._submit("gather", opts, [t for row in rows for t in row], plan)

    def gather_single(self, output: Any, input: Tensor, opts: Any = None) -> GopcclWork:
        """``output`` of the root becomes all ranks' inputs, concatenated."""
        root = 0 if opts is None else opts.rootRank
        if self._core.place.rank != root:
            return self.gather([], [input], opts)
        n = self._core.place.size
        fits("gather", output.is_contiguous() and output.numel() == n * input.numel(), f"the output must be contiguous, with {n * input.numel()} elements")
        return self.gather([list(output.view(n, -1))], [input], opts)

    gather_into_tensor = gather_single

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, *more: Any) -> GopcclWork:
        """``outputs[i]`` becomes the root's ``inputs[i][rank]``."""
        outs = tensors_of(outputs)
        rows = rows_of(inputs)
        check([*outs, *(t for row in rows for t in row)])
        root = opts if isinstance(opts, int) else 0 if opts is None else opts.rootRank

        def plan(at: Place) -> List[Move]:
            self._rank_is("scatter", root, at, "root rank")
            single("scatter", outs, "output tensor list")
            s, src = _staged(outs[0]), None
            if at.rank == root:
                single("scatter", rows, "input list")
                row = rows[0]
                fits("scatter", len(row) == at.size, f"Incorrect input list size {len(row)}. Input list size should be {at.size}")
                alike("scatter", [*outs, *row])
                src = _moves.as_bytes(_flat(row))
            else:
                fits("scatter", not rows, "requires empty input on non-root")
            return [_back(outs[0], s, _moves.scatter(at, _moves.as_bytes(s), src, root))]

        return self._submit("scatter", opts, outs, plan)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> GopcclWork:
        """``outputs[rank]`` becomes that rank's ``inputs[own rank]``; sizes may differ."""
        outs, ins = tensors_of(outputs), tensors_of(inputs)
        check([*outs, *ins])

        def plan(at: Place) -> List[Move]:
            fits("all_to_all", len(outs) == len(ins) == at.size, f"{len(outs)} output and {len(ins)} input tensors for {at.size} ranks")
            typed("all_to_all", [*outs, *ins])
            room, src = _room(outs), _flat(ins)
            into = [t.numel() * t.element_size() for t in outs]
            out = [t.numel() * t.element_size() for t in ins]
            return [_apart(outs, room, _moves.all_to_all(at, _moves.as_bytes(room), _moves.as_bytes(src), into, out, False))]

        return self._submit("all_to_all", opts, outs, plan)

    def all_to_all_single(
        self, output: Tensor, input: Tensor, into: Any = None, out: Any = None, opts: Any = None, timeout: Any = None
    ) -> GopcclWork:
        """Rows of ``input`` go to the ranks, ``out`` tells how many; ``into`` tells how many come. Empty: equal parts."""
        check([output, input])
        typed("all_to_all", [output, input])

        def plan(at: Place) -> List[Move]:
            s = _staged(output)
            move = _moves.all_to_all(
                at,
                _moves.as_bytes(s),
                _moves.as_bytes(_staged(input)),
                split(output, into, at),
                split(input, out, at),
                not into and not out,
            )
            return [_back(output, s, move)]

        return self._submit("all_to_all", opts, [output], plan)

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None, timeout: Optional[timedelta] = None) -> GopcclWork:
        """Ends when every rank has come to it."""
        return self._submit("barrier", opts, [], lambda at: [_moves.barrier(at)])

    # Messages.

    def send(self, tensors: Any, dst: int, tag: int = 0) -> GopcclWork:
        """Send one tensor to a rank; the work is complete when that has received all of it."""
        ts = tensors_of(tensors)
        return self._message(f"send to rank {dst}", ts, dst, lambda at: _moves.send(at, ts, dst, tag))

    def recv(self, tensors: Any, src: int, tag: int = 0) -> GopcclWork:
        """Receive one tensor from a rank."""
        ts = tensors_of(tensors)
        return self._message(f"recv from rank {src}", ts, src, lambda at: _moves.recv(at, ts, src, tag))

    def recv_anysource(self, tensors: Any, tag: int = 0) -> GopcclWork:
        """Receive one tensor from whichever rank sends it first; the work tells the source."""
        ts = tensors_of(tensors)
        return self._message("recv from any rank", ts, None, lambda at: _moves.recv(at, ts, None, tag))

    def _message(self, what: str, tensors: List[Tensor], rank: Optional[int], plan: Callable[[Place], Post]) -> GopcclWork:
        check(tensors)
        at = self._core.place
        if rank is not None:
            self._rank_is(what, rank, at)
        fits(what, at.size > 1 and rank != at.rank, "the group has one rank" if at.size == 1 else f"rank {rank} is this one")
        return self._core.message(what, tensors, plan)

    # The life of the group.

    def _get_sequence_number_for_group(self) -> int:
        return self._core.sequence

    def _set_sequence_number_for_group(self) -> None:
        self._core.sequence = 0

    def _start_coalescing(self, device: Any = None) -> None:
        self._core.begin_batch()

    def _end_coalescing(self, device: Any = None) -> GopcclWork:
        return self._core.end_batch()

    start_coalescing = _start_coalescing
    end_coalescing = _end_coalescing

    @property
    def options(self) -> Any:
        """The name of the backend and the time that operations may take, as PyTorch holds them."""
        return c10d.Backend.Options("gopccl", self._core.timeout)

    supports_coalescing = True
    supports_splitting = True
    supports_abort_hooks = True

    @property
    def supports_reconfigure(self) -> bool:
        """Whether the group was made with ``enable_reconfigure=True``."""
        return self._core.elastic

    def get_reconfigure_handle(self) -> str:
        """What the other processes need to take this one into a group; it changes after each ``reconfigure``."""
        return self._core.handle()

    def reconfigure(self, opts: Any) -> GopcclWork:
        """Form the group again; rank and size are the new ones once the work has been waited for."""
        return self._core.reconfigure(opts)

    def abort(self) -> None:
        """End every operation with an error, at once, and give the tensors back as they were; ``reconfigure`` repairs."""
        self._core.abort()
        if not self._core.elastic:
            self._core.shutdown()

    def shutdown(self) -> None:
        """Leave the group."""
        self._core.shutdown()

    def get_error(self) -> Any:
        """What has gone wrong: SUCCESS, TIMEOUT or COMM_ERROR."""
        return self._core.error()

    def set_timeout(self, timeout: timedelta) -> None:
        """The time that later operations may take."""
        self._core.timeout = timeout

    _set_default_timeout = set_timeout

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        self._core._ephemeral += timeout

    def register_abort_hook(self, hook_id: int, hook: Callable[[], None]) -> None:
        """Call ``hook`` before a timeout or an error ends the operations."""
        self._core.hooks[hook_id] = hook

    def unregister_abort_hook(self, hook_id: int) -> None:
        """Forget a hook."""
        self._core.hooks.pop(hook_id, None)

    def getBackendName(self) -> str:  # noqa: N802 (PyTorch's name)
        """Name of the backend."""
        return "gopccl"

    _get_backend_name = getBackendName


class GopcclBackend(Calls, c10d.Backend):
    """What PyTorch's C++ calls, and all of a group for one device beside another backend for others."""

    def __init__(self, core: Core) -> None:
        c10d.Backend.__init__(self, core.place.rank, core.place.size)
        self._core = core

    def name(self) -> str:
        """Name of the backend."""
        return "gopccl"

    def monitored_barrier(self, opts: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier that raises after the options' timeout, and names on rank 0 who is missing."""
        own = getattr(opts, "timeout", None)
        monitored_barrier(self._core, own if own is not None and own > timedelta(0) else None, wait_all_ranks)


class GopcclGroup(Calls, dist.ProcessGroup):  # type: ignore[misc]
    """The process group."""

    def __init__(self, core: Core) -> None:
        dist.ProcessGroup.__init__(self, core.place.rank, core.place.size)
        self._core = core
        self._inner = GopcclBackend(core)
        kind = dist.ProcessGroup.BackendType.CUSTOM
        self._set_default_backend(kind)
        for device in ("cpu", "cuda"):
            self._register_backend(torch.device(device), kind, self._inner)

    def rank(self) -> int:
        """The rank of this process in the group as it is now."""
        return self._core.place.rank

    def size(self) -> int:
        """The number of ranks of the group as it is now."""
        return self._core.place.size

    getRank = rank  # noqa: N815 (PyTorch's names)
    getSize = size  # noqa: N815

    def name(self) -> str:
        """Name of the backend."""
        return "gopccl"

    def _get_backend(self, device: Any) -> Any:
        return self

    def monitored_barrier(self, timeout: Optional[timedelta] = None, wait_all_ranks: bool = False) -> None:
        """A barrier that raises after ``timeout``, and names on rank 0 who is missing."""
        monitored_barrier(self._core, timeout, wait_all_ranks)

    def split_group(
        self,
        ranks: List[int],
        timeout: Optional[timedelta] = None,
        opts: Any = None,
        group_name: Any = None,
        group_desc: Optional[str] = None,
        device_types: Any = None,
    ) -> "Optional[GopcclGroup]":
        """A group of some ranks of this one; all of them call it. None for the others."""
        core = self._core
        if core.place.rank not in ranks:
            return None
        store = c10d.PrefixStore(f"gopccl/split/{group_name}/", core.store)
        group = GopcclGroup(Core(store, list(ranks).index(core.place.rank), len(ranks), timeout or core.timeout))
        if group_name is not None:
            group._set_group_name(group_name)
        group._set_group_desc(group_desc or "")
        return group


def create_group(opts: Any, options: Any = None) -> GopcclGroup:
    """Make a process group; called by ``torch.distributed``."""
    elastic = bool(getattr(opts, "enable_reconfigure", False))
    return GopcclGroup(Core(opts.store, opts.group_rank, opts.group_size, opts.timeout, elastic))


def create_backend(opts: Any, options: Any = None) -> GopcclBackend:
    """Make a backend for one device of a group that has others for other devices; called by ``torch.distributed``."""
    return GopcclBackend(Core(opts.store, opts.group_rank, opts.group_size, opts.timeout))
