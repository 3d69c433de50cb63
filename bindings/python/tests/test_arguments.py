"""What the calls of torch.distributed are given: what Gloo takes is taken, and what cannot work is refused before anything is launched."""

from __future__ import annotations

import threading
from typing import Any, Callable, List, Tuple

import pytest
import pytorch_list
from conftest import TIMEOUT

torch = pytest.importorskip("torch")

from gopccl.torch._arguments import Refused  # noqa: E402
from gopccl.torch._group import GopcclGroup  # noqa: E402
from test_torch_parts import group  # noqa: E402, F401 (the fixture)
from torch._C import _distributed_c10d as c10d  # noqa: E402

Pair = Tuple[GopcclGroup, GopcclGroup]
F, D = torch.float32, torch.float64


def both(pair: Pair, call: Callable[[int, GopcclGroup], Any]) -> List[Any]:
    """What both ranks got."""
    got: List[Any] = [None, None]

    def run(rank: int) -> None:
        work = call(rank, pair[rank])
        work.wait()
        got[rank] = work.result()

    threads = [threading.Thread(target=run, args=(r,)) for r in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(TIMEOUT)
    return got


def options(kind: Any, **of: Any) -> Any:
    o = kind()
    for name, v in of.items():
        setattr(o, name, v)
    return o


def test_bits(group: Pair) -> None:  # noqa: F811
    """Integers have no such reduction in the library: their blocks are brought together."""
    values = [torch.tensor([0b1100, -1], dtype=torch.int32), torch.tensor([0b1010, 7], dtype=torch.int32)]
    for op, want in [("BAND", [0b1000, 7]), ("BOR", [0b1110, -1]), ("BXOR", [0b0110, -8])]:
        o = options(c10d.AllreduceOptions, reduceOp=getattr(c10d.ReduceOp, op))
        assert [g[0].tolist() for g in both(group, lambda r, pg: pg.allreduce([values[r].clone()], o))] == [want, want], op
        o = options(c10d.ReduceOptions, reduceOp=getattr(c10d.ReduceOp, op), rootRank=1)
        got = both(group, lambda r, pg: pg.reduce([values[r].clone()], o))
        assert [g[0].tolist() for g in got] == [values[0].tolist(), want], op


def test_lists(group: Pair) -> None:  # noqa: F811
    """Several tensors in one call mean what they mean with Gloo."""
    got = both(group, lambda r, pg: pg.allreduce([torch.tensor([2.0 * r + i]) for i in range(2)]))
    assert [[t.item() for t in g] for g in got] == [[6.0, 6.0]] * 2
    o = options(c10d.BroadcastOptions, rootRank=1, rootTensor=1)
    got = both(group, lambda r, pg: pg.broadcast([torch.tensor([2.0 * r + i]) for i in range(2)], o))
    assert [[t.item() for t in g] for g in got] == [[3.0, 3.0]] * 2
    assert [g[0].item() for g in both(group, lambda r, pg: pg.broadcast(torch.tensor([r]), root=1))] == [1, 1]
    got = both(group, lambda r, pg: pg.allgather([[torch.zeros(1) for _ in range(4)] for _ in range(2)], [torch.tensor([2.0 * r + i]) for i in range(2)]))
    assert [[t.item() for t in row] for g in got for row in g] == [[0.0, 1.0, 2.0, 3.0]] * 4
    same = [2 * [torch.tensor([r + 1.0])] for r in range(2)]
    both(group, lambda r, pg: pg.allreduce_coalesced(same[r]))
    assert [t[0].item() for t in same] == [3.0, 3.0]


def test_inference_mode(group: Pair) -> None:  # noqa: F811
    """The thread that brings a result into tensors of inference mode is not the one that made them."""
    with torch.inference_mode():
        made = [[[torch.zeros(1) for _ in range(2)]] for _ in range(2)]
        ins = [torch.tensor([float(r)]) for r in range(2)]
    both(group, lambda r, pg: pg.allgather(made[r], [ins[r]]))
    assert [[t.item() for t in m[0]] for m in made] == [[0.0, 1.0]] * 2


def test_refused(group: Pair) -> None:  # noqa: F811
    """One rank calls, and the other one would never come: nothing may be launched."""
    pg, _ = group
    f, d, two = torch.zeros(1), torch.zeros(1, dtype=D), torch.zeros(2)
    root = lambda kind, rank: options(kind, rootRank=rank)  # noqa: E731
    cases: List[Tuple[Callable[[], Any], str]] = [
        (lambda: pg.allreduce([]), "non-empty tensor list"),
        (lambda: pg.allreduce([f, d]), "invalid tensor type"),
        (lambda: pg.allreduce([f, two]), "invalid tensor size"),
        (lambda: pg.allreduce_coalesced([]), "non-empty tensor list"),
        (lambda: pg.allreduce([torch.sparse_coo_tensor([[0]], [1], size=(1,))]), "invalid tensor layout"),
        (lambda: pg.broadcast([f], root(c10d.BroadcastOptions, 2)), "invalid root rank"),
        (lambda: pg.broadcast([f], options(c10d.BroadcastOptions, rootTensor=1)), "invalid root tensor"),
        (lambda: pg.reduce([f, f], root(c10d.ReduceOptions, 0)), "single-element tensor list"),
        (lambda: pg.allgather([[d, d]], [f]), "invalid tensor type"),
        (lambda: pg.allgather([[f]], [f]), "invalid output tensor list"),
        (lambda: pg.allgather([], [f]), "the same length"),
        (lambda: pg.all_gather_single(torch.zeros(2, dtype=torch.int32), f), "invalid tensor type"),
        (lambda: pg.allgather_coalesced([[f], [d]], [f]), "invalid tensor type at index 0"),
        (lambda: pg.allgather_coalesced([[f]], [f]), "equal to world size"),
        (lambda: pg.gather([[d, d]], [f], root(c10d.GatherOptions, 0)), "invalid tensor type"),
        (lambda: pg.gather([[f, f]], [f], root(c10d.GatherOptions, 1)), "empty output on non-root"),
        (lambda: pg.gather([[f]], [f], root(c10d.GatherOptions, 0)), "Incorrect output list size 1"),
        (lambda: pg.scatter([f], [[d, d]], root(c10d.ScatterOptions, 0)), "invalid tensor type"),
        (lambda: pg.scatter([f], [[f, f]], root(c10d.ScatterOptions, 1)), "empty input on non-root"),
        (lambda: pg.reduce_scatter([f], [[f, d]]), "invalid tensor type"),
        (lambda: pg.reduce_scatter_single(d, torch.zeros(2)), "invalid tensor type"),
        (lambda: pg.alltoall([f, f], [f, d]), "invalid tensor type"),
        (lambda: pg.all_to_all_single(torch.zeros(2), torch.zeros(2, dtype=torch.int32)), "invalid tensor type"),
    ]
    for call, words in cases:
        with pytest.raises(Refused, match=words):
            call()
    assert issubclass(Refused, RuntimeError) and issubclass(Refused, ValueError)
    got = both(group, lambda r, pg: pg.allreduce([torch.ones(1)]))
    assert [g[0].item() for g in got] == [2.0, 2.0], "the group works as before"


def test_list_of_expected_endings() -> None:
    """The list of PyTorch's tests is checked both ways."""
    listed = pytorch_list.read_list("# a comment\ngloo.a fails why\ngloo.b* skips why not\n")
    right = {"gloo.a": ("fails", "E"), "gloo.b1": ("skips", "S"), "gloo.c": ("passes", ""), "gloo.d": ("skips", "Need at least 2 accelerator devices")}
    assert pytorch_list.judge(listed, right, True) == []
    for test, ending, words in [
        ("gloo.a", "passes", "gloo.a passes, and"),
        ("gloo.b1", "fails", "gloo.b1 fails, and"),
        ("gloo.c", "fails", "does not have it: ValueError: x"),
        ("gloo.c", "skips", "gloo.c skips, and"),
    ]:
        wrong = pytorch_list.judge(listed, {**right, test: (ending, "ValueError: x")}, True)
        assert len(wrong) == 1 and words in wrong[0], (test, ending, wrong)
    gone = {t: e for t, e in right.items() if t != "gloo.a"}
    assert "not a test any more" in pytorch_list.judge(listed, gone, True)[0] and pytorch_list.judge(listed, gone, False) == []
    assert pytorch_list.judge(listed, right, True, {"gloo": 1}) == []
    assert pytorch_list.judge(listed, right, False, {"gloo": 2, "distributed": 1}) == []
    assert pytorch_list.judge(listed, right, True, {"gloo": 2}) == ["1 tests of gloo pass, and at least 2 have to"]
    assert pytorch_list.judge(listed, {**right, "distributed.a": ("skips", "S")}, True, {"distributed": 1}), "a suite that skips"
    assert pytorch_list.read_list(pytorch_list.LIST.read_text())
