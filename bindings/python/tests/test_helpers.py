"""gopccl.torch: shared training state and gradients."""

from __future__ import annotations

from typing import Any, List

import pytest
from conftest import run_peers
from gopccl import Communicator, PCCLError, ReduceOp

torch = pytest.importorskip("torch")

from gopccl.torch import TrainingState, all_reduce, all_reduce_gradients  # noqa: E402


def net(seed: int) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))


OPTIMIZERS = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.1),
    "momentum": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=0.01, weight_decay=0.1),
    "amsgrad": lambda ps: torch.optim.Adam(ps, lr=0.01, amsgrad=True),
    "rmsprop": lambda ps: torch.optim.RMSprop(ps, lr=0.01),
    "adagrad": lambda ps: torch.optim.Adagrad(ps, lr=0.01),
}


def step(model: Any, optimizer: Any, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    optimizer.zero_grad()
    model(torch.randn(16, 4, generator=g)).pow(2).mean().backward()
    optimizer.step()


def flat(model: Any) -> Any:
    return torch.cat([t.detach().double().reshape(-1) for t in model.state_dict().values()])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_newcomer_goes_on_like_the_others(address: str, name: str) -> None:
    """After a sync, model, optimizer state and numbers are equal: the next steps are, too."""

    def peer(comm: Communicator, i: int) -> List[Any]:
        model = net(i)
        optimizer = OPTIMIZERS[name](model.parameters())
        if i == 0:
            for k in range(3):
                step(model, optimizer, k)
            optimizer.param_groups[0]["lr"] = 0.005
        mask, seen = torch.tensor([i == 0, False]), torch.full((2, 3), i).t()
        state = TrainingState(model, optimizer, {"mask": mask, "seen": seen})
        state.revision = 3 if i == 0 else 0
        state.sync(comm)
        assert state.revision == 3
        assert mask.tolist() == [True, False]
        assert seen.tolist() == [[0, 0]] * 3
        assert optimizer.param_groups[0]["lr"] == 0.005
        for k in range(3):
            step(model, optimizer, 10 + k)
        return [flat(model)]

    (a,), (b,) = run_peers(address, 2, peer)
    assert torch.equal(a, b)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_making_the_state_changes_no_training(name: str) -> None:
    results = []
    for shared in (False, True):
        model = net(0)
        optimizer = OPTIMIZERS[name](model.parameters())
        before = flat(model)
        if shared:
            TrainingState(model, optimizer)
            assert torch.equal(before, flat(model))
            assert all(p.grad is None for p in model.parameters())
        for k in range(3):
            step(model, optimizer, k)
        results.append(flat(model))
    assert torch.equal(*results)


def test_gradients(address: str) -> None:
    def peer(comm: Communicator, i: int) -> None:
        model = net(0)
        model[0].weight.grad = torch.full((8, 4), float(i))
        model[2].weight.requires_grad_(False)
        info = all_reduce_gradients(comm, model.parameters())
        assert info.local_world_size == 2
        assert (model[0].weight.grad == 0.5).all()
        assert (model[0].bias.grad == 0).all()
        assert model[2].weight.grad is None
        ts = [torch.full((k,), float(i + 1)) for k in range(5)]
        all_reduce(comm, ts, op=ReduceOp.SUM, max_in_flight=2)
        assert all((t == 3).all() for t in ts)
        assert all_reduce(comm, []).local_world_size == 0

    run_peers(address, 2, peer)


def test_alone(address: str) -> None:
    with Communicator(address) as comm:
        comm.connect()
        t = torch.ones(3)
        assert all_reduce(comm, [t]).local_world_size == 1
        assert t.tolist() == [1, 1, 1]
    with pytest.raises(PCCLError):
        all_reduce(comm, [t])
