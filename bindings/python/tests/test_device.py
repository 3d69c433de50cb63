"""Tensors on a device: the program that runs on a GPU, on what plays the part of one, and on a GPU if there is one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest
from conftest import TIMEOUT
from test_torch import torchrun

torch = pytest.importorskip("torch")

PROGRAM = Path(__file__).parent / "device_program.py"
TORCH_PROGRAM = str(Path(__file__).parent / "torch_program.py")


def run(kind: str, *options: str, check: bool = True, **more: str) -> List[str]:
    env = dict(os.environ, OMP_NUM_THREADS="1", **more)
    if kind == "standin":
        env["GOPCCL_LIBRARY"] = os.environ["TEST_INTERPRETED"]
    p = subprocess.run(
        [sys.executable, str(PROGRAM), kind, *options],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=3 * TIMEOUT,
    )
    assert not check or p.returncode == 0, p.stdout
    return p.stdout.splitlines()


KINDS = ["cpu", "standin"] + ["cuda"] * torch.cuda.is_available()


@pytest.mark.parametrize("kind", KINDS)
def test_checks_hold(kind: str) -> None:
    names = run(kind, "--list")
    out = run(kind)
    assert out[-1] == "all checks hold"
    passed = [line for line in out if line.startswith("ok ")]
    assert len(passed) == len(names) + 1
    assert len(names) >= 11


def test_a_check_can_fail() -> None:
    """A library that does not know the caller's stream gives wrong results: the checks notice."""
    for name in ["behind a busy stream", "collectives", "messages"]:
        out = run("standin", "--only", name, check=False, DEVICE_PROGRAM_DEAF="1")
        assert any("(race: " in line for line in out), out
        assert "all checks hold" not in out


if torch.cuda.is_available():

    def test_collectives_of_device_tensors() -> None:
        out = torchrun(2, TORCH_PROGRAM, "gopccl", "cuda")
        assert out.count("done ") == 2
