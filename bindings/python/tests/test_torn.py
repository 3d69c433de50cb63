"""Shared states that a transfer which failed has left half overwritten."""

from __future__ import annotations

import socket
import threading
from typing import Any, List, Tuple

import numpy as np
import pytest
from conftest import TIMEOUT, free_ports, interrupt_after
from gopccl import Communicator, PCCLError, SharedState, SharedStateSyncStrategy, TensorInfo, _comm

SIZE = 4 << 20  # elements of 4 bytes: more than the sockets swallow


def relay(to: int, most: int) -> Tuple[int, threading.Thread]:
    """Pass one connection on to a port, and of the answer so many bytes; then nobody is there any more."""
    server = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        near, _ = server.accept()
        server.close()
        with near, socket.create_connection(("127.0.0.1", to)) as far:
            far.sendall(near.recv(1 << 16))
            left = most
            while left > 0:
                data = far.recv(min(left, 1 << 16))
                if not data:
                    break
                near.sendall(data)
                left -= len(data)

    t = threading.Thread(target=run, daemon=True)
    t.start()
    return server.getsockname()[1], t


def state_of(x: np.ndarray, revision: int) -> SharedState:
    state = SharedState([TensorInfo.from_numpy(x, "x"), TensorInfo.from_numpy(np.zeros(3, np.float32), "y")])
    state.revision = revision
    return state


def start(comm: Communicator, state: SharedState) -> threading.Thread:
    def run() -> None:
        try:
            comm.sync_shared_state(state)
        except PCCLError:
            pass

    t = threading.Thread(target=run, daemon=True)
    t.start()
    return t


def join(*comms: Communicator) -> None:
    """Let the last one in with the others."""
    threads = [threading.Thread(target=comms[-1].connect, daemon=True)]
    threads[0].start()
    while not comms[0].are_peers_pending():
        pass
    threads += [threading.Thread(target=c.update_topology, daemon=True) for c in comms[:-1]]
    for t in threads[1:]:
        t.start()
    for t in threads:
        t.join(TIMEOUT)
        assert not t.is_alive()


def test_torn_state_is_known_and_never_elected(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = free_ports(3)
    front, relaying = relay(ports[0], SIZE)  # a quarter of the state
    monkeypatch.setenv("GOPCCL_PEER_PORTS", ",".join(map(str, ports)))
    monkeypatch.setenv("GOPCCL_PEER_ANNOUNCE_PORTS", f"{front},{ports[1]},{ports[2]}")
    holder = Communicator(address)
    monkeypatch.delenv("GOPCCL_PEER_PORTS")
    monkeypatch.delenv("GOPCCL_PEER_ANNOUNCE_PORTS")
    holder.connect()
    mine = np.zeros(SIZE, np.float32)
    with Communicator(address) as comm:
        join(holder, comm)
        holding = start(holder, state_of(np.ones(SIZE, np.float32), 50))
        state = state_of(mine, 0)
        assert state.torn == ()
        with pytest.raises(PCCLError):
            comm.sync_shared_state(state)
        holding.join(TIMEOUT)
        relaying.join(TIMEOUT)
        assert state.torn == ("x",)
        assert 0 < (mine == 1).sum() < SIZE, "a mixture"
        assert state.revision == 0
        holder.close()

        # Alone with a mixture: there is no state, however one asks.
        def refused(state: SharedState, strategy: SharedStateSyncStrategy) -> str:
            with pytest.raises(PCCLError) as failure:
                comm.sync_shared_state(state, strategy)
            assert state.torn == ("x",)
            return str(failure.value)

        popular = SharedStateSyncStrategy.ENFORCE_POPULAR
        assert "mixtures of two states" in refused(state, popular)
        assert "must not be sent" in refused(state, SharedStateSyncStrategy.SEND_ONLY)
        # A new object for the same memory changes nothing,
        assert "mixtures of two states" in refused(state_of(mine, 7), popular)
        # ... nor does training on with it.
        mine += 1
        assert "mixtures of two states" in refused(state, popular)
        # A checkpoint does.
        mine[:] = 3
        state.revision = 51
        state.restored()
        assert state.torn == ()
        comm.sync_shared_state(state)
        assert state.revision == 51


def test_tensors_marked_torn_are_received(address: str) -> None:
    first, second = Communicator(address), Communicator(address)
    first.connect()
    join(first, second)
    a, b = np.full(10, 1, np.float32), np.full(10, 2, np.float32)
    sound, torn = state_of(a, 3), state_of(b, 3)
    torn._torn = ("x",)
    syncing = start(first, sound)
    second.sync_shared_state(torn)
    syncing.join(TIMEOUT)
    assert torn.torn == ()
    assert (b == 1).all() and (a == 1).all()
    first.close()
    second.close()


def test_what_was_received_when_ctrl_c_came_is_known(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Communicator(address), Communicator(address)
    first.connect()
    join(first, second)
    a, b = np.full(10, 1, np.float32), np.full(10, 2, np.float32)
    state = state_of(b, 0)
    syncing = start(first, state_of(a, 3))
    interrupt_after(monkeypatch, _comm, "call", "pcclSynchronizeSharedState")
    with pytest.raises(KeyboardInterrupt):
        second.sync_shared_state(state)
    syncing.join(TIMEOUT)
    assert (b == 1).all() and state.revision == 3 and state.torn == ()
    first.close()
    second.close()


def test_a_model_is_whole_when_ctrl_c_came_behind_a_sync(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers and tensors that are shared by a copy belong to the same state as the others."""
    torch = pytest.importorskip("torch")
    from gopccl.torch import TrainingState

    first, second = Communicator(address), Communicator(address)
    first.connect()
    join(first, second)

    def made(value: float) -> Any:
        w = torch.nn.Parameter(torch.full((4,), value))
        optimizer = torch.optim.SGD([w], lr=value)
        return w, optimizer, TrainingState({"w": w}, optimizer, {"mask": torch.tensor([value > 1])})

    _, _, theirs = made(1.0)
    theirs.revision = 3
    w, optimizer, mine = made(2.0)
    syncing = threading.Thread(target=theirs.sync, args=(first,), daemon=True)
    syncing.start()
    interrupt_after(monkeypatch, _comm, "call", "pcclSynchronizeSharedState")
    with pytest.raises(KeyboardInterrupt):
        mine.sync(second)
    syncing.join(TIMEOUT)
    assert (w == 1).all() and mine.revision == 3 and mine.torn == ()
    assert mine._extra["mask"].tolist() == [False]
    assert optimizer.param_groups[0]["lr"] == 1
    first.close()
    second.close()
