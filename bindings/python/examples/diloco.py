"""Trains a small character model on Newton's "Opticks" with DiLoCo; peers join, leave and die at any time.

    gopccl master --listen 127.0.0.1:48148
    python diloco.py --master 127.0.0.1:48148 --seed 1     # any number of these,
    python diloco.py --master 127.0.0.1:48148 --seed 2     # at any time

Every peer takes inner steps of AdamW on its own data, from the shared parameters.
How far it came is its pseudo-gradient; the average of those moves the shared
parameters by one step of Nesterov momentum, the same on every peer.
"""

import argparse

import gopccl
import torch
from ddp import batch, build, corpus, digest
from gopccl.torch import TrainingState, all_reduce
from torch import nn


def admit(comm: gopccl.Communicator, connected: bool, peers: int) -> None:
    """Join the run, or let in who waits; return when there are enough to train with.

    All peers make the same calls in the same order: a newcomer, let in by the
    others' update, goes on with them to what follows.
    """
    if not connected:
        comm.connect()
    elif comm.are_peers_pending():
        comm.update_topology()
    comm.wait_for_peers(peers)


def main() -> None:
    parser = argparse.ArgumentParser(description="DiLoCo on Opticks")
    parser.add_argument("--master", default="127.0.0.1:48148", metavar="HOST:PORT")
    parser.add_argument("--seed", type=int, default=1, help="of this peer's data")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--inner", type=int, default=25, help="steps between two averages")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--peers", type=int, default=2, help="wait for that many")
    args = parser.parse_args()

    torch.set_num_threads(1)  # the model is small, and peers may share a machine
    torch.manual_seed(1704)
    shared = build()  # what all peers agree on
    outer = torch.optim.SGD(shared.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    state = TrainingState(shared, outer)

    local = build()  # where this peer works between two averages
    inner = torch.optim.AdamW(local.parameters(), lr=3e-3)
    text, data = corpus(), torch.Generator().manual_seed(args.seed)

    comm = gopccl.Communicator(args.master)
    connected = False
    while state.revision < args.rounds:
        admit(comm, connected, args.peers)
        connected = True
        state.sync(comm)  # newcomers receive the state here; for the others nothing moves
        if state.revision >= args.rounds:
            break

        local.load_state_dict(shared.state_dict())
        for _ in range(args.inner):
            past, following = batch(text, args.batch, data)
            loss = nn.functional.cross_entropy(local(past), following)
            inner.zero_grad()
            loss.backward()
            inner.step()

        for p, q in zip(shared.parameters(), local.parameters()):
            p.grad = p.detach() - q.detach()
        # If a peer dies meanwhile, the survivors repeat without it what failed.
        info = all_reduce(comm, [p.grad for p in shared.parameters()])
        outer.step()
        state.push_revision()
        print(
            f"round {state.revision} peers {info.local_world_size} loss {loss.item():.4f} parameters {digest(shared)}",
            flush=True,
        )
    comm.close()


if __name__ == "__main__":
    main()
