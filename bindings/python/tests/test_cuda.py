"""CUDA tensors, as far as that goes without a device: what reaches the library, and behind which stream.

The tensors say that they are on a device and lie in the host's memory. So does the
library, built without CUDA, take them: the results are real.
"""

from __future__ import annotations

import contextlib
import types
from datetime import timedelta
from typing import Any, Iterator, List

import gopccl
import numpy as np
import pytest
from conftest import run_peers
from gopccl import (
    ArgumentError,
    Communicator,
    DataType,
    DeviceType,
    PCCLError,
    QuantizationOptions,
    ReduceDescriptor,
    ReduceOp,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    Result,
    SharedState,
    TensorInfo,
    cuda,
)
from gopccl._buffers import buffer_of
from gopccl._lib import ffi

torch = pytest.importorskip("torch")


class Stream:
    """Stands for a torch.cuda.Stream."""

    def __init__(self, handle: int) -> None:
        self.cuda_stream = handle
        self.synchronized = 0
        self.device = torch.device("cpu")  # of futures, which refuse a device that is not there

    def synchronize(self) -> None:
        self.synchronized += 1


class OnDevice(torch.Tensor):
    """A tensor that says it is on CUDA device 1."""

    device = property(lambda self: torch.device("cuda", 1))


def on_device(t: Any) -> Any:
    return t.as_subclass(OnDevice)


class Exported:
    """What another library, such as CuPy, shows of memory of a device."""

    def __init__(self, t: Any, kind: int = 2, number: int = 1) -> None:
        self._t, self._device = t, (kind, number)
        self.streams: List[Any] = []

    def __dlpack_device__(self) -> Any:
        return self._device

    def __dlpack__(self, stream: Any = "none") -> Any:
        self.streams.append(stream)
        return self._t.__dlpack__()


class World:
    """A process with CUDA: what the library was told."""

    def __init__(self) -> None:
        self.current = {1: Stream(0x100), 2: Stream(0x200)}
        self.told: List[int] = []

    def set_stream(self, handle: Any) -> None:
        self.told.append(int(ffi.cast("uintptr_t", handle)))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    w = World()
    functions = {"gopcclSetStream": w.set_stream}
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "extra", lambda name: functions.get(name))
    monkeypatch.setattr(cuda, "device_of", lambda address: 1 if address % 16 == 0 else None)
    monkeypatch.setattr(cuda, "current_stream", lambda device: w.current[device])
    return w


def test_without_cuda_the_error_says_what_to_do(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "is_available", lambda: False)
    assert cuda.device_of(buffer_of(np.zeros(4), "x", writable=False).address) is None
    t = on_device(torch.zeros(4))
    with Communicator(address) as comm:
        for bad in (t, Exported(torch.zeros(4))):
            with pytest.raises(ArgumentError, match="built without CUDA; copy it to the CPU first, or build"):
                comm.all_reduce(bad, bad, op=ReduceOp.SUM)
            with pytest.raises(ArgumentError, match=r"tensor 'w': the tensor is on .*device 1|cuda:1"):
                TensorInfo.from_buffer(bad, "w")
        with pytest.raises(ArgumentError, match="tensor 'w': the tensor is on a CUDA device"):
            TensorInfo("w", 4096, numel=4, dtype=DataType.FLOAT, device_type=DeviceType.CUDA)
        # The library itself refuses, too, and says which tensor.
        info = TensorInfo.from_buffer(np.zeros(4), "w")
        info.device_type = DeviceType.CUDA
        comm.connect()
        with pytest.raises(PCCLError, match="tensor \"w\".*not device memory") as err:
            comm.sync_shared_state(SharedState([info]))
        assert err.value.result is Result.INVALID_ARGUMENT


def test_torch_tensors_and_their_stream(world: World, address: str) -> None:
    def peer(comm: Communicator, i: int) -> None:
        for dtype in (torch.float32, torch.float64, torch.int32, torch.uint8, torch.bfloat16):
            t = on_device(torch.full((3, 5), i + 1, dtype=dtype))
            comm.all_reduce(t, t, op=ReduceOp.SUM)
            assert (t == 3).all()
        out = on_device(torch.zeros(7))
        handle = comm.all_reduce_async(on_device(torch.ones(7)), out, op=ReduceOp.SUM, tag=4)
        assert handle.wait()[0] and (out == 2).all()

    run_peers(address, 2, peer)
    assert world.told == [0x100] * 12
    assert world.current[1].synchronized == 0, "the library orders itself behind one stream"
    b = buffer_of(on_device(torch.zeros(7)), "x", writable=True)
    assert (b.device, b.stream, b.numel, b.dtype) == (1, world.current[1], 7, DataType.FLOAT)


def test_dlpack_goes_behind_the_default_stream(world: World, address: str) -> None:
    exported: List[Exported] = []

    def peer(comm: Communicator, i: int) -> None:
        t = torch.full((6,), float(i + 1))
        x = Exported(t, kind=13 if i else 2)
        exported.append(x)
        comm.all_reduce(x, x, op=ReduceOp.PROD)
        assert (t == 2).all()

    run_peers(address, 2, peer)
    assert world.told == [0, 0]
    assert all(x.streams == [1, 1] for x in exported), "1: the exporter makes the legacy default stream wait"
    host = Exported(torch.zeros(2), kind=3, number=0)  # pinned memory of the host
    assert buffer_of(host, "x", writable=True).device is None
    assert host.streams == ["none"]
    with pytest.raises(ArgumentError, match=r"DLPack device \(10, 0\)"):
        buffer_of(Exported(torch.zeros(2), kind=10, number=0), "x", writable=True)


def test_what_a_device_buffer_may_not_be(world: World, address: str) -> None:
    t = on_device(torch.zeros(4, 4))
    with Communicator(address) as comm:
        for send, recv, want in (
            (t, torch.zeros(4, 4), "send is on CUDA device 1, recv on the CPU"),
            (torch.zeros(4, 4), t, "send is on the CPU, recv on CUDA device 1"),
            (Exported(torch.zeros(16), number=2), torch.zeros(4, 4), "send is on CUDA device 2"),
            (t.t()[:2], t, "send: the tensor is not contiguous"),
            (on_device(torch.zeros(4, dtype=torch.complex64)), t, "send: unsupported element type complex64"),
            (on_device(torch.zeros(4, dtype=torch.bool)), t, "send: unsupported element type bool"),
            (on_device(torch.zeros(3)), t, "send has 3 elements, recv 16"),
        ):
            with pytest.raises(ArgumentError, match=want):
                comm.all_reduce(send, recv, op=ReduceOp.SUM)
    with pytest.raises(ArgumentError, match="tensor 'w': data_ptr 0x1001 is not CUDA device memory"):
        TensorInfo("w", 0x1001, numel=4, dtype=DataType.FLOAT, device_type=DeviceType.CUDA)
    assert world.told == []


def descriptor(t: Any, tag: int) -> ReduceOpDescriptor:
    d = ReduceDescriptor(
        t.numel(),
        ReduceOp.AVG,
        tag,
        ReduceOperandDescriptor(DataType.FLOAT),
        QuantizationOptions(DataType.FLOAT, gopccl.QuantizationAlgorithm.NONE),
    )
    return ReduceOpDescriptor.from_torch(t, t, d)


def test_several_streams_are_waited_for(world: World, address: str) -> None:
    def peer(comm: Communicator, i: int) -> None:
        ts = [on_device(torch.full((9,), float(i))) for _ in range(3)]
        items = [descriptor(t, k) for k, t in enumerate(ts)]
        comm.all_reduce_multiple_with_retry(items)
        assert all((t == 0.5).all() for t in ts)

    run_peers(address, 2, peer)
    assert world.told == [0x100] * 2
    a, b = world.current[1], world.current[2]
    cuda.order([a, b, a, None])
    assert world.told[2:] == [0] and (a.synchronized, b.synchronized) == (1, 1)


def test_a_plain_libpccl_gets_finished_work(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "extra", lambda name: None)
    cuda.order([world.current[1]])
    assert world.current[1].synchronized == 1 and world.told == []


def test_shared_state_is_ordered_when_it_is_synchronized(world: World) -> None:
    t = on_device(torch.zeros(4))
    state = SharedState([TensorInfo.from_torch(t, "w"), TensorInfo.from_torch(torch.zeros(2), "host")])
    assert [i.device_type for i in state.tensor_infos] == [DeviceType.CUDA, DeviceType.CPU]
    c, infos, _ = state.to_c()
    assert [infos[i].device_type for i in range(2)] == [1, 0]
    assert int(ffi.cast("uintptr_t", infos[0].data)) == t.data_ptr()
    world.current[1] = Stream(0x300)  # the trainer has changed to another stream since
    state.order()
    assert world.told == [0x300]
    SharedState([TensorInfo.from_torch(torch.zeros(2), "host")]).order()
    assert world.told == [0x300], "the host's memory has no stream"


def test_training_state_shares_device_tensors_in_place(world: World) -> None:
    from gopccl.torch import TrainingState

    model = {"w": on_device(torch.zeros(4)), "mask": on_device(torch.zeros(4, dtype=torch.bool))}
    state = TrainingState(model)
    kinds = {i.name: i.device_type for i in state.shared_state.tensor_infos}
    assert kinds["model/w"] is DeviceType.CUDA
    assert state.shared_state.tensor_infos[0].data_ptr == model["w"].data_ptr()


def test_current_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cuda.current_stream(0) is None, "PyTorch does not use CUDA here"
    streams = {0: Stream(1), 3: Stream(2)}
    fake = types.SimpleNamespace(is_initialized=lambda: True, current_stream=lambda d: streams[d])
    monkeypatch.setattr(torch, "cuda", fake)
    assert cuda.current_stream(3) is streams[3]
    here, there = on_device(torch.zeros(1)), torch.zeros(1)
    monkeypatch.setattr(OnDevice, "device", property(lambda self: torch.device("cuda", 3)))
    assert cuda.streams_of([there, here, here]) == [streams[3]]
    assert cuda.streams_of([there]) == []


def test_the_process_group_takes_device_tensors(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank after the other in one process: what is copied at the end is copied on the caller's stream."""
    from gopccl.torch import _core, _group, _work

    entered: List[Any] = []

    @contextlib.contextmanager
    def use(stream: Any) -> Iterator[None]:
        entered.append(stream)
        yield

    monkeypatch.setattr(torch.cuda, "stream", use)
    monkeypatch.setattr(_work, "Future", lambda devices=None: types.SimpleNamespace(set_result=lambda v: None))
    store = torch.distributed.HashStore()
    group = _group.GopcclBackend(_core.Core(store, 0, 1, timedelta(seconds=30)))
    try:
        t = on_device(torch.arange(6.0)).view(2, 3).t()  # not contiguous: reduced in a copy
        work = group.allreduce([t])
        assert work.wait()
        assert (t == torch.arange(6.0).view(2, 3).t()).all()
        assert entered == [world.current[1]] and world.current[1].synchronized == 1
        monkeypatch.setattr(OnDevice, "device", property(lambda self: torch.device("meta")))
        with pytest.raises(ValueError, match="takes CPU and CUDA tensors"):
            group.allreduce([t])
    finally:
        group.shutdown()
