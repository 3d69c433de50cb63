"""A program written for pypccl 1.0.0: one peer that makes every kind of call.

    python pypccl_program.py MASTER INDEX WORLD [optimize]

MASTER "serve" starts a master instead and prints its address. Results go to
standard output as one line of JSON.
"""

import json
import sys
import time
import zlib

import numpy as np
import pccl
from pccl import (
    Attribute,
    Communicator,
    DataType,
    DistributionHint,
    MasterNode,
    PCCLError,
    QuantizationAlgorithm,
    QuantizationOptions,
    ReduceDescriptor,
    ReduceOp,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    SharedState,
    SharedStateSyncStrategy,
    TensorInfo,
)

NUMBERS = {
    "uint8": DataType.UINT8,
    "int8": DataType.INT8,
    "uint16": DataType.UINT16,
    "uint32": DataType.UINT32,
    "int32": DataType.INT32,
    "uint64": DataType.UINT64,
    "int64": DataType.INT64,
    "float32": DataType.FLOAT,
    "float64": DataType.DOUBLE,
}
OPS = {
    ReduceOp.SUM: lambda w: sum(range(1, w + 1)),
    ReduceOp.PROD: lambda w: int(np.prod(np.arange(1, w + 1))),
    ReduceOp.MAX: lambda w: w,
    ReduceOp.MIN: lambda w: 1,
}


def crc(a):
    return zlib.crc32(a.tobytes())


def serve(port):
    master = MasterNode(listen_address=f"127.0.0.1:{port}")
    master.run()
    print(f"127.0.0.1:{port}", flush=True)
    sys.stdin.read()
    master.interrupt()


def main():
    if sys.argv[1] == "serve":
        return serve(int(sys.argv[2]))
    address, index, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    out = {}
    comm = Communicator(address, 0, p2p_connection_pool_size=2)
    comm.connect(n_attempts=5)
    while comm.get_attribute(Attribute.GLOBAL_WORLD_SIZE) < world:
        if comm.are_peers_pending():
            comm.update_topology()
        time.sleep(0.01)
    out["attributes"] = [comm.get_attribute(a) for a in Attribute]

    if "optimize" in sys.argv:
        comm.optimize_topology()

    # Shared state, all strategies; the later rounds need a higher revision.
    weights = np.arange(1000, dtype=np.float32) + (0 if index == 0 else 100)
    steps = np.full(3, 7 if index == 0 else 9, dtype=np.int64)
    state = SharedState([TensorInfo.from_numpy(weights, "weights"), TensorInfo.from_numpy(steps, "steps")])
    strategy = SharedStateSyncStrategy.SEND_ONLY if index == 0 else SharedStateSyncStrategy.RECEIVE_ONLY
    info = comm.sync_shared_state(state, strategy)
    out["sync"] = [crc(weights), crc(steps), state.revision, info.tx_bytes + info.rx_bytes > 0]
    assert steps.tolist() == [7, 7, 7]
    weights += 1
    state.push_revision()
    info = comm.sync_shared_state(state, SharedStateSyncStrategy.ENFORCE_POPULAR)
    out["popular"] = [crc(weights), state.revision, info.tx_bytes, info.rx_bytes]
    assert info.rx_bytes == 0
    if index != 0:
        state.revision = 0
        weights[:] = 0
    else:
        state.push_revision()
    comm.sync_shared_state(state)
    out["outdated"] = [crc(weights), state.revision]

    # Every type and operation.
    for name, kind in NUMBERS.items():
        for op, want in OPS.items():
            x = np.full(10_001, index + 1, dtype=name)
            y = np.zeros_like(x)
            info = comm.all_reduce(
                x, y, op=op, operand_descriptor=ReduceOperandDescriptor(kind, DistributionHint.NORMAL)
            )
            assert info.local_world_size == world
            assert (y == np.array(want(world)).astype(name)).all(), (name, op, y)
    rng = np.random.default_rng(index)
    x = rng.normal(size=100_000).astype(np.float32)
    y = np.zeros_like(x)
    comm.all_reduce(x, y, op=ReduceOp.AVG)
    out["average"] = crc(y)

    # Quantized: compared with the exact average.
    for algorithm in (QuantizationAlgorithm.MIN_MAX, QuantizationAlgorithm.ZERO_POINT_SCALE):
        z = np.zeros_like(x)
        info = comm.all_reduce(
            x,
            z,
            op=ReduceOp.AVG,
            operand_descriptor=ReduceOperandDescriptor(DataType.FLOAT, DistributionHint.NORMAL),
            quantization_options=QuantizationOptions(DataType.UINT8, algorithm),
        )
        assert info.tx_bytes < 2 * x.size
        out[algorithm.name] = [crc(z), bool(np.abs(z - y).max() < 0.2)]

    # Asynchronous, in place.
    xs = [np.full(1000 * (k + 1), index + k, dtype=np.float64) for k in range(6)]
    handles = [comm.all_reduce_async(a, a, op=ReduceOp.SUM, tag=10 + k) for k, a in enumerate(xs)]
    for k, h in enumerate(handles):
        ok, status, info = h.wait()
        assert ok and status == 0 and info.local_world_size == world
        assert (xs[k] == sum(range(world)) + k * world).all()

    # Many with retry.
    xs = [np.full(500 + k, index + 1, dtype=np.float32) for k in range(8)]
    descriptors = [
        ReduceOpDescriptor.from_numpy(
            a,
            a,
            ReduceDescriptor(
                count=a.size,
                op=ReduceOp.SUM,
                tag=k,
                operand_descriptor=ReduceOperandDescriptor(DataType.FLOAT, DistributionHint.NORMAL),
                quantization_options=QuantizationOptions(DataType.FLOAT, QuantizationAlgorithm.NONE),
            ),
        )
        for k, a in enumerate(xs)
    ]
    info = comm.all_reduce_multiple_with_retry(descriptors, max_in_flight=4)
    assert info.local_world_size == world
    assert all((a == sum(range(1, world + 1))).all() for a in xs)

    # Errors are PCCLError.
    alone = Communicator(address, 1, 1)
    try:
        alone.update_topology()
        out["error"] = None
    except PCCLError as err:
        out["error"] = err.result.name
    out["version"] = pccl.__version__
    print(json.dumps(out), flush=True)


if __name__ == "__main__":
    main()
