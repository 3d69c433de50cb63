/* What a PCCL user does, by two peers in two threads: user PORT */
#define _POSIX_C_SOURCE 200809L
#include "common.h"
#include "layout.h"

enum { N = 1000 };
static int port;

static void reduce_types(const pcclComm_t *c, int me) {
    /* Unaligned on purpose: one byte into the buffers. */
    static const size_t size[12] = {1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8};
    unsigned char *send = malloc(8 * N + 1), *recv = malloc(8 * N + 1);
    int type, i;
    TRUE(send && recv);
    for (type = 0; type < 12; type++) {
        pcclReduceDescriptor_t d = descriptor(N, pcclSum, 100, (pcclDataType_t)type);
        pcclReduceInfo_t info;
        memset(&info, 0, sizeof info);
        for (i = 0; i < N; i++) {
            float f = (float)(i % 50 + me);
            double g = f;
            long long n = i % 50 + me;
            uint32_t bits;
            unsigned char *at = send + 1 + (size_t)i * size[type];
            memcpy(&bits, &f, 4);
            bits >>= 16; /* bfloat16 of a small whole number is exact */
            if (type == pcclFloat) memcpy(at, &f, 4);
            else if (type == pcclDouble) memcpy(at, &g, 8);
            else if (type == pcclBFloat16) memcpy(at, &bits, 2);
            else if (type == pcclFloat16) memset(at, 0, 2);
            else memcpy(at, &n, size[type]);
        }
        OK(pcclAllReduce(send + 1, recv + 1, &d, c, &info));
        EXPECT(2, info.local_world_size);
        EXPECT(N * size[type], info.tx_bytes);
        EXPECT(N * size[type], info.rx_bytes);
        for (i = 0; i < N; i++) {
            long long want = 2 * (i % 50) + 1, got = 0;
            float f;
            double g;
            uint32_t bits = 0;
            unsigned char *at = recv + 1 + (size_t)i * size[type];
            if (type == pcclFloat) { memcpy(&f, at, 4); got = (long long)f; }
            else if (type == pcclDouble) { memcpy(&g, at, 8); got = (long long)g; }
            else if (type == pcclBFloat16) {
                memcpy(&bits, at, 2);
                bits <<= 16;
                memcpy(&f, &bits, 4);
                got = (long long)f;
            } else if (type == pcclFloat16) got = want + at[0] + at[1];
            else memcpy(&got, at, size[type]);
            EXPECT(want, got);
        }
    }
    free(send);
    free(recv);
}

static void reduce_ops(const pcclComm_t *c, int me) {
    static const float want[5] = {8, 4, 15, 5, 3};
    int op;
    for (op = 0; op < 5; op++) {
        float v[3];
        pcclReduceDescriptor_t d = descriptor(3, (pcclRedOp_t)op, 7, pcclFloat);
        v[0] = v[1] = v[2] = (float)(3 + 2 * me);
        OK(pcclAllReduce(v, v, &d, c, NULL));
        TRUE(v[0] == want[op] && v[2] == want[op]);
    }
}

static void reduce_quantized(const pcclComm_t *c, int me) {
    static const pcclQuantizationAlgorithm_t algorithm[2] = {pcclQuantMinMax, pcclQuantZeroPointScale};
    int k, i;
    for (k = 0; k < 2; k++) {
        float v[N];
        pcclReduceDescriptor_t d = descriptor(N, pcclAvg, 8, pcclFloat);
        d.quantization_options.quantized_datatype = pcclUint8;
        d.quantization_options.algorithm = algorithm[k];
        for (i = 0; i < N; i++) v[i] = (float)i / N + (float)me;
        OK(pcclAllReduce(v, v, &d, c, NULL));
        for (i = 0; i < N; i++) TRUE(v[i] - (float)i / N - 0.5F < 0.05F && v[i] - (float)i / N - 0.5F > -0.05F);
    }
}

static void reduce_async(pcclComm_t *c, int me) {
    static float v[2][6][N];
    pcclAsyncReduceOp_t h[6];
    int k, i;
    for (k = 0; k < 6; k++) {
        pcclReduceDescriptor_t d = descriptor(N, pcclSum, (uint64_t)k, pcclFloat);
        for (i = 0; i < N; i++) v[me][k][i] = (float)(i + k + me);
        OK(pcclAllReduceAsync(v[me][k], v[me][k], &d, c, &h[k]));
    }
    EXPECT(pcclPendingAsyncOps, pcclUpdateTopology(c)); /* S1-34 */
    for (k = 0; k < 6; k++) {
        pcclReduceInfo_t info;
        OK(pcclAwaitAsyncReduce(&h[k], &info));
        EXPECT(2, info.local_world_size);
        EXPECT(pcclInvalidUsage, pcclAwaitAsyncReduce(&h[k], NULL));
        for (i = 0; i < N; i++) TRUE(v[me][k][i] == (float)(2 * (i + k) + 1));
    }
}

static void reduce_many(const pcclComm_t *c, int me) {
    double v[10][3];
    pcclReduceOpDescriptor_t ops[10];
    pcclReduceInfo_t info;
    int k;
    for (k = 0; k < 10; k++) {
        v[k][0] = v[k][1] = v[k][2] = k + 5 * me;
        ops[k].sendbuf = ops[k].recvbuf = v[k];
        ops[k].descriptor = descriptor(3, pcclMax, (uint64_t)k, pcclDouble);
    }
    OK(pcclAllReduceMultipleWithRetry(ops, 10, c, &info, 4));
    EXPECT(2, info.local_world_size);
    EXPECT(10 * 3 * 8, info.tx_bytes);
    for (k = 0; k < 10; k++) TRUE(v[k][0] == k + 5 && v[k][2] == k + 5);
}

static void synchronize(const pcclComm_t *c, int me) {
    char raw[4 * 500 + 1], other[8];
    int i, round;
    pcclTensorInfo_t t[2];
    pcclSharedState_t s;
    memset(other, me, sizeof other);
    memset(t, 0, sizeof t);
    t[0].name = "weights";
    t[0].data = raw + 1;
    t[0].count = 500;
    t[0].datatype = pcclFloat;
    t[1].name = "own";
    t[1].data = other;
    t[1].count = 8;
    t[1].datatype = pcclUint8;
    t[1].allow_content_inequality = true;
    s.revision = 0;
    s.count = 2;
    s.infos = t;
    for (round = 0; round < 3; round++) {
        pcclSharedStateSyncInfo_t info;
        pcclSharedStateSyncStrategy_t strategy =
            round == 0 ? PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR
            : me == 0  ? PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY
                       : PCCL_SHARED_STATE_SYNC_STRATEGY_RECEIVE_ONLY;
        for (i = 0; i < 500; i++) {
            float f = (float)(i + round + (round ? me : 0));
            memcpy(raw + 1 + 4 * i, &f, 4);
        }
        OK(pcclSynchronizeSharedState(c, &s, strategy, &info));
        EXPECT(round, s.revision);
        for (i = 0; i < 500; i++) {
            float f;
            memcpy(&f, raw + 1 + 4 * i, 4);
            TRUE(f == (float)(i + round));
        }
        if (round > 0) EXPECT(2000, me ? info.rx_bytes : info.tx_bytes);
        s.revision++;
    }
    EXPECT(me, other[0]);
}

struct peer {
    pcclComm_t *comm;
    int me;
};

static void *train(void *arg) {
    struct peer *p = arg;
    EXPECT(2, attribute(p->comm, PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE));
    EXPECT(1, attribute(p->comm, PCCL_ATTRIBUTE_NUM_DISTINCT_PEER_GROUPS));
    EXPECT(2, attribute(p->comm, PCCL_ATTRIBUTE_LARGEST_PEER_GROUP_WORLD_SIZE));
    OK(pcclOptimizeTopology(p->comm));
    synchronize(p->comm, p->me);
    reduce_types(p->comm, p->me);
    reduce_ops(p->comm, p->me);
    reduce_quantized(p->comm, p->me);
    reduce_async(p->comm, p->me);
    reduce_many(p->comm, p->me);
    return NULL;
}

int main(int argc, char **argv) {
    pcclMasterInstance_t *master = NULL;
    pcclBuildInfo_t build;
    struct peer peers[2];
    pthread_t threads[2];
    int i;
    TRUE(argc == 2);
    port = atoi(argv[1]);
    OK(pcclInit());
    OK(pcclGetBuildInfo(&build));
#if defined(__linux__) || defined(_WIN32)
    EXPECT(1, build.has_cuda_support);
#else
    EXPECT(0, build.has_cuda_support);
#endif
    OK(pcclCreateMaster(loopback(port), &master));
    OK(pcclRunMaster(master));
    for (i = 0; i < 2; i++) {
        peers[i].comm = communicator(loopback(port));
        peers[i].me = i;
    }
    connect_both(peers[0].comm, peers[1].comm);
    for (i = 0; i < 2; i++) TRUE(pthread_create(&threads[i], NULL, train, &peers[i]) == 0);
    for (i = 0; i < 2; i++) TRUE(pthread_join(threads[i], NULL) == 0);
    for (i = 0; i < 2; i++) OK(pcclDestroyCommunicator(peers[i].comm));
    OK(pcclInterruptMaster(master));
    OK(pcclMasterAwaitTermination(master));
    OK(pcclDestroyMaster(master));
    puts("passed");
    return 0;
}
