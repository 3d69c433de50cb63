"""The unmodified Python files of pypccl 1.0.0 over our library, alone and together with the original library."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, Dict, List

import pccl
import pytest
from conftest import TIMEOUT, free_ports

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
WHEEL = "pypccl-1.0.0-cp312-cp312-manylinux_2_17_x86_64.whl"
WHEEL_SHA256 = "ca5bb143ef464429ff769886eaa825ba122541bbc2274d89224e1b056e12f327"


@pytest.fixture(scope="module")
def original() -> Path:
    if platform.machine() != "x86_64":
        pytest.skip("only on x86-64, for which pypccl 1.0.0 was published")
    path = os.environ.get("TEST_ORIGINAL")
    if not path:
        pytest.fail("TEST_ORIGINAL is not set; run tools/ci/python.sh")
    if not (Path(path) / "work" / WHEEL).exists():
        if os.environ.get("CI") == "true":
            pytest.fail(f"pypccl 1.0.0 is not in {path}; run tools/ci/original.sh")
        pytest.skip(f"pypccl 1.0.0 is not in {path}; run tools/ci/original.sh")
    return Path(path)


@pytest.fixture(scope="module")
def site(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Path]:
    """Two directories for PYTHONPATH: the wheel's package with our library, and as it was published."""
    wheel = original / "work" / WHEEL
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == WHEEL_SHA256
    found = {}
    for name in ("ours", "theirs"):
        path = tmp_path_factory.mktemp(name)
        with zipfile.ZipFile(wheel) as z:
            z.extractall(path)
        found[name] = path
    shutil.copy(os.environ["TEST_LIBPCCL"], found["ours"] / "pccl" / "libpccl.so")
    return found


def start(kind: str, site: Dict[str, Path], original: Path, *args: str) -> subprocess.Popen[str]:
    # An interpreter without PyTorch, which the package would import.
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    env["PYTHONPATH"] = os.pathsep.join([str(site[kind]), os.environ["TEST_SITE"]])
    env["PCCL_LOG_LEVEL"] = "FATAL"
    env["PCCL_NUM_BENCHMARK_CONNECTIONS"] = "1"
    python = os.path.realpath(sys.executable)
    command = [python, "-s", str(HERE / "pypccl_program.py"), *args]
    if kind == "theirs":
        command = [str(original / "run"), *command]
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def run(master: str, peers: List[str], site: Dict[str, Path], original: Path, *more: str) -> List[Dict[str, Any]]:
    children = [start(master, site, original, "serve", str(free_ports(1)[0]))]
    try:
        assert children[0].stdout is not None
        address = children[0].stdout.readline().strip()
        for i, kind in enumerate(peers):
            children.append(start(kind, site, original, address, str(i), str(len(peers)), *more))
        lines = [p.communicate(timeout=2 * TIMEOUT)[0].strip().splitlines() for p in children[1:]]
        assert [p.returncode for p in children[1:]] == [0] * len(peers)
        return [json.loads(line[-1]) for line in lines]
    finally:
        for p in children:
            p.kill()
            p.wait()


def check(results: List[Dict[str, Any]]) -> None:
    world = len(results)
    for r in results:
        assert r["attributes"] == [world, world, 1, world]
        assert r["error"] == "INVALID_USAGE"
        assert r["MIN_MAX"][1] and r["ZERO_POINT_SCALE"][1]
        for key in ("sync", "outdated", "average", "popular", "MIN_MAX", "ZERO_POINT_SCALE"):
            want = results[0][key]
            assert r[key] == want, key


def test_unmodified_files_over_our_library(site: Dict[str, Path], original: Path) -> None:
    check(run("ours", ["ours", "ours", "ours"], site, original, "optimize"))


@pytest.mark.parametrize("master", ["ours", "theirs"])
def test_half_of_the_processes_original(site: Dict[str, Path], original: Path, master: str) -> None:
    check(run(master, ["ours", "theirs", "ours", "theirs"], site, original))


def test_every_name_and_signature(site: Dict[str, Path]) -> None:
    """What pypccl has, pccl has: names, parameters in the same order, defaults."""
    internal = {"AsyncReduceHandle.__init__"}  # made by all_reduce_async alone
    tree = ast.parse((site["ours"] / "pccl" / "_pccl.py").read_text())
    seen = 0
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or not hasattr(pccl, node.name):
            continue
        ours = getattr(pccl, node.name)
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and (not item.name.startswith("_") or item.name == "__init__"):
                if item.name in ("to_c", "to_c_inpl"):  # how they talk to C
                    continue
                assert hasattr(ours, item.name), f"{node.name}.{item.name}"
                seen += 1
                if any(isinstance(d, ast.Name) and d.id == "property" for d in item.decorator_list):
                    continue
                function = inspect.unwrap(getattr(ours, item.name))
                if not inspect.isroutine(function):
                    continue
                if f"{node.name}.{item.name}" in internal:
                    continue
                params = [p for p in inspect.signature(function).parameters if p not in ("self", "cls")]
                want = [a.arg for a in [*item.args.args, *item.args.kwonlyargs] if a.arg not in ("self", "cls")]
                assert params[: len(want)] == want, f"{node.name}.{item.name}{params} wants {want}"
            elif isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
                assert hasattr(ours, item.targets[0].id), f"{node.name}.{item.targets[0].id}"
                seen += 1
    assert seen > 60  # S2-06: the names of pypccl
