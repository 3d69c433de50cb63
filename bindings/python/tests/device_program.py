#!/usr/bin/env python3
"""Tensors on a device, from PyTorch's call to the result: device_program.py KIND [--only NAME,NAME] [--list].

KIND is where they are: ``cuda`` (a GPU), ``standin`` (the interpreter's devices, in a library that was built with
the tag ``interpreted``) or ``cpu``. Needs PyTorch and gopccl, nothing else. One line per check; goes on after one
that fails; the exit code says whether all hold.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import os
import subprocess
import sys
import threading
import time
import traceback
from datetime import timedelta
from typing import Any, Callable, Dict, Iterator, List, Optional

import torch

import gopccl
import gopccl.torch
from gopccl import (
    Attribute,
    Communicator,
    DataType,
    MasterNode,
    PCCLError,
    QuantizationAlgorithm,
    QuantizationOptions,
    ReduceOp,
    Result,
    SharedState,
    TensorInfo,
)
from gopccl.torch import TrainingState, _core, _group, _work

PATIENCE = 120.0  # seconds that peers may take for a check
LIMIT = timedelta(seconds=60)
DEAF = "DEVICE_PROGRAM_DEAF"  # with the stand-in: the library does not learn of the caller's stream

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
TYPES = [*FLOATS, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
OPS = [ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PROD, ReduceOp.MAX, ReduceOp.MIN]


class Place:
    """Where the tensors are: the host's memory."""

    kind = "cpu"
    big = 20_003  # elements of what is not small

    def put(self, t: Any) -> Any:
        """A tensor with the content of ``t``, written on the current stream."""
        return t.clone()

    def get(self, t: Any) -> Any:
        """The content now, without waiting for any stream."""
        return t.clone()

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        """Another stream is the current one."""
        yield

    def busy(self) -> None:
        """Give the current stream work for a while."""

    def close(self) -> None:
        """Nothing may be left."""


class Cuda(Place):
    """A GPU."""

    kind = "cuda"
    big = 1_000_003

    def put(self, t: Any) -> Any:
        return t.to("cuda", non_blocking=True) if t.device.type == "cpu" else t.clone()

    def get(self, t: Any) -> Any:
        with torch.cuda.stream(torch.cuda.Stream()):  # it waits for no other stream
            return t.cpu()

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        with torch.cuda.stream(torch.cuda.Stream()):
            yield

    def busy(self) -> None:
        torch.cuda._sleep(500_000_000)  # cycles, some 0.3 s

    def close(self) -> None:
        torch.cuda.synchronize()


class StandinStream:
    """A stream of the interpreter as PyTorch's are seen by gopccl."""

    device = torch.device("cpu")  # of futures, which refuse a device that is not there

    def __init__(self, lib: Any) -> None:
        self._lib = lib
        self.cuda_stream = lib.test_stream(0)

    def synchronize(self) -> None:
        self._lib.test_wait(0, self.cuda_stream)


class OnDevice(torch.Tensor):
    """A tensor over memory of the interpreter's device 0."""

    device = property(lambda self: torch.device("cuda", 0))
    wait: Callable[[], None]  # for the current stream

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("cat", "clone", "contiguous", "copy_", "zero_"):
            cls.wait()  # PyTorch's own work comes behind what the stream has; here it is done at once
        return super().__torch_function__(func, types, args, kwargs or {})


class Standin(Place):
    """The interpreter's first device. Its work is done late, when somebody waits for it."""

    kind = "standin"
    big = 5_003

    def __init__(self) -> None:
        lib = self._lib = ctypes.CDLL(gopccl._lib.path)
        for f in (lib.test_alloc, lib.test_stream):
            f.restype = ctypes.c_size_t
        size, pointer = ctypes.c_size_t, ctypes.c_void_p
        lib.test_alloc.argtypes = [ctypes.c_int, size]
        lib.test_free.argtypes = lib.test_destroy.argtypes = lib.test_wait.argtypes = [ctypes.c_int, size]
        lib.test_write.argtypes = [ctypes.c_int, size, pointer, size, size]
        self._here = threading.local()
        self._lock = threading.Lock()
        self._given: List[int] = []
        OnDevice.wait = self._wait  # type: ignore[method-assign]
        # PyTorch has no CUDA here: its part is played by this class.
        gopccl.cuda.current_stream = self._current  # type: ignore[assignment]
        if os.environ.get(DEAF):
            gopccl.cuda.current_stream = lambda device: None  # type: ignore[assignment]
        torch.cuda.stream = self._use  # type: ignore[assignment, misc]
        for name in ("zeros", "empty"):
            setattr(torch, name, self._making(getattr(torch, name)))
        future = torch.futures.Future
        _work.Future = lambda devices=None: future()  # type: ignore[assignment, misc]

    def _making(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def make(*args: Any, device: Any = None, **how: Any) -> Any:
            t = real(*args, **how)
            return t if device is None or torch.device(device).type == "cpu" else self.put(t)

        return make

    def _wait(self) -> None:
        s = self._current(0)
        self._lib.test_wait(0, s.cuda_stream if s is not None else 0)

    def _current(self, device: Optional[int]) -> Any:
        return getattr(self._here, "stream", None)

    @contextlib.contextmanager
    def _use(self, s: Any) -> Iterator[None]:
        before, self._here.stream = self._current(0), s
        try:
            yield
        finally:
            self._here.stream = before

    def put(self, t: Any) -> Any:
        t = t.as_subclass(torch.Tensor).contiguous()
        n = t.numel() * t.element_size()
        p = self._lib.test_alloc(0, n)
        with self._lock:
            self._given.append(p)
        s = self._current(0)
        self._lib.test_write(0, p, t.data_ptr(), n, s.cuda_stream if s is not None else 0)
        flat = torch.frombuffer((ctypes.c_ubyte * n).from_address(p), dtype=t.dtype)
        return flat.view(t.shape).as_subclass(OnDevice)

    def get(self, t: Any) -> Any:
        return t.as_subclass(torch.Tensor).clone()

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        s = StandinStream(self._lib)
        with self._use(s):
            yield
        s.synchronize()
        self._lib.test_destroy(0, s.cuda_stream)

    def close(self) -> None:
        for p in self._given:
            self._lib.test_free(0, p)
        assert not self._lib.test_left(), "something of the library is left on the device"


PLACES: Dict[str, Callable[[], Place]] = {"cpu": Place, "standin": Standin, "cuda": Cuda}


def peers(n: int, f: Callable[[Communicator, int], Any]) -> List[Any]:
    """Run ``f(comm, i)`` for n peers of a group, a thread each, and return its results."""
    out: List[Any] = [None] * n
    errors: List[BaseException] = []
    with MasterNode("127.0.0.1:0") as master:
        master.run()

        def one(i: int) -> None:
            try:
                with Communicator(f"127.0.0.1:{master.port}") as comm:
                    comm.connect()
                    while comm.get_attribute(Attribute.GLOBAL_WORLD_SIZE) < n:
                        comm.update_topology()
                    out[i] = f(comm, i)
            except BaseException as err:
                traceback.print_exc()
                errors.append(err)

        threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(n)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(PATIENCE)
        if errors:
            raise errors[0]
        assert not any(t.is_alive() for t in threads), "a peer hangs"
    return out


def thread(f: Callable[[], Any]) -> Any:
    """The result of ``f`` on a thread that was made for it."""
    got: List[Any] = []

    def call() -> None:
        try:
            got.append((f(), None))
        except BaseException as err:
            got.append((None, err))

    t = threading.Thread(target=call)
    t.start()
    t.join(PATIENCE)
    assert got, "it hangs"
    if got[0][1] is not None:
        raise got[0][1]
    return got[0][0]


def random(i: int, n: int, dtype: torch.dtype = torch.float32) -> Any:
    g = torch.Generator().manual_seed(100 + i)
    return (torch.randn(n, generator=g) * 3).to(dtype)


def same(a: Any, b: Any, what: str) -> None:
    assert torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)), f"{what}: {a} is not {b}"


Check = Callable[[Place], Optional[str]]
CHECKS: Dict[str, Check] = {}
ONLY_CUDA: List[str] = []


def check(name: str, needs_cuda: bool = False) -> Callable[[Check], Check]:
    def add(f: Check) -> Check:
        CHECKS[name] = f
        if needs_cuda:
            ONLY_CUDA.append(name)
        return f

    return add


@check("bits")
def bits(place: Place) -> str:
    """Every type and operation, in place and not: the bits of host tensors. Of two peers any order gives the same."""

    def f(comm: Communicator, i: int) -> int:
        n = 0
        for dtype in TYPES:
            for op in OPS:
                src = random(i, place.big // 5, dtype)
                want = src.clone()
                comm.all_reduce(want, want, op=op)
                for in_place in (True, False):
                    x = place.put(src)
                    y = x if in_place else place.put(torch.zeros_like(src))
                    comm.all_reduce(x, y, op=op)
                    same(place.get(y), want, f"{dtype} {op} in place {in_place}")
                    same(place.get(x), want if in_place else src, f"source of {dtype} {op}")
                    n += 1
        return n

    return f"{peers(2, f)[0]} cases"


@check("quantized")
def quantized(place: Place) -> str:
    """The bits of host tensors, and both peers the same."""

    def f(comm: Communicator, i: int) -> List[Any]:
        got = []
        for algorithm in (QuantizationAlgorithm.MIN_MAX, QuantizationAlgorithm.ZERO_POINT_SCALE):
            src = random(i, place.big)
            options = dict(op=ReduceOp.AVG, quantization_options=QuantizationOptions(DataType.UINT8, algorithm))
            want = torch.zeros_like(src)
            comm.all_reduce(src, want, **options)
            y = place.put(torch.zeros_like(src))
            comm.all_reduce(place.put(src), y, **options)
            got.append(place.get(y))
            same(got[-1], want, str(algorithm))
        return got

    a, b = peers(2, f)
    for x, y in zip(a, b):
        same(x, y, "of two peers")
    return f"{len(a)} quantizers"


@check("collectives")
def collectives(place: Place) -> str:
    """Every other collective, behind a busy stream: the bits of host tensors. Types that nobody computes with are moved."""

    def f(comm: Communicator, i: int) -> int:
        me, n, cases = comm.group.index, place.big // 20, 0
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
            mine = random(i, 2 * n, torch.float32).to(dtype)
            counts = [n + 3, n - 3]
            own = slice(0, counts[0]) if me == 0 else slice(counts[0], 2 * n)
            block, zeros = mine[own].clone(), torch.zeros(2 * n, dtype=dtype)
            calls: List[Any] = [
                (lambda s, d: comm.all_gather_async(s, d, counts=counts), block, zeros),
                (lambda s, d: comm.all_to_all_async(s, d), mine, zeros),
                (lambda s, d: comm.broadcast_async(s, root=1), mine, None),
                (lambda s, d: comm.gather_async(s, d if me == 0 else None, root=0, counts=counts), block, zeros),
                (lambda s, d: comm.scatter_async(s if me == 1 else None, d, root=1, counts=counts), mine, torch.zeros_like(block)),
            ]
            if dtype is not torch.bool:
                calls += [
                    (lambda s, d: comm.reduce_scatter_async(s, d, op=ReduceOp.SUM, counts=counts), mine, torch.zeros_like(block)),
                    (lambda s, d: comm.reduce_async(s, d if me == 1 else None, op=ReduceOp.MAX, root=1), mine, zeros),
                ]
            for k, (call, src, dst) in enumerate(calls):
                there: List[Any] = []
                for where in (lambda t: t.clone(), place.put):
                    with place.stream():
                        place.busy()
                        s, d = where(src), None if dst is None else where(dst)
                        ok, code, _ = call(s, d).wait()
                        assert ok, (k, dtype, code)
                        there.append((s, d))
                (s, d), (x, y) = there
                same(place.get(x), s, f"source of call {k} of {dtype}")
                if d is not None:
                    same(place.get(y), d, f"call {k} of {dtype}")
                cases += 1
        return cases

    return f"{peers(2, f)[0]} cases"


@check("collectives in place")
def collectives_in_place(place: Place) -> None:
    def f(comm: Communicator, i: int) -> None:
        me, n = comm.group.index, place.big // 4
        for quantization in (None, "minmax:uint8"):
            mine = random(i, 2 * n)
            own = slice(me * n, (me + 1) * n)
            want, got = mine.clone(), place.put(mine)
            for t in (want, got):
                comm.all_gather(t[own], t, quantization=quantization)
            same(place.get(got), want, f"all_gather {quantization}")
            want, got = mine.clone(), place.put(mine)
            for t in (want, got):
                comm.reduce_scatter(t, t[own], op=ReduceOp.SUM, quantization=quantization)
            same(place.get(got)[own], want[own], f"reduce_scatter {quantization}")

    peers(2, f)


@check("messages")
def messages(place: Place) -> None:
    """Both ways at once, behind a busy stream, small and large."""

    def f(comm: Communicator, i: int) -> None:
        peer = 1 - comm.group.index
        for n in (1, 10 * place.big):
            with place.stream():
                place.busy()
                x, y = place.put(random(comm.group.index, n)), place.put(torch.zeros(n))
                sent, got = comm.send_async(x, peer=peer, tag=3), comm.recv_async(y, peer=peer, tag=3)
                assert got.result() == peer
                same(place.get(y), random(peer, n), "what was received")
                sent.result()

    peers(2, f)


@check("collectives that are refused")
def collectives_refused(place: Place) -> None:
    """A tensor of the host beside one of a device."""
    if place.kind == "cpu":
        return

    def f(comm: Communicator, i: int) -> None:
        try:
            comm.all_to_all(place.put(torch.zeros(8)), torch.zeros(8))
            raise AssertionError("it was not refused")
        except gopccl.ArgumentError as err:
            assert "both must be on the CPU, or on CUDA devices" in str(err), err

    peers(2, f)


@check("several at once")
def several(place: Place) -> None:
    def f(comm: Communicator, i: int) -> None:
        xs = [place.put(torch.full((1000 + k,), float(i + k))) for k in range(8)]
        handles = [comm.all_reduce_async(x, x, op=ReduceOp.SUM, tag=k) for k, x in enumerate(xs)]
        for k, h in reversed(list(enumerate(handles))):
            assert h.wait()[0] and (place.get(xs[k]) == 1 + 2 * k).all(), k

    peers(2, f)


@check("behind a busy stream")
def behind(place: Place) -> None:
    """What the caller's stream still has to write is what is reduced."""

    def f(comm: Communicator, i: int) -> None:
        for in_place in (False, True):
            with place.stream():
                place.busy()
                x = place.put(torch.full((place.big,), i + 1.0))
                y = x if in_place else place.put(torch.zeros(place.big))
                comm.all_reduce(x, y, op=ReduceOp.SUM)
                assert (place.get(y) == 3).all(), place.get(y)

    peers(2, f)


@check("any thread")
def any_thread(place: Place) -> None:
    """Addresses are known, and calls work, on threads that have no context."""
    x = place.put(torch.zeros(1000))
    number = thread(lambda: gopccl.cuda.device_of(x.data_ptr() + 64))
    assert number == (None if place.kind == "cpu" else 0), number
    host = torch.zeros(1000)
    assert thread(lambda: gopccl.cuda.device_of(host.data_ptr())) is None

    def f(comm: Communicator, i: int) -> None:
        x = place.put(torch.full((place.big,), i + 1.0))
        with place.stream():  # of this thread alone
            pass
        thread(lambda: comm.all_reduce(x, x, op=ReduceOp.SUM))
        assert (place.get(x) == 3).all()

    peers(2, f)


class Foreign:
    """Memory as another library shows it."""

    def __init__(self, t: Any, place: Place) -> None:
        self._t, self._place = t, place
        self.streams: List[Any] = []

    def __dlpack_device__(self) -> Any:
        return (1, 0) if self._place.kind == "cpu" else (2, 0)

    def __dlpack__(self, **how: Any) -> Any:
        self.streams.append(how.get("stream"))
        if self._place.kind == "cuda":
            return self._t.__dlpack__(**how)
        return self._t.as_subclass(torch.Tensor).__dlpack__()


@check("another library's")
def foreign(place: Place) -> None:
    def f(comm: Communicator, i: int) -> None:
        t = place.put(torch.full((place.big,), i + 1.0))
        x = Foreign(t, place)
        comm.all_reduce(x, x, op=ReduceOp.SUM)
        assert (place.get(t) == 3).all()
        assert set(x.streams) == {None if place.kind == "cpu" else 1}, x.streams

    peers(2, f)


@check("shared state")
def shared(place: Place) -> str:
    """A newcomer gets what the other one has, behind what its stream still writes; equal states move nothing."""

    def f(comm: Communicator, i: int) -> Any:
        with place.stream():
            place.busy()
            w = place.put(random(i, place.big))
            b = place.put(torch.arange(7, dtype=torch.int64) * (i + 1))
            state = SharedState([TensorInfo.from_torch(w, "w"), TensorInfo.from_torch(b, "b")])
            state.revision = 1 - i
            begin = time.monotonic()
            comm.sync_shared_state(state)
            took = time.monotonic() - begin
            state.revision = 2
            info = comm.sync_shared_state(state)
            assert info.rx_bytes == info.tx_bytes == 0, info
            return place.get(w), place.get(b), took

    one, two = peers(2, f)
    same(one[0], random(0, place.big), "the state of the first")
    for a, b in zip(one[:2], two[:2]):
        same(a, b, "the states")
    return f"{4 * place.big / 1e6:.1f} MB in {1e3 * max(one[2], two[2]):.1f} ms"


@check("many small tensors")
def small(place: Place) -> str:
    count = 300 if place.kind != "standin" else 40

    def f(comm: Communicator, i: int) -> float:
        ts = [place.put(torch.full((64 + k,), float(k))) for k in range(count)]
        state = SharedState([TensorInfo.from_torch(t, f"t{k}") for k, t in enumerate(ts)])
        best = PATIENCE
        for revision in range(5):
            state.revision = revision
            begin = time.monotonic()
            info = comm.sync_shared_state(state)
            best = min(best, time.monotonic() - begin)
            assert info.rx_bytes == 0
        return best

    return f"{count} tensors in {1e3 * max(peers(2, f)):.2f} ms"


@check("training state")
def training(place: Place) -> None:
    """What PyTorch's modules and optimizers are made of, shared in place."""

    def f(comm: Communicator, i: int) -> List[Any]:
        model = {
            "weight": place.put(random(i, 900).view(30, 30)),
            "half": place.put(random(i, 100, torch.bfloat16)),
        }
        state = TrainingState(model)
        assert state.shared_state.tensor_infos[0].data_ptr == model["weight"].data_ptr(), "it is shared in place"
        state.revision = 1 - i
        state.sync(comm)
        return [place.get(t) for t in model.values()]

    one, two = peers(2, f)
    for a, b in zip(one, two):
        same(a, b, "the models")
    same(one[0], random(0, 900).view(30, 30), "that of the first")


@check("process group")
def group(place: Place) -> None:
    """The backend of torch.distributed, both ranks in this process."""
    store = torch.distributed.HashStore()
    ranks: List[Any] = [None, None]

    def each(f: Callable[[int], Any]) -> List[Any]:
        out: List[Any] = [None, None]

        def one(i: int) -> None:
            out[i] = f(i)

        errors: List[BaseException] = []

        def guarded(i: int) -> None:
            try:
                one(i)
            except BaseException as err:
                traceback.print_exc()
                errors.append(err)

        threads = [threading.Thread(target=guarded, args=(i,), daemon=True) for i in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(PATIENCE)
        if errors:
            raise errors[0]
        assert not any(t.is_alive() for t in threads), "a rank hangs"
        return out

    def make(i: int) -> None:
        ranks[i] = _group.GopcclBackend(_core.Core(store, i, 2, LIMIT))

    def collectives(i: int) -> None:
        rank = ranks[i]
        mine, other = random(i, 600), random(1 - i, 600)
        with place.stream():
            place.busy()
            t = place.put(mine)
            assert rank.allreduce([t]).wait()
            assert torch.equal(place.get(t), mine + other)
            several = [place.put(mine[:100]), place.put(mine[100:])]
            assert rank.allreduce_coalesced(several).wait()
            assert torch.equal(torch.cat([place.get(s) for s in several]), mine + other)
            turned = place.put(mine.view(20, 30)).t()
            assert rank.allreduce([turned]).wait()
            assert torch.equal(place.get(turned), (mine + other).view(20, 30).t())
            root = place.put(mine)
            options = torch.distributed.BroadcastOptions()
            options.rootRank, options.rootTensor = 1, 0
            assert rank.broadcast([root], options).wait()
            assert torch.equal(place.get(root), random(1, 600))
            parts = [place.put(torch.zeros(600)) for _ in range(2)]
            assert rank.allgather([parts], [place.put(mine)]).wait()
            for k, part in enumerate(parts):
                assert torch.equal(place.get(part), random(k, 600))
            half = place.put(torch.zeros(300))
            assert rank.reduce_scatter([half], [[place.put(mine[:300]), place.put(mine[300:])]]).wait()
            assert torch.equal(place.get(half), (mine + other)[300 * i : 300 * (i + 1)])

    each(make)
    try:
        each(collectives)
    finally:
        each(lambda i: ranks[i] is not None and ranks[i].shutdown())


@check("freed memory")
def freed(place: Place) -> None:
    if place.kind != "cuda":
        return
    x = torch.zeros(1 << 24, device="cuda")
    address = x.data_ptr()
    torch.cuda.synchronize()
    del x
    torch.cuda.empty_cache()
    assert gopccl.cuda.device_of(address) is None


def captures(mode: str) -> str:
    """A trainer captures graphs while all-reduces run in its other threads: neither notices the other."""
    stop, told, failures = threading.Event(), [], []

    def f(comm: Communicator, i: int) -> int:
        x, n = torch.full((1 << 20,), i + 1.0, device="cuda"), 0
        y = torch.empty_like(x)
        go_on = torch.ones(1, dtype=torch.int32)
        while go_on.item():  # both stop after the same number
            go_on.fill_(0 if stop.is_set() else 1)
            comm.all_reduce(go_on, go_on, op=ReduceOp.MIN)
            comm.all_reduce(x, y, op=ReduceOp.SUM)
            n += 1
        return n

    t = threading.Thread(target=lambda: told.extend(peers(2, f)))
    t.start()
    time.sleep(1)
    z, s = torch.zeros(1 << 16, device="cuda"), torch.cuda.Stream()
    for _ in range(50):
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=s, capture_error_mode=mode):
                for _ in range(20):
                    z.add_(1)
                time.sleep(0.005)
        except Exception as err:
            failures.append(str(err).splitlines()[0])
    stop.set()
    t.join(PATIENCE)
    assert not failures, f"{len(failures)} of 50 captures failed: {failures[-1]}"
    assert told, "the all-reduces failed"
    return f"{told[0]} all-reduces beside 50 captures"


@check("captures, thread local", needs_cuda=True)
def captures_thread_local(place: Place) -> str:
    return captures("thread_local")


@check("captures, global", needs_cuda=True)
def captures_global(place: Place) -> str:
    return captures("global")


@check("call in a capture", needs_cuda=True)
def call_in_capture(place: Place) -> None:
    """It is refused, and the communicator goes on."""

    def f(comm: Communicator, i: int) -> None:
        x = torch.full((1000,), i + 1.0, device="cuda")
        if i == 0:
            with contextlib.suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
                try:
                    comm.all_reduce(x, x, op=ReduceOp.SUM)
                    raise AssertionError("it was not refused")
                except PCCLError as err:
                    assert err.result is Result.INVALID_ARGUMENT, err
        comm.all_reduce(x, x, op=ReduceOp.SUM)
        assert (place.get(x) == 3).all()

    peers(2, f)


def with_allocator(setting: str) -> str:
    """The checks of memory again, in a process whose tensors another allocator makes."""
    env = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=setting, PYTORCH_ALLOC_CONF=setting)
    command = [sys.executable, os.path.abspath(__file__), "cuda", "--only", "bits,any thread,shared state"]
    p = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=2 * PATIENCE)
    assert p.returncode == 0, p.stdout[-2000:]
    return setting


@check("expandable segments", needs_cuda=True)
def expandable(place: Place) -> str:
    return with_allocator("expandable_segments:True")


@check("cudaMallocAsync", needs_cuda=True)
def malloc_async(place: Place) -> str:
    return with_allocator("backend:cudaMallocAsync")


@check("times", needs_cuda=True)
def times(place: Place) -> str:
    """All-reduces of two peers of this process, milliseconds, beside those of host tensors."""
    text = []
    for n in (1_000, 100_000, 1_000_000, 16_000_000, 64_000_000):

        def f(comm: Communicator, i: int) -> Dict[str, float]:
            out = {}
            for where in ("cpu", "cuda"):
                x = torch.ones(n, device=where)
                for name, y in (("in", x), ("out", torch.empty_like(x))):
                    took = []
                    for _ in range(4 if n > 1_000_000 else 12):
                        torch.cuda.synchronize()
                        begin = time.monotonic()
                        comm.all_reduce(x, y, op=ReduceOp.MAX)
                        took.append(time.monotonic() - begin)
                    out[f"{where} {name}"] = sorted(took[1:])[len(took) // 2 - 1]
            return out

        a, b = peers(2, f)
        text.append(f"{4 * n}: " + ", ".join(f"{k} {1e3 * max(a[k], b[k]):.2f}" for k in a))
    return "; ".join(text)


@check("times of collectives", needs_cuda=True)
def times_of_collectives(place: Place) -> str:
    """An all-gather, a reduce-scatter and an all-to-all of two peers of this process, milliseconds, beside host tensors."""
    text = []
    for n in (1_000, 100_000, 16_000_000):

        def f(comm: Communicator, i: int) -> Dict[str, float]:
            out = {}
            for where in ("cpu", "cuda"):
                x, half, y = torch.ones(n, device=where), torch.ones(n // 2, device=where), torch.empty(n, device=where)
                calls: Dict[str, Callable[[], Any]] = {
                    "gather": lambda: comm.all_gather(half, y),
                    "scatter": lambda: comm.reduce_scatter(x, half, op=ReduceOp.MAX),
                    "all to all": lambda: comm.all_to_all(x, y),
                }
                for name, call in calls.items():
                    took = []
                    for _ in range(5):
                        torch.cuda.synchronize()
                        begin = time.monotonic()
                        call()
                        took.append(time.monotonic() - begin)
                    out[f"{where} {name}"] = sorted(took[1:])[2]
            return out

        a, b = peers(2, f)
        text.append(f"{4 * n}: " + ", ".join(f"{k} {1e3 * max(a[k], b[k]):.2f}" for k in a))
    return "; ".join(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=sorted(PLACES))
    parser.add_argument("--only", default="", help="names of checks, with commas")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    args = parser.parse_args()
    wanted = [n for n in CHECKS if n not in ONLY_CUDA or args.kind == "cuda"]
    if args.only:
        unknown = set(args.only.split(",")) - set(wanted)
        assert not unknown, f"{args.kind} has no check {sorted(unknown)}"
        wanted = args.only.split(",")
    if args.list:
        print("\n".join(wanted))
        return 0
    faulthandler.dump_traceback_later(10 * PATIENCE, exit=True)
    print(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}; the library takes CUDA: {gopccl.cuda.is_available()}")
    place, failed = PLACES[args.kind](), []
    for name in [*wanted, "nothing is left"]:
        begin = time.monotonic()
        try:
            detail = CHECKS[name](place) if name in CHECKS else place.close()
            verdict = "ok"
        except BaseException as err:
            detail, verdict = f"{type(err).__name__}: {err}", "FAILED"
            failed.append(name)
        print(f"{verdict:6} {name:24} {time.monotonic() - begin:6.2f} s  {detail or ''}", flush=True)
    print("NOT all checks hold: " + ", ".join(failed) if failed else "all checks hold", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
