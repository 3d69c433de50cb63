"""What an operation uses is alive until its verdict, whatever references are dropped."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import threading
import weakref
from typing import Any, Callable, Iterator, List, Tuple

import gopccl
import numpy as np
import pytest
from conftest import TIMEOUT, form, interrupt_after, main_is_in, pair
from gopccl import (
    ArgumentError,
    Communicator,
    DataType,
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
    TensorInfo,
    _comm,
)

N = 1 << 14  # 64 KiB of float32: freed memory of this size goes to the next array of this size


class Array(np.ndarray):
    """An array that can be watched."""


def array(value: float) -> Any:
    return np.full(N, value, np.float32).view(Array)


def victims() -> List[Any]:
    """Unrelated arrays that take the place of what was freed."""
    return [np.full(N, -7, np.float32) for _ in range(64)]


def untouched(arrays: List[Any]) -> bool:
    return all((a == -7).all() for a in arrays)


@pytest.fixture
def peers(address: str) -> Iterator[Tuple[Communicator, Communicator]]:
    a, b = pair(address)
    yield a, b
    a.close()
    b.close()


def test_dropped_handles(peers: Tuple[Communicator, Communicator]) -> None:
    """Twelve in flight, no handle kept, the other peer late."""
    a, b = peers
    watched = []
    for tag in range(12):
        x = array(tag)
        watched.append(weakref.ref(x.base))
        a.all_reduce_async(x, x, op=ReduceOp.SUM, tag=tag)
    del x
    gc.collect()
    others = victims()
    assert all(w() is not None for w in watched)
    ys = [np.full(N, 100, np.float32) for _ in watched]
    for tag, h in enumerate([b.all_reduce_async(y, y, op=ReduceOp.SUM, tag=t) for t, y in enumerate(ys)]):
        assert h.wait()[:2] == (True, 0)
        assert (ys[tag] == 100 + tag).all()
    assert untouched(others)
    # The verdict lets go of the buffers, though nobody awaits it; the operations can still be awaited.
    left = a.in_flight()
    while any(w() is not None for w in watched):
        a.in_flight()
    assert [h.tag for h in left] == list(range(12))
    assert all(h.wait()[:2] == (True, 0) for h in left)
    assert a.in_flight() == []


def test_interrupted_launch(peers: Tuple[Communicator, Communicator]) -> None:
    """Ctrl-C in a launch that has to wait: the other peer gets the right sum."""
    a, b = peers
    x = np.ones(8, np.float32)
    with main_is_in("pcclAllReduce"), pytest.raises(KeyboardInterrupt):
        a.all_reduce(x, x, op=ReduceOp.SUM, tag=0)
    done = threading.Event()

    def other() -> None:
        done.wait(3)  # a launch that does not listen would wait for ever, and this test with it
        y = np.ones(8, np.float32)
        with pytest.raises(PCCLError):  # what was interrupted first; the background is quiet then
            b.all_reduce(y, y, op=ReduceOp.SUM, tag=0)

    helper = threading.Thread(target=other)
    helper.start()

    def launch() -> None:
        z = np.full(N, 5, np.float32)
        with main_is_in("pcclAllReduceAsync"), pytest.raises(KeyboardInterrupt):
            a.all_reduce_async(z, z, op=ReduceOp.SUM, tag=1)

    launch()
    done.set()
    gc.collect()
    others = victims()
    helper.join(TIMEOUT)
    t = np.full(N, 100, np.float32)
    h = b.all_reduce_async(t, t, op=ReduceOp.SUM, tag=1)
    again = np.full(N, 5, np.float32)
    if not a.in_flight():  # nothing was launched
        a.all_reduce_async(again, again, op=ReduceOp.SUM, tag=1)
    assert h.wait()[:2] == (True, 0)
    assert (t == 105).all(), t
    assert [f.wait()[:2] for f in a.in_flight()] == [(True, 0)]
    assert untouched(others)


def test_interrupted_behind_the_launch(peers: Tuple[Communicator, Communicator], monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception between the launch and the assignment loses neither the buffers nor the operation."""
    a, b = peers
    z = array(5)
    watched = weakref.ref(z.base)
    interrupt_after(monkeypatch, gopccl._comm, "call")
    with pytest.raises(KeyboardInterrupt):
        a.all_reduce_async(z, z, op=ReduceOp.SUM, tag=1)
    monkeypatch.undo()
    del z
    gc.collect()
    others = victims()
    assert watched() is not None
    t = np.full(N, 100, np.float32)
    b.all_reduce(t, t, op=ReduceOp.SUM, tag=1)
    assert (t == 105).all() and untouched(others)
    (h,) = a.in_flight()
    assert h.tag == 1 and h.wait()[:2] == (True, 0)


def test_interrupted_wait_keeps_the_verdict(
    peers: Tuple[Communicator, Communicator], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = peers
    x, y = np.full(4, 1, np.float32), np.full(4, 2, np.float32)
    h = a.all_reduce_async(x, x, op=ReduceOp.SUM, tag=3)
    b.all_reduce(y, y, op=ReduceOp.SUM, tag=3)
    interrupt_after(monkeypatch, gopccl._lib, "raw_call")
    with pytest.raises(KeyboardInterrupt):
        h.wait()
    monkeypatch.undo()
    ok, code, info = h.wait()
    assert (ok, code, info.local_world_size) == (True, 0, 2)


def test_a_refused_launch_keeps_nothing(peers: Tuple[Communicator, Communicator]) -> None:
    a, b = peers
    x, y = array(1), array(2)
    watched = weakref.ref(y.base)
    h = a.all_reduce_async(x, x, op=ReduceOp.SUM, tag=1)
    with pytest.raises(PCCLError) as caught:
        a.all_reduce_async(y, y, op=ReduceOp.SUM, tag=1)
    assert caught.value.result is Result.INVALID_ARGUMENT and "tag 1" in str(caught.value)
    del y, caught
    gc.collect()
    assert watched() is None
    z = np.full(N, 9, np.float32)
    b.all_reduce(z, z, op=ReduceOp.SUM, tag=1)
    assert h.wait()[0] and (x == 10).all()


def test_a_numpy_array_in_flight_cannot_be_resized(peers: Tuple[Communicator, Communicator]) -> None:
    a, b = peers
    x = np.full(N, 5, np.float32)
    h = a.all_reduce_async(x, x, op=ReduceOp.SUM)
    with pytest.raises(ValueError):
        x.resize(4 * N, refcheck=False)
    others, t = victims(), np.full(N, 100, np.float32)
    b.all_reduce(t, t, op=ReduceOp.SUM)
    assert h.wait()[0] and (t == 105).all() and (x == 105).all() and untouched(others)


@pytest.mark.parametrize("way", ["data", "set_"])
def test_a_tensor_in_flight_gets_other_memory(peers: Tuple[Communicator, Communicator], way: str) -> None:
    torch = pytest.importorskip("torch")
    a, b = peers
    n = 1 << 22  # 16 MiB: a mapping of its own, gone when it is freed
    x, other = torch.full((n,), 5.0), torch.full((n,), -7.0)
    h = a.all_reduce_async(x, x, op=ReduceOp.SUM)
    if way == "data":
        x.data = other
    else:
        x.set_(other)
    gc.collect()
    t = np.full(n, 100, np.float32)
    g = b.all_reduce_async(t, t, op=ReduceOp.SUM)
    waiter = threading.Thread(target=h.wait)
    waiter.start()
    assert g.wait()[:2] == (True, 0)
    waiter.join(TIMEOUT)
    assert h.wait()[:2] == (True, 0)
    assert (t == 105).all()
    assert bool((other == -7).all()), "the result goes to the memory that the tensor had"


def test_a_replaced_tensor_is_not_synchronized(address: str) -> None:
    torch = pytest.importorskip("torch")
    w = torch.zeros(N)
    state = SharedState([TensorInfo.from_torch(w, "w")])
    comm = Communicator(address)
    with pytest.raises(PCCLError, match="not connected"):
        comm.sync_shared_state(state)
    w.data = torch.ones(N)
    with pytest.raises(ArgumentError, match="tensor 'w' was replaced"):
        comm.sync_shared_state(state)
    w.data = torch.ones(2 * N)[:N].double()
    with pytest.raises(ArgumentError, match="tensor 'w' was replaced"):
        comm.sync_shared_state(state)


def test_what_close_could_not_end_keeps_its_buffers(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library gives up waiting for a stuck device, say, which may write later."""
    a, b = pair(address)

    real = _comm._lib.raw_call

    def raw_call(name: str, *args: Any) -> int:
        code = real(name, *args)
        return Result.INVALID_USAGE.value if name in ("gopcclClose", "pcclDestroyCommunicator") else code

    x = array(1)
    watched = weakref.ref(x.base)
    a.all_reduce_async(x, x, op=ReduceOp.SUM, tag=1)
    del x
    member = a._member
    assert member is not None
    with monkeypatch.context() as m:
        m.setattr(_comm._lib, "raw_call", raw_call)
        a.close()
    gc.collect()
    assert watched() is not None
    _comm._memberships.pop(member.key)  # the test knows that it has ended
    b.close()


def test_looking_for_what_has_ended_keeps_what_is_launched_meanwhile(
    peers: Tuple[Communicator, Communicator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread launches between the library's answer and what is done with it."""
    a, b = peers
    member = a._member
    assert member is not None
    ended = member.ended

    def late() -> Any:
        known = ended()
        monkeypatch.undo()
        x = array(1)
        watched.append(weakref.ref(x.base))
        a.all_reduce_async(x, x, op=ReduceOp.SUM, tag=1)
        return known

    watched: List[Any] = []
    monkeypatch.setattr(member, "ended", late)
    assert a.in_flight() != [], "it is not forgotten"
    gc.collect()
    assert watched[0]() is not None, "its buffers have an owner"
    y = np.full(N, 2, np.float32)
    b.all_reduce(y, y, op=ReduceOp.SUM, tag=1)
    assert (y == 3).all()
    (h,) = a.in_flight()
    assert h.wait()[0]


def test_a_replaced_training_tensor_is_not_synchronized(address: str) -> None:
    torch = pytest.importorskip("torch")
    from gopccl.torch import TrainingState

    comm = Communicator(address)
    for replace, names in [
        (lambda m, o: setattr(m.weight, "data", torch.ones(3, 3)), "model/weight"),
        (lambda m, o: setattr(m, "bias", torch.nn.Parameter(torch.ones(3))), "model/bias"),
        (lambda m, o: o.load_state_dict(o.state_dict()), "optimizer/group0"),
    ]:
        model = torch.nn.Linear(3, 3)
        optimizer = torch.optim.Adam(model.parameters())
        state = TrainingState(model, optimizer)
        with pytest.raises(PCCLError, match="not connected"):
            state.sync(comm)
        replace(model, optimizer)
        with pytest.raises(ArgumentError, match=f"{names}.* replaced"):
            state.sync(comm)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    state = TrainingState(model, plain)
    plain.load_state_dict(plain.state_dict())
    with pytest.raises(ArgumentError, match="numbers of optimizer/group0 were replaced"):
        state.sync(comm)


def test_a_communicator_that_could_not_be_closed_keeps_its_buffers(
    peers: Tuple[Communicator, Communicator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception in close, or in the destructor, does not free what is in use."""
    a, b = peers
    c = Communicator.__new__(Communicator)
    c._member, a._member = a._member, None
    x = array(5)
    watched = weakref.ref(x.base)
    c.all_reduce_async(x, x, op=ReduceOp.SUM, tag=1)
    member = c._member
    assert member is not None

    def interrupted(name: str, *args: Any) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr(gopccl._lib, "raw_call", interrupted)
        with pytest.raises(KeyboardInterrupt):
            c.close()
        m.setattr(sys, "unraisablehook", lambda _: None)
        del c, x
        gc.collect()
    assert watched() is not None
    t = np.full(N, 100, np.float32)
    b.all_reduce(t, t, op=ReduceOp.SUM, tag=1)
    assert (t == 105).all()
    member.destroy()
    gc.collect()
    assert watched() is None


def test_collector_at_work(peers: Tuple[Communicator, Communicator]) -> None:
    """Handles, arrays and descriptors are dropped at random while the collector runs all the time."""
    a, b = peers
    rounds, width = 60, 8
    over = threading.Event()

    def collect() -> None:
        while not over.is_set():
            gc.collect()

    def late() -> None:
        for r in range(rounds):
            ys = [np.full(N, 100 + r, np.float32) for _ in range(width)]
            for k, h in enumerate([b.all_reduce_async(y, y, op=ReduceOp.SUM, tag=k) for k, y in enumerate(ys)]):
                h.result()
                assert (ys[k] == 100 + r + k).all(), (r, k, ys[k])
            list_of = [described(np.full(N, 1, np.float32), k) for k in range(3)]
            b.all_reduce_multiple_with_retry(list_of)

    def described(x: Any, k: int) -> ReduceOpDescriptor:
        d = ReduceDescriptor(N, ReduceOp.SUM, k, ReduceOperandDescriptor(DataType.FLOAT), QuantizationOptions(DataType.FLOAT, QuantizationAlgorithm.NONE))
        return ReduceOpDescriptor.from_numpy(x, x, d)

    errors: List[BaseException] = []

    def guarded(f: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                f()
            except BaseException as err:
                errors.append(err)

        return run

    dice = random.Random(1)
    gc.freeze()  # what is there already need not be looked at each time
    threads = [threading.Thread(target=guarded(f)) for f in (collect, late)]
    for t in threads:
        t.start()
    try:
        canaries = victims()
        for _ in range(rounds):
            kept = []
            for k in range(width):
                x = np.full(N, k, np.float32)
                h = a.all_reduce_async(x, x, op=ReduceOp.SUM, tag=k)
                if dice.random() < 0.5:
                    kept.append((h, x))
            del h, x
            canaries[dice.randrange(64)] = np.full(N, -7, np.float32)
            for h, _ in kept:
                h.result()
            for h in a.in_flight():
                h.result()
            a.all_reduce_multiple_with_retry([described(np.full(N, 1, np.float32), k) for k in range(3)])
            assert untouched(canaries)
    finally:
        over.set()
        for t in threads:
            t.join(TIMEOUT)
        gc.unfreeze()
    assert not errors, errors


AT_EXIT = """
import sys, threading
import numpy as np
import gopccl
comm = gopccl.Communicator(sys.argv[1])
comm.connect()
while comm.get_attribute(gopccl.Attribute.GLOBAL_WORLD_SIZE) < 2:
    comm.update_topology()
x = np.full(1 << 14, 5, np.float32)
comm.all_reduce_async(x, x, op=gopccl.ReduceOp.SUM, tag=1)
print("launched", flush=True)
sys.stdin.readline()
"""


def test_the_end_of_the_interpreter_leaves_the_run(address: str) -> None:
    """A program that ends with an operation in flight aborts it: nobody gets memory that was freed."""
    with subprocess.Popen(
        [sys.executable, "-c", AT_EXIT, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as p:
        comm = Communicator(address)
        form(comm, 2)
        assert p.stdout is not None and p.stdin is not None
        assert p.stdout.readline() == "launched\n"
        p.stdin.close()
        assert p.wait(TIMEOUT) == 0
        t = np.full(N, 100, np.float32)
        with pytest.raises(PCCLError) as caught:
            comm.all_reduce(t, t, op=ReduceOp.SUM, tag=1)
        assert caught.value.result in (Result.RANK_CONNECTION_LOST, Result.TOO_FEW_PEERS)
        assert (t == 100).all()
        comm.close()


def test_a_second_close_waits_for_the_first(address: str) -> None:
    a = Communicator(address)
    a.connect()
    threads = [threading.Thread(target=a.close) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(TIMEOUT)
    a.close()
    assert a._member is None
    with MasterNode("127.0.0.1:0") as m:
        m.run()
        m.close()
        m.close()


def test_close_keeps_verdicts(address: str) -> None:
    """What had its result before counts as done, awaited or not; what had not has its buffers back."""
    a, b = pair(address)
    x, y, z = np.full(1 << 10, 2.0), np.full(1 << 10, 3.0), np.full(1 << 10, 4.0)
    done = a.all_reduce_async(x, x, op=gopccl.ReduceOp.SUM, tag=1)
    b.all_reduce(y, y, op=gopccl.ReduceOp.SUM, tag=1)
    while not done.done():
        pass
    alone = a.all_reduce_async(z, z, op=gopccl.ReduceOp.SUM, tag=2)
    a.close()
    assert done.wait()[0] and (x == 5).all()
    assert alone.wait()[:2] == (False, Result.INVALID_USAGE.value) and (z == 4).all()
    b.close()
