"""PyTorch: the backend under torchrun, and DiLoCo with peers that die and join."""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Callable, Dict, List, Tuple

import gopccl
import pytest
from conftest import TIMEOUT

torch = pytest.importorskip("torch")

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"


def torchrun(ranks: int, *command: str) -> str:
    """What the ranks of a program print. Over Gloo one may abort behind its work, in PyTorch's own threads: then again."""
    env = dict(os.environ, OMP_NUM_THREADS="1")
    for _ in range(3):
        p = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *command],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=3 * TIMEOUT,
        )
        if p.returncode == 0 or "gloo" not in command or "terminate called without an active exception" not in p.stdout:
            break
    assert p.returncode == 0, p.stdout
    return p.stdout


@pytest.mark.parametrize("ranks", [2, 3])
def test_collectives(ranks: int) -> None:
    """Gloo passes the same checks, so they say what PyTorch's users expect."""
    program = str(HERE / "torch_program.py")
    outputs = {backend: torchrun(ranks, program, backend) for backend in (["gopccl", "gloo"] if ranks == 2 else ["gopccl"])}
    for out in outputs.values():
        assert len(re.findall(r"done \d", out)) == ranks, out
    losses = [float(re.findall(r"fsdp loss ([\d.]+)", out)[0]) for out in outputs.values()]
    assert max(losses) - min(losses) < 1e-5, losses  # S2-06: FSDP


def test_ddp_equals_gloo() -> None:
    """An unmodified DDP script: the same losses within rounding, and equal parameters on all ranks."""
    losses = {}
    for backend in ("gopccl", "gloo"):
        out = torchrun(2, str(EXAMPLES / "ddp.py"), "--backend", backend, "--steps", "100")
        assert re.search(r"parameters \w+ equal True", out), out
        losses[backend] = [float(x) for x in re.findall(r"step \d+ loss ([\d.]+)", out)]
        assert len(losses[backend]) == 2 and losses[backend][-1] < losses[backend][0]
    assert losses["gopccl"] == pytest.approx(losses["gloo"], abs=1e-4)  # S2-06: DDP


def test_death_of_a_rank_raises() -> None:
    env = dict(os.environ, OMP_NUM_THREADS="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0", WORLD_SIZE="3")
    with gopccl.MasterNode("127.0.0.1:0") as m:  # a free port for the store
        m.run()
        env["MASTER_PORT"] = str(m.port)
    ps = [
        subprocess.Popen(
            [sys.executable, str(HERE / "torch_program.py"), "gopccl", "die"],
            env=dict(env, RANK=str(r)),
            stdout=subprocess.PIPE,
            text=True,
        )
        for r in range(3)
    ]
    try:
        outs = [p.communicate(timeout=2 * TIMEOUT)[0] for p in ps]
    finally:
        for p in ps:
            p.kill()
    assert ps[2].returncode < 0
    for out in outs[:2]:
        assert "survivor" in out and "gopccl: all_reduce" in out, outs
        assert len(re.findall("no message: gopccl: recv from (?:rank 2|any rank): ", out)) == 2, outs
        assert "timed out" not in out, outs


def test_fault_tolerance(tmp_path: Path) -> None:
    """One of four is killed, another comes late: the group is formed again each time, and nothing is lost."""
    p = subprocess.run(
        [sys.executable, str(HERE / "torch_fault_program.py"), str(tmp_path / "store")],
        env=dict(os.environ, OMP_NUM_THREADS="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=3 * TIMEOUT,
    )
    assert p.returncode == 0, p.stdout
    assert sorted(re.findall(r"done \d", p.stdout)) == ["done 0", "done 2", "done 3"], p.stdout


class Peer:
    """A running diloco.py; what it prints is collected."""

    def __init__(self, address: str, seed: int) -> None:
        self.rounds: Dict[int, Tuple[int, str]] = {}
        self.lines: "queue.Queue[str]" = queue.Queue()
        self.process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / "diloco.py"), "--master", address, "--seed", str(seed)]
            + ["--rounds", "1000000", "--inner", "5", "--batch", "16"],
            env=dict(os.environ, OMP_NUM_THREADS="1"),
            stdout=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def until(self, good: Callable[[int, int], bool]) -> int:
        """Read rounds until one is ``good(round, peers)``; return its number."""
        while True:
            line = self.lines.get(timeout=2 * TIMEOUT)
            m = re.match(r"round (\d+) peers (\d+) loss \S+ parameters (\w+)", line)
            assert m, f"the peer ended: {line!r}"
            number, peers = int(m[1]), int(m[2])
            self.rounds[number] = (peers, m[3])
            if good(number, peers):
                return number


def test_diloco_with_churn() -> None:
    """Three peers; one is killed, another joins: all hold the same bits after every round."""
    peers: List[Peer] = []
    with gopccl.MasterNode("127.0.0.1:0") as master:
        master.run()
        try:
            peers = [Peer(f"localhost:{master.port}", seed) for seed in range(3)]
            for p in peers:
                p.until(lambda number, n: n == 3)
            victim = peers[1]
            victim.process.kill()
            left = [peers[0], peers[2]]
            alone = max(p.until(lambda number, n: n == 2) for p in left)
            for p in left:
                p.until(lambda number, n: number >= alone + 2)
            late = Peer(f"localhost:{master.port}", 3)
            peers.append(late)
            first = late.until(lambda number, n: n == 3)
            last = first + 3
            for p in [*left, late]:
                p.until(lambda number, n: number >= last)
        finally:
            for p in peers:
                p.process.kill()
                p.process.wait()
    a, b = left[0].rounds, left[1].rounds
    common = sorted(set(a) & set(b))
    assert len(common) >= 5
    assert [a[n] for n in common] == [b[n] for n in common]
    assert all(late.rounds[n] == a[n] for n in late.rounds if n in a)
    assert len({a[n][1] for n in common}) == len(common), "every round changes the parameters"
    assert first in late.rounds and late.rounds[first] == a[first]
