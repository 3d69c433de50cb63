"""The ``torch.distributed`` backend "gopccl".

Every process group is a run of its own: rank 0 starts the master and tells its
address through the store. Everything is an all-reduce: where bytes are only
moved (broadcast, all_gather) the others contribute zeros to a sum of bytes,
which is exact. Operations are launched in the caller's thread, so that they
overlap, and awaited in launch order by one thread.

CUDA tensors are used behind what the current streams of the caller hold at the
launch. What a collective copies when it has ended runs on those streams, too, and
is complete for every stream when the work is.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import queue
import socket
import threading
import time
import weakref
from datetime import timedelta
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch.futures import Future

from gopccl import cuda
from gopccl._buffers import buffer_of
from gopccl._comm import AsyncReduceHandle, Communicator, MasterNode
from gopccl._errors import PCCLError
from gopccl._lib import in_home_process
from gopccl._types import Attribute, ReduceOp
from gopccl.torch._messages import Messages

_log = logging.getLogger("gopccl")

Job = Tuple[Tensor, ReduceOp]
Finish = Optional[Callable[[], None]]
# What is to be awaited, what to do then, the work that is complete then, why it has failed already.
_Item = Tuple[List[AsyncReduceHandle], Finish, "GopcclWork", Optional[BaseException]]

_LINGER = 10.0  # seconds that rank 0 keeps the master for ranks that have not left yet


class Failure(dist.DistBackendError):
    """A collective failed; the process group cannot be used any more."""


class GopcclWork(c10d.Work):
    """A collective in flight."""

    def __init__(self, what: str, outputs: List[Tensor], timeout: timedelta) -> None:
        super().__init__()
        self._what = what
        self._outputs = outputs
        self._limit = timeout
        self._event = threading.Event()
        self._error: Optional[BaseException] = None
        self._streams = cuda.streams_of(outputs)
        self._future: Any = Future(devices=[s.device for s in self._streams]) if self._streams else Future()

    @contextlib.contextmanager
    def placing(self) -> Iterator[None]:
        """For what writes to the output tensors: on the streams that were the caller's, and complete at the end."""
        with contextlib.ExitStack() as stack:
            for s in self._streams:
                stack.enter_context(torch.cuda.stream(s))
            yield
            for s in self._streams:
                s.synchronize()

    def finish(self, error: Optional[BaseException] = None) -> None:
        """Complete the work; called once."""
        self._error = error
        try:
            if error is None:
                self._future.set_result(self._outputs)
            else:
                self._future.set_exception(error)
        finally:
            self._event.set()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Block until the collective has ended; raises if it failed or ``timeout`` (0: the group's) is over."""
        limit = timeout if timeout > timedelta(0) else self._limit
        if not self._event.wait(min(limit.total_seconds(), threading.TIMEOUT_MAX)):
            raise Failure(f"gopccl: {self._what}: no result after {limit.total_seconds():g} s")
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """True when the result or the failure is known."""
        return self._event.is_set()

    def is_success(self) -> bool:
        """True when it has ended well."""
        return self._event.is_set() and self._error is None

    def exception(self) -> Optional[BaseException]:
        """The failure, if there is one."""
        return self._error

    def result(self) -> List[Tensor]:
        """The output tensors."""
        return self._outputs

    def synchronize(self) -> None:
        """Nothing to do: what is complete is so for every stream."""

    def get_future(self) -> Any:
        """A future of the list of output tensors."""
        return self._future


def _flat_bytes(t: Tensor) -> Tensor:
    return t.reshape(-1).view(torch.uint8)


def _plan(t: Tensor, op: Any) -> Job:
    """The real tensor and operation that reduce ``t``, which is contiguous, by ``op``."""
    kind = getattr(op, "op", op)  # ReduceOp wraps its enum
    kinds: Any = c10d.ReduceOp.RedOpType
    if t.dtype is torch.bool:
        logical = {
            kinds.SUM: ReduceOp.MAX,
            kinds.MAX: ReduceOp.MAX,
            kinds.BOR: ReduceOp.MAX,
            kinds.PRODUCT: ReduceOp.MIN,
            kinds.MIN: ReduceOp.MIN,
            kinds.BAND: ReduceOp.MIN,
        }
        if kind in logical:
            return t.view(torch.uint8), logical[kind]
    elif t.is_complex():
        if kind in (kinds.SUM, kinds.AVG):
            return torch.view_as_real(t), ReduceOp.SUM if kind == kinds.SUM else ReduceOp.AVG
    else:
        plain = {
            kinds.SUM: ReduceOp.SUM,
            kinds.AVG: ReduceOp.AVG,
            kinds.PRODUCT: ReduceOp.PROD,
            kinds.MAX: ReduceOp.MAX,
            kinds.MIN: ReduceOp.MIN,
        }
        if kind in plain:
            return t, plain[kind]
    raise ValueError(f"gopccl: {kind} of {t.dtype} tensors is not supported")


def _check(tensors: Sequence[Tensor]) -> None:
    for t in tensors:
        if t.device.type == "cuda":
            cuda.require(str(t.device))
        elif t.device.type != "cpu":
            raise ValueError(f"gopccl: a tensor is on {t.device}; the backend takes CPU and CUDA tensors")
        if t.layout is not torch.strided:
            raise ValueError(f"gopccl: a tensor has layout {t.layout}; the backend takes dense tensors")


def local_host() -> str:
    """The address under which the other ranks reach this process.

    ``GOPCCL_HOST`` if set, else the local address towards MASTER_ADDR.
    """
    host = os.environ.get("GOPCCL_HOST")
    if host:
        return host
    target = os.environ.get("MASTER_ADDR", "127.0.0.1")
    try:
        found = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)
        found.sort(key=lambda entry: entry[0] != socket.AF_INET)
        with socket.socket(found[0][0], socket.SOCK_DGRAM) as s:
            s.connect(found[0][4])
            return str(s.getsockname()[0])
    except OSError as err:
        _log.warning("no route to MASTER_ADDR %s (%s); set GOPCCL_HOST; going on with 127.0.0.1", target, err)
        return "127.0.0.1"


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class GopcclBackend(c10d.Backend):
    """A process group over gopccl."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size
        self._store = store
        self._timeout = timeout
        self._lock = threading.Lock()
        self._tag = 0
        self._broken: Optional[str] = None
        self._closed = False
        self._master: Optional[MasterNode] = None
        self._comm: Optional[Communicator] = None
        self._messages: Optional[Messages] = None
        self._works: "queue.SimpleQueue[Optional[_Item]]" = queue.SimpleQueue()
        if size > 1:
            self._form()
        self._thread = threading.Thread(target=self._complete, name="gopccl-complete", daemon=True)
        self._thread.start()
        atexit.register(_shutdown_if_alive, weakref.ref(self))

    def _form(self) -> None:
        if self._rank == 0:
            host = local_host()
            self._master = MasterNode("[::]:0" if ":" in host else "0.0.0.0:0")
            self._master.run()
            self._store.set("gopccl/master", _join(host, self._master.port))
        address = self._store.get("gopccl/master").decode()
        self._comm = Communicator(address)
        self._comm.connect()
        end = time.monotonic() + self._timeout.total_seconds()
        # Every accepted peer votes; waiting peers are let in, until all are there.
        while self._comm.get_attribute(Attribute.GLOBAL_WORLD_SIZE) < self._size:
            if time.monotonic() > end:
                raise Failure(f"gopccl: not all of {self._size} ranks came to {address} within {self._timeout}")
            self._comm.update_topology()
            time.sleep(0.002)

    def getBackendName(self) -> str:  # noqa: N802 (PyTorch's name)
        """Name of the backend."""
        return "gopccl"

    def name(self) -> str:
        """Name of the backend."""
        return "gopccl"

    def _complete(self) -> None:
        while True:
            item = self._works.get()
            if item is None:
                return
            handles, finish, work, error = item
            for h in handles:
                try:
                    info = h.result()
                    if info.local_world_size != self._size:
                        raise Failure(f"gopccl: {work._what}: {info.local_world_size} of {self._size} ranks are left")
                except Exception as err:
                    error = error or Failure(f"gopccl: {work._what}: {err}")
            if error is None and finish is not None:
                try:
                    with work.placing():
                        finish()
                except Exception as err:
                    error = err
            if error is not None:
                self._broken = str(error)
            work.finish(error)
            del item, handles, finish, work, error

    def _submit(self, what: str, jobs: Sequence[Job], outputs: List[Tensor], finish: Finish = None) -> GopcclWork:
        work = GopcclWork(what, outputs, self._timeout)
        comm = self._comm
        buffers = []
        if comm is not None:  # what can never work is refused while nothing is launched
            buffers = [(buffer_of(t, what, writable=True), op) for t, op in jobs if t.numel()]
        with self._lock:
            if self._closed:
                raise Failure(f"gopccl: {what}: the process group was destroyed")
            if self._broken is not None:
                raise Failure(f"gopccl: {what}: the process group has failed: {self._broken}")
            handles: List[AsyncReduceHandle] = []
            try:
                if comm is not None:
                    for b, op in buffers:
                        self._tag += 1
                        handles.append(comm.all_reduce_async(b, b, op=op, tag=self._tag))
                self._works.put((handles, finish, work, None))
            except BaseException as err:
                # Some of it may be launched, here or by the other ranks: that is awaited,
                # and nothing can follow it. All that is not awaited was launched here.
                failure = Failure(f"gopccl: {what}: {err or type(err).__name__}")
                self._broken = str(failure)
                self._works.put((comm.in_flight() if comm is not None else [], None, work, failure))
                if isinstance(err, PCCLError):
                    raise failure from None
                raise
        return work

    def _reduce_in_place(self, what: str, tensors: Sequence[Tensor], op: Any) -> GopcclWork:
        _check(tensors)
        staged = [(t, t if t.is_contiguous() else t.contiguous()) for t in tensors]

        def finish() -> None:
            for t, s in staged:
                if s is not t:
                    t.copy_(s)

        return self._submit(what, [_plan(s.detach(), op) for _, s in staged], list(tensors), finish)

    def allreduce(self, tensors: List[Tensor], opts: Any = None) -> GopcclWork:
        """Reduce every tensor over the ranks, in place."""
        return self._reduce_in_place("all_reduce", tensors, opts.reduceOp if opts else dist.ReduceOp.SUM)

    def allreduce_coalesced(self, tensors: List[Tensor], opts: Any = None) -> GopcclWork:
        """Reduce every tensor over the ranks, in place."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: List[Tensor], opts: Any) -> GopcclWork:
        """Reduce over the ranks into the root's tensors; the others' stay as they are."""
        _check(tensors)
        temps = [t.detach().clone(memory_format=torch.contiguous_format) for t in tensors]

        def finish() -> None:
            if self._rank == opts.rootRank:
                for t, s in zip(tensors, temps):
                    t.copy_(s)

        return self._submit("reduce", [_plan(s, opts.reduceOp) for s in temps], list(tensors), finish)

    def _broadcast(self, what: str, tensors: Sequence[Tensor], root: int) -> Tuple[List[Job], Callable[[], None]]:
        _check(tensors)
        staged = []
        for t in tensors:
            if self._rank == root:
                s = t.detach().contiguous()
            elif t.is_contiguous():
                s = t.detach().zero_()
            else:
                s = torch.zeros_like(t, memory_format=torch.contiguous_format)
            staged.append((t, s))

        def finish() -> None:
            if self._rank != root:
                for t, s in staged:
                    if s.data_ptr() != t.data_ptr():
                        t.copy_(s)

        return [(_flat_bytes(s), ReduceOp.SUM) for _, s in staged], finish

    def broadcast(self, tensors: List[Tensor], opts: Any) -> GopcclWork:
        """Copy the root's tensors to all ranks, bit for bit."""
        if self._size == 1:
            return self._submit("broadcast", [], list(tensors))
        jobs, finish = self._broadcast("broadcast", tensors, opts.rootRank)
        return self._submit("broadcast", jobs, list(tensors), finish)

    def _gathered(self, source: Tensor) -> Tuple[Tensor, Job]:
        """A table [size, elements of source] to which the sum of bytes brings every rank's row."""
        table = torch.zeros((self._size, source.numel()), dtype=source.dtype, device=source.device)
        table[self._rank].copy_(source.detach().reshape(-1))
        return table, (_flat_bytes(table), ReduceOp.SUM)

    def allgather(self, outputs: List[List[Tensor]], inputs: List[Tensor], opts: Any = None) -> GopcclWork:
        """Bring every rank's input i to ``outputs[i][rank]``."""
        _check(inputs)
        tables = [self._gathered(t) for t in inputs]

        def finish() -> None:
            for row, (table, _) in zip(outputs, tables):
                for out, part in zip(row, table):
                    out.detach().copy_(part.view(out.shape))

        return self._submit("all_gather", [job for _, job in tables], [t for row in outputs for t in row], finish)

    def allgather_coalesced(self, outputs: List[List[Tensor]], inputs: List[Tensor], opts: Any = None) -> GopcclWork:
        """``outputs[rank][i]`` becomes rank's input i."""
        return self.allgather([list(column) for column in zip(*outputs)], inputs, opts)

    def all_gather_single_coalesced(self, outputs: List[Tensor], inputs: List[Tensor], opts: Any = None) -> GopcclWork:
        """Output i becomes all ranks' input i, concatenated."""
        _check([*outputs, *inputs])
        tables = [self._gathered(t) for t in inputs]

        def finish() -> None:
            for out, (table, _) in zip(outputs, tables):
                out.detach().copy_(table.view(out.shape))

        return self._submit("all_gather", [job for _, job in tables], list(outputs), finish)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> GopcclWork:
        """``output`` becomes all ranks' inputs, concatenated."""
        return self.all_gather_single_coalesced([output], [input], opts)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _scatter_reduced(self, what: str, outs: List[Tensor], tables: List[Tensor], op: Any) -> GopcclWork:
        def finish() -> None:
            for out, table in zip(outs, tables):
                out.detach().copy_(table.view(self._size, -1)[self._rank].view(out.shape))

        return self._submit(what, [_plan(table, op) for table in tables], outs, finish)

    def reduce_scatter(self, outputs: List[Tensor], inputs: List[List[Tensor]], opts: Any = None) -> GopcclWork:
        """``outputs[i]`` becomes the reduction of all ranks' ``inputs[i][rank]``."""
        op = opts.reduceOp if opts else dist.ReduceOp.SUM
        for row in inputs:
            _check(row)
        flat = [torch.cat([t.detach().reshape(-1) for t in row]) for row in inputs]
        if any(t.numel() != row[0].numel() for row in inputs for t in row):
            raise ValueError("gopccl: reduce_scatter needs inputs of one size")
        return self._scatter_reduced("reduce_scatter", outputs, flat, op)

    def reduce_scatter_single_coalesced(
        self, outputs: List[Tensor], inputs: List[Tensor], opts: Any = None
    ) -> GopcclWork:
        """Output i becomes this rank's part of the reduction of all ranks' input i."""
        op = opts.reduceOp if opts else dist.ReduceOp.SUM
        _check([*outputs, *inputs])
        tables = [t.detach().clone(memory_format=torch.contiguous_format) for t in inputs]
        return self._scatter_reduced("reduce_scatter", list(outputs), tables, op)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> GopcclWork:
        """``output`` becomes this rank's part of the reduction of all ranks' inputs."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def gather(self, outputs: List[List[Tensor]], inputs: List[Tensor], opts: Any) -> GopcclWork:
        """Bring every rank's input to the root."""
        return self.allgather(outputs if self._rank == opts.rootRank else [[] for _ in inputs], inputs)

    def scatter(self, outputs: List[Tensor], inputs: List[List[Tensor]], opts: Any) -> GopcclWork:
        """``outputs[0]`` becomes the root's ``inputs[0][rank]``."""
        _check(outputs)
        out = outputs[0]
        table = torch.zeros((self._size, out.numel()), dtype=out.dtype, device=out.device)
        if self._rank == opts.rootRank:
            for row, t in zip(table, inputs[0]):
                row.copy_(t.detach().reshape(-1))

        def finish() -> None:
            out.detach().copy_(table[self._rank].view(out.shape))

        return self._submit("scatter", [(_flat_bytes(table), ReduceOp.SUM)], list(outputs), finish)

    def barrier(self, opts: Any = None) -> GopcclWork:
        """Ends when every rank has come to it."""
        return self._submit("barrier", [(torch.zeros(1, dtype=torch.uint8), ReduceOp.SUM)], [])

    def monitored_barrier(self, timeout: timedelta = timedelta(0), wait_all_ranks: bool = False) -> None:
        """A barrier that raises after ``timeout``."""
        self.barrier().wait(timeout)

    def _mail(self) -> Messages:
        with self._lock:
            if self._closed:
                raise Failure("gopccl: the process group was destroyed")
            if self._messages is None:
                self._messages = Messages(self._store, self._rank, local_host(), self._timeout)
            return self._messages

    def send(self, tensors: List[Tensor], dst: int, tag: int = 0) -> GopcclWork:
        """Send one tensor to a rank, over a TCP connection of its own."""
        _check(tensors)
        work = GopcclWork("send", list(tensors), self._timeout)
        self._mail().send(dst, tag, [_flat_bytes(t.detach().contiguous()).cpu() for t in tensors], work.finish)
        return work

    def recv(self, tensors: List[Tensor], src: int, tag: int = 0) -> GopcclWork:
        """Receive one tensor from a rank."""
        _check(tensors)
        work = GopcclWork("recv", list(tensors), self._timeout)
        self._mail().recv(src, tag, tensors, work)
        return work

    def recv_anysource(self, tensors: List[Tensor], tag: int = 0) -> GopcclWork:
        """Not possible: PyTorch asks the work for the source, which one made in Python cannot tell."""
        raise ValueError("gopccl: recv needs a source rank")

    def _await_thread(self) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def shutdown(self) -> None:
        """Leave the run; rank 0 waits a while for the others before it ends the master."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._works.put(None)
            messages = self._messages
        self._await_thread()
        if messages is not None:
            messages.close()
        if self._comm is not None:
            self._comm.close()
            self._await_thread()  # if an operation was in flight, it has ended by now
            try:
                self._store.add("gopccl/left", 1)
                end = time.monotonic() + (_LINGER if self._broken is None else 0)
                while self._master and self._store.add("gopccl/left", 0) < self._size and time.monotonic() < end:
                    time.sleep(0.01)
            except (RuntimeError, OSError) as err:  # the store may be gone already
                _log.debug("leaving: %s", err)
        if self._master is not None:
            self._master.close()

    def abort(self) -> None:
        """Like ``shutdown``, without waiting for the others."""
        self._broken = self._broken or "aborted"
        self.shutdown()


def _shutdown_if_alive(ref: "weakref.ref[GopcclBackend]") -> None:
    backend = ref()
    if backend is not None and in_home_process():  # a child made by fork shares the sockets, and has left nothing
        backend.shutdown()


def create_backend(store: Any, rank: int, size: int, timeout: timedelta) -> GopcclBackend:
    """Make a process group; called by ``torch.distributed``."""
    return GopcclBackend(store, rank, size, timeout)
