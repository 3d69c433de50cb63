"""gopccl.torch.DiLoCo: what it computes, who comes and goes, and checkpoints of a shared state."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Dict, List

import gopccl
import pytest
from conftest import TIMEOUT, run_peers, together
from gopccl import ArgumentError, Communicator, PCCLError, QuantizationOptions, Result, SharedState, TensorInfo

torch = pytest.importorskip("torch")

from gopccl.torch import DiLoCo, TrainingState  # noqa: E402

N = 1000


def model(seed: int = 0) -> Dict[str, Any]:
    g = torch.Generator().manual_seed(seed)
    return {"w": torch.randn(N, generator=g), "b": torch.randn(3, 2, generator=g).t()}


def train(params: Dict[str, Any], peer: int, number: int) -> None:
    """What a peer learns in a round; it depends on where it begins."""
    g = torch.Generator().manual_seed(1000 * peer + number)
    for t in params.values():
        t.mul_(0.9).add_(torch.randn(t.shape, generator=g))


def flat(tensors: Any) -> List[float]:
    return torch.cat([t.reshape(-1) for t in tensors]).tolist()


def reference(peers: int, rounds: int, delay: int) -> List[float]:
    """The same in one place, as the paper has it."""
    outer, velocity = list(model().values()), [torch.zeros_like(t) for t in model().values()]
    late: List[Any] = []
    for number in range(rounds):
        learned = []
        for peer in range(peers):
            local = {name: t.clone() for name, t in zip(("w", "b"), outer)}
            train(local, peer, number)
            learned.append([o - t for o, t in zip(outer, local.values())])
        late.append([sum(parts) / peers for parts in zip(*learned)])
        if len(late) > delay:
            for o, v, g in zip(outer, velocity, late.pop(0)):
                v.mul_(0.9).add_(g)
                o.sub_((v * 0.9 + g) * 0.7)
    return flat(outer)


@pytest.mark.parametrize("delay", [0, 1])
def test_diloco_computes_what_it_should(address: str, tmp_path: Path, delay: int) -> None:
    """Two peers, and the second half of the run from a checkpoint."""
    rounds = 6

    def run(comm: Communicator, peer: int, until: int) -> List[float]:
        params = model()
        diloco = DiLoCo(comm, params, delay=delay)
        where = tmp_path / str(peer)
        assert diloco.resume(where) == (until == rounds)
        while diloco.rounds < until:
            diloco.begin()
            assert flat(params.values()) == flat(diloco.parameters)
            train(params, peer, diloco.rounds)
            info = diloco.end()
            assert info.local_world_size == (2 if not delay or diloco.rounds % 3 != 1 else 0)
        diloco.finish()
        diloco.save(where, keep=1)
        return flat(diloco.parameters)

    half = run_peers(address, 2, lambda comm, i: run(comm, i, 3))
    assert half[0] == half[1] == reference(2, 3, delay)
    whole = run_peers(address, 2, lambda comm, i: run(comm, i, rounds))
    assert whole[0] == whole[1]
    if not delay:  # else what was in flight is lost
        assert whole[0] == reference(2, rounds, delay)


@pytest.mark.parametrize("quantization", [None, QuantizationOptions()])
@pytest.mark.parametrize("delay", [0, 1])
def test_peers_join_and_leave(address: str, delay: int, quantization: Any) -> None:
    """After every round all that took part in it have the same bits, a newcomer included."""
    seen: List[Dict[int, List[float]]] = [{}, {}, {}]
    connected = threading.Barrier(3)

    def peer(i: int) -> None:
        with Communicator(address) as comm:
            params = model(seed=i if i == 2 else 0)
            diloco = DiLoCo(comm, params, delay=delay, quantization=quantization)
            if i == 2:
                connected.wait(TIMEOUT)
            comm.connect()
            while diloco.rounds < 9:
                if i != 2 and diloco.rounds == 3:
                    connected.wait(TIMEOUT)
                    diloco.peers = 3
                diloco.begin()
                diloco.peers = 2
                assert flat(params.values()) == flat(diloco.parameters)
                train(params, i, diloco.rounds)
                if i == 1 and diloco.rounds == 6:
                    return  # in the middle of a round
                diloco.end()
                seen[i][diloco.rounds] = flat(diloco.parameters)
            diloco.finish()

    together(peer, 3)
    assert [sorted(s) for s in seen] == [list(range(1, 10)), list(range(1, 7)), list(range(4, 10))]
    for s in seen[1:]:
        assert all(seen[0][number] == s[number] for number in s)
    assert len({tuple(v) for v in seen[0].values()}) >= 8, "the rounds change the parameters"


def test_wrong_use(address: str, tmp_path: Path) -> None:
    with Communicator(address) as comm:
        for wrong in ({}, {"n": torch.zeros(2, dtype=torch.int64)}):
            with pytest.raises(ArgumentError):
                DiLoCo(comm, wrong)
        for option in ({"delay": 2}, {"peers": 0}):
            with pytest.raises(ArgumentError):
                DiLoCo(comm, model(), **option)
        diloco = DiLoCo(comm, model(), peers=1)
        with pytest.raises(ArgumentError, match="without begin"):
            diloco.end()
        comm.connect()
        diloco.begin()
        for f in (diloco.begin, lambda: diloco.save(tmp_path), lambda: diloco.resume(tmp_path)):
            with pytest.raises(ArgumentError):
                f()
        assert diloco.end().local_world_size == 1  # alone


def test_half_precision_is_shared_in_full() -> None:
    with gopccl.MasterNode("127.0.0.1:0") as m:
        m.run()
        with Communicator(f"127.0.0.1:{m.port}") as comm:
            comm.connect()
            t = torch.ones(4, dtype=torch.bfloat16)
            diloco = DiLoCo(comm, {"t": t}, peers=1, momentum=0.0, outer_rate=2**-9)
            diloco.begin()
            t.sub_(1)
            diloco.end()
            assert diloco.parameters[0].tolist() == [1 - 2**-9] * 4


def test_checkpoint_of_a_training_state(tmp_path: Path) -> None:
    def made(seed: int) -> Any:
        torch.manual_seed(seed)
        net = torch.nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1 * (seed + 1))
        net(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        turned, flags = torch.full((2, 3), float(seed)).t(), torch.tensor([seed == 0, True])
        return net, optimizer, turned, flags, TrainingState(net, optimizer, {"turned": turned, "flags": flags})

    net, optimizer, turned, flags, state = made(0)
    state.revision = 17
    path = state.save(tmp_path, meta={"text": "at 100 \0 \u00e9"})
    assert gopccl.latest_checkpoint(tmp_path) == path
    other, its, turned2, flags2, received = made(1)
    assert received.load(path) == {"text": "at 100 \0 \u00e9"}
    assert received.revision == 17
    assert torch.equal(other.weight, net.weight) and turned2.tolist() == turned.tolist() and flags2.tolist() == [True, True]
    assert its.param_groups[0]["lr"] == 0.1
    a, b = optimizer.state[net.weight], its.state[other.weight]
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_checkpoints_that_are_damaged_or_missing(tmp_path: Path) -> None:
    t = torch.zeros(5)
    state = SharedState([TensorInfo.from_torch(t, "t")])
    assert gopccl.latest_checkpoint(tmp_path / "none") is None
    paths = []
    for n in range(3):
        t.fill_(n)
        state.revision = n
        paths.append(state.save(tmp_path, keep=2))
    assert not Path(paths[0]).exists()
    Path(paths[2]).write_bytes(Path(paths[2]).read_bytes()[:-1])
    assert gopccl.latest_checkpoint(tmp_path) == paths[1]
    with pytest.raises(PCCLError) as damaged:
        state.load(paths[2])
    assert damaged.value.result is Result.INTERNAL_ERROR and t.tolist() == [2] * 5
    with pytest.raises(PCCLError) as missing:
        state.load(tmp_path / "no")
    assert missing.value.result is Result.INVALID_ARGUMENT
    big = {"k": "v" * 100_000}
    assert state.load(state.save(tmp_path, meta=big)) == big
    with pytest.raises(ArgumentError, match="strings"):
        state.save(tmp_path, meta={"k": 1})  # type: ignore[dict-item]
    with pytest.raises(ArgumentError, match="keep"):
        state.save(tmp_path, keep=-1)
