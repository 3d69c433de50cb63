"""Helpers for elastic training: peers that join, leave and die."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Union

import torch
from torch import Tensor

from gopccl import cuda
from gopccl._comm import Communicator, ReduceOpDescriptor
from gopccl._errors import ArgumentError, PCCLError, Result
from gopccl._state import Path, SharedState, TensorInfo
from gopccl._types import (
    DataType,
    QuantizationAlgorithm,
    QuantizationOptions,
    ReduceDescriptor,
    ReduceInfo,
    ReduceOp,
    ReduceOperandDescriptor,
    SharedStateSyncInfo,
    SharedStateSyncStrategy,
)


def all_reduce(
    comm: Communicator,
    tensors: Iterable[Tensor],
    *,
    op: ReduceOp = ReduceOp.AVG,
    quantization: Optional[QuantizationOptions] = None,
    max_in_flight: int = 8,
) -> ReduceInfo:
    """All-reduce contiguous tensors of any shape, on CPU or CUDA, in place; retry with the survivors until all are done.

    All peers pass the same list. A peer that is alone keeps what is not done yet as
    it is (which is its average, sum, ...) and gets ``local_world_size`` 1.
    Raises PCCLError for every other failure.
    """
    descriptors = []
    for tag, t in enumerate(tensors):
        dtype = DataType.from_torch_dtype(t.dtype)
        quant = quantization or QuantizationOptions(dtype, QuantizationAlgorithm.NONE)
        d = ReduceDescriptor(t.numel(), op, tag, ReduceOperandDescriptor(dtype), quant)
        descriptors.append(ReduceOpDescriptor.from_torch(t, t, d))
    if not descriptors:
        return ReduceInfo()
    try:
        return comm.all_reduce_multiple_with_retry(descriptors, max_in_flight=max_in_flight)
    except PCCLError as err:
        if err.result is Result.TOO_FEW_PEERS:
            return ReduceInfo(local_world_size=1)
        raise


def all_reduce_gradients(
    comm: Communicator,
    parameters: Iterable[Tensor],
    *,
    op: ReduceOp = ReduceOp.AVG,
    quantization: Optional[QuantizationOptions] = None,
    max_in_flight: int = 8,
) -> ReduceInfo:
    """``all_reduce`` of the gradients of parameters; a missing gradient counts as zeros."""
    grads = []
    for p in parameters:
        if not p.requires_grad:
            continue
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        if not p.grad.is_contiguous():
            p.grad = p.grad.contiguous()
        grads.append(p.grad)
    return all_reduce(comm, grads, op=op, quantization=quantization, max_in_flight=max_in_flight)


def _prime(optimizer: torch.optim.Optimizer) -> None:
    """Give the optimizer the state that its first step would make, as zeros; parameters stay as they are.

    Without it a peer that has not stepped yet has other tensors than one that has.
    """
    params = [p for group in optimizer.param_groups for p in group["params"]]
    if any(optimizer.state.get(p) for p in params):
        return
    saved = [(p, p.detach().clone(), p.grad) for p in params]
    rates = [group["lr"] for group in optimizer.param_groups]
    try:
        for p in params:
            p.grad = torch.zeros_like(p) if p.requires_grad else None
        for group in optimizer.param_groups:
            group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], Tensor) else 0.0
        optimizer.step()
    finally:
        with torch.no_grad():
            for p, value, grad in saved:
                p.copy_(value)
                p.grad = grad
        for group, rate in zip(optimizer.param_groups, rates):
            group["lr"] = rate
    for p in params:
        state = optimizer.state.get(p, {})
        for key, value in state.items():
            if isinstance(value, Tensor):
                value.zero_()
            elif isinstance(value, (int, float)):
                state[key] = type(value)(0)


Number = Union[int, float, bool]


class _Numbers:
    """Python numbers of an optimizer as one float64 tensor."""

    def __init__(self) -> None:
        self._places: List[Tuple[Callable[[], Number], Callable[[Number], None]]] = []

    def add(self, table: Dict[str, Any], key: str) -> None:
        value = table[key]
        if isinstance(value, (int, float)):
            self._places.append((lambda: table[key], lambda v: table.__setitem__(key, type(table[key])(v))))
        elif isinstance(value, tuple) and all(isinstance(v, (int, float)) for v in value):
            for i in range(len(value)):
                self._places.append((_getter(table, key, i), _setter(table, key, i)))

    def __len__(self) -> int:
        return len(self._places)

    def load(self, into: Tensor) -> None:
        into.copy_(torch.tensor([float(get()) for get, _ in self._places], dtype=torch.float64))

    def store(self, source: Tensor) -> None:
        for (_, put), value in zip(self._places, source.tolist()):
            put(value)


def _getter(table: Dict[str, Any], key: str, i: int) -> Callable[[], Number]:
    return lambda: table[key][i]


def _setter(table: Dict[str, Any], key: str, i: int) -> Callable[[Number], None]:
    def put(value: Number) -> None:
        old = table[key]
        table[key] = old[:i] + (type(old[i])(value),) + old[i + 1 :]

    return put


_REPLACED = "it is not what is shared; change tensors in place, or make a new TrainingState"

_Place = Tuple[int, torch.Size, Tuple[int, ...], torch.dtype, torch.device]


def _place(t: Tensor) -> _Place:
    """What tells that a tensor has still the same memory."""
    return t.data_ptr(), t.shape, t.stride(), t.dtype, t.device


def _tables(optimizer: torch.optim.Optimizer) -> Iterator[Tuple[str, Dict[str, Any], List[str]]]:
    """Where an optimizer keeps its tensors and numbers: names of the places, tables, keys in them."""
    for g, group in enumerate(optimizer.param_groups):
        yield f"optimizer/group{g}", group, sorted(k for k in group if k != "params")
        for i, p in enumerate(group["params"]):
            state = optimizer.state.get(p)
            if state:
                yield f"optimizer/group{g}/{i}", state, sorted(state)


class TrainingState:
    """Model, optimizer and further tensors as one shared state.

    ``model`` is a module or a mapping such as a ``state_dict``: parameters and buffers of
    any shape. Of ``optimizer`` the state tensors and the numbers (steps, learning rates)
    are shared; state that the first step would make is made at once. ``extra`` are tensors of
    the trainer's own, such as a step counter.

    Tensors are shared in place; only those that cannot be (not contiguous, bool, complex,
    on another device than CPU and CUDA) are copied at every sync. Tensors must not be replaced
    afterwards, only changed: ``sync`` raises ArgumentError if one was, as by ``p.data = ...`` or
    ``optimizer.load_state_dict``. All peers need equal names and shapes.
    """

    def __init__(
        self,
        model: Union[torch.nn.Module, Mapping[str, Tensor]],
        optimizer: Optional[torch.optim.Optimizer] = None,
        extra: Optional[Mapping[str, Tensor]] = None,
    ) -> None:
        self._staged: List[Tuple[Tensor, Tensor]] = []
        self._numbers = _Numbers()
        self._model, self._optimizer, self._extra = model, optimizer, extra or {}
        self._noted: Dict[str, _Place] = {}
        self._tables: Dict[str, Dict[str, Any]] = {}
        infos: List[TensorInfo] = []
        if optimizer is not None:
            _prime(optimizer)
        tensors, again = list(self._tensors()), dict(self._tensors())
        for name, t in tensors:
            self._add(infos, name, t)
            if _place(again[name]) == _place(t):  # else the model makes it again whenever it is asked
                self._noted[name] = _place(t)
        if optimizer is not None:
            self._add_numbers(optimizer)
        self._number_tensor = torch.zeros(len(self._numbers), dtype=torch.float64)
        if len(self._numbers):
            infos.append(TensorInfo.from_torch(self._number_tensor, "optimizer/numbers"))
        self.shared_state = SharedState(infos)

    def _tensors(self) -> Iterator[Tuple[str, Tensor]]:
        """All tensors with their names, as model, optimizer and extra have them now."""
        model = self._model
        tensors = model.state_dict(keep_vars=True) if isinstance(model, torch.nn.Module) else model
        for name, t in tensors.items():
            if isinstance(t, Tensor):
                yield f"model/{name}", t
        if self._optimizer is not None:
            for place, table, keys in _tables(self._optimizer):
                for key in keys:
                    if isinstance(table[key], Tensor):
                        yield f"{place}/{key}", table[key]
        for name, t in self._extra.items():
            yield f"extra/{name}", t

    def _add(self, infos: List[TensorInfo], name: str, t: Tensor) -> None:
        t = t.detach()
        here = t.device.type == "cpu" or t.device.type == "cuda" and cuda.is_available()
        direct = here and t.is_contiguous() and t.dtype is not torch.bool and not t.is_complex()
        if not direct:
            staging = torch.view_as_real(t) if t.is_complex() else t
            staging = staging.to("cpu", torch.uint8 if t.dtype is torch.bool else staging.dtype, copy=True)
            staging = staging.contiguous()
            self._staged.append((t, staging))
            t = staging
        infos.append(TensorInfo.from_torch(t, name))

    def _add_numbers(self, optimizer: torch.optim.Optimizer) -> None:
        for place, table, keys in _tables(optimizer):
            self._tables[place] = table
            for key in keys:
                if not isinstance(table[key], Tensor):
                    self._numbers.add(table, key)

    def _check(self) -> None:
        """ArgumentError if what is shared is no longer what is trained."""
        now = {name: _place(t) for name, t in self._tensors()}
        for name, place in self._noted.items():
            if now.get(name) != place:
                raise ArgumentError(f"tensor {name!r} was {'replaced' if name in now else 'removed'}: {_REPLACED}")
        if self._optimizer is not None:
            tables = {where: table for where, table, _ in _tables(self._optimizer)}
            for where, known in self._tables.items():
                if tables.get(where) is not known:
                    raise ArgumentError(f"the numbers of {where} were replaced: {_REPLACED}")

    @property
    def revision(self) -> int:
        """Revision of the content; peers with a lower one are brought up to date."""
        return self.shared_state.revision

    @revision.setter
    def revision(self, value: int) -> None:
        self.shared_state.revision = value

    def push_revision(self) -> None:
        """Add one to the revision: once per step, before the next sync."""
        self.shared_state.push_revision()

    @property
    def torn(self) -> Tuple[str, ...]:
        """Names of the tensors that a sync which failed has left overwritten; see :attr:`SharedState.torn`."""
        return self.shared_state.torn

    def restored(self) -> None:
        """Say that the whole state and the revision were loaded from a checkpoint."""
        self.shared_state.restored()

    def sync(
        self,
        comm: Communicator,
        strategy: SharedStateSyncStrategy = SharedStateSyncStrategy.ENFORCE_POPULAR,
    ) -> SharedStateSyncInfo:
        """Make the state equal on all peers of the group; all accepted peers must call it.

        If it fails while a state is received, :attr:`torn` names what was overwritten: do not
        train on with it. The next sync with a peer that has a sound state mends it, or a
        checkpoint and :meth:`restored`.
        """
        with torch.no_grad():
            self._stage()
            try:
                info = comm.sync_shared_state(self.shared_state, strategy)
            except BaseException:
                # A signal handler may have raised behind a call that did all that it should.
                if self.shared_state._whole():
                    self._unstage()
                raise
            if info.rx_bytes:
                self._unstage()
        return info

    def save(self, directory: Path, *, keep: int = 0, meta: Optional[Mapping[str, str]] = None) -> str:
        """Write the state to a new file in ``directory``; see :meth:`SharedState.save`."""
        with torch.no_grad():
            self._stage()
        return self.shared_state.save(directory, keep=keep, meta=meta)

    def load(self, path: Path) -> Dict[str, str]:
        """Read a checkpoint into model, optimizer and revision; return its ``meta``. See :meth:`SharedState.load`."""
        with torch.no_grad():
            self._stage()
            meta = self.shared_state.load(path)
            self._unstage()
        return meta

    def _stage(self) -> None:
        """Give the copies the content of what is shared by them."""
        self._check()
        for t, staging in self._staged:
            staging.copy_(torch.view_as_real(t) if t.is_complex() else t)
        self._numbers.load(self._number_tensor)

    def _unstage(self) -> None:
        """Give what is shared by a copy the content of the copy."""
        for t, staging in self._staged:
            (torch.view_as_real(t) if t.is_complex() else t).copy_(staging)
        self._numbers.store(self._number_tensor)
