"""Runs in TLS: credentials and join tokens."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import gopccl
import numpy as np
import pytest
from conftest import TIMEOUT, form, together
from gopccl import Communicator, MasterNode, PCCLError, ReduceOp

PROGRAM = Path(gopccl.__file__).parent / "lib" / "gopccl"


def keys(*arguments: Any) -> None:
    subprocess.run([PROGRAM, "keys", *map(str, arguments)], check=True, timeout=TIMEOUT, capture_output=True)


def test_credential_and_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, head, first, token = (tmp_path / n for n in ("keys", "head.pem", "first.pem", "token.txt"))
    keys("init", "--dir", authority, "--run", "trial")
    keys("issue", "head", "--dir", authority, "--role", "master", "--out", head)
    keys("issue", "gpu-0", "--dir", authority, "--out", first)
    keys("token", "--dir", authority, "--uses", "2", "--name", "join-*", "--out", token)
    with MasterNode("127.0.0.1:0", credential=head, enroll=authority) as master:
        master.run()
        address = f"127.0.0.1:{master.port}"

        def peer(i: int) -> float:
            how = ({"credential": first}, {"credential": str(tmp_path / "second.pem"), "join": f"@{token}"}, {"join": token.read_text()})
            with Communicator(address, **how[i]) as comm:  # type: ignore[arg-type]
                form(comm, 3)
                x = np.full(4, float(i), np.float32)
                comm.all_reduce(x, x, op=ReduceOp.SUM)
                return float(x[0])

        assert together(peer, 3) == [3.0] * 3
        assert (tmp_path / "second.pem").stat().st_mode & 0o777 == 0o600
        with Communicator(address) as comm, pytest.raises(PCCLError):
            comm.connect()  # in plaintext
        monkeypatch.setenv("GOPCCL_CREDENTIAL", str(first))
        with Communicator(address) as comm:
            comm.connect()


def test_what_is_no_token() -> None:
    with pytest.raises(PCCLError) as caught:
        Communicator("127.0.0.1:1", join="gopccl1.rubbish-that-is-not-told")
    assert "join" in str(caught.value) and "rubbish" not in str(caught.value)
