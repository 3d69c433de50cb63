#!/usr/bin/env python3
"""A ring solver plugin for gopccl in Python: needs grpcio and nothing else (docs/plugins.md).

plugins:
  - {name: python, kind: solver, command: python3, args: [solver.py], mtls: false}
"""
import os, random, struct, sys, time
from concurrent import futures
from itertools import islice
import grpc

def read(it):  # one varint, None at the end
    value = shift = 0
    for b in it:
        value |= (b & 127) << shift
        if b < 128:
            return value
        shift += 7

def fields(data):  # a protobuf message as (number of the field, int or bytes)
    it = iter(data)
    while (key := read(it)) is not None:
        kind = key & 7
        yield key >> 3, read(it) if kind == 0 else bytes(islice(it, {1: 8, 5: 4}.get(kind) or read(it)))

def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])

def solve(request, context):
    m = dict(fields(request))
    n, objective, rng = m.get(1, 0), m.get(3, b"bottleneck"), random.Random(m.get(6, 0))
    mbps = struct.unpack(f"<{n * n}d", m.get(2, b""))
    start = iter(m.get(4, b""))
    start = list(iter(lambda: read(start), None))
    end = time.monotonic() + (m.get(5, 0) or 1000) / 1000 * 0.9 - 0.02
    def value(ring):  # higher is better; None: no ring
        rates = [mbps[i * n + j] for i, j in zip(ring, ring[1:] + ring[:1])]
        if n < 2 or sorted(ring) != list(range(n)) or min(rates) <= 0:
            return None
        total = -sum(min(1000 / r, 1e9) for r in rates)
        return (total,) if objective == b"sum" else (min(rates), total)
    def greedy(at):
        ring, left = [at], set(range(n)) - {at}
        while left:
            ring.append(max(left, key=lambda j: (mbps[ring[-1] * n + j], rng.random())))
            left.remove(ring[-1])
        return ring
    best, tried = None, 0
    while time.monotonic() < end and context.is_active() and n > 1 and tried < 3000:
        ring = start if tried == 0 else greedy(rng.randrange(n)) if tried < 1 + n or not best else best[1]
        if best and tried >= 1 + n:  # move a part of the best ring elsewhere
            a, b = sorted(rng.sample(range(n + 1), 2))
            part, rest = ring[a:b], ring[:a] + ring[b:]
            at = rng.randrange(len(rest) + 1)
            ring = rest[:at] + part + rest[at:]
        tried, v = tried + 1, value(ring)
        if v and (best is None or v > best[0]):
            best = (v, ring)
            packed = b"".join(map(varint, ring))
            yield b"\x0a" + varint(len(packed)) + packed
    if best is None:
        yield b"\x28\x01"  # no ring found

path = os.path.join(os.environ.get("PLUGIN_UNIX_SOCKET_DIR", "/tmp"), f"python-{os.getpid()}")
server = grpc.server(futures.ThreadPoolExecutor(8), options=[("grpc.max_receive_message_length", -1)])
server.add_generic_rpc_handlers([
    grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": grpc.unary_unary_rpc_method_handler(lambda r, c: b"\x08\x01")}),
    grpc.method_handlers_generic_handler("gopccl.plugin.v1.Solver", {"Solve": grpc.unary_stream_rpc_method_handler(solve)}),
])
server.add_insecure_port("unix:" + path)
server.start()
print(f"1|1|unix|{path}|grpc", flush=True)
sys.stdin.read()  # ends with the host
os._exit(0)
