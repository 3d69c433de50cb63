"""Signals, the end of the interpreter, forks: what a call does when the program wants something else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Any, Callable, Dict, Iterator, List, Tuple

import gopccl
import numpy as np
import pytest
from conftest import TIMEOUT, main_is_in, pair
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
    SharedState,
    TensorInfo,
)


def with_retry(a: Communicator, x: Any) -> None:
    d = ReduceDescriptor(
        x.size, ReduceOp.SUM, 5, ReduceOperandDescriptor(DataType.FLOAT),
        QuantizationOptions(DataType.FLOAT, QuantizationAlgorithm.NONE),
    )  # fmt: skip
    a.all_reduce_multiple_with_retry([ReduceOpDescriptor.from_numpy(x, x, d)])


# Every function of the library that waits for others, by its name in C.
CALLS: Dict[str, Callable[[Communicator, Any], Any]] = {
    "pcclAllReduce": lambda a, x: a.all_reduce(x, x, op=ReduceOp.SUM, tag=5),
    "pcclAllReduceMultipleWithRetry": with_retry,
    "pcclUpdateTopology": lambda a, x: a.update_topology(),
    "pcclArePeersPending": lambda a, x: a.are_peers_pending(),
    "pcclOptimizeTopology": lambda a, x: a.optimize_topology(),
    "gopcclWaitForPeers": lambda a, x: a.wait_for_peers(3),
    "pcclSynchronizeSharedState": lambda a, x: a.sync_shared_state(SharedState([TensorInfo.from_numpy(x, "x")])),
    "gopcclAwaitAsyncReduce": lambda a, x: a.all_reduce_async(x, x, op=ReduceOp.SUM, tag=5).wait(),
}


@pytest.mark.parametrize("name", list(CALLS))
def test_every_call_that_waits_listens(address: str, name: str) -> None:
    """The other peer never does its part."""
    a, b = pair(address)
    x = np.ones(4, np.float32)
    with main_is_in(name), pytest.raises(KeyboardInterrupt):
        CALLS[name](a, x)
    assert (x == 1).all()
    a.close()
    b.close()


@pytest.mark.parametrize("name", [*(n for n in CALLS if n != "gopcclAwaitAsyncReduce"), "pcclAllReduceAsync"])
def test_every_call_listens_while_it_has_to_wait_for_another(address: str, name: str) -> None:
    """An operation that was given up is still to be voted on: what comes next is postponed."""
    a, b = pair(address)
    x, y = np.ones(4, np.float32), np.ones(4, np.float32)
    with main_is_in("pcclAllReduce"), pytest.raises(KeyboardInterrupt):
        a.all_reduce(x, x, op=ReduceOp.SUM, tag=1)
    calls = {**CALLS, "pcclAllReduceAsync": lambda a, x: a.all_reduce_async(x, x, op=ReduceOp.SUM, tag=5)}
    with main_is_in(name), pytest.raises(KeyboardInterrupt):
        calls[name](a, y)
    assert (y == 1).all()
    a.close()
    b.close()


def test_connect_listens(address: str) -> None:
    first, second = Communicator(address), Communicator(address)
    first.connect()
    with main_is_in("pcclConnect"), pytest.raises(KeyboardInterrupt):
        second.connect()
    first.close()
    second.close()


def test_a_stale_interrupt_is_nobody_elses(address: str) -> None:
    """What a signal handler raised in a call that did not ask is not raised by the next one."""
    gopccl._lib._interrupts.value = KeyboardInterrupt()
    comm = Communicator(address)
    comm.connect()
    comm.close()


EXIT = """
import sys, threading
import numpy as np
import gopccl
from gopccl import Attribute, Communicator, MasterNode, ReduceOp
master = MasterNode("127.0.0.1:0")
master.run()
a, b = (Communicator(f"127.0.0.1:{master.port}") for _ in range(2))
def form(c):
    c.connect()
    while c.get_attribute(Attribute.GLOBAL_WORLD_SIZE) < 2:
        c.update_topology()
threads = [threading.Thread(target=form, args=(c,)) for c in (a, b)]
for t in threads: t.start()
for t in threads: t.join()
x = np.ones(1 << 20, np.float32)
inside = threading.Event()
def call():
    inside.set()
    {"reduce": lambda: a.all_reduce(x, x, op=ReduceOp.SUM),
     "await": a.all_reduce_async(x, x, op=ReduceOp.SUM, tag=1).wait if sys.argv[1] == "await" else None,
     "update": a.update_topology, "master": master.wait}[sys.argv[1]]()
threading.Thread(target=call, daemon=True).start()
inside.wait()
# Between two polls of the thread, at another place each time.
threading.Event().wait(0.05 + int(sys.argv[2]) * 0.003)
"""


def ends(kind: str, n: int) -> Tuple[int, str]:
    p = subprocess.run(
        [sys.executable, "-c", EXIT, kind, str(n)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT
    )
    return p.returncode, p.stdout


@pytest.mark.parametrize("kind", ["reduce", "await", "update", "master"])
def test_the_interpreter_ends_while_daemon_threads_are_in_calls(kind: str) -> None:
    """Twenty runs that end at different moments between two polls; GOPCCL_SOAK has it done a hundred times."""
    runs = 25 if os.environ.get("GOPCCL_SOAK") else 5
    results: List[Tuple[int, str]] = [(0, "")] * runs

    def some(first: int) -> None:
        for i in range(first, runs, 2):
            results[i] = ends(kind, i * 20 // runs)

    threads = [threading.Thread(target=some, args=(i,)) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == [(0, "")] * runs


FORK = """
import os, sys
import gopccl
with gopccl.MasterNode("127.0.0.1:0") as master:
    master.run()
    comm = gopccl.Communicator(f"127.0.0.1:{master.port}")
    comm.connect()
    pid = os.fork()
    if pid == 0:
        sys.exit(7)  # through the interpreter, with all that it does at its end
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    comm.update_topology()
    comm.close()
"""


def test_a_child_made_by_fork_ends_without_the_parents_things() -> None:
    p = subprocess.run([sys.executable, "-c", FORK], stderr=subprocess.PIPE, text=True, timeout=TIMEOUT)
    assert (p.returncode, p.stderr) == (0, "")




def test_several_threads_wait_for_one_handle(address: str) -> None:
    a, b = pair(address)
    for tag in range(20):
        x, y = np.ones(4, np.float32), np.ones(4, np.float32)
        h = a.all_reduce_async(x, x, op=ReduceOp.SUM, tag=tag)
        results: List[Any] = []
        threads = [threading.Thread(target=lambda: results.append(h.wait())) for _ in range(3)]
        for t in threads:
            t.start()
        b.all_reduce(y, y, op=ReduceOp.SUM, tag=tag)
        for t in threads:
            t.join(TIMEOUT)
        assert [r[:2] for r in results] == [(True, 0)] * 3
    a.close()
    b.close()


def test_a_tag_that_was_not_awaited(address: str) -> None:
    a, b = pair(address)
    x, y = np.full(4, 1, np.float32), np.full(4, 10, np.float32)
    h = a.all_reduce_async(x, x, op=ReduceOp.SUM)
    b.all_reduce(y, y, op=ReduceOp.SUM)  # has ended for b, and is about to for a
    for again in (a.all_reduce_async, a.all_reduce):
        with pytest.raises(PCCLError, match="tag 0 .*not awaited"):
            again(y, y, op=ReduceOp.SUM)
    assert h.wait()[:2] == (True, 0)
    other = threading.Thread(target=b.update_topology)
    other.start()
    a.update_topology()
    other.join(TIMEOUT)
    a.close()
    b.close()


def test_types_that_the_buffer_protocol_has_no_name_for(address: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    a, b = pair(address)
    x, y = np.ones(4, ml_dtypes.bfloat16), np.ones(4, ml_dtypes.bfloat16)
    h = a.all_reduce_async(x, x, op=ReduceOp.SUM)
    b.all_reduce(y, y, op=ReduceOp.SUM)
    assert h.wait()[0] and x.tolist() == y.tolist() == [2.0] * 4
    d = np.zeros(3, "M8[s]")
    with pytest.raises(ArgumentError, match="datetime64"):
        a.all_reduce(d, d, op=ReduceOp.SUM)
    a.close()
    b.close()


def test_names_with_nul() -> None:
    x = np.zeros(3, np.float32)
    with pytest.raises(ArgumentError, match="NUL"):
        TensorInfo.from_numpy(x, "w\0x")
    info = TensorInfo.from_numpy(x, "w")
    info.name = "w\0y"
    with pytest.raises(ArgumentError, match="NUL"):
        SharedState([info]).to_c()


def test_dump_while_a_thread_hangs(address: str, master: MasterNode) -> None:
    a, b = pair(address)
    x = np.ones(5, np.float32)
    h = a.all_reduce_async(x, x, op=ReduceOp.SUM, tag=4711)
    hanging = threading.Thread(target=h.wait)
    hanging.start()
    text = gopccl.dump_state()
    assert "operation tag 4711" in text and f"master at {address}: 2 clients" in text
    assert text.count("\ncommunicator ") >= 2
    y = np.ones(5, np.float32)
    b.all_reduce(y, y, op=ReduceOp.SUM, tag=4711)
    hanging.join(TIMEOUT)
    a.close()
    b.close()
    assert "operation tag 4711" not in gopccl.dump_state()


DUMP = """
import os, signal, sys
import gopccl
seen = []
if sys.argv[1] == "handler":
    signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
with gopccl.MasterNode("127.0.0.1:0") as master:
    master.run()
    comm = gopccl.Communicator(f"127.0.0.1:{master.port}")
    comm.connect()
    os.kill(os.getpid(), signal.SIGUSR1)
    print("alive", seen, flush=True)
    sys.stdin.readline()
"""


def test_dump_at_a_signal() -> None:
    env = {**os.environ, "GOPCCL_DUMP_SIGNAL": str(int(signal.SIGUSR1))}
    with subprocess.Popen(
        [sys.executable, "-c", DUMP, "none"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as p:
        assert p.stdin and p.stdout and p.stderr
        text = ""
        while "\ncommunicator " not in text:
            line = p.stderr.readline()
            assert line, text
            text += line
        assert "master at 127.0.0.1:" in text
        assert p.stdout.readline() == "alive []\n"
        p.stdin.close()
        assert p.wait(TIMEOUT) == 0


def test_a_signal_that_nobody_asked_for_stays_the_programs() -> None:
    p = subprocess.run([sys.executable, "-c", DUMP, "handler"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT)
    assert (p.returncode, p.stdout, p.stderr) == (0, "alive [1]\n", "")
    p = subprocess.run([sys.executable, "-c", DUMP, "none"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT)
    assert p.returncode == -signal.SIGUSR1


def test_pausing_below_a_minimum_of_peers(address: str) -> None:
    """Three train; one leaves in the middle: the others pause, and go on when another one has come."""
    steps = 12
    left = threading.Event()
    worlds: List[List[int]] = [[] for _ in range(4)]
    errors: List[BaseException] = []

    def train(i: int, until: int) -> None:
        try:
            comm = Communicator(address)
            comm.connect()
            w, g = np.zeros(8, np.float32), np.ones(8, np.float32)
            state = SharedState([TensorInfo.from_numpy(w, "w")])
            first = True
            while state.revision < until:
                if not first and comm.are_peers_pending():
                    comm.update_topology()
                first = False
                comm.wait_for_peers(3)
                comm.sync_shared_state(state)
                if state.revision >= until:
                    break
                g[:] = 1
                try:
                    info = comm.all_reduce(g, g, op=ReduceOp.SUM)
                except PCCLError as err:
                    if err.result not in (gopccl.Result.RANK_CONNECTION_LOST, gopccl.Result.TOO_FEW_PEERS):
                        raise
                    state.push_revision()  # a step that changes nothing, for all that are left
                    continue
                worlds[i].append(info.local_world_size)
                w += g
                state.push_revision()
            comm.close()
            if until < steps:
                left.set()
        except BaseException as err:
            errors.append(err)
            left.set()

    threads = [threading.Thread(target=train, args=(i, 5 if i == 2 else steps)) for i in range(3)]
    for t in threads:
        t.start()
    assert left.wait(TIMEOUT)
    late = threading.Thread(target=train, args=(3, steps))
    late.start()
    for t in [*threads, late]:
        t.join(TIMEOUT)
    assert not errors, errors
    assert not any(t.is_alive() for t in [*threads, late])
    assert all(n == 3 for of in worlds for n in of), worlds
    assert len(worlds[0]) >= 5 and worlds[3]
