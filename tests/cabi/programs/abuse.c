/* What bad input gets: abuse PORT. Every call returns; nothing crashes, hangs or ends the process. */
#define _POSIX_C_SOURCE 200809L
#include <time.h>

#include "common.h"
#include "layout.h"

static float v[8];
static int dummy;

/* Calls that refuse a communicator get want for c. */
static void refuse(pcclResult_t want, pcclComm_t *c) {
    pcclReduceDescriptor_t d = descriptor(8, pcclSum, 1, pcclFloat);
    pcclReduceOpDescriptor_t op;
    pcclAsyncReduceOp_t h;
    pcclTensorInfo_t t = {"a", NULL, 0, pcclFloat, pcclDeviceCpu, false};
    pcclSharedState_t s = {0, 1, NULL};
    bool b;
    int n;
    s.infos = &t;
    op.sendbuf = op.recvbuf = v;
    op.descriptor = d;
    EXPECT(want, pcclGetAttribute(c, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE, &n));
    EXPECT(want, pcclUpdateTopology(c));
    EXPECT(want, pcclArePeersPending(c, &b));
    EXPECT(want, pcclOptimizeTopology(c));
    EXPECT(want, pcclAllReduce(v, v, &d, c, NULL));
    EXPECT(want, pcclAllReduceAsync(v, v, &d, c, &h));
    EXPECT(want, pcclAllReduceMultipleWithRetry(&op, 1, c, NULL, 1));
    h.comm = c;
    h.tag = 1;
    EXPECT(want, pcclAwaitAsyncReduce(&h, NULL));
    EXPECT(want, pcclSynchronizeSharedState(c, &s, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, NULL));
}

static void not_a_communicator(pcclComm_t *c) {
    EXPECT(pcclInvalidArgument, pcclConnect(c));
    EXPECT(pcclInvalidArgument, pcclDestroyCommunicator(c));
    refuse(pcclInvalidArgument, c);
}

static void not_a_master(pcclMasterInstance_t *m) {
    EXPECT(pcclInvalidArgument, pcclRunMaster(m));
    EXPECT(pcclInvalidArgument, pcclInterruptMaster(m));
    EXPECT(pcclInvalidArgument, pcclMasterAwaitTermination(m));
    EXPECT(pcclInvalidArgument, pcclDestroyMaster(m));
}

static void before_init(void) {
    pcclCommCreateParams_t p;
    pcclComm_t *c = NULL;
    pcclBuildInfo_t info;
    memset(&p, 0, sizeof p);
    EXPECT(pcclNotInitialized, pcclCreateCommunicator(&p, &c));
    EXPECT(pcclNotInitialized, pcclConnect(NULL));
    EXPECT(pcclNotInitialized, pcclDestroyCommunicator(NULL));
    refuse(pcclNotInitialized, NULL);
    OK(pcclGetBuildInfo(&info));
    EXPECT(pcclInvalidArgument, pcclGetBuildInfo(NULL));
}

static void *await_until_interrupted(void *m) {
    OK(pcclMasterAwaitTermination(m));
    return NULL;
}

static void masters(int port) {
    pcclMasterInstance_t *m = NULL, *second = NULL;
    ccoip_socket_address_t nowhere = loopback(port);
    pthread_t t;
    EXPECT(pcclInvalidArgument, pcclCreateMaster(loopback(port), NULL));
    not_a_master(NULL);
    not_a_master((pcclMasterInstance_t *)&dummy);
    nowhere.inet.protocol = (ccoip_inet_protocol_t)5;
    OK(pcclCreateMaster(nowhere, &m));
    EXPECT(pcclInvalidUsage, pcclRunMaster(m));
    OK(pcclDestroyMaster(m));

    OK(pcclCreateMaster(loopback(port), &m));
    EXPECT(pcclInvalidUsage, pcclInterruptMaster(m));
    EXPECT(pcclInvalidUsage, pcclMasterAwaitTermination(m));
    OK(pcclRunMaster(m));
    EXPECT(pcclInvalidUsage, pcclRunMaster(m));
    OK(pcclCreateMaster(loopback(port), &second));
    EXPECT(pcclInvalidUsage, pcclRunMaster(second)); /* the port is taken */
    OK(pcclDestroyMaster(second));
    TRUE(pthread_create(&t, NULL, await_until_interrupted, m) == 0);
    OK(pcclInterruptMaster(m));
    OK(pcclInterruptMaster(m));
    TRUE(pthread_join(t, NULL) == 0);
    OK(pcclMasterAwaitTermination(m));
    EXPECT(pcclInvalidUsage, pcclRunMaster(m));
    OK(pcclDestroyMaster(m));
    not_a_master(m);
}

static void unconnected(int port) {
    pcclCommCreateParams_t p;
    pcclComm_t *c = NULL;
    pcclReduceDescriptor_t d = descriptor(8, pcclSum, 1, (pcclDataType_t)99);
    memset(&p, 0, sizeof p);
    p.master_address = loopback(port);
    EXPECT(pcclInvalidArgument, pcclCreateCommunicator(NULL, &c));
    EXPECT(pcclInvalidArgument, pcclCreateCommunicator(&p, NULL));
    p.master_address.inet.protocol = (ccoip_inet_protocol_t)7;
    EXPECT(pcclInvalidArgument, pcclCreateCommunicator(&p, &c));
    not_a_communicator(NULL);
    not_a_communicator((pcclComm_t *)&dummy);
    not_a_communicator((pcclComm_t *)(uintptr_t)1);
    not_a_communicator((pcclComm_t *)UINTPTR_MAX);
    EXPECT(pcclInvalidArgument, pcclAwaitAsyncReduce(NULL, NULL));

    c = communicator(loopback(port));
    not_a_master((pcclMasterInstance_t *)c);
    refuse(pcclInvalidUsage, c);
    EXPECT(pcclInvalidUsage, pcclGetAttribute(c, (pcclAttribute_t)9, NULL));
    EXPECT(pcclInvalidArgument, pcclArePeersPending(c, NULL));
    EXPECT(pcclInvalidUsage, pcclAllReduce(v, v, &d, c, NULL));
    EXPECT(pcclMasterConnectionFailed, pcclConnect(c)); /* nobody listens */
    EXPECT(pcclMasterConnectionFailed, pcclConnect(c));
    OK(pcclDestroyCommunicator(c));
    not_a_communicator(c);
}

static void reductions(pcclComm_t *c) {
    pcclReduceDescriptor_t d = descriptor(8, pcclSum, 1, pcclFloat), bad;
    pcclReduceOpDescriptor_t ops[2];
    pcclAsyncReduceOp_t h, never;
    never.comm = c;
    never.tag = 4711;
    EXPECT(pcclInvalidArgument, pcclAllReduce(NULL, v, &d, c, NULL));
    EXPECT(pcclInvalidArgument, pcclAllReduce(v, NULL, &d, c, NULL));
    EXPECT(pcclInvalidArgument, pcclAllReduce(v, v, NULL, c, NULL));
    EXPECT(pcclInvalidArgument, pcclAllReduceAsync(v, v, &d, c, NULL));
    EXPECT(pcclInvalidArgument, pcclAllReduceAsync(v, v, NULL, c, &h));
    bad = d, bad.op = (pcclRedOp_t)5;
    EXPECT(pcclInvalidArgument, pcclAllReduce(v, v, &bad, c, NULL));
    bad = d, bad.op = (pcclRedOp_t)-1;
    EXPECT(pcclInvalidArgument, pcclAllReduce(v, v, &bad, c, NULL));
    bad = d, bad.src_descriptor.datatype = (pcclDataType_t)12;
    EXPECT(pcclInvalidArgument, pcclAllReduce(v, v, &bad, c, NULL));
    bad = d, bad.src_descriptor.datatype = (pcclDataType_t)256;
    EXPECT(pcclInvalidArgument, pcclAllReduce(v, v, &bad, c, NULL));
    bad = d, bad.quantization_options.algorithm = (pcclQuantizationAlgorithm_t)3;
    EXPECT(pcclInvalidArgument, pcclAllReduceAsync(v, v, &bad, c, &h));
    bad = d, bad.quantization_options.quantized_datatype = (pcclDataType_t)77;
    EXPECT(pcclInvalidArgument, pcclAllReduce(v, v, &bad, c, NULL));
    bad = d, bad.quantization_options.algorithm = pcclQuantMinMax; /* to float */
    EXPECT(pcclInvalidArgument, pcclAllReduce(v, v, &bad, c, NULL));
    bad = d, bad.count = SIZE_MAX;
    EXPECT(pcclInvalidArgument, pcclAllReduce(v, v, &bad, c, NULL));
    bad = d, bad.count = SIZE_MAX / 4;
    EXPECT(pcclInvalidArgument, pcclAllReduce(v, v, &bad, c, NULL));
    bad = d, bad.count = (size_t)1 << 59;
    EXPECT(pcclInvalidArgument, pcclAllReduce(v, v, &bad, c, NULL));
    bad = d, bad.count = 4;
    EXPECT(pcclInvalidArgument, pcclAllReduce(v, v + 1, &bad, c, NULL)); /* overlap by a part */
    EXPECT(pcclInvalidUsage, pcclAwaitAsyncReduce(&never, NULL));

    ops[0].sendbuf = ops[0].recvbuf = v;
    ops[0].descriptor = d;
    ops[1] = ops[0];
    EXPECT(pcclInvalidArgument, pcclAllReduceMultipleWithRetry(NULL, 1, c, NULL, 1));
    EXPECT(pcclInvalidArgument, pcclAllReduceMultipleWithRetry(ops, 0, c, NULL, 1));
    EXPECT(pcclInvalidArgument, pcclAllReduceMultipleWithRetry(ops, SIZE_MAX, c, NULL, 1));
    EXPECT(pcclInvalidArgument, pcclAllReduceMultipleWithRetry(ops, 1, c, NULL, 0));
    EXPECT(pcclInvalidArgument, pcclAllReduceMultipleWithRetry(ops, 1, c, NULL, -3));
    EXPECT(pcclInvalidArgument, pcclAllReduceMultipleWithRetry(ops, 2, c, NULL, 2)); /* one tag twice */
}

static void states(pcclComm_t *c) {
    pcclTensorInfo_t t[2] = {{"a", v, 8, pcclFloat, pcclDeviceCpu, false}, {"b", v, 8, pcclFloat, pcclDeviceCpu, false}};
    pcclSharedState_t s = {0, 2, NULL};
    const pcclSharedStateSyncStrategy_t popular = PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR;
    EXPECT(pcclInvalidArgument, pcclSynchronizeSharedState(c, NULL, popular, NULL));
    EXPECT(pcclInvalidArgument, pcclSynchronizeSharedState(c, &s, popular, NULL));
    s.infos = t;
    s.count = SIZE_MAX;
    EXPECT(pcclInvalidArgument, pcclSynchronizeSharedState(c, &s, popular, NULL));
    s.count = 0;
    EXPECT(pcclInvalidUsage, pcclSynchronizeSharedState(c, &s, popular, NULL));
    s.count = 2;
    EXPECT(pcclInvalidArgument, pcclSynchronizeSharedState(c, &s, (pcclSharedStateSyncStrategy_t)3, NULL));
    t[1].name = "a";
    EXPECT(pcclInvalidUsage, pcclSynchronizeSharedState(c, &s, popular, NULL));
    t[1].name = NULL;
    EXPECT(pcclInvalidArgument, pcclSynchronizeSharedState(c, &s, popular, NULL));
    t[1].name = "b";
    t[1].data = NULL;
    EXPECT(pcclInvalidArgument, pcclSynchronizeSharedState(c, &s, popular, NULL));
    t[1].data = v;
    t[1].device_type = pcclDeviceCuda;
    EXPECT(pcclInvalidArgument, pcclSynchronizeSharedState(c, &s, popular, NULL));
    t[1].device_type = (pcclDeviceType_t)2;
    EXPECT(pcclInvalidArgument, pcclSynchronizeSharedState(c, &s, popular, NULL));
    t[1].device_type = pcclDeviceCpu;
    t[1].datatype = (pcclDataType_t)-1;
    EXPECT(pcclInvalidArgument, pcclSynchronizeSharedState(c, &s, popular, NULL));
    t[1].datatype = pcclFloat;
    t[1].count = SIZE_MAX;
    EXPECT(pcclInvalidArgument, pcclSynchronizeSharedState(c, &s, popular, NULL));
}

/* Alone in the world. */
static void alone(pcclComm_t *c) {
    pcclReduceDescriptor_t d = descriptor(8, pcclSum, 1, pcclFloat);
    pcclReduceOpDescriptor_t op;
    pcclAsyncReduceOp_t h;
    pcclTensorInfo_t t = {"a", v, 8, pcclFloat, pcclDeviceCpu, false};
    pcclSharedState_t s = {0, 1, NULL};
    s.infos = &t;
    op.sendbuf = op.recvbuf = v;
    op.descriptor = d;
    EXPECT(pcclInvalidUsage, pcclConnect(c));
    EXPECT(pcclInvalidArgument, pcclGetAttribute(c, (pcclAttribute_t)0, &dummy));
    EXPECT(pcclInvalidArgument, pcclGetAttribute(c, (pcclAttribute_t)5, &dummy));
    EXPECT(pcclInvalidArgument, pcclGetAttribute(c, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE, NULL));
    EXPECT(pcclTooFewPeers, pcclAllReduce(v, v, &d, c, NULL));
    EXPECT(pcclTooFewPeers, pcclAllReduceAsync(v, v, &d, c, &h));
    EXPECT(pcclTooFewPeers, pcclAllReduceMultipleWithRetry(&op, 1, c, NULL, 1));
    EXPECT(pcclInvalidUsage, pcclOptimizeTopology(c));
    OK(pcclUpdateTopology(c));
    OK(pcclSynchronizeSharedState(c, &s, PCCL_SHARED_STATE_SYNC_STRATEGY_ENFORCE_POPULAR, NULL));
}

static void pause_a_moment(void) {
    struct timespec moment = {0, 50000000}; /* most likely the call is on its way then; the result is the same */
    nanosleep(&moment, NULL);
}

static void *reduce_alone(void *arg) {
    pcclReduceDescriptor_t d = descriptor(0, pcclSum, 9, pcclFloat);
    OK(pcclAllReduce(NULL, NULL, &d, arg, NULL)); /* no elements: no buffers */
    return NULL;
}

static void *update_until_destroyed(void *arg) {
    EXPECT(pcclInvalidUsage, pcclArePeersPending(arg, (bool *)&dummy));
    return NULL;
}

static void *many_calls(void *arg) {
    int i;
    for (i = 0; i < 1000; i++) {
        bool b;
        pcclResult_t r = pcclGetAttribute(arg, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE, (int[1]){0});
        TRUE(r == pcclSuccess || r == pcclInvalidArgument);
        r = pcclArePeersPending(NULL, &b);
        EXPECT(pcclInvalidArgument, r);
    }
    return NULL;
}

static void two(pcclComm_t *a, pcclComm_t *b) {
    pcclReduceDescriptor_t d = descriptor(8, pcclSum, 3, pcclFloat);
    pcclAsyncReduceOp_t first, second;
    pthread_t t, more[4];
    float w[8] = {0};
    int i;
    TRUE(pthread_create(&t, NULL, reduce_alone, b) == 0);
    reduce_alone(a);
    TRUE(pthread_join(t, NULL) == 0);

    OK(pcclAllReduceAsync(v, v, &d, a, &first));
    EXPECT(pcclInvalidArgument, pcclAllReduceAsync(w, w, &d, a, &second)); /* the tag is in flight */
    EXPECT(pcclPendingAsyncOps, pcclUpdateTopology(a));
    OK(pcclAllReduceAsync(w, w, &d, b, &second));
    OK(pcclAwaitAsyncReduce(&first, NULL));
    OK(pcclAwaitAsyncReduce(&second, NULL));

    /* a asks, b does not: a waits until its communicator is destroyed. */
    for (i = 0; i < 4; i++) TRUE(pthread_create(&more[i], NULL, many_calls, i % 2 ? a : b) == 0);
    TRUE(pthread_create(&t, NULL, update_until_destroyed, a) == 0);
    pause_a_moment();
    EXPECT(pcclSuccess, pcclDestroyCommunicator(a));
    TRUE(pthread_join(t, NULL) == 0);
    for (i = 0; i < 4; i++) TRUE(pthread_join(more[i], NULL) == 0);
    not_a_communicator(a);
}

static void *connect_until_destroyed(void *arg) {
    pcclResult_t r = pcclConnect(arg);
    TRUE(r == pcclInvalidUsage || r == pcclInvalidArgument); /* the latter if it began after the end */
    return NULL;
}

static void *reduce_until_destroyed(void *arg) {
    pcclReduceDescriptor_t d = descriptor(8, pcclSum, 3, pcclFloat);
    TRUE(pcclAllReduce(v, v, &d, arg, NULL) != pcclSuccess);
    return NULL;
}

/* The peer before it left amid a round, and may have had its address: the next peer there is told to come again. */
static void *connect_again(void *c) {
    pcclResult_t r = pcclConnect(c);
    int i;
    for (i = 0; r == pcclMasterConnectionFailed && i < 100; i++) {
        pause_a_moment();
        r = pcclConnect(c);
    }
    OK(r);
    return NULL;
}

/* Calls that wait for other peers end with their communicator. b stays. */
static void interrupted(pcclComm_t *b, int port) {
    pthread_t t;
    pcclComm_t *c = communicator(loopback(port));
    TRUE(pthread_create(&t, NULL, connect_until_destroyed, c) == 0); /* b does not let it in */
    pause_a_moment();
    OK(pcclDestroyCommunicator(c));
    TRUE(pthread_join(t, NULL) == 0);

    do OK(pcclUpdateTopology(b));
    while (attribute(b, PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE) != 1);
    c = communicator(loopback(port));
    TRUE(pthread_create(&t, NULL, connect_again, c) == 0);
    wait_for_world(b, 2);
    TRUE(pthread_join(t, NULL) == 0);
    TRUE(pthread_create(&t, NULL, reduce_until_destroyed, c) == 0); /* b does not reduce */
    pause_a_moment();
    OK(pcclDestroyCommunicator(c));
    TRUE(pthread_join(t, NULL) == 0);
}

/* The run is lost: control spec, section 13.5. */
static void lost(pcclComm_t *c, pcclMasterInstance_t *m) {
    bool b;
    int n;
    OK(pcclDestroyMaster(m)); /* it runs */
    not_a_master(m);
    EXPECT(pcclUpdateTopologyFailed, pcclUpdateTopology(c));
    EXPECT(pcclInvalidUsage, pcclArePeersPending(c, &b));
    EXPECT(pcclInvalidUsage, pcclConnect(c));
    OK(pcclGetAttribute(c, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE, &n));
    OK(pcclDestroyCommunicator(c));
    EXPECT(pcclInvalidArgument, pcclDestroyCommunicator(c));
}

int main(int argc, char **argv) {
    pcclMasterInstance_t *m = NULL;
    pcclComm_t *a, *b;
    int port;
    TRUE(argc == 2);
    port = atoi(argv[1]);
    before_init();
    masters(port);
    OK(pcclInit());
    OK(pcclInit());
    unconnected(port);
    OK(pcclCreateMaster(loopback(port), &m));
    not_a_communicator((pcclComm_t *)m);
    OK(pcclRunMaster(m));
    a = communicator(loopback(port));
    b = communicator(loopback(port));
    OK(pcclConnect(a));
    alone(a);
    OK(pcclDestroyCommunicator(a));
    a = communicator(loopback(port));
    connect_both(a, b);
    EXPECT(pcclInvalidUsage, pcclConnect(b));
    reductions(a);
    states(a);
    two(a, b);
    interrupted(b, port);
    lost(b, m);
    puts("passed");
    return 0;
}
