/* Collectives besides all-reduce, in a world of three, beside results computed in the plainest way: collect PORT. */
#define _POSIX_C_SOURCE 200809L
#include <gopccl.h>

#include "common.h"

enum { N = 3, MOST = 64 };

typedef struct {
    int32_t src[MOST], dst[MOST], want[MOST], before[MOST];
    size_t src_count, dst_count;
} buffers;

static pcclComm_t *comms[N];
static pthread_barrier_t together;

/* Element k of what member i has for member j. */
static int32_t value(int i, int j, size_t k) { return (int32_t)(10000 * (i + 1) + 100 * (j + 1) + (int32_t)k + 1); }

/* Blocks of members, and of pairs; the second kind of lists has different sizes, 0 among them. */
static size_t block(int uneven, int i) { return uneven ? (size_t)((i * 5) % 7) : 4; }
static size_t pair_block(int uneven, int from, int to) { return uneven ? (size_t)((from * 3 + to * 2) % 5) : 4; }

/* What member me has in src, and what has to be in dst in the end. */
static void oracle(buffers *b, gopcclKind_t kind, int uneven, int me, int root) {
    int i;
    size_t k;
    b->src_count = b->dst_count = 0;
#define SRC(v) (b->src[b->src_count++] = (v))
#define WANT(v) (b->want[b->dst_count++] = (v))
    switch (kind) {
    case gopcclAllGather:
    case gopcclGather:
        for (k = 0; k < block(uneven, me); k++) SRC(value(me, 0, k));
        if (kind == gopcclGather && me != root) break;
        for (i = 0; i < N; i++)
            for (k = 0; k < block(uneven, i); k++) WANT(value(i, 0, k));
        break;
    case gopcclReduceScatter:
        for (i = 0; i < N; i++)
            for (k = 0; k < block(uneven, i); k++) SRC(value(me, i, k));
        for (k = 0; k < block(uneven, me); k++) WANT(value(0, me, k) + value(1, me, k) + value(2, me, k));
        break;
    case gopcclBroadcast:
        for (k = 0; k < 9; k++) WANT(value(root, 0, k));
        if (me == root)
            for (k = 0; k < 9; k++) SRC(value(root, 0, k));
        break;
    case gopcclReduce:
        for (k = 0; k < 9; k++) SRC(value(me, 0, k));
        if (me == root)
            for (k = 0; k < 9; k++) WANT(value(0, 0, k) + value(1, 0, k) + value(2, 0, k));
        break;
    case gopcclScatter:
        if (me == root)
            for (i = 0; i < N; i++)
                for (k = 0; k < block(uneven, i); k++) SRC(value(root, i, k));
        for (k = 0; k < block(uneven, me); k++) WANT(value(root, me, k));
        break;
    case gopcclAllToAll:
        for (i = 0; i < N; i++)
            for (k = 0; k < pair_block(uneven, me, i); k++) SRC(value(me, i, k));
        for (i = 0; i < N; i++)
            for (k = 0; k < pair_block(uneven, i, me); k++) WANT(value(i, me, k));
        break;
    default: TRUE(false);
    }
}

static gopcclCollective_t call_of(gopcclKind_t kind, uint64_t tag) {
    gopcclCollective_t c;
    memset(&c, 0, sizeof c);
    c.size = sizeof c;
    c.kind = kind;
    c.tag = tag;
    c.datatype = pcclInt32;
    c.op = pcclSum;
    c.members = N;
    return c;
}

static void await(const pcclAsyncReduceOp_t *h) {
    gopcclVerdict_t v = {false, pcclSuccess, {0, 0, 0}};
    OK(gopcclAwaitAsyncReduce(h, &v));
    TRUE(v.known && v.result == pcclSuccess && v.info.local_world_size == N);
}

static void one(int me, gopcclKind_t kind, int uneven, int root, bool async) {
    size_t counts[N], sends[N], receives[N];
    gopcclCollective_t c = call_of(kind, 5);
    pcclReduceInfo_t info = {0, 0, 0};
    buffers b;
    int i;
    memset(&b, 0, sizeof b);
    oracle(&b, kind, uneven, me, root);
    for (i = 0; i < N; i++) {
        counts[i] = block(uneven, i);
        sends[i] = pair_block(uneven, me, i);
        receives[i] = pair_block(uneven, i, me);
    }
    memcpy(b.before, b.src, sizeof b.src);
    c.root = (uint32_t)root;
    /* A buffer that the kind does not have here is not looked at, wherever it points to. */
    c.src = b.src_count > 0 || kind != gopcclBroadcast ? (void *)b.src : (void *)1;
    c.dst = b.dst_count > 0 || (kind != gopcclReduce && kind != gopcclGather) ? (void *)b.dst : (void *)1;
    c.src_count = b.src_count;
    c.dst_count = b.dst_count;
    if (uneven && kind == gopcclAllToAll) {
        c.send_counts = sends;
        c.recv_counts = receives;
    } else if (uneven) {
        c.counts = counts;
    }
    if (async) {
        pcclAsyncReduceOp_t h;
        OK(gopcclCollectAsync(comms[me], &c, &h));
        TRUE(h.comm == comms[me] && h.tag == 5);
        memset(&c, 0xFF, sizeof c); /* it is the caller's again, and so are the lists */
        memset(counts, 0xFF, sizeof counts);
        memset(sends, 0xFF, sizeof sends);
        memset(receives, 0xFF, sizeof receives);
        await(&h);
    } else {
        OK(gopcclCollect(comms[me], &c, &info));
        EXPECT(N, info.local_world_size);
    }
    TRUE(memcmp(b.src, b.before, sizeof b.src) == 0);
    TRUE(memcmp(b.dst, b.want, sizeof b.dst) == 0); /* behind what is expected there is 0 as before */
}

/* All kinds; an all-gather and a broadcast in place; several in flight; barriers. */
static void kinds(int me) {
    int32_t all[3 * N], all_wanted[3 * N], buffer[5];
    pcclAsyncReduceOp_t h[3], barrier;
    gopcclCollective_t c;
    int kind, i, k;
    for (kind = gopcclAllGather; kind <= gopcclAllToAll; kind++)
        for (int uneven = 0; uneven < 2; uneven++) {
            bool counts = kind != gopcclBroadcast && kind != gopcclReduce;
            bool rooted = kind == gopcclReduce || kind == gopcclBroadcast || kind == gopcclGather || kind == gopcclScatter;
            for (int root = 0; root < (rooted ? N : 1); root++)
                for (int async = 0; async < 2; async++) one(me, (gopcclKind_t)kind, uneven && counts, root, async);
        }
    memset(all, 0, sizeof all);
    for (i = 0; i < N; i++)
        for (k = 0; k < 3; k++) {
            all_wanted[3 * i + k] = value(i, 0, (size_t)k);
            if (i == me) all[3 * i + k] = value(i, 0, (size_t)k);
        }
    c = call_of(gopcclAllGather, 1);
    c.src = all + 3 * me;
    c.src_count = 3;
    c.dst = all;
    c.dst_count = 3 * N;
    OK(gopcclCollectAsync(comms[me], &c, &h[0]));
    c = call_of(gopcclBroadcast, 2);
    c.root = 1;
    for (k = 0; k < 5; k++) buffer[k] = me == 1 ? 70 + k : 0;
    c.src = c.dst = buffer;
    c.src_count = c.dst_count = 5;
    OK(gopcclCollectAsync(comms[me], &c, &h[1]));
    OK(gopcclCollectAsync(comms[me], &(gopcclCollective_t){.size = sizeof c, .kind = gopcclBarrier}, &barrier));
    TRUE(barrier.tag == UINT64_MAX);
    await(&h[0]);
    await(&h[1]);
    OK(pcclAwaitAsyncReduce(&barrier, NULL));
    EXPECT(pcclInvalidUsage, pcclAwaitAsyncReduce(&barrier, NULL)); /* once */
    TRUE(memcmp(all, all_wanted, sizeof all) == 0);
    for (k = 0; k < 5; k++) EXPECT(70 + k, buffer[k]);
    for (i = 0; i < 20; i++) OK(gopcclCollect(comms[me], &(gopcclCollective_t){.size = sizeof c, .kind = gopcclBarrier}, NULL));
}

/* Blocks that travel quantized: near what they are, the same bits on all members, one byte for each element. */
static float gathered[N][N * 64], reduced[N][64];

static void quantized(int me, const char *quantizer, const char *type, uint64_t bytes) {
    float src[N * 64], own[64];
    pcclReduceInfo_t info = {0, 0, 0};
    gopcclCollective_t c = call_of(gopcclAllGather, 11);
    int i, k;
    for (k = 0; k < N * 64; k++) src[k] = (float)(me + 1) * (float)(k % 9);
    memcpy(own, src, sizeof own);
    c.datatype = pcclFloat;
    c.quantizer = quantizer;
    c.quantized_type = type;
    c.src = own;
    c.src_count = 64;
    c.dst = gathered[me];
    c.dst_count = N * 64;
    OK(gopcclCollect(comms[me], &c, &info));
    EXPECT((N - 1) * bytes, info.tx_bytes);
    EXPECT((N - 1) * bytes, info.rx_bytes);
    TRUE(memcmp(own, src, sizeof own) == 0);
    c.kind = gopcclReduceScatter;
    c.src = src;
    c.src_count = N * 64;
    c.dst = reduced[me];
    c.dst_count = 64;
    OK(gopcclCollect(comms[me], &c, &info));
    EXPECT((N - 1) * bytes, info.tx_bytes);
    for (i = 0; i < N; i++)
        for (k = 0; k < 64; k++) {
            float off = gathered[me][64 * i + k] - (float)((i + 1) * (k % 9));
            TRUE(off > -4 && off < 4);
        }
    for (k = 0; k < 64; k++) {
        float off = reduced[me][k] - 6 * (float)((64 * me + k) % 9);
        TRUE(off > -12 && off < 12);
    }
    pthread_barrier_wait(&together);
    TRUE(memcmp(gathered[0], gathered[me], sizeof gathered[me]) == 0);
    pthread_barrier_wait(&together);
}

static void group(int me) {
    uint8_t members[N + 1][16], own[16];
    gopcclGroup_t g;
    memset(members, 0xEE, sizeof members);
    OK(gopcclGetGroup(comms[me], &g, members, N + 1));
    OK(gopcclGetRank(comms[me], own, NULL));
    TRUE(g.size == N && g.index == me && g.collectives && g.mesh);
    TRUE(memcmp(members[me], own, 16) == 0 && members[N][0] == 0xEE && members[N][15] == 0xEE);
    OK(gopcclGetGroup(comms[me], &g, NULL, 0));
    EXPECT(pcclInvalidArgument, gopcclGetGroup(comms[me], NULL, NULL, 0));
    EXPECT(pcclInvalidArgument, gopcclGetGroup(comms[me], &g, NULL, 1));
}

static void refuse(pcclResult_t want, const pcclComm_t *on, gopcclCollective_t c, const char *says) {
    pcclAsyncReduceOp_t h;
    EXPECT(want, gopcclCollect(on, &c, NULL));
    if (strstr(gopcclLastError(), says) == NULL) {
        fprintf(stderr, "\"%s\" does not say \"%s\"\n", gopcclLastError(), says);
        exit(1);
    }
    EXPECT(want, gopcclCollectAsync(on, &c, &h));
    TRUE(strstr(gopcclLastError(), says) != NULL);
}

/* What bad input gets, at member 0; nothing of it reaches the others. */
static void abuse(void) {
    int32_t x[3 * N], y[3 * N];
    size_t counts[N] = {3, 3, 3}, huge[N] = {SIZE_MAX, 2, 1};
    pcclComm_t *on = comms[0];
    gopcclCollective_t good = call_of(gopcclAllGather, 9), c;
    pcclAsyncReduceOp_t h;
    size_t n = 9;
    good.src = x;
    good.dst = y;
    good.src_count = 3;
    good.dst_count = 3 * N;
#define BAD(says, ...)                                                                             \
    do {                                                                                           \
        c = good;                                                                                  \
        __VA_ARGS__;                                                                               \
        refuse(pcclInvalidArgument, on, c, says);                                                  \
    } while (0)
    EXPECT(pcclInvalidArgument, gopcclCollect(on, NULL, NULL));
    EXPECT(pcclInvalidArgument, gopcclCollectAsync(on, NULL, &h));
    EXPECT(pcclInvalidArgument, gopcclCollectAsync(on, &good, NULL));
    EXPECT(pcclInvalidArgument, gopcclCollect(NULL, &good, NULL));
    EXPECT(pcclInvalidArgument, gopcclCollect((pcclComm_t *)&c, &good, NULL));
    EXPECT(pcclInvalidArgument, gopcclGetGroup(NULL, NULL, NULL, 0));
    BAD("sizeof(gopcclCollective_t)", c.size = 0);
    BAD("sizeof(gopcclCollective_t)", c.size++);
    BAD("unknown kind 0", c.kind = (gopcclKind_t)0);
    BAD("unknown kind 9", c.kind = (gopcclKind_t)9);
    BAD("unknown data type 12", c.datatype = (pcclDataType_t)12);
    BAD("unknown data type 4294967295", c.datatype = (pcclDataType_t)-1);
    BAD("src is NULL", c.src = NULL);
    BAD("dst is NULL", c.dst = NULL);
    BAD("elements", c.src_count = SIZE_MAX);
    BAD("own block", c.src_count = 2);
    BAD("do not divide", c.dst_count--);
    BAD("root", c.root = 1);
    BAD("overlap", c.src = x + 1; c.dst = x);
    BAD("the group has 3 members", c.counts = counts; c.members = 2);
    BAD("the group has 3 members", c.counts = counts; c.members = SIZE_MAX);
    BAD("counts[0]", c.counts = huge);
    BAD("belong to an all-to-all", c.send_counts = counts);
    BAD("counts", c.counts = counts; c.dst_count++);
    BAD("root", c.kind = gopcclBroadcast; c.root = N; c.dst_count = 3);
    BAD("root", c.kind = gopcclBroadcast; c.root = UINT32_MAX; c.dst_count = 3);
    BAD("no meaning", c.kind = gopcclBroadcast; c.counts = counts; c.dst_count = 3);
    BAD("unknown reduce operation 5", c.kind = gopcclReduce; c.op = (pcclRedOp_t)5);
    BAD("quantizer is \"gzip\", there are none, blocks, minmax, zeropoint", c.quantizer = "gzip");
    BAD("quantized_type", c.quantizer = "minmax"; c.quantized_type = "uint3");
    BAD("minmax quantizes float32 and float64, not int32", c.quantizer = "minmax");
    BAD("belongs to an all-reduce, an all-gather or a reduce-scatter", c.kind = gopcclAllToAll; c.datatype = pcclFloat;
        c.src_count = 3 * N; c.quantizer = "minmax");
    BAD("received are needed", c.kind = gopcclAllToAll; c.src_count = 3 * N; c.send_counts = counts);
    /* A tag that was not awaited is taken, whichever kind has it. */
    {
        pcclReduceDescriptor_t d = descriptor(3, pcclSum, 9, pcclInt32);
        OK(gopcclCollectAsync(on, &good, &h));
        refuse(pcclInvalidArgument, on, good, "tag 9 is in flight");
        EXPECT(pcclInvalidArgument, pcclAllReduce(x, x, &d, on, NULL));
        OK(gopcclListAsyncReduces(on, NULL, 0, &n));
        TRUE(n == 1);
        pthread_barrier_wait(&together);
        OK(pcclAwaitAsyncReduce(&h, NULL));
    }
}

/* Members that do not agree are told so, whichever way they wait, and can go on. */
static void mismatch(int me) {
    int32_t x[4] = {1, 2, 3, 4};
    gopcclCollective_t c = call_of(gopcclBroadcast, 3);
    pcclAsyncReduceOp_t h;
    c.root = (uint32_t)me;
    c.src = c.dst = x;
    c.src_count = c.dst_count = 4;
    EXPECT(pcclInvalidArgument, gopcclCollect(comms[me], &c, NULL));
    TRUE(strstr(gopcclLastError(), "broadcast") != NULL);
    OK(gopcclCollectAsync(comms[me], &c, &h));
    EXPECT(pcclInvalidArgument, pcclAwaitAsyncReduce(&h, NULL));
    TRUE(x[0] == 1 && x[3] == 4);
}

/* The others' part of abuse. */
static void help(int me) {
    int32_t x[3] = {0, 0, 0}, y[3 * N];
    gopcclCollective_t c = call_of(gopcclAllGather, 9);
    c.src = x;
    c.dst = y;
    c.src_count = 3;
    c.dst_count = 3 * N;
    pthread_barrier_wait(&together);
    OK(gopcclCollect(comms[me], &c, NULL));
}

/* Member 2 leaves while the others wait for it: everything is as before, and the two go on. */
static void loss(int me) {
    enum { LARGE = 1 << 18 };
    gopcclKind_t list[] = {gopcclAllGather, gopcclReduceScatter, gopcclBroadcast, gopcclReduce, gopcclAllToAll};
    static int32_t memory[N][5][2][N * LARGE], before[N][5][2][N * LARGE];
    pcclAsyncReduceOp_t h[5];
    gopcclGroup_t g;
    int i;
    for (i = 0; i < 5; i++) {
        gopcclCollective_t c = call_of(list[i], (uint64_t)i);
        bool collects = list[i] == gopcclAllGather, whole = list[i] == gopcclBroadcast || list[i] == gopcclReduce;
        for (int k = 0; k < N * LARGE; k++) memory[me][i][0][k] = memory[me][i][1][k] = value(me, i, (size_t)k);
        memcpy(before[me][i], memory[me][i], sizeof before[me][i]);
        c.src = memory[me][i][0];
        c.dst = memory[me][i][1];
        c.src_count = collects || whole ? LARGE : N * LARGE;
        c.dst_count = list[i] == gopcclReduceScatter || whole ? LARGE : N * LARGE;
        c.preserve = true;
        if (me != 2 || i < 3) OK(gopcclCollectAsync(comms[me], &c, &h[i]));
    }
    if (me == 2) {
        OK(pcclDestroyCommunicator(comms[me]));
        return;
    }
    for (i = 0; i < 5; i++) {
        pcclResult_t r = pcclAwaitAsyncReduce(&h[i], NULL);
        TRUE(r == pcclRankConnectionLost || (r == pcclSuccess && i < 3));
        if (r != pcclSuccess) TRUE(memcmp(memory[me][i], before[me][i], sizeof before[me][i]) == 0);
    }
    OK(gopcclGetGroup(comms[me], &g, NULL, 0));
    TRUE(g.size == 2 && g.collectives && g.index >= 0 && g.index < 2);
    {
        int32_t in = 5 + g.index, out[2] = {0, 0};
        gopcclCollective_t c = call_of(gopcclAllGather, 1);
        c.src = &in;
        c.src_count = 1;
        c.dst = out;
        c.dst_count = 2;
        OK(gopcclCollect(comms[me], &c, NULL));
        TRUE(out[0] == 5 && out[1] == 6);
    }
}

static void *member(void *c) {
    int32_t x[1] = {1};
    pcclReduceDescriptor_t d = descriptor(1, pcclSum, 0, pcclInt32);
    gopcclGroup_t g;
    OK(pcclConnect((pcclComm_t *)c));
    wait_for_world((pcclComm_t *)c, N);
    OK(pcclAllReduce(x, x, &d, (pcclComm_t *)c, NULL));
    OK(gopcclGetGroup((pcclComm_t *)c, &g, NULL, 0));
    TRUE(g.index >= 0 && g.index < N);
    comms[g.index] = (pcclComm_t *)c;
    pthread_barrier_wait(&together);
    kinds(g.index);
    quantized(g.index, "minmax", NULL, 64);
    quantized(g.index, "zeropoint", "int16", 128);
    quantized(g.index, "blocks", NULL, 36);
    quantized(g.index, "none", NULL, 256);
    group(g.index);
    if (g.index == 0)
        abuse();
    else
        help(g.index);
    mismatch(g.index);
    loss(g.index);
    return NULL;
}

/* Without a connection, and alone. */
static void nobody(ccoip_socket_address_t at) {
    pcclComm_t *c = communicator(at);
    int32_t x[1] = {1}, y[1] = {0};
    gopcclCollective_t call = call_of(gopcclAllGather, 1);
    gopcclGroup_t g;
    call.src = x;
    call.dst = y;
    call.src_count = call.dst_count = 1;
    refuse(pcclInvalidUsage, c, call, "not connected");
    EXPECT(pcclInvalidUsage, gopcclGetGroup(c, &g, NULL, 0));
    OK(pcclConnect(c));
    OK(gopcclGetGroup(c, &g, NULL, 0));
    TRUE(g.size == 1);
    refuse(pcclTooFewPeers, c, call, "too few peers");
    OK(pcclDestroyCommunicator(c));
}

int main(int argc, char **argv) {
    ccoip_socket_address_t at = loopback(argc > 1 ? atoi(argv[1]) : 48148);
    pcclMasterInstance_t *m;
    pthread_t threads[N];
    gopcclCollective_t c = call_of(gopcclBarrier, 0);
    int i;
    EXPECT(pcclNotInitialized, gopcclCollect(NULL, &c, NULL));
    EXPECT(pcclNotInitialized, gopcclGetGroup(NULL, NULL, NULL, 0));
    OK(pcclInit());
    OK(pcclCreateMaster(at, &m));
    OK(pcclRunMaster(m));
    nobody(at);
    TRUE(pthread_barrier_init(&together, NULL, N) == 0);
    for (i = 0; i < N; i++) TRUE(pthread_create(&threads[i], NULL, member, communicator(at)) == 0);
    for (i = 0; i < N; i++) TRUE(pthread_join(threads[i], NULL) == 0);
    for (i = 0; i < 2; i++) OK(pcclDestroyCommunicator(comms[i]));
    OK(pcclDestroyMaster(m));
    puts("passed");
    return 0;
}
