/*
 * Device memory through the C interface: cuda PORT. The library's devices are the interpreter's (bindings/c/interpreted.go).
 */
#define _POSIX_C_SOURCE 200809L
#define _GNU_SOURCE
#include <dlfcn.h>

#include "common.h"
#include <gopccl.h>

enum { N = 3000 };

static size_t (*alloc_on)(int, size_t);
static void (*free_on)(int, size_t);
static size_t (*stream_on)(int);
static void (*destroy_on)(int, size_t);
static void (*write_on)(int, size_t, const void *, size_t, size_t);
static void (*read_on)(int, void *, size_t, size_t);
static int (*left)(void);
static void (*set_stream)(void *);
static pcclResult_t (*find_device)(const void *, int *);

static void *look_up(const char *name) {
    void *f = dlsym(RTLD_DEFAULT, name);
    if (f == NULL) fprintf(stderr, "no %s\n", name);
    TRUE(f != NULL);
    return f;
}

#define LOOK_UP(variable, name) *(void **)&variable = look_up(name)

static pcclTensorInfo_t tensor(const char *name, size_t p, size_t count, pcclDeviceType_t where) {
    pcclTensorInfo_t t = {name, (void *)p, count, pcclFloat, where, false};
    return t;
}

static void expect(int device, size_t p, int n, float want) {
    float v[N];
    int i;
    read_on(device, v, p, (size_t)n * sizeof *v);
    for (i = 0; i < n; i++)
        if (v[i] != want) fprintf(stderr, "element %d is %g, want %g\n", i, v[i], want);
    for (i = 0; i < n; i++) TRUE(v[i] == want);
}

static float *filled(float value) {
    static __thread float v[N];
    int i;
    for (i = 0; i < N; i++) v[i] = value;
    return v;
}

struct peer {
    pcclComm_t *c;
    int number;
};

static gopcclCollective_t described(gopcclKind_t kind, uint64_t tag, size_t src, size_t from, size_t dst, size_t to) {
    gopcclCollective_t call;
    memset(&call, 0, sizeof call);
    call.size = sizeof call;
    call.kind = kind;
    call.tag = tag;
    call.src = (const void *)src;
    call.dst = (void *)dst;
    call.src_count = from;
    call.dst_count = to;
    call.datatype = pcclFloat;
    call.op = pcclSum;
    return call;
}

/* Every other collective and a message, behind streams, and what cannot be had. */
static void collectives(struct peer *me) {
    pcclResult_t (*collect)(const pcclComm_t *, const gopcclCollective_t *, pcclReduceInfo_t *);
    pcclResult_t (*collect_async)(const pcclComm_t *, const gopcclCollective_t *, pcclAsyncReduceOp_t *);
    pcclResult_t (*get_group)(const pcclComm_t *, gopcclGroup_t *, uint8_t (*)[16], size_t);
    pcclResult_t (*send)(const pcclComm_t *, const gopcclMessage_t *);
    pcclResult_t (*receive)(const pcclComm_t *, const gopcclMessage_t *, int *);
    const char *(*last_error)(void);
    int device = me->number, index;
    size_t bytes = N * sizeof(float), half = bytes / 2, a = alloc_on(device, bytes), b = alloc_on(device, bytes), s = stream_on(device);
    size_t counts[2] = {N - 7, 7};
    float host[N];
    gopcclCollective_t call;
    gopcclMessage_t message;
    gopcclGroup_t group;
    pcclAsyncReduceOp_t op;
    LOOK_UP(send, "gopcclSend");
    LOOK_UP(receive, "gopcclReceive");
    LOOK_UP(collect, "gopcclCollect");
    LOOK_UP(collect_async, "gopcclCollectAsync");
    LOOK_UP(get_group, "gopcclGetGroup");
    LOOK_UP(last_error, "gopcclLastError");
    OK(get_group(me->c, &group, NULL, 0));
    index = group.index;

    set_stream((void *)s);
    write_on(device, a, filled((float)(index + 1)), half, s);
    call = described(gopcclAllGather, 1, a, N / 2, b, N);
    OK(collect_async(me->c, &call, &op));
    OK(pcclAwaitAsyncReduce(&op, NULL));
    expect(device, b, N / 2, 1);
    expect(device, b + half, N / 2, 2);

    write_on(device, a, filled((float)(index + 1)), bytes, s);
    call = described(gopcclReduceScatter, 1, a, N, a + (index ? counts[0] * sizeof(float) : 0), counts[index]); /* in place */
    call.counts = counts;
    call.members = 2;
    OK(collect(me->c, &call, NULL));
    expect(device, a + (index ? counts[0] * sizeof(float) : 0), (int)counts[index], 3);
    set_stream(NULL);

    write_on(device, a, filled((float)(index + 1)), bytes, 0);
    call = described(gopcclBroadcast, 1, a, N, a, N);
    call.root = 1;
    OK(collect(me->c, &call, NULL));
    expect(device, a, N, 2);

    write_on(device, a, filled((float)(index + 1)), bytes, 0);
    call = described(gopcclReduce, 1, a, N, index ? 0 : b, index ? 0 : N);
    OK(collect(me->c, &call, NULL));
    if (!index) expect(device, b, N, 3);

    call = described(gopcclGather, 1, a, N / 2, index ? 0 : b, index ? 0 : N);
    OK(collect(me->c, &call, NULL));
    if (!index) expect(device, b + half, N / 2, 2);

    write_on(device, a, filled(8), bytes, 0);
    call = described(gopcclScatter, 1, index ? 0 : a, index ? 0 : N, b, N / 2);
    OK(collect(me->c, &call, NULL));
    expect(device, b, N / 2, 8);

    write_on(device, a, filled((float)(index + 1)), bytes, 0);
    call = described(gopcclAllToAll, 1, a, N, b, N);
    OK(collect(me->c, &call, NULL));
    expect(device, b, N / 2, 1);
    expect(device, b + half, N / 2, 2);

    set_stream((void *)s);
    write_on(device, a, filled((float)(index + 5)), bytes, s);
    memset(&message, 0, sizeof message);
    message.size = sizeof message;
    message.peer = 1 - index;
    message.bytes = bytes;
    message.data = (void *)(index ? b : a);
    OK(index ? receive(me->c, &message, NULL) : send(me->c, &message));
    if (index) expect(device, b, N, 5);
    set_stream(NULL);

    call = described(gopcclAllToAll, 1, a, N, (size_t)host, N);
    EXPECT(pcclInvalidArgument, collect(me->c, &call, NULL));
    TRUE(strstr(last_error(), "not both on a device") != NULL);
    call = described(gopcclAllToAll, 1, a, N, b + 4, N);
    EXPECT(pcclInvalidArgument, collect(me->c, &call, NULL));
    TRUE(strstr(last_error(), "the allocation ends") != NULL);
    free_on(device, a);
    free_on(device, b);
    destroy_on(device, s);
}

static void reductions(struct peer *me) {
    pcclComm_t *c = me->c;
    int device = me->number; /* each peer has a device of its own */
    size_t bytes = N * sizeof(float);
    size_t a = alloc_on(device, bytes), b = alloc_on(device, bytes), s = stream_on(device);
    float host[N];
    pcclReduceDescriptor_t d = descriptor(N, pcclSum, 1, pcclFloat);
    pcclReduceInfo_t info;
    pcclAsyncReduceOp_t op;
    pcclReduceOpDescriptor_t list[2];

    /* Out of place, behind the legacy default stream: what is queued there has not run yet. */
    write_on(device, a, filled((float)(me->number + 1)), bytes, 0);
    OK(pcclAllReduce((void *)a, (void *)b, &d, c, &info));
    TRUE(info.local_world_size == 2);
    expect(device, b, N, 3);
    expect(device, a, N, (float)(me->number + 1));

    /* In place, behind another stream. */
    set_stream((void *)s);
    write_on(device, b, filled((float)(10 * me->number + 1)), bytes, s);
    d.op = pcclAvg;
    OK(pcclAllReduceAsync((void *)b, (void *)b, &d, c, &op));
    OK(pcclAwaitAsyncReduce(&op, &info));
    expect(device, b, N, 6);
    set_stream(NULL);

    /* A peer on the host, one on a device, in one operation. */
    d.op = pcclMax;
    memcpy(host, filled(4), bytes);
    write_on(device, a, filled(5), bytes, 0);
    OK(me->number ? pcclAllReduce(host, host, &d, c, NULL) : pcclAllReduce((void *)a, (void *)a, &d, c, NULL));
    if (me->number)
        TRUE(host[N - 1] == 5);
    else
        expect(device, a, N, 5);

    /* Places that are not multiples of 16, and several operations. */
    list[0].sendbuf = list[0].recvbuf = (void *)(a + 4);
    list[0].descriptor = descriptor(N - 1, pcclSum, 7, pcclFloat);
    list[1].sendbuf = list[1].recvbuf = host;
    list[1].descriptor = descriptor(N, pcclSum, 8, pcclFloat);
    memcpy(host, filled(1), bytes);
    write_on(device, a, filled(2), bytes, 0);
    OK(pcclAllReduceMultipleWithRetry(list, 2, c, NULL, 2));
    expect(device, a, 1, 2);
    expect(device, a + 4, N - 1, 4);
    TRUE(host[0] == 2);

    free_on(device, a);
    free_on(device, b);
    destroy_on(device, s);
}

static void state(struct peer *me) {
    int device = me->number;
    size_t bytes = N * sizeof(float), w = alloc_on(device, bytes);
    float local[2] = {0, 0};
    pcclTensorInfo_t infos[3];
    pcclSharedState_t st = {0, 3, NULL};
    pcclSharedStateSyncInfo_t info;
    infos[0] = tensor("w", w, N, pcclDeviceCuda);
    infos[1] = tensor("local", (size_t)local, 2, pcclDeviceCpu);
    infos[2] = tensor("empty", 0, 0, pcclDeviceCuda);
    st.infos = infos;
    local[0] = local[1] = me->number ? 7.0F : 0.0F;
    st.revision = me->number ? 1 : 0; /* the second peer's state is newer */
    write_on(device, w, filled((float)(me->number * 5)), bytes, 0);
    OK(pcclSynchronizeSharedState(me->c, &st, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, &info));
    expect(device, w, N, 5);
    TRUE(local[1] == 7 && st.revision == 1);
    TRUE(info.rx_bytes == (me->number ? 0 : bytes + sizeof local));

    st.revision++; /* equal: nothing moves */
    OK(pcclSynchronizeSharedState(me->c, &st, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, &info));
    TRUE(info.rx_bytes == 0 && info.tx_bytes == 0);
    free_on(device, w);
}

static void *peer(void *arg) {
    collectives(arg);
    reductions(arg);
    state(arg);
    return NULL;
}

/* Refused before another peer hears of it. */
static void bad_input(pcclComm_t *c) {
    size_t bytes = N * sizeof(float), a = alloc_on(0, bytes), other = alloc_on(1, bytes), gone = alloc_on(0, bytes);
    float host[N];
    int device = 9;
    pcclReduceDescriptor_t d = descriptor(N, pcclSum, 1, pcclFloat);
    pcclTensorInfo_t t;
    pcclSharedState_t st = {0, 1, NULL};
    st.infos = &t;
    free_on(0, gone);

    OK(find_device((void *)(other + 8), &device));
    TRUE(device == 1);
    OK(find_device(host, &device));
    TRUE(device == -1);
    OK(find_device((void *)gone, &device));
    TRUE(device == -1);
    EXPECT(pcclInvalidArgument, find_device(host, NULL));

    EXPECT(pcclInvalidArgument, pcclAllReduce((void *)a, host, &d, c, NULL));
    EXPECT(pcclInvalidArgument, pcclAllReduce(host, (void *)a, &d, c, NULL));
    EXPECT(pcclInvalidArgument, pcclAllReduce((void *)(a + 4), (void *)(a + 4), &d, c, NULL)); /* too short */
    EXPECT(pcclInvalidArgument, pcclAllReduce((void *)a, (void *)(a + 8), &d, c, NULL));

    t = tensor("w", (size_t)host, N, pcclDeviceCuda);
    EXPECT(pcclInvalidArgument, pcclSynchronizeSharedState(c, &st, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, NULL));
    t = tensor("w", a, N, pcclDeviceCpu);
    EXPECT(pcclInvalidArgument, pcclSynchronizeSharedState(c, &st, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, NULL));
    t = tensor("w", gone, N, pcclDeviceCuda);
    EXPECT(pcclInvalidArgument, pcclSynchronizeSharedState(c, &st, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, NULL));
    t = tensor("w", a, N + 1, pcclDeviceCuda);
    EXPECT(pcclInvalidArgument, pcclSynchronizeSharedState(c, &st, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, NULL));
    t = tensor("w", 0, N, pcclDeviceCuda);
    EXPECT(pcclInvalidArgument, pcclSynchronizeSharedState(c, &st, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, NULL));
    free_on(0, a);
    free_on(1, other);
}

int main(int argc, char **argv) {
    pcclMasterInstance_t *m = NULL;
    pcclBuildInfo_t info;
    struct peer peers[2];
    pthread_t t;
    int i, port;
    TRUE(argc == 2);
    port = atoi(argv[1]);
    LOOK_UP(alloc_on, "test_alloc");
    LOOK_UP(free_on, "test_free");
    LOOK_UP(stream_on, "test_stream");
    LOOK_UP(destroy_on, "test_destroy");
    LOOK_UP(write_on, "test_write");
    LOOK_UP(read_on, "test_read");
    LOOK_UP(left, "test_left");
    LOOK_UP(set_stream, "gopcclSetStream");
    LOOK_UP(find_device, "gopcclFindDevice");
    OK(pcclInit());
    OK(pcclGetBuildInfo(&info));
    TRUE(info.has_cuda_support);
    OK(pcclCreateMaster(loopback(port), &m));
    OK(pcclRunMaster(m));
    for (i = 0; i < 2; i++) {
        peers[i].c = communicator(loopback(port));
        peers[i].number = i;
    }
    connect_both(peers[0].c, peers[1].c);
    bad_input(peers[0].c);
    TRUE(pthread_create(&t, NULL, peer, &peers[1]) == 0);
    peer(&peers[0]);
    TRUE(pthread_join(t, NULL) == 0);
    for (i = 0; i < 2; i++) OK(pcclDestroyCommunicator(peers[i].c));
    OK(pcclDestroyMaster(m));
    EXPECT(0, left());
    printf("passed\n");
    return 0;
}
