"""Trains a small character model on Newton's "Opticks" with DiLoCo; peers join, leave and die at any time.

    gopccl master --listen 127.0.0.1:48148
    python diloco.py --master 127.0.0.1:48148 --seed 1     # any number of these,
    python diloco.py --master 127.0.0.1:48148 --seed 2     # at any time

Every peer takes inner steps of AdamW on its own data, from the shared parameters.
How far it came is its pseudo-gradient; the average of those moves the shared
parameters by one step of Nesterov momentum, the same on every peer. With --delay 1
averages travel while the next round is computed.
"""

import argparse
import signal

import gopccl
import torch
from ddp import batch, build, corpus, digest
from gopccl.torch import DiLoCo
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser(description="DiLoCo on Opticks")
    parser.add_argument("--master", default="127.0.0.1:48148", metavar="HOST:PORT")
    parser.add_argument("--seed", type=int, default=1, help="of this peer's data")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--inner", type=int, default=25, help="steps between two averages")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--peers", type=int, default=2, help="wait for that many")
    parser.add_argument("--delay", type=int, default=0, choices=(0, 1), help="rounds after which an average is applied")
    parser.add_argument("--quantize", action="store_true", help="send averages as 8 bit integers")
    parser.add_argument("--checkpoints", metavar="DIRECTORY", help="continue from there, and save there")
    args = parser.parse_args()

    torch.set_num_threads(1)  # the model is small, and peers may share a machine
    torch.manual_seed(1704)
    model = build()
    inner = torch.optim.AdamW(model.parameters(), lr=3e-3)
    text, data = corpus(), torch.Generator().manual_seed(args.seed)

    comm = gopccl.Communicator(args.master)
    quantization = gopccl.QuantizationOptions() if args.quantize else None
    diloco = DiLoCo(comm, model, delay=args.delay, quantization=quantization, peers=args.peers)
    if args.checkpoints:
        diloco.resume(args.checkpoints)
    leaving = False

    def leave(*_: object) -> None:  # a machine that is taken away says so first
        nonlocal leaving
        leaving = True

    signal.signal(signal.SIGTERM, leave)
    comm.connect()
    while diloco.rounds < args.rounds:
        diloco.begin()
        if diloco.rounds >= args.rounds:
            break
        for _ in range(args.inner):
            past, following = batch(text, args.batch, data)
            loss = nn.functional.cross_entropy(model(past), following)
            inner.zero_grad()
            loss.backward()
            inner.step()
        info = diloco.end()
        if args.checkpoints:
            diloco.save(args.checkpoints)
        print(
            f"round {diloco.rounds} peers {info.local_world_size} loss {loss.item():.4f} parameters {digest(diloco.parameters)}",
            flush=True,
        )
        if leaving:
            comm.leave()  # the others go on, and none of their operations is lost
            return
    diloco.finish()
    comm.close()


if __name__ == "__main__":
    main()
