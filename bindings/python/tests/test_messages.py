"""Messages between members: NumPy, PyTorch and buffers, tags, any source, what is wrong, a member that dies."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from typing import Any, List

import gopccl
import numpy as np
import pytest
from conftest import TIMEOUT, form, interrupt_after, main_is_in, pair, run_peers
from gopccl import ArgumentError, Communicator, PCCLError, Result

WORLD = 3


def test_all_pairs(address: str) -> None:
    """Small and large, blocking and asynchronous, of every kind of memory and any element type."""

    def f(comm: Communicator, i: int) -> None:
        me, n = comm.group.index, comm.group.size
        others = [k for k in range(n) if k != me]
        for count in (0, 3, 1 << 18):
            sent = {k: np.full(count, 10 * me + k, np.complex64) for k in others}
            got = {k: np.zeros(count, np.complex64) for k in others}
            handles = [comm.send_async(sent[k], peer=k, tag=4) for k in others]
            assert [h.tag for h in handles] == [4] * len(handles)
            for k in others:
                assert comm.recv(got[k], peer=k, tag=4) == k
                assert (got[k] == 10 * k + me).all()
            assert [h.result() for h in handles] == others
            assert all(h.done() and h.wait() == (True, 0, k) for h, k in zip(handles, others))
        if me == 0:
            first, second = bytearray(2), bytearray(2)
            seen = {comm.recv(first, tag=9), comm.recv_async(second, tag=9).result()}
            assert seen == {1, 2} and {bytes(first), bytes(second)} == {b"1!", b"2!"}
        else:
            comm.send(f"{me}!".encode(), peer=0, tag=9)
        comm.barrier()  # a member that leaves ends receives from any

    run_peers(address, WORLD, f)


def test_tensors(address: str) -> None:
    torch = pytest.importorskip("torch")
    a, b = pair(address)
    me, other = a.group.index, b.group.index
    for dtype in (torch.bfloat16, torch.bool, torch.complex128, torch.float8_e4m3fn):
        x = torch.arange(6).reshape(2, 3).to(torch.float32).to(dtype)
        y = torch.zeros(6).to(dtype)
        h = a.send_async(x, peer=other)
        assert b.recv(y, peer=me) == me and h.result() == other
        assert torch.equal(x.reshape(-1).view(torch.uint8), y.view(torch.uint8))
    # What has its owner gone is held until it has arrived.
    t = torch.full((1 << 20,), 3.0)
    gone = weakref.ref(t.untyped_storage())
    h = a.send_async(t, peer=other, tag=1)
    del t
    gc.collect()
    y = torch.zeros(1 << 20)
    b.recv(y, tag=1)
    assert h.wait()[0] and bool((y == 3).all())
    gc.collect()
    assert gone() is None
    a.close()
    b.close()


def test_owners_and_lists(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropped buffers live until the end; what was begun is listed, whatever has interrupted it."""
    a, b = pair(address)
    me, other = a.group.index, b.group.index
    x = np.zeros(1 << 12)
    watched = weakref.ref(x)
    with monkeypatch.context() as m, pytest.raises(KeyboardInterrupt):
        interrupt_after(m, gopccl._comm, "call", "gopcclReceiveAsync")
        a.recv_async(x, peer=other, tag=5)
    del x
    gc.collect()
    assert watched() is not None
    (h,) = a.in_flight()
    assert isinstance(h, gopccl.MessageHandle) and h.tag == 5 and not h.done()
    a.all_reduce_async(np.zeros(1), np.zeros(1), op=gopccl.ReduceOp.SUM, tag=5)  # tags of messages are their own
    b.all_reduce(np.zeros(1), np.zeros(1), op=gopccl.ReduceOp.SUM, tag=5)
    b.send(np.ones(1 << 12), peer=me, tag=5)
    assert h.result() == other and h.done()
    del h
    gc.collect()
    assert watched() is None
    (r,) = a.in_flight()
    assert isinstance(r, gopccl.AsyncReduceHandle) and r.wait()[0]
    assert a.in_flight() == []
    a.close()
    b.close()


def test_what_is_wrong_is_named(address: str) -> None:
    a, b = pair(address)
    me, other = a.group.index, b.group.index
    x = np.zeros(4)
    for text, call in [
        ("peer is 2, must be the index of another member", lambda: a.send(x, peer=2)),
        (f"peer is {me}, must be the index of another member", lambda: a.recv(x, peer=me)),
        (f"peer is {me}, must be the index of another member", lambda: a.send_async(x, peer=me)),
        ("peer is -1", lambda: a.recv(x, peer=-1)),
        ("peer is None", lambda: a.send(x, peer=None)),  # type: ignore[arg-type]
        ("peer is 1.5", lambda: a.recv_async(x, peer=1.5)),  # type: ignore[arg-type]
        ("tag is -1", lambda: a.send(x, peer=other, tag=-1)),
        ("data: the array is not contiguous", lambda: a.send(x[::2], peer=other)),
        ("buffer: the buffer is read-only", lambda: a.recv(bytes(4), peer=other)),
        ("data: a list has no buffer", lambda: a.send([1], peer=other)),
    ]:
        with pytest.raises(ArgumentError, match=text):
            call()
    assert a.in_flight() == []
    y = np.full(3, 7.0)
    h = b.recv_async(y, peer=me)
    with pytest.raises(PCCLError, match="receives 24 bytes, 32 are sent"):
        a.send(x, peer=other)
    assert h.wait() == (False, Result.INVALID_ARGUMENT.value, me) and (y == 7).all()
    with pytest.raises(PCCLError, match="sends 32 bytes, 24 are expected"):
        h.result()
    h = a.recv_async(x, peer=other)
    a.close()
    for late in (lambda: a.send(x, peer=other), lambda: a.recv_async(x)):
        with pytest.raises(PCCLError, match="INVALID_ARGUMENT"):
            late()
    assert not h.wait()[0]
    with pytest.raises(PCCLError, match="RANK_CONNECTION_LOST"):
        b.recv(y, peer=me)
    b.close()


@pytest.mark.parametrize("name", ["gopcclSend", "gopcclReceive", "gopcclAwaitMessage"])
def test_ctrl_c_ends_the_wait(address: str, name: str) -> None:
    """The other member does nothing; awaiting can be repeated."""
    a, b = pair(address)
    me, other = a.group.index, b.group.index
    x, y = np.full(1 << 16, 5.0), np.zeros(1 << 16)
    h = a.recv_async(y, peer=other, tag=2)
    with main_is_in(name), pytest.raises(KeyboardInterrupt):
        if name == "gopcclSend":
            a.send(x, peer=other)
        elif name == "gopcclReceive":
            a.recv(x, peer=other)
        else:
            h.result()
    b.send(x, peer=me, tag=2)
    assert h.result() == other and (y == 5).all()
    b.close()
    a.close()


VICTIM = """
import sys
sys.path.insert(0, sys.argv[2])
import gopccl
from conftest import form
comm = gopccl.Communicator(sys.argv[1])
form(comm, 3)
comm.all_to_all(bytearray(3), bytearray(3))
print(comm.group.index, flush=True)
sys.stdin.read()
"""


def test_a_member_that_is_killed(address: str) -> None:
    """Every wait for it ends, and those who are left go on."""
    args = [sys.executable, "-c", VICTIM, address, os.path.dirname(__file__)]
    with subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as victim:
        ready, begun = threading.Barrier(3), threading.Barrier(3)
        gone: List[int] = []

        def f(comm: Communicator, i: int) -> None:
            ready.wait(TIMEOUT)
            x = np.zeros(1 << 18)
            waits: List[Any] = [comm.recv_async(np.zeros(1), peer=gone[0]), comm.recv_async(np.zeros(1), tag=1)]
            waits.append(comm.send_async(x, peer=gone[0], tag=2))
            begun.wait(TIMEOUT)
            for h in waits:
                assert h.wait()[:2] == (False, Result.RANK_CONNECTION_LOST.value)
            while comm.group.size > 2:
                try:
                    comm.update_topology()
                except PCCLError:
                    pass
            other = 1 - comm.group.index
            h = comm.send_async(np.full(2, comm.group.index), peer=other)
            y = np.zeros(2, np.int64)
            assert comm.recv(y) == other and (y == other).all() and h.result() == other

        def kill() -> None:
            assert victim.stdout is not None
            gone.append(int(victim.stdout.readline()))
            ready.wait(TIMEOUT)
            begun.wait(TIMEOUT)
            victim.kill()

        t = threading.Thread(target=kill)
        t.start()
        failed: List[BaseException] = []

        def peer(i: int) -> None:
            try:
                with Communicator(address) as comm:
                    form(comm, 3)
                    comm.all_to_all(bytearray(3), bytearray(3))
                    f(comm, i)
            except BaseException as err:
                failed.append(err)
                ready.abort()
                begun.abort()

        threads = [threading.Thread(target=peer, args=(i,), daemon=True) for i in range(2)]
        for p in threads:
            p.start()
        for p in [*threads, t]:
            p.join(TIMEOUT)
        victim.kill()
        assert not failed, failed
        assert not any(p.is_alive() for p in threads)
