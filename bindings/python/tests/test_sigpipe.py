"""A program whose SIGPIPE has the system's default action outlives neighbours and clients that die."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from typing import List

from conftest import TIMEOUT

# Master and peer in one process. Neighbours come one after the other and are
# killed while both sides write.
SURVIVOR = """
import signal, sys
import numpy as np
import gopccl
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
with gopccl.MasterNode("127.0.0.1:0") as master:
    master.run()
    comm = gopccl.Communicator(f"127.0.0.1:{master.port}", p2p_connection_pool_size=4)
    comm.connect()
    print(master.port, flush=True)
    x = np.ones(1 << 19, np.float32)
    for _ in range(int(sys.argv[1])):
        comm.wait_for_peers(2)
        print("together", flush=True)
        try:
            while True:
                handles = [comm.all_reduce_async(x.copy(), np.empty_like(x), op=gopccl.ReduceOp.SUM, tag=t) for t in range(4)]
                failed = [h for h in handles if not h.wait()[0]]
                if failed:
                    failed[0].result()
        except gopccl.PCCLError as err:
            assert err.result in (gopccl.Result.RANK_CONNECTION_LOST, gopccl.Result.TOO_FEW_PEERS), err
            for h in comm.in_flight():
                h.wait()
    print("alive", flush=True)
    comm.close()
"""

NEIGHBOUR = """
import sys
import numpy as np
import gopccl
port = sys.stdin.readline().strip()
comm = gopccl.Communicator(f"127.0.0.1:{port}", p2p_connection_pool_size=4)
comm.connect()
x = np.ones(1 << 19, np.float32)
n = 0
while True:
    for h in [comm.all_reduce_async(x.copy(), np.empty_like(x), op=gopccl.ReduceOp.SUM, tag=t) for t in range(4)]:
        h.result()
    n += 1
    if n == 1:
        print("reducing", flush=True)
"""


def neighbour() -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", NEIGHBOUR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def test_neighbours_and_clients_die() -> None:
    """Twenty kills; two hundred with GOPCCL_SOAK."""
    kills = 200 if os.environ.get("GOPCCL_SOAK") else 20
    dice = random.Random(1)
    started: List["subprocess.Popen[str]"] = [neighbour() for _ in range(2)]  # some ahead: they take a while to start
    survivor = subprocess.Popen([sys.executable, "-c", SURVIVOR, str(kills)], stdout=subprocess.PIPE, text=True)
    try:
        assert survivor.stdout is not None
        port = survivor.stdout.readline()
        for n in range(kills):
            if len(started) < kills:
                started.append(neighbour())
            p = started[n]
            assert p.stdin is not None and p.stdout is not None
            p.stdin.write(port)
            p.stdin.flush()
            assert survivor.stdout.readline() == "together\n", (n, survivor.poll())
            assert p.stdout.readline() == "reducing\n", (n, survivor.poll())
            threading.Event().wait(dice.random() * 0.02)  # at another place of the operations each time
            # Both ends in the middle of things: the survivor finds out by writing.
            survivor.send_signal(signal.SIGSTOP)
            p.send_signal(signal.SIGKILL)
            p.wait(TIMEOUT)
            survivor.send_signal(signal.SIGCONT)
        assert survivor.stdout.readline() == "alive\n", survivor.poll()
        assert survivor.wait(TIMEOUT) == 0
    finally:
        for p in [survivor, *started]:
            p.kill()
            p.wait(TIMEOUT)
            for f in (p.stdin, p.stdout):
                if f is not None:
                    f.close()
