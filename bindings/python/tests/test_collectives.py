"""Collectives besides all-reduce, beside NumPy: equal and unequal blocks, in place, in flight, a member that dies."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import subprocess
import sys
import threading
import weakref
from typing import Any, Callable, Dict, List, Tuple

import gopccl
import numpy as np
import pytest
from conftest import TIMEOUT, form, main_is_in, pair, run_peers
from gopccl import ArgumentError, Communicator, MasterNode, PCCLError, ReduceOp, Result

WORLD = 3
COUNTS = [4, 0, 7]
PAIRS = [[2, 0, 3], [1, 4, 0], [5, 1, 2]]  # by sender, then by receiver


def data(i: int, n: int, dtype: Any = np.int64) -> Any:
    return (np.arange(n) + 1000 * (i + 1)).astype(dtype)


def either(comm: Communicator, name: str, wait: bool, *args: Any, **kw: Any) -> Any:
    """The blocking call, or the asynchronous one and its end."""
    if wait:
        return getattr(comm, name)(*args, **kw)
    return getattr(comm, name + "_async")(*args, **kw).result()


def every_kind(comm: Communicator, wait: bool, uneven: bool, make: Callable[[Any], Any], read: Callable[[Any], Any]) -> None:
    me, n = comm.group.index, comm.group.size
    counts = COUNTS if uneven else [5] * n
    opt: Dict[str, Any] = {"counts": counts} if uneven else {}
    whole, at = sum(counts), np.cumsum([0, *counts])

    def do(name: str, send: Any, recv: Any, expect: Any, **kw: Any) -> None:
        src = None if send is None else make(send)
        dst = None if recv is None else make(np.full(recv, -1, send.dtype if send is not None else np.int64))
        info = either(comm, name, wait, src, dst, **kw)
        assert info.local_world_size == n
        if send is not None:
            np.testing.assert_array_equal(read(src), send)
        if recv is not None:
            np.testing.assert_array_equal(read(dst), expect)

    blocks = [data(i, c) for i, c in enumerate(counts)]
    full = [data(i, whole) for i in range(n)]
    total = np.sum(full, axis=0)
    do("all_gather", blocks[me], whole, np.concatenate(blocks), **opt)
    do("reduce_scatter", full[me], counts[me], total[at[me] : at[me + 1]], op=ReduceOp.SUM, **opt)
    for root in range(n):
        do("reduce", full[me], whole if me == root else None, total, op=ReduceOp.SUM, root=root)
        do("gather", blocks[me], whole if me == root else None, np.concatenate(blocks), root=root, **opt)
        do("scatter", full[me] if me == root else None, counts[me], full[root][at[me] : at[me + 1]], root=root, **opt)
        buffer = make(full[me])
        either(comm, "broadcast", wait, buffer, root=root)
        np.testing.assert_array_equal(read(buffer), full[root])
    rows = PAIRS if uneven else [[4] * n] * n
    sent = [data(i, sum(rows[i])) for i in range(n)]
    parts = [np.split(sent[i], np.cumsum(rows[i])[:-1])[me] for i in range(n)]
    pairs: Dict[str, Any] = {"send_counts": rows[me], "recv_counts": [r[me] for r in rows]} if uneven else {}
    do("all_to_all", sent[me], sum(r[me] for r in rows), np.concatenate(parts), **pairs)
    if wait:
        comm.barrier()
    else:
        assert comm.barrier_async().result().local_world_size == n


def test_every_kind(address: str) -> None:
    """Blocking and asynchronous, equal and unequal blocks, NumPy and PyTorch, beside NumPy's results."""

    def f(comm: Communicator, i: int) -> None:
        def of_array(a: Any) -> Any:
            return a.copy()

        ways: List[Tuple[Any, Any]] = [(of_array, lambda a: a)]
        try:
            import torch
        except ImportError:
            pass
        else:
            ways.append((lambda a: torch.from_numpy(a.copy()), lambda t: t.numpy()))
        for (make, read), wait, uneven in itertools.product(ways, (True, False), (True, False)):
            every_kind(comm, wait, uneven, make, read)

    run_peers(address, WORLD, f)


def test_what_is_moved_is_of_any_type(address: str) -> None:
    """Also of any shape: rows of a matrix, a scalar, nothing."""
    torch = pytest.importorskip("torch")

    def f(comm: Communicator, i: int) -> None:
        g = comm.group
        me, n = g.index, g.size
        for dtype in (np.bool_, np.complex64, np.complex128, np.dtype("M8[s]"), np.dtype([("a", "i4"), ("b", "f8")])):
            parts = [np.frombuffer(bytes((7 * k + j) % 2 for j in range(4 * np.dtype(dtype).itemsize)), dtype) for k in range(n)]
            out = np.zeros((n, 4), dtype)
            comm.all_gather(parts[me], out)
            assert out.tobytes() == b"".join(p.tobytes() for p in parts)
            some = np.zeros(sum(range(n + 1)), dtype)
            comm.all_gather(parts[me][: me + 1].copy(), some, counts=[k + 1 for k in range(n)])
            assert some.tobytes() == b"".join(p[: k + 1].tobytes() for k, p in enumerate(parts))
        t = torch.tensor(complex(me, 1))
        every = torch.empty(n, dtype=torch.complex64)
        comm.all_gather(t, every)
        assert every.tolist() == [complex(k, 1) for k in range(n)]
        flag = torch.tensor([me == 1])
        comm.broadcast(flag, root=1)
        assert bool(flag)
        nothing = np.empty(0, np.float32)
        comm.all_gather(nothing, nothing.copy())
        half = torch.full((2, 3), float(me), dtype=torch.bfloat16)
        comm.all_gather(half, wide := torch.empty((2 * n, 3), dtype=torch.bfloat16))
        assert wide[:, 0].tolist() == [float(k // 2) for k in range(2 * n)]
        with pytest.raises(ArgumentError, match="unsupported element type bool"):
            comm.reduce(np.zeros(3, np.bool_), None, op=ReduceOp.SUM, root=0)
        with pytest.raises(ArgumentError, match="send has element type bool, recv UINT8"):
            comm.all_gather(np.zeros(1, np.bool_), np.zeros(n, np.uint8))
        with pytest.raises(ArgumentError):
            comm.all_gather(np.zeros(1, object), np.zeros(n, object))

    run_peers(address, WORLD, f)


def near(got: Any, want: Any, most: Any) -> None:
    """``got`` is not further off than ``most``, and what floats round."""
    distance = np.abs(got.astype(np.float64) - want.astype(np.float64))
    assert np.all(distance <= most + 1e-6), (distance.max(), most)


def furthest(way: Any, chunk: Any) -> Any:
    """How far a value that was quantized may be off."""
    x = chunk.astype(np.float64)
    if way == "none" or not x.size:
        return 0.0
    if way == "blocks":  # a scale for each 32 elements, itself in 11 bits
        parts = np.pad(np.abs(x), (0, -x.size % 32)).reshape(-1, 32)
        return np.repeat(parts.max(axis=1), 32)[: x.size] / 14 * (1 + 2**-10)
    if isinstance(way, str):  # steps between the smallest and the largest, whose fractions are cut off
        return (x.max() - x.min()) / (2 ** (16 if "uint16" in way else 8) - 1)
    return 12 * x.std() / 127 / 2  # steps of int8, rounded


def off(way: Any, chunks: List[Any]) -> Any:
    """How far the sum of chunks may be off that was quantized at every hop, whatever the order: by what is worst of each length."""
    most = 0.0
    for hops in range(1, len(chunks)):
        most += max(np.max(furthest(way, np.sum(some, axis=0))) for some in itertools.combinations(chunks, hops))
    return most * 1.02  # what was off before makes a step a little wider


def test_quantized(address: str) -> None:
    """As near to what they are as the quantizer's steps, the same bits everywhere, fewer bytes; NumPy and PyTorch, in place, in flight."""
    torch: Any = None
    with contextlib.suppress(ImportError):
        import torch  # not in the threads, which would see half of it
    options = gopccl.QuantizationOptions(gopccl.DataType.INT8, gopccl.QuantizationAlgorithm.ZERO_POINT_SCALE)
    ways: List[Tuple[Any, int]] = [("minmax", 1), ("minmax:uint16", 2), (options, 1), ("none", 4)]
    n, sizes = 640, [640, 0, 77]

    def f(comm: Communicator, i: int) -> List[bytes]:
        me, found = comm.group.index, []
        values = [np.sin(np.arange(WORLD * n, dtype=np.float32) * (k + 1)) for k in range(WORLD)]
        for (way, size), wait in itertools.product(ways, (True, False)):
            x = np.zeros((WORLD, n), np.float32)
            x[me] = values[me][:n]
            info = either(comm, "all_gather", wait, x[me], x, quantization=way)
            assert info.tx_bytes == info.rx_bytes == (WORLD - 1) * n * size
            for got, v in zip(x, values):
                near(got, v[:n], furthest(way, v[:n]))
            found.append(x.tobytes())
            own = np.zeros(n, np.float32)
            either(comm, "reduce_scatter", wait, values[me], own, op=ReduceOp.AVG, quantization=way)
            mine = [v[me * n : (me + 1) * n] for v in values]
            near(own, np.mean(mine, axis=0), off(way, mine) / WORLD)
            some = np.zeros(sum(sizes), np.float32)
            either(comm, "all_gather", wait, values[me][: sizes[me]].copy(), some, counts=sizes, quantization=way)
            for at, c, v in zip(itertools.accumulate(sizes, initial=0), sizes, values):
                near(some[at : at + c], v[:c], furthest(way, v[:c]))
            found.append(some.tobytes())
        y = np.zeros(WORLD * n, np.float32)
        for text, what, given in (
            ("there are none, blocks, minmax, zeropoint", y[:n], "gzip"),
            ("minmax quantizes to uint8, uint16 or uint32, not int8", y[:n], "minmax:int8"),
            ("minmax quantizes float32 and float64, not int32", y[:n].astype(np.int32), "minmax"),
        ):
            with pytest.raises(PCCLError, match=text):
                comm.all_gather(what, y.astype(what.dtype), quantization=given)
        with pytest.raises(ArgumentError, match="quantization is a int"):
            comm.all_gather(y[:n], y, quantization=8)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="names no quantizer"):
            comm.all_gather(y[:n], y, quantization="min" + chr(0))
        if torch is None:
            return found
        t = torch.from_numpy(values[me][:n].copy())
        every = torch.empty(WORLD * n)
        comm.all_gather(t, every, quantization="blocks")
        assert torch.equal(t, torch.from_numpy(values[me][:n]))
        for got, v in zip(every.numpy().reshape(WORLD, n), values):
            near(got, v[:n], furthest("blocks", v[:n]))
        found.append(every.numpy().tobytes())
        return found

    results = run_peers(address, WORLD, f)
    for k, found in enumerate(zip(*results)):
        assert len(set(found)) == 1, k


def test_in_place_and_operations(address: str) -> None:
    def f(comm: Communicator, i: int) -> None:
        me, n = comm.group.index, comm.group.size
        x = np.zeros((n, 6), np.float32)
        x[me] = me + 1
        comm.all_gather(x[me], x)
        assert (x == np.arange(1, n + 1)[:, None]).all()
        y = x * (me + 1)
        comm.reduce_scatter(y, y[me], op=ReduceOp.AVG)
        np.testing.assert_allclose(y[me], (me + 1) * (n + 1) / 2)
        for op, want in ((ReduceOp.PROD, 6.0), (ReduceOp.MAX, 3.0), (ReduceOp.MIN, 1.0)):
            z = np.full(5, me + 1.0)
            comm.reduce(z, z if me == 2 else None, op=op, root=2)
            assert (z == (want if me == 2 else me + 1)).all()
        with pytest.raises(PCCLError, match="overlap"):
            comm.all_to_all(x, x)

    run_peers(address, WORLD, f)


def test_the_group(address: str) -> None:
    def f(comm: Communicator, i: int) -> Any:
        assert comm.group.index >= 0
        comm.all_to_all(np.zeros(WORLD), np.zeros(WORLD))  # the first to want connections between all
        return comm.group

    groups = run_peers(address, WORLD, f)
    assert sorted(g.index for g in groups) == list(range(WORLD))
    assert all(g.size == WORLD and g.collectives and g.mesh and g.members == groups[0].members for g in groups), groups
    assert len(set(groups[0].members)) == WORLD


def test_what_is_wrong_is_named(address: str) -> None:
    a, b = pair(address)
    f32 = np.zeros
    for text, call in [
        ("recv has 5 elements, send 2: with 2 members recv has 2 times as many", lambda: a.all_gather(f32(2), f32(5))),
        ("send has 5 elements, recv 2", lambda: a.reduce_scatter(f32(5), f32(2), op=ReduceOp.SUM)),
        ("recv has 5 elements, the sum of counts is 4", lambda: a.all_gather(f32(2), f32(5), counts=[2, 2])),
        (r"send has 2 elements, the count of this peer \(counts\[\d\]\) is", lambda: a.all_gather(f32(2), f32(8), counts=[4, 4])),
        ("counts for 3 members, the group has 2", lambda: a.all_gather(f32(2), f32(6), counts=[2, 2, 2])),
        ("root is 2, the group has 2 members", lambda: a.broadcast(f32(2), root=2)),
        ("root is -1", lambda: a.broadcast(f32(2), root=-1)),
        ("recv is None at the root", lambda: a.reduce(f32(2), None, op=ReduceOp.SUM, root=a.group.index)),
        ("recv is None at the root", lambda: a.gather(f32(2), None, root=a.group.index)),
        ("send is None at the root", lambda: a.scatter(None, f32(2), root=a.group.index)),
        ("send has 2 elements, recv 3", lambda: a.reduce(f32(2), f32(3), op=ReduceOp.SUM, root=a.group.index)),
        ("do not divide into 2 equal blocks", lambda: a.all_to_all(f32(3), f32(3))),
        ("both needed", lambda: a.all_to_all(f32(4), f32(4), send_counts=[2, 2])),
        ("the sum of send_counts is 5", lambda: a.all_to_all(f32(4), f32(4), send_counts=[2, 3], recv_counts=[2, 2])),
        ("both have one for each member", lambda: a.all_to_all(f32(4), f32(4), send_counts=[2, 2], recv_counts=[4])),
        ("counts has -1", lambda: a.all_gather(f32(2), f32(4), counts=[-1, 3])),
        ("counts has 1.5", lambda: a.all_gather(f32(2), f32(4), counts=[1.5, 3])),  # type: ignore[list-item]
        ("tag is -1", lambda: a.all_gather(f32(2), f32(4), tag=-1)),
        ("send has element type DOUBLE, recv FLOAT", lambda: a.all_gather(f32(2), f32(4, np.float32))),
        ("send: the array is not contiguous", lambda: a.all_gather(f32(4)[::2], f32(4))),
        ("op", lambda: a.reduce(f32(2), f32(2), op=7, root=0)),  # type: ignore[arg-type]
        ("send: a list has no buffer", lambda: a.all_gather([1, 2], f32(4))),
    ]:
        with pytest.raises(ArgumentError, match=text):
            call()
    assert a.in_flight() == []
    a.close()
    for late in (lambda: a.all_gather(f32(2), f32(4)), lambda: a.all_gather_async(f32(2), f32(4))):
        with pytest.raises(PCCLError, match="INVALID_ARGUMENT"):
            late()
    b.close()


def test_members_that_disagree(address: str) -> None:
    a, b = pair(address)
    x = [np.ones(4), np.ones(4)]
    h = [c.broadcast_async(y, root=i) for i, (c, y) in enumerate(zip((a, b), x))]
    other: List[Any] = []
    waiter = threading.Thread(target=lambda: other.append(h[1].wait()))
    waiter.start()
    assert h[0].wait()[:2] == (False, Result.INVALID_ARGUMENT.value)
    waiter.join(TIMEOUT)
    assert other[0][:2] == (False, Result.INVALID_ARGUMENT.value)
    assert all((y == 1).all() for y in x)
    a.close()
    b.close()


def test_buffers_have_an_owner_until_the_verdict(address: str) -> None:
    """Dropped buffers and handles; the tag is taken, and the handle says when it is done."""
    a, b = pair(address)
    n = 1 << 14
    me = a.group.index
    x, out = np.full(n, 5, np.float32), np.zeros(2 * n, np.float32)
    watched = [weakref.ref(x), weakref.ref(out)]
    a.all_gather_async(x, out, tag=3)
    del x, out
    gc.collect()
    others = [np.full(n, -7, np.float32) for _ in range(64)]
    assert all(w() is not None for w in watched)
    (h,) = a.in_flight()
    assert h.tag == 3 and not h.done()
    with pytest.raises(PCCLError, match="tag 3"):
        a.all_gather_async(np.zeros(1), np.zeros(2), tag=3)
    with pytest.raises(PCCLError) as caught:
        a.update_topology()
    assert caught.value.result is Result.PENDING_ASYNC_OPS
    y = np.zeros(2 * n, np.float32)
    b.all_gather(np.full(n, 9, np.float32), y, tag=3)
    assert h.wait()[:2] == (True, 0) and h.done()
    assert (y[me * n : (me + 1) * n] == 5).all()
    assert all((o == -7).all() for o in others)
    del caught
    gc.collect()
    assert all(w() is None for w in watched)
    a.close()
    b.close()


@pytest.mark.parametrize("name", ["all_gather", "barrier"])
def test_ctrl_c_ends_the_wait(address: str, name: str) -> None:
    """The other member never calls it; what was input is as before, and so is what was to be preserved."""
    a, b = pair(address)
    x, y = np.full(1000, 5.0), np.full(2000, 7.0)
    with main_is_in("gopcclCollect"), pytest.raises(KeyboardInterrupt):
        if name == "barrier":
            a.barrier()
        else:
            a.all_gather(x, y, preserve=True)
    assert (x == 5).all() and (y == 7).all()
    b.close()
    a.close()


N = 1 << 18

KILLED = ("all_gather", "reduce_scatter", "broadcast", "all_to_all")


def launch(comm: Communicator, kind: str, x: Any, out: Any) -> Any:
    """A large operation; x has 3 N elements, out too."""
    me, tag = comm.group.index, KILLED.index(kind)
    if kind == "all_gather":
        return comm.all_gather_async(x[me * N : (me + 1) * N], x, tag=tag, preserve=True)  # the others' blocks are output
    if kind == "reduce_scatter":
        return comm.reduce_scatter_async(x, x[me * N : (me + 1) * N], op=ReduceOp.SUM, tag=tag)
    if kind == "broadcast":
        return comm.broadcast_async(x, root=0, tag=tag, preserve=True)
    return comm.all_to_all_async(x, out, tag=tag, preserve=True)


VICTIM = """
import sys
sys.path.insert(0, sys.argv[2])
import numpy as np
import gopccl
from conftest import form
from test_collectives import N, launch
comm = gopccl.Communicator(sys.argv[1])
form(comm, 3)
x = [np.ones(3 * N, np.float32) for _ in range(2)]
print("formed", flush=True)
sys.stdin.readline()
for kind in ("all_gather", "reduce_scatter"):
    launch(comm, kind, *x)
print("launched", flush=True)
sys.stdin.read()
"""


def test_a_member_that_is_killed(address: str) -> None:
    """In the middle of two operations, in front of two: what failed is exactly as before, and the others go on."""
    args = [sys.executable, "-c", VICTIM, address, os.path.dirname(__file__)]
    with subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as victim:
        comms = [Communicator(address) for _ in range(2)]
        ready = threading.Barrier(3)
        failed: List[BaseException] = []

        def peer(comm: Communicator) -> None:
            try:
                form(comm, 3)
                rng = np.random.default_rng(comm.group.index)
                memory = {kind: [rng.random(3 * N, np.float32) for _ in range(2)] for kind in KILLED}
                before = {kind: [a.tobytes() for a in x] for kind, x in memory.items()}
                handles = {kind: launch(comm, kind, *x) for kind, x in memory.items()}
                ready.wait(TIMEOUT)
                for kind, h in handles.items():
                    ok, code, _ = h.wait()
                    assert ok == (code == 0) and not (ok and kind in ("broadcast", "all_to_all"))
                    if not ok:
                        assert Result(code) is Result.RANK_CONNECTION_LOST
                        assert [a.tobytes() for a in memory[kind]] == before[kind], kind
                assert comm.group.size == 2
                out = np.zeros(2, np.int32)
                comm.all_gather(np.array([comm.group.index], np.int32), out)
                assert out.tolist() == [0, 1]
            except BaseException as err:
                failed.append(err)
                ready.abort()

        threads = [threading.Thread(target=peer, args=(c,)) for c in comms]
        for t in threads:
            t.start()
        assert victim.stdout is not None and victim.stdin is not None
        assert victim.stdout.readline() == "formed\n"
        ready.wait(TIMEOUT)
        print(file=victim.stdin, flush=True)
        assert victim.stdout.readline() == "launched\n"
        victim.kill()
        for t in threads:
            t.join(TIMEOUT)
        assert not failed, failed
        for c in comms:
            c.close()


def test_alone_and_unconnected(master: MasterNode) -> None:
    with Communicator(f"127.0.0.1:{master.port}") as comm:
        with pytest.raises(PCCLError, match="not connected"):
            comm.all_gather(np.zeros(1), np.zeros(1))
        with pytest.raises(PCCLError, match="not connected"):
            comm.group
        comm.connect()
        assert comm.group.size == 1
        with pytest.raises(PCCLError) as caught:
            comm.all_gather(np.zeros(1), np.zeros(1))
        assert caught.value.result is Result.TOO_FEW_PEERS
        with pytest.raises(PCCLError):
            comm.barrier()
