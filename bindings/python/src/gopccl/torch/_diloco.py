"""DiLoCo: local training, and one average of what was learned per round."""

from __future__ import annotations

from typing import List, Mapping, Optional, Tuple, Union

import torch
from torch import Tensor

from gopccl._comm import Communicator
from gopccl._errors import ArgumentError, PCCLError, Result
from gopccl._flight import AsyncReduceHandle
from gopccl._state import Path, SharedState, TensorInfo, latest_checkpoint
from gopccl._types import (
    Attribute,
    DataType,
    QuantizationOptions,
    ReduceInfo,
    ReduceOp,
    ReduceOperandDescriptor,
    SharedStateSyncStrategy,
)
from gopccl.torch._helpers import all_reduce

Model = Union[torch.nn.Module, Mapping[str, Tensor]]


class _Flight:
    """An average of tensors over all peers, on its way: launched, then landed, then taken."""

    def __init__(self, comm: Communicator, quantization: Optional[QuantizationOptions]) -> None:
        self._comm = comm
        self._quantization = quantization
        self._tensors: List[Tensor] = []  # averaged in place
        self._handles: List[AsyncReduceHandle] = []
        self._up = False  # launched and not landed
        self.landed = False  # landed and not taken
        self.info = ReduceInfo()

    def launch(self, tensors: List[Tensor]) -> None:
        """Start to average ``tensors`` in place, and return at once."""
        self._tensors, self._handles, self._up, self.landed = tensors, [], True, False
        for tag, t in enumerate(tensors):
            operand = ReduceOperandDescriptor(DataType.from_torch_dtype(t.dtype))
            try:
                h = self._comm.all_reduce_async(
                    t, t, op=ReduceOp.AVG, tag=tag, operand_descriptor=operand, quantization_options=self._quantization
                )
            except PCCLError as err:
                if err.result is Result.TOO_FEW_PEERS:
                    return  # alone; land does the rest
                raise
            self._handles.append(h)

    def land(self) -> None:
        """Wait for what was launched; the survivors repeat what a death has ended.

        All of them see the same verdicts, so all repeat the same tensors.
        """
        if not self._up:
            return
        self._up, again, self.info = False, [], ReduceInfo()
        failed: Optional[PCCLError] = None
        for h, t in zip(self._handles, self._tensors):
            try:
                self._add(h.result())
            except PCCLError as err:
                if err.result is Result.RANK_CONNECTION_LOST:
                    again.append(t)
                else:
                    failed = failed or err
        if failed is not None:
            raise failed
        again += self._tensors[len(self._handles) :]
        self._handles = []
        if again:
            self._add(all_reduce(self._comm, again, quantization=self._quantization))
        self.landed = True

    def _add(self, info: ReduceInfo) -> None:
        old = self.info
        self.info = ReduceInfo(info.local_world_size, old.tx_bytes + info.tx_bytes, old.rx_bytes + info.rx_bytes)

    def take(self) -> List[Tensor]:
        """The average that has landed, once; empty if there is none."""
        landed, self.landed = self.landed, False
        return self._tensors if landed else []


class DiLoCo:
    """Training in rounds: every peer steps alone, then all move by the average of how far they came.

    ``model`` is a module, or a mapping of names to its parameters: dense floating point
    tensors. What is shared by all peers, with the same bits after every round, is another
    copy of them (float32, or float64 where they are) and Nesterov momentum; the model
    itself, its buffers and the inner optimizer are this peer's::

        comm.connect()
        diloco = DiLoCo(comm, model)
        while diloco.rounds < 100:
            diloco.begin()              # lets newcomers in; the model has the shared parameters
            for _ in range(25):
                ...                     # steps of the inner optimizer
            diloco.end()                # the shared parameters take one step
        diloco.finish()

    All peers call ``begin`` and ``end`` in turn, and nothing else of ``comm`` in between.
    ``comm`` was connected, and nothing else was done with it. A peer may join or die at any
    time; the survivors repeat without it what failed, and ``begin`` waits until there are
    ``peers``.

    With ``delay`` 1 the average of a round travels while the next one is computed, and is
    applied at the end of that, one round late. ``quantization`` makes what travels smaller.
    """

    def __init__(
        self,
        comm: Communicator,
        model: Model,
        *,
        outer_rate: float = 0.7,
        momentum: float = 0.9,
        delay: int = 0,
        quantization: Optional[QuantizationOptions] = None,
        peers: int = 2,
    ) -> None:
        if delay not in (0, 1):
            raise ArgumentError(f"delay is {delay!r}, must be 0 or 1 rounds")
        if peers < 1:
            raise ArgumentError(f"peers is {peers}, must be at least 1")
        named = model.named_parameters() if isinstance(model, torch.nn.Module) else model.items()
        self.comm = comm
        self.peers = peers
        self.outer_rate = outer_rate
        self.momentum = momentum
        self._late = bool(delay)
        self._locals: List[Tensor] = []
        self._outer: List[Tensor] = []
        self._velocity: List[Tensor] = []
        infos: List[TensorInfo] = []
        for name, p in named:
            t = p.detach()
            if not t.is_floating_point() or t.layout is not torch.strided:
                raise ArgumentError(f"parameter {name!r} is {t.dtype}, {t.layout}; DiLoCo takes dense floating point tensors")
            self._locals.append(t)
            o = t.to(torch.promote_types(t.dtype, torch.float32), copy=True, memory_format=torch.contiguous_format)
            self._outer.append(o)
            self._velocity.append(torch.zeros_like(o))
            infos.append(TensorInfo.from_torch(o, f"outer.{name}"))
            infos.append(TensorInfo.from_torch(self._velocity[-1], f"momentum.{name}"))
        if not infos:
            raise ArgumentError("model has no parameters")
        self._clock = torch.zeros(2, dtype=torch.int64)  # rounds; whether an average waits to be applied
        infos.append(TensorInfo.from_torch(self._clock, "clock"))
        self.state = SharedState(infos)
        self._pseudo = [torch.empty_like(o) for o in self._outer]
        self._spare = [torch.empty_like(o) for o in self._outer] if delay else []  # in flight, or of the next round
        self._flight = _Flight(comm, quantization)
        self._quantization = quantization
        self._joined = False
        self._news = False  # in this round somebody is new
        self._open = False  # between begin and end

    @property
    def rounds(self) -> int:
        """Rounds that the shared parameters have behind them."""
        return int(self._clock[0])

    @property
    def parameters(self) -> Tuple[Tensor, ...]:
        """The shared parameters, in the order of the model's; not to be changed."""
        return tuple(self._outer)

    def begin(self) -> None:
        """Begin a round: let in who waits, agree on the state, and give the model the shared parameters."""
        if self._open:
            raise ArgumentError("begin was called twice without end")
        if self._admit():
            self._news = True
        if not self._late:
            self.comm.sync_shared_state(self.state)
        elif self._news:
            # Newcomers compute this round from the same parameters, while an average is in flight
            # that they have no part in.
            self._clock[1] = self._flight.landed
            self._sync(SharedStateSyncStrategy.ENFORCE_POPULAR)
        with torch.no_grad():
            for t, o in zip(self._locals, self._outer):
                t.copy_(o)
        self._open = True

    def _admit(self) -> bool:
        """Let in who waits, until there are enough; whether anybody is new, this peer included."""
        news = not self._joined
        if not news and self.comm.are_peers_pending():
            self._flight.land()
            self.comm.update_topology()
            news = True
        self._joined = True
        if self.comm.get_attribute(Attribute.LOCAL_WORLD_SIZE) < self.peers:
            self._flight.land()
            self.comm.wait_for_peers(self.peers)
            news = True
        return news

    def _sync(self, strategy: SharedStateSyncStrategy) -> None:
        self.comm.sync_shared_state(self.state, strategy)
        self.state.push_revision()

    def end(self) -> ReduceInfo:
        """End a round: move the shared parameters by the average of all peers.

        Returns what the average that was applied has cost; with ``delay`` 1 that is the one
        of the round before, and ``local_world_size`` is 0 if there is none.
        """
        if not self._open:
            raise ArgumentError("end was called without begin")
        self._open = False
        with torch.no_grad():
            for d, o, t in zip(self._pseudo, self._outer, self._locals):
                torch.sub(o, t.to(o.dtype), out=d)
            if self._late:
                info = self._end_late()
            else:
                info = all_reduce(self.comm, self._pseudo, quantization=self._quantization)
                self._step(self._pseudo)
                self._clock[0] += 1
                self.state.push_revision()
        self._news = False
        return info

    def _end_late(self) -> ReduceInfo:
        self._flight.land()
        info, strategy = ReduceInfo(), SharedStateSyncStrategy.RECEIVE_ONLY
        mean = self._flight.take()
        if mean:
            self._step(mean)
            info, strategy = self._flight.info, SharedStateSyncStrategy.SEND_ONLY
        self._clock[0] += 1
        owed = bool(self._clock[1])
        self._clock[1] = 0
        if self._news and owed:
            self._sync(strategy)  # newcomers adopt the outcome of what they had no part in
        self._flight.launch(self._pseudo)
        self._pseudo, self._spare = self._spare, self._pseudo
        return info

    def _step(self, mean: List[Tensor]) -> None:
        """One step of Nesterov momentum, rounded after every operation: the same bits on every machine."""
        for o, v, g in zip(self._outer, self._velocity, mean):
            v.mul_(self.momentum).add_(g)
            o.sub_((v * self.momentum).add_(g).mul_(self.outer_rate))

    def finish(self) -> None:
        """Wait for what is in flight; it is not applied. For the end of a run, in front of ``comm.close()``."""
        self._flight.land()

    def save(self, directory: Path, *, keep: int = 3, meta: Optional[Mapping[str, str]] = None) -> str:
        """Write the shared state to a new file in ``directory``; see :meth:`SharedState.save`.

        Between ``end`` and ``begin``. The model itself, its buffers and the inner optimizer
        are not in it. With ``delay`` 1 the average in flight is lost with this process.
        """
        if self._open:
            raise ArgumentError("save was called between begin and end")
        return self.state.save(directory, keep=keep, meta=meta)

    def resume(self, directory: Path) -> bool:
        """Load the newest sound checkpoint of ``directory``, in front of the first ``begin``; False if there is none."""
        if self._joined:
            raise ArgumentError("resume was called behind begin")
        path = latest_checkpoint(directory)
        if path is None:
            return False
        self.state.load(path)
        self._clock[1] = 0  # what was in flight then is gone
        return True
