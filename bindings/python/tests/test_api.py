"""The package against its own library, peers in threads."""

from __future__ import annotations

import array
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import gopccl
import numpy as np
import pccl
import pytest
from conftest import TIMEOUT, pair, run_peers
from gopccl import (
    ArgumentError,
    Attribute,
    Communicator,
    DataType,
    DistributionHint,
    MasterNode,
    PCCLError,
    QuantizationAlgorithm,
    QuantizationOptions,
    ReduceDescriptor,
    ReduceOp,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    Result,
    SharedState,
    SharedStateSyncStrategy,
    TensorInfo,
)

TYPES = "uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64".split()
EXPECT = {ReduceOp.SUM: 6, ReduceOp.AVG: 2, ReduceOp.PROD: 6, ReduceOp.MAX: 3, ReduceOp.MIN: 1}


def test_every_type_and_operation(address: str) -> None:
    def peer(comm: Communicator, i: int) -> None:
        for name in TYPES:
            for op, want in EXPECT.items():
                x = np.full((5, 7), i + 1, name)
                y = np.zeros_like(x)
                info = comm.all_reduce(x, y, op=op)
                assert info.local_world_size == 3
                assert (y == np.array(want, name)).all(), (name, op, y)
                assert (x == i + 1).all()

    run_peers(address, 3, peer)


def test_quantized(address: str) -> None:
    x = [np.random.default_rng(i).normal(size=10_000).astype(np.float32) for i in range(2)]

    def peer(comm: Communicator, i: int) -> Any:
        results = []
        for algorithm in (QuantizationAlgorithm.MIN_MAX, QuantizationAlgorithm.ZERO_POINT_SCALE):
            y = np.zeros_like(x[i])
            info = comm.all_reduce(
                x[i],
                y,
                op=ReduceOp.AVG,
                operand_descriptor=ReduceOperandDescriptor(DataType.FLOAT, DistributionHint.NORMAL),
                quantization_options=QuantizationOptions(DataType.UINT8, algorithm),
            )
            assert info.tx_bytes < 2 * 10_000
            assert np.abs(y - (x[0] + x[1]) / 2).max() < 0.1
            results.append(y)
        return results

    a, b = run_peers(address, 2, peer)
    for p, q in zip(a, b):
        assert (p == q).all()


class OnlyDLPack:
    """A tensor of which nothing is known but DLPack."""

    def __init__(self, a: np.ndarray) -> None:
        self.a = a

    def __dlpack__(self, **options: Any) -> Any:
        return self.a.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self.a.__dlpack_device__()


def test_every_kind_of_buffer(address: str) -> None:
    torch = pytest.importorskip("torch")
    kinds = {
        "numpy": lambda: np.ones(6, np.float32),
        "array": lambda: array.array("f", [1] * 6),
        "memoryview": lambda: memoryview(bytearray(np.ones(6, np.float32).tobytes())).cast("f"),
        "torch": lambda: torch.ones(2, 3),
        "dlpack": lambda: OnlyDLPack(np.ones((3, 2), np.float32)),
        "unaligned": lambda: np.frombuffer(bytearray(b"x" + np.ones(6, np.float32).tobytes()), np.float32, offset=1),
    }

    def peer(comm: Communicator, i: int) -> None:
        for a in kinds.values():
            for b in kinds.values():
                recv = b()
                comm.all_reduce(a(), recv, op=ReduceOp.SUM)
                seen = recv.a if isinstance(recv, OnlyDLPack) else recv
                assert np.asarray(seen).reshape(-1).tolist() == [2.0] * 6
        half = torch.full((9,), 1.5, dtype=torch.bfloat16)
        comm.all_reduce(half, half, op=ReduceOp.SUM)
        assert half.tolist() == [3.0] * 9

    run_peers(address, 2, peer)


def test_asynchronous(address: str) -> None:
    def peer(comm: Communicator, i: int) -> None:
        xs = [np.full(1000, i + k, np.float64) for k in range(8)]
        handles = [comm.all_reduce_async(x, x, op=ReduceOp.SUM, tag=k) for k, x in enumerate(xs)]
        for k, h in enumerate(handles):
            ok, status, info = h.wait()
            assert (ok, status, info.local_world_size) == (True, 0, 2)
            assert h.wait() == (ok, status, info)
            assert (xs[k] == 2 * k + 1).all()
        # Buffers nobody holds stay alive until they are awaited.
        comm.all_reduce_async(np.ones(1 << 16), np.ones(1 << 16), op=ReduceOp.SUM, tag=99)
        assert len(comm._in_flight) == 1
        with pytest.raises(PCCLError) as caught:
            comm.update_topology()
        assert caught.value.result is Result.PENDING_ASYNC_OPS

    run_peers(address, 2, peer)


def test_leave(address: str) -> None:
    """A peer leaves a loop of the others: none of their operations fails."""

    def peer(comm: Communicator, i: int) -> int:
        x = np.ones(1000, np.float32)
        world = 0
        for _ in range(5 if i == 0 else 30):
            y = np.zeros_like(x)
            world = comm.all_reduce(x, y, op=ReduceOp.SUM).local_world_size
            assert (y == world).all()
        if i == 0:
            comm.leave()
            with pytest.raises(PCCLError):
                comm.leave()
        return world

    assert run_peers(address, 4, peer) == [4, 3, 3, 3]


def test_many_with_retry(address: str) -> None:
    def peer(comm: Communicator, i: int) -> None:
        xs = [np.full(100 + k, i + 1, np.float32) for k in range(10)]
        ds = [
            ReduceOpDescriptor.from_numpy(
                x,
                x,
                ReduceDescriptor(
                    x.size,
                    ReduceOp.SUM,
                    k,
                    ReduceOperandDescriptor(DataType.FLOAT),
                    QuantizationOptions(DataType.FLOAT, QuantizationAlgorithm.NONE),
                ),
            )
            for k, x in enumerate(xs)
        ]
        info = comm.all_reduce_multiple_with_retry(ds, max_in_flight=3)
        assert info.local_world_size == 2
        assert info.tx_bytes > 0
        assert all((x == 3).all() for x in xs)
        with pytest.raises(PCCLError) as caught:
            comm.all_reduce_multiple_with_retry([])
        assert caught.value.result is Result.INVALID_ARGUMENT

    run_peers(address, 2, peer)


@pytest.mark.parametrize("strategy", list(SharedStateSyncStrategy))
def test_shared_state(address: str, strategy: SharedStateSyncStrategy) -> None:
    def peer(comm: Communicator, i: int) -> Any:
        kind = strategy
        if strategy is not SharedStateSyncStrategy.ENFORCE_POPULAR:
            # One side sends, the other receives.
            kind = SharedStateSyncStrategy.SEND_ONLY if i == 0 else SharedStateSyncStrategy.RECEIVE_ONLY
        w, own = np.full((4, 4), 1.0 + i, np.float32), np.full(3, i, np.int64)
        state = SharedState([TensorInfo.from_numpy(w, "w"), TensorInfo.from_numpy(own, "own", allow_content_inequality=True)])
        state.revision = 7 if i == 0 else 5
        info = comm.sync_shared_state(state, kind)
        assert state.revision == 7
        assert (w == 1).all()
        state.push_revision()
        assert state.revision == 8
        return info.rx_bytes, info.tx_bytes

    (rx0, tx0), (rx1, tx1) = run_peers(address, 2, peer)
    assert rx0 == 0 and tx1 == 0 and rx1 == tx0 > 0


def test_alone(address: str) -> None:
    with Communicator(address) as comm:
        with pytest.raises(PCCLError) as caught:
            comm.get_attribute(Attribute.GLOBAL_WORLD_SIZE)
        assert caught.value.result is Result.INVALID_USAGE
        assert "not connected" in str(caught.value)
        comm.connect()
        assert [comm.get_attribute(a) for a in Attribute] == [1, 1, 1, 1]
        assert comm.are_peers_pending() is False
        x = np.ones(3, np.float32)
        with pytest.raises(PCCLError) as caught:
            comm.all_reduce(x, x, op=ReduceOp.SUM)
        assert caught.value.result is Result.TOO_FEW_PEERS
        with pytest.raises(PCCLError) as caught:
            comm.optimize_topology()
        assert caught.value.result is Result.INVALID_USAGE
        comm.sync_shared_state(SharedState([TensorInfo.from_numpy(x, "x")]))
    comm.close()
    with pytest.raises(PCCLError) as caught:
        comm.update_topology()
    assert caught.value.result in (Result.INVALID_ARGUMENT, Result.INVALID_USAGE)


def test_no_master() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        comm = Communicator(f"127.0.0.1:{s.getsockname()[1]}")
    with pytest.raises(PCCLError) as caught:
        comm.connect(n_attempts=1)
    assert caught.value.result is Result.MASTER_CONNECTION_FAILED
    assert "127.0.0.1" in str(caught.value)


def test_several_masters() -> None:
    for bad in ("127.0.0.1:1,there", "127.0.0.1:1,", ",".join(["127.0.0.1:1"] * 17)):
        with pytest.raises((ArgumentError, PCCLError)):
            Communicator(bad)
    with MasterNode("127.0.0.1:0") as m:
        m.run()
        with Communicator(f"127.0.0.1:1, localhost:{m.port}") as comm:  # nobody is at the first
            comm.connect(n_attempts=1)


def test_reattach_timeout() -> None:
    for bad in (-1.0, 86401.0, float("nan")):
        with pytest.raises(ArgumentError):
            Communicator("127.0.0.1:1", reattach_timeout=bad)
    with MasterNode("127.0.0.1:0") as m:
        m.run()
        ends = Communicator(f"127.0.0.1:{m.port}", reattach_timeout=0)
        ends.connect()
    with ends, pytest.raises(PCCLError) as caught:
        ends.update_topology()
    assert caught.value.result is Result.UPDATE_TOPOLOGY_FAILED
    with MasterNode("127.0.0.1:0") as m:
        m.run()
        waits = Communicator(f"127.0.0.1:{m.port}")
        waits.connect()
    end = time.monotonic() + TIMEOUT
    while "no master for " not in gopccl.dump_state():
        assert time.monotonic() < end
    waits.close()


def test_names_and_ipv6() -> None:
    with MasterNode("[::1]:0") as m:
        m.run()
        with Communicator(f"[::1]:{m.port}") as comm:
            comm.connect()
    with MasterNode("localhost:0") as m:
        m.run()
        with Communicator(f"localhost:{m.port}", peer_group=3, p2p_connection_pool_size=2) as comm:
            comm.connect()


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("127.0.0.1", "HOST:PORT"),
        ("127.0.0.1:port", "not a port"),
        ("127.0.0.1:70000", "not a port"),
        ("::1:48148", "brackets"),
        ("no-such-host.invalid:1", "resolve"),
    ],
)
def test_bad_addresses(address: str, says: str) -> None:
    for make in (Communicator, MasterNode):
        with pytest.raises(ArgumentError, match=says) as caught:
            make(address)
        assert isinstance(caught.value, ValueError) and isinstance(caught.value, AssertionError)


def test_bad_arguments(address: str) -> None:
    f4 = np.zeros(6, np.float32)
    read_only = f4.copy()
    read_only.flags.writeable = False
    comm = Communicator(address)
    cases: list[tuple[Any, Any, str]] = [
        (f4[::2], f4[:3].copy(), "send: .*not contiguous"),
        (f4, np.zeros((6, 2), np.float32)[:, 0], "recv: .*not contiguous"),
        (f4, np.zeros(6, np.float64), "element type FLOAT, recv DOUBLE"),
        (f4, np.zeros(5, np.float32), "6 elements, recv 5"),
        (f4, read_only, "recv: .*read-only"),
        (f4, b"123456", "recv: .*read-only"),
        (np.zeros(6, complex), f4, "send: unsupported element type complex128"),
        (np.zeros(6, ">f4"), f4, "send: .*byte order"),
        ([1.0, 2.0], f4, "send: a list"),
        (f4, None, "recv: a NoneType"),
    ]
    for send, recv, says in cases:
        with pytest.raises(ArgumentError, match=says):
            comm.all_reduce(send, recv, op=ReduceOp.SUM)
    with pytest.raises(ArgumentError, match="op is 'sum'"):
        comm.all_reduce(f4, f4, op="sum")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="tag is -1"):
        comm.all_reduce(f4, f4, op=ReduceOp.SUM, tag=-1)
    with pytest.raises(ArgumentError, match="DOUBLE, the buffers hold FLOAT"):
        comm.all_reduce(f4, f4, op=ReduceOp.SUM, operand_descriptor=ReduceOperandDescriptor(DataType.DOUBLE))
    with pytest.raises(ArgumentError, match="tensor_infos"):
        SharedState([])
    with pytest.raises(ArgumentError, match="data_ptr is 0"):
        TensorInfo("x", 0, numel=1, dtype=DataType.FLOAT, device_type=pccl.DeviceType.CPU, allow_content_inequality=False)
    with pytest.raises(ArgumentError, match="peer_group"):
        Communicator(address, peer_group=-1)
    d = ReduceDescriptor(7, ReduceOp.SUM, 0, ReduceOperandDescriptor(DataType.FLOAT), QuantizationOptions())
    with pytest.raises(ArgumentError, match="count is 7, send has 6"):
        ReduceOpDescriptor.from_numpy(f4, f4, d)


def test_torch_arguments() -> None:
    torch = pytest.importorskip("torch")
    comm = Communicator("127.0.0.1:1")
    ok = torch.zeros(6)
    for bad, says in [
        (torch.zeros(6, device="meta"), "send: the tensor is on meta"),
        (torch.zeros(2, 6).t(), "send: the tensor is not contiguous"),
        (torch.zeros(6, dtype=torch.complex64), "send: unsupported element type complex64"),
        (torch.zeros(6).to_sparse(), "send: the tensor has layout"),
    ]:
        with pytest.raises(ArgumentError, match=says):
            comm.all_reduce(bad, ok, op=ReduceOp.SUM)
    for name in [*TYPES, "bfloat16"]:
        dtype = DataType.from_torch_dtype(getattr(torch, name))
        assert dtype.to_torch_dtype() is getattr(torch, name)
        assert name == "bfloat16" or DataType.from_numpy_dtype(dtype.to_numpy_dtype()) is dtype


@pytest.mark.parametrize("name", ["all_reduce", "wait", "update", "sync", "master"])
def test_control_c(address: str, master: MasterNode, name: str) -> None:
    """A blocking call answers a signal although its peer never does its part."""
    x = np.ones(4, np.float32)
    a, b = pair(address)
    calls = {
        "all_reduce": lambda: a.all_reduce(x, x, op=ReduceOp.SUM),
        "wait": lambda: a.all_reduce_async(x, x, op=ReduceOp.SUM).wait(),
        "update": a.update_topology,
        "sync": lambda: a.sync_shared_state(SharedState([TensorInfo.from_numpy(x, "x")])),
        "master": master.wait,
    }
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        calls[name]()
    timer.join()
    gc.collect()  # what the call held must not lie in a cycle
    assert (x == 1).all()
    a.close()
    b.close()


def test_gil_is_released(address: str) -> None:
    """Two threads meet inside one blocking call each: impossible if one held the GIL."""

    def peer(comm: Communicator, i: int) -> None:
        x = np.ones(1, np.float32)
        comm.all_reduce(x, x, op=ReduceOp.SUM)

    run_peers(address, 2, peer)


def test_fork(address: str) -> None:
    comm = Communicator(address)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            comm.connect()
        except RuntimeError as err:
            code = 0 if "forked" in str(err) else 2
        comm.close()
        os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    comm.connect()


def test_master_program() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    for module in ("gopccl.master", "pccl.master"):
        p = subprocess.Popen([sys.executable, "-m", module, "--listen-address", f"127.0.0.1:{port}"], stderr=subprocess.PIPE)
        assert p.stderr is not None
        assert b"listens" in p.stderr.readline()
        with Communicator(f"127.0.0.1:{port}") as comm:
            comm.connect()
        p.send_signal(signal.SIGINT)
        assert p.wait(TIMEOUT) == 0


def test_port_taken(address: str) -> None:
    with MasterNode(address) as m:
        with pytest.raises(PCCLError) as caught:
            m.run()
        assert caught.value.result is Result.INVALID_USAGE


SURFACE = """cuda Communicator MasterNode ReduceOp Attribute SharedStateSyncStrategy DataType DistributionHint
QuantizationAlgorithm ReduceOperandDescriptor QuantizationOptions ReduceDescriptor TensorInfo SharedState
SharedStateSyncInfo ReduceInfo ReduceOpDescriptor AsyncReduceHandle PCCLError""".split()


def test_surface_of_pypccl() -> None:
    for name in SURFACE:
        assert name in pccl.__all__
        assert getattr(pccl, name) is getattr(gopccl, name)
    assert pccl.DeviceType.from_torch_device_type("mps") is None
    assert pccl.cuda.is_available() is True
    assert [r.value for r in Result] == list(range(13))
    assert pccl.DataType.DOUBLE.value == 11
    with pytest.raises(PCCLError) as caught:
        PCCLError.check(5, "f")
    assert str(caught.value).startswith("f failed with error: TOO_FEW_PEERS: ")
