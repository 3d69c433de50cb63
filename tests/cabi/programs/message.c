/* Messages between members, in a world of three: message PORT. */
#define _POSIX_C_SOURCE 200809L
#include <gopccl.h>

#include "common.h"

enum { N = 3, LARGE = 1 << 20 };

static pcclComm_t *comms[N];
static pthread_barrier_t together;

static gopcclMessage_t message(int peer, uint64_t tag, void *data, size_t bytes) {
    gopcclMessage_t m;
    memset(&m, 0, sizeof m);
    m.size = sizeof m;
    m.peer = peer;
    m.tag = tag;
    m.data = data;
    m.bytes = bytes;
    return m;
}

static void send_to(int me, int peer, uint64_t tag, void *data, size_t bytes) {
    gopcclMessage_t m = message(peer, tag, data, bytes);
    OK(gopcclSend(comms[me], &m));
}

static int receive(int me, int peer, uint64_t tag, void *data, size_t bytes) {
    gopcclMessage_t m = message(peer, tag, data, bytes);
    int from = -7;
    OK(gopcclReceive(comms[me], &m, &from));
    return from;
}

static pcclAsyncReduceOp_t begin(int me, bool sends, int peer, uint64_t tag, void *data, size_t bytes) {
    gopcclMessage_t m = message(peer, tag, data, bytes);
    pcclAsyncReduceOp_t h;
    OK(sends ? gopcclSendAsync(comms[me], &m, &h) : gopcclReceiveAsync(comms[me], &m, &h));
    TRUE(h.comm == comms[me]);
    memset(&m, 0xFF, sizeof m); /* it is the caller's again */
    return h;
}

static gopcclReceipt_t await(const pcclAsyncReduceOp_t *h, pcclResult_t want) {
    gopcclReceipt_t r = {false, pcclInternalError, -7};
    EXPECT(want, gopcclAwaitMessage(h, &r));
    TRUE(r.known && r.result == want);
    return r;
}

static unsigned char content(int from, int to) { return (unsigned char)(1 + 16 * from + to); }

/* The tags of handles are free ones, whatever the messages have. */
static void tags_of_handles(int me) {
    int32_t mine = me, all[N];
    unsigned char out = 1, in[2] = {0, 0};
    pcclAsyncReduceOp_t held, h[3];
    gopcclAsyncReduce_t list[8];
    gopcclReceipt_t r = {false, pcclSuccess, 0};
    gopcclVerdict_t v = {false, pcclInternalError, {9, 9, 9}};
    gopcclCollective_t c;
    size_t n = 0;
    memset(&c, 0, sizeof c);
    c.size = sizeof c;
    c.kind = gopcclAllGather;
    c.tag = UINT64_MAX - 1;
    c.src = &mine;
    c.dst = all;
    c.src_count = 1;
    c.dst_count = N;
    c.datatype = pcclInt32;
    OK(gopcclCollectAsync(comms[me], &c, &held));
    h[0] = begin(me, false, (me + N - 1) % N, 5, &in[0], 1);
    h[1] = begin(me, false, (me + N - 1) % N, 5, &in[1], 1);
    h[2] = begin(me, true, (me + 1) % N, 5, &out, 1);
    TRUE(h[0].tag == UINT64_MAX - 2 && h[1].tag == UINT64_MAX - 3 && h[2].tag == UINT64_MAX - 4);
    OK(gopcclListAsyncReduces(comms[me], list, 8, &n));
    TRUE(n == 4 && list[0].tag == held.tag && list[1].tag == h[0].tag);
    TRUE(await(&h[2], pcclSuccess).peer == (me + 1) % N);
    out = 2;
    send_to(me, (me + 1) % N, 5, &out, 1);
    OK(pcclAwaitAsyncReduce(&h[0], NULL));
    OK(gopcclAwaitAsyncReduce(&h[1], &v));
    TRUE(v.known && v.result == pcclSuccess && v.info.tx_bytes == 0 && v.info.rx_bytes == 0);
    TRUE(in[0] == 1 && in[1] == 2);
    TRUE(await(&held, pcclSuccess).peer == -1); /* of a collective */
    EXPECT(pcclInvalidUsage, gopcclAwaitMessage(&h[0], &r)); /* once */
    EXPECT(pcclInvalidArgument, gopcclAwaitMessage(&h[0], NULL));
    EXPECT(pcclInvalidArgument, gopcclAwaitMessage(NULL, &r));
    TRUE(!r.known);
    OK(gopcclListAsyncReduces(comms[me], NULL, 0, &n));
    TRUE(n == 0);
}

/* Every member sends to each other one, with and without data in the offer. */
static void all_pairs(int me) {
    static unsigned char memory[N][N][2][LARGE];
    size_t sizes[] = {0, 5, 1 << 16, LARGE};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        pcclAsyncReduceOp_t h[N];
        for (int k = 0; k < N; k++) {
            if (k == me) continue;
            memset(memory[me][k][0], content(me, k), sizes[s]);
            memset(memory[me][k][1], 0, sizes[s]);
            h[k] = begin(me, true, k, 3, sizes[s] > 0 ? memory[me][k][0] : NULL, sizes[s]);
        }
        for (int k = 0; k < N; k++) {
            if (k == me) continue;
            EXPECT(k, receive(me, k, 3, sizes[s] > 0 ? memory[me][k][1] : NULL, sizes[s]));
            for (size_t i = 0; i < sizes[s]; i++) TRUE(memory[me][k][1][i] == content(k, me));
        }
        for (int k = 0; k < N; k++)
            if (k != me) EXPECT(k, await(&h[k], pcclSuccess).peer);
    }
}

/* By tag, in the order of the sends, and of any member. */
static void order(int me) {
    int32_t x[8];
    pcclAsyncReduceOp_t h[8];
    int seen = 0;
    if (me == 0) {
        for (int i = 0; i < 8; i++) {
            x[i] = i;
            h[i] = begin(0, true, 1, i < 4 ? 1 : 2, &x[i], sizeof *x);
        }
        for (int i = 0; i < 8; i++) await(&h[i], pcclSuccess);
        for (int i = 0; i < 2; i++) {
            int from = receive(0, gopcclAnyPeer, 6, &x[i], sizeof *x);
            EXPECT(from, x[i]);
            seen += from;
        }
        EXPECT(1 + 2, seen);
        h[0] = begin(0, false, gopcclAnyPeer, 7, x, sizeof *x);
        x[1] = 9;
        send_to(0, 2, 7, &x[1], sizeof *x);
        EXPECT(2, await(&h[0], pcclSuccess).peer);
        EXPECT(2, x[0]);
        return;
    }
    if (me == 1)
        for (int i = 0; i < 8; i++) {
            EXPECT(0, receive(1, 0, i < 4 ? 2 : 1, x, sizeof *x));
            EXPECT((i + 4) % 8, x[0]);
        }
    x[0] = me;
    send_to(me, 0, 6, x, sizeof *x);
    if (me == 2) {
        OK(gopcclReceive(comms[2], &(gopcclMessage_t){sizeof(gopcclMessage_t), 0, 7, &x[1], sizeof *x}, NULL));
        send_to(2, 0, 7, x, sizeof *x);
    }
}

static void refuse(pcclResult_t want, const pcclComm_t *on, int which, gopcclMessage_t m, const char *says) {
    pcclAsyncReduceOp_t h;
    int from;
    for (int i = 0; i < 4; i++) {
        if ((which & (1 << i)) == 0) continue;
        EXPECT(want, i == 0 ? gopcclSend(on, &m) : i == 1 ? gopcclReceive(on, &m, &from)
                     : i == 2 ? gopcclSendAsync(on, &m, &h) : gopcclReceiveAsync(on, &m, &h));
        if (strstr(gopcclLastError(), says) == NULL) {
            fprintf(stderr, "\"%s\" does not say \"%s\"\n", gopcclLastError(), says);
            exit(1);
        }
    }
}

enum { SENDS = 5, RECEIVES = 10, ALL = 15 };

/* What bad input gets; nothing of it reaches the others. */
static void abuse(void) {
    char x[4] = {0, 0, 0, 0};
    pcclComm_t *on = comms[0];
    pcclAsyncReduceOp_t h;
    size_t n = 9;
    gopcclMessage_t good = message(1, 9, x, 4), m;
#define BAD(which, says, ...)                                                                      \
    do {                                                                                           \
        m = good;                                                                                  \
        __VA_ARGS__;                                                                               \
        refuse(pcclInvalidArgument, on, which, m, says);                                           \
    } while (0)
    EXPECT(pcclInvalidArgument, gopcclSend(on, NULL));
    EXPECT(pcclInvalidArgument, gopcclReceive(on, NULL, NULL));
    EXPECT(pcclInvalidArgument, gopcclSendAsync(on, NULL, &h));
    EXPECT(pcclInvalidArgument, gopcclReceiveAsync(on, NULL, &h));
    EXPECT(pcclInvalidArgument, gopcclSendAsync(on, &good, NULL));
    EXPECT(pcclInvalidArgument, gopcclReceiveAsync(on, &good, NULL));
    refuse(pcclInvalidArgument, NULL, ALL, good, "");
    refuse(pcclInvalidArgument, (pcclComm_t *)&good, ALL, good, "");
    BAD(ALL, "sizeof(gopcclMessage_t)", m.size = 0);
    BAD(ALL, "sizeof(gopcclMessage_t)", m.size++);
    BAD(ALL, "none of 3 members", m.peer = N);
    BAD(ALL, "none of 3 members", m.peer = -2);
    BAD(ALL, "none of 3 members", m.peer = INT32_MAX);
    BAD(ALL, "is this one", m.peer = 0);
    BAD(SENDS, "none of 3 members", m.peer = gopcclAnyPeer);
    BAD(ALL, "data is NULL", m.data = NULL);
    BAD(ALL, "data", m.bytes = SIZE_MAX);
    OK(gopcclListAsyncReduces(on, NULL, 0, &n));
    TRUE(n == 0);
}

/* Ends that name different sizes are told, whichever way they wait, and can go on. */
static void mismatch(int me) {
    char x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    gopcclMessage_t m = message(1 - me, 4, x, me == 0 ? 8 : 7);
    pcclAsyncReduceOp_t h;
    if (me == 2) return;
    for (int i = 0; i < 2; i++)
        if (me == 0) {
            EXPECT(pcclInvalidArgument, gopcclSend(comms[0], &m));
            TRUE(strstr(gopcclLastError(), "receives 7 bytes, 8 are sent") != NULL);
        } else {
            h = begin(1, false, 0, 4, x, 7);
            EXPECT(0, await(&h, pcclInvalidArgument).peer);
            TRUE(strstr(gopcclLastError(), "sends 8 bytes, 7 are expected") != NULL);
        }
}

static void *blocked(void *result) {
    char x[1];
    gopcclMessage_t m = message(0, 77, x, 1);
    *(pcclResult_t *)result = gopcclReceive(comms[2], &m, NULL);
    return NULL;
}

/* Member 2 leaves while all wait for what nobody sends: every wait ends, its own, too, and two go on. */
static void loss(int me) {
    static unsigned char large[LARGE];
    char x[4];
    pcclAsyncReduceOp_t h[4];
    gopcclGroup_t g;
    pcclResult_t own = pcclSuccess;
    if (me == 2) {
        pthread_t t;
        TRUE(pthread_create(&t, NULL, blocked, &own) == 0);
        pthread_barrier_wait(&together);
        OK(pcclDestroyCommunicator(comms[2]));
        TRUE(pthread_join(t, NULL) == 0);
        TRUE(own != pcclSuccess);
        return;
    }
    h[0] = begin(me, false, 2, 70, &x[0], 1);
    h[1] = begin(me, false, gopcclAnyPeer, 71, &x[1], 1);
    h[2] = begin(me, true, 2, 72, &x[2], 1);
    h[3] = begin(me, true, 2, 73, large, LARGE);
    pthread_barrier_wait(&together);
    for (int i = 0; i < 4; i++) await(&h[i], pcclRankConnectionLost);
    do {
        pcclResult_t r = pcclUpdateTopology(comms[me]);
        TRUE(r == pcclSuccess || r == pcclUpdateTopologyFailed);
        OK(gopcclGetGroup(comms[me], &g, NULL, 0));
    } while (g.size > 2);
    x[0] = (char)(40 + g.index);
    h[0] = begin(me, true, 1 - g.index, 1, &x[0], 1);
    EXPECT(1 - g.index, receive(me, 1 - g.index, 1, &x[1], 1));
    EXPECT(41 - g.index, x[1]);
    await(&h[0], pcclSuccess);
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
    tags_of_handles(g.index);
    all_pairs(g.index);
    order(g.index);
    if (g.index == 0) abuse();
    mismatch(g.index);
    loss(g.index);
    return NULL;
}

/* Without a connection, and alone. */
static void nobody(ccoip_socket_address_t at) {
    pcclComm_t *c = communicator(at);
    char x = 1;
    refuse(pcclInvalidUsage, c, ALL, message(0, 1, &x, 1), "not connected");
    OK(pcclConnect(c));
    refuse(pcclTooFewPeers, c, ALL, message(0, 1, &x, 1), "too few peers");
    OK(pcclDestroyCommunicator(c));
}

int main(int argc, char **argv) {
    ccoip_socket_address_t at = loopback(argc > 1 ? atoi(argv[1]) : 48148);
    pcclMasterInstance_t *m;
    pthread_t threads[N];
    gopcclMessage_t msg = message(0, 0, NULL, 0);
    int i;
    refuse(pcclNotInitialized, NULL, ALL, msg, "");
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
