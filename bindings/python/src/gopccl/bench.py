"""What a call through Python costs: ``python -m gopccl.bench [--bytes 4096] [--calls 2000] [--runs 5]``.

Two processes all-reduce a small buffer, once with the gopccl program and once
through Python, in turn. Printed are the medians of both and of their
difference, in microseconds a call.
"""

from __future__ import annotations

import argparse
import array
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import List

from gopccl import _lib
from gopccl._comm import Communicator
from gopccl._node import MasterNode
from gopccl._types import Attribute, ReduceOp


def _peer(address: str, size: int, calls: int) -> None:
    send, recv = array.array("f", bytes(size)), array.array("f", bytes(size))
    with Communicator(address) as comm:
        comm.connect()
        while comm.get_attribute(Attribute.GLOBAL_WORLD_SIZE) < 2:
            comm.update_topology()
            time.sleep(0.002)
        took: List[float] = []
        for i in range(calls + 50):
            begin = time.perf_counter()
            comm.all_reduce(send, recv, op=ReduceOp.SUM)
            if i >= 50:
                took.append(time.perf_counter() - begin)
        print(statistics.median(took))


def through_python(size: int, calls: int) -> float:
    """Median seconds of an all-reduce of ``size`` bytes by two Python processes."""
    with MasterNode("127.0.0.1:0") as master:
        master.run()
        command = [sys.executable, "-m", "gopccl.bench", "--peer", f"127.0.0.1:{master.port}"]
        command += ["--bytes", str(size), "--calls", str(calls)]
        peers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        return statistics.mean(float(p.communicate(timeout=120)[0]) for p in peers)


def through_go(size: int, calls: int) -> float:
    """Median seconds of an all-reduce of ``size`` bytes by two processes of the program."""
    program = os.environ.get("GOPCCL_PROGRAM") or str(Path(_lib.path).parent / "gopccl")
    command = [program, "bench", "allreduce", "--world", "2", "--bytes", str(size), "--rounds", str(calls), "--json", "-"]
    out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=120).stdout
    return float(json.loads(out)["median_s"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m gopccl.bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bytes", type=int, default=4096, help="of the buffer, a multiple of 4 (default %(default)s)")
    parser.add_argument("--calls", type=int, default=2000, help="timed calls of a run (default %(default)s)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each, in turn (default %(default)s)")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.peer:
        _peer(a.peer, a.bytes, a.calls)
        return
    pairs = [(through_go(a.bytes, a.calls), through_python(a.bytes, a.calls)) for _ in range(a.runs)]
    go, python = (1e6 * statistics.median(column) for column in zip(*pairs))
    more = 1e6 * statistics.median(p - g for g, p in pairs)
    print(f"all-reduce of {a.bytes} bytes, 2 processes: Go {go:.0f} us, Python {python:.0f} us, difference {more:.0f} us")


if __name__ == "__main__":
    main()
