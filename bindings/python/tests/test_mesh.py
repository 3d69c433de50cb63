"""gopccl.torch.ElasticMesh: sites that die and join, and wrong use."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, Dict, Iterator, Set, Tuple

import pytest
from conftest import TIMEOUT

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from gopccl.torch import ElasticMesh  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402

EXAMPLE = Path(__file__).parent.parent / "examples" / "elastic_fsdp2.py"


def test_sites_die_and_join() -> None:
    """Two shards in three sites: one is killed, another comes, and all that train have the same bits."""
    p = subprocess.run(
        [sys.executable, str(EXAMPLE), "--steps", "3"],
        env=dict(os.environ, OMP_NUM_THREADS="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=3 * TIMEOUT,
    )
    assert p.returncode == 0, p.stdout
    states: Dict[Tuple[int, str], Set[str]] = {}
    sizes: Dict[str, Set[str]] = {}
    last: Dict[str, Tuple[int, str]] = {}
    for step, site, shard, replicas, state in re.findall(r"^step (\d+) site (\w+) shard (\d) replicas (\d) state (\w+)$", p.stdout, re.M):
        sizes.setdefault(site, set()).add(replicas)
        if site != "a":  # what it has finished when it died need not be what the others did instead
            states.setdefault((int(step), shard), set()).add(state)
            last[site + shard] = (int(step), replicas)
    assert all(len(s) == 1 for s in states.values()), p.stdout
    assert len({s for found in states.values() for s in found}) == len(states), "every step changes every shard"
    assert {"2", "3"} <= sizes["b"] == sizes["c"] and sizes["late"] == {"3"}
    assert sorted(last) == ["b0", "b1", "c0", "c1", "late0", "late1"] and len(set(last.values())) == 1, last


@pytest.fixture
def mesh() -> Iterator[ElasticMesh]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        made = ElasticMesh(init_device_mesh("cpu", (1,), mesh_dim_names=("shard",)), timeout=timedelta(seconds=TIMEOUT))
        yield made
        made.close()
    finally:
        dist.destroy_process_group()


def test_alone(mesh: Any) -> None:
    t = torch.ones(3)
    assert mesh.average([t]) and t.tolist() == [1] * 3
    with pytest.raises(RuntimeError, match="call torch.distributed._reconfigure first"):
        mesh.sync([t], 4)
    mesh.reconfigure(1, [mesh.handle()])
    assert mesh.sync([t], 4) == 4
    assert mesh.shape == (1, 1) and mesh.size() == mesh.size("replica") == mesh.size(1) == 1 and mesh.ndim == 2
    assert mesh["replica"].size() == 1 and mesh["replica"].get_local_rank() == mesh.get_local_rank("shard") == 0
    assert mesh["replica"].get_group() is mesh.get_group("replica") and mesh["shard"].get_group() is mesh.get_group(1)
    mesh.abort()
    with pytest.raises(RuntimeError, match="aborted"):
        mesh.sync([t], 5)
    mesh.reconfigure(2, [mesh.handle()])
    assert mesh.sync([t], 5) == 5


def test_wrong_use(mesh: Any) -> None:
    with pytest.raises(KeyError, match="replica"):
        mesh["rows"]
    with pytest.raises(ValueError, match="two different"):
        ElasticMesh(mesh["shard"], names=("x", "x"))
    ours = mesh.handle()
    two = json.dumps({"v": 1, "shards": ["x", "y"]})
    for wrong in ([two], [ours, two], ["{}"], ["["]):
        with pytest.raises(ValueError, match="not the handle of a replica with 1 shards"):
            mesh.reconfigure(1, wrong)
    with pytest.raises(ValueError, match="named twice"):
        mesh.reconfigure(1, [ours, ours])
    mesh.reconfigure(1, [ours])
    with pytest.raises(RuntimeError, match="already used"):
        mesh.reconfigure(1, [mesh.handle()])
