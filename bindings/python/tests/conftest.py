"""Fixtures: a master, and groups of peers in threads of this process."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import random
import signal
import socket
import sys
import threading
import time
from typing import Any, Callable, Iterator, List, Tuple

import gopccl
import pytest
from gopccl import Attribute, Communicator, MasterNode

# A shell that starts us in the background has SIGINT ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

TIMEOUT = 60


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """A test that hangs ends the run with the stacks of all threads."""
    faulthandler.dump_traceback_later(4 * TIMEOUT, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def master() -> Iterator[MasterNode]:
    with MasterNode("127.0.0.1:0") as m:
        m.run()
        yield m


@pytest.fixture
def address(master: MasterNode) -> str:
    return f"127.0.0.1:{master.port}"


def free_ports(n: int) -> List[int]:
    """Ports without a listener, below those that connections get: one of them may be taken at any moment."""
    ports: List[int] = []
    for port in random.sample(range(26000, 32000), 1000):
        try:
            socket.create_server(("", port)).close()
        except OSError:
            continue
        ports.append(port)
        if len(ports) == n:
            return ports
    raise RuntimeError("no free ports")


def interrupt_after(monkeypatch: pytest.MonkeyPatch, module: Any, attribute: str, name: str = "") -> None:
    """Ctrl-C in the main thread as soon as a call of the library has returned: any, or the one of that name."""
    real = getattr(module, attribute)

    def interrupted(what: str, *args: Any) -> Any:
        result = real(what, *args)
        if name in ("", what) and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(module, attribute, interrupted)


def form(comm: Communicator, world: int) -> None:
    """Connect and let others in until ``world`` peers are there."""
    comm.connect()
    while comm.get_attribute(Attribute.GLOBAL_WORLD_SIZE) < world:
        comm.update_topology()


def pair(address: str, **options: Any) -> Tuple[Communicator, Communicator]:
    """Two peers of one run, in this process."""
    a, b = Communicator(address, **options), Communicator(address, **options)
    other = threading.Thread(target=form, args=(b, 2))
    a.connect()
    other.start()
    while a.get_attribute(Attribute.GLOBAL_WORLD_SIZE) < 2:
        a.update_topology()
    other.join(TIMEOUT)
    return a, b


@contextlib.contextmanager
def main_is_in(name: str) -> Iterator[None]:
    """Send SIGINT to this process as soon as the main thread, inside the block, is in a C function."""
    main = threading.main_thread().ident
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            frame = sys._current_frames().get(main or 0)
            if frame is not None and frame.f_code.co_name == "raw_call" and frame.f_locals.get("name") == name:
                os.kill(os.getpid(), signal.SIGINT)
                return
            time.sleep(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def run_peers(address: str, world: int, f: Callable[[Communicator, int], Any]) -> List[Any]:
    """Run ``f(comm, i)`` for peers 0 to world-1, a thread each, and return its results."""

    def peer(i: int) -> Any:
        with gopccl.Communicator(address) as comm:
            form(comm, world)
            return f(comm, i)

    return together(peer, world)


def together(f: Callable[[int], Any], n: int) -> List[Any]:
    """Run ``f(0)`` to ``f(n-1)``, a thread each, and return the results; raises the first error."""
    results: List[Any] = [None] * n
    errors: List[BaseException] = []

    def run(i: int) -> None:
        try:
            results[i] = f(i)
        except BaseException as err:
            errors.append(err)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(TIMEOUT)
    if errors:
        raise errors[0]
    assert not any(t.is_alive() for t in threads), "a peer hangs"
    return results
