/* What a tag stands for, from its launch until it was awaited: tags PORT. */
#define _POSIX_C_SOURCE 200809L
#include "common.h"

enum { WAITERS = 4 };

static pcclComm_t *a, *b;
static float x[8], y[8], z[8];

static void fill(float *p, float v) {
    for (int i = 0; i < 8; i++) p[i] = v;
}

static void *reduce_of_b(void *tag) {
    pcclReduceDescriptor_t d = descriptor(8, pcclSum, (uint64_t)(uintptr_t)tag, pcclFloat);
    fill(y, 10);
    OK(pcclAllReduce(y, y, &d, b, NULL));
    return NULL;
}

static void both(uint64_t tag) {
    pthread_t t;
    TRUE(pthread_create(&t, NULL, reduce_of_b, (void *)(uintptr_t)tag) == 0);
    TRUE(pthread_join(t, NULL) == 0);
}

/* A tag that was not awaited is refused, whether or not its operation has ended. */
static void one_tag_twice(void) {
    pcclReduceDescriptor_t d = descriptor(8, pcclSum, 0, pcclFloat);
    pcclReduceOpDescriptor_t op;
    pcclAsyncReduceOp_t first, second;
    pcclReduceInfo_t info = {0, 0, 0};
    fill(x, 1);
    OK(pcclAllReduceAsync(x, x, &d, a, &first));
    EXPECT(pcclInvalidArgument, pcclAllReduceAsync(z, z, &d, a, &second));
    both(0); /* it has ended now, or is about to */
    EXPECT(pcclInvalidArgument, pcclAllReduceAsync(z, z, &d, a, &second));
    EXPECT(pcclInvalidArgument, pcclAllReduce(z, z, &d, a, NULL));
    op.sendbuf = op.recvbuf = z;
    op.descriptor = d;
    EXPECT(pcclInvalidArgument, pcclAllReduceMultipleWithRetry(&op, 1, a, NULL, 1));
    OK(pcclAwaitAsyncReduce(&first, &info));
    EXPECT(2, info.local_world_size);
    TRUE(x[0] == 11);
    EXPECT(pcclInvalidUsage, pcclAwaitAsyncReduce(&first, NULL)); /* once */

    fill(z, 2); /* and free again */
    OK(pcclAllReduceAsync(z, z, &d, a, &second));
    both(0);
    OK(pcclAwaitAsyncReduce(&second, NULL));
    TRUE(z[0] == 12);
}

static pthread_barrier_t start;
static pcclAsyncReduceOp_t shared;
static pcclResult_t results[WAITERS];

static void *wait_for_it(void *i) {
    pcclReduceInfo_t info = {0, 0, 0};
    pthread_barrier_wait(&start);
    results[(uintptr_t)i] = pcclAwaitAsyncReduce(&shared, &info);
    return NULL;
}

/* A thread that waits for an operation in flight gets its verdict, also beside others. */
static void several_waiters(void) {
    for (uint64_t tag = 1; tag <= 20; tag++) {
        pcclReduceDescriptor_t d = descriptor(8, pcclSum, tag, pcclFloat);
        pthread_t t[WAITERS];
        uintptr_t i;
        int good = 0;
        fill(x, 1);
        OK(pcclAllReduceAsync(x, x, &d, a, &shared));
        TRUE(pthread_barrier_init(&start, NULL, WAITERS + 1) == 0);
        for (i = 0; i < WAITERS; i++) TRUE(pthread_create(&t[i], NULL, wait_for_it, (void *)i) == 0);
        pthread_barrier_wait(&start);
        both(tag);
        for (i = 0; i < WAITERS; i++) TRUE(pthread_join(t[i], NULL) == 0);
        for (i = 0; i < WAITERS; i++) {
            /* One that came behind the verdict is told that it was too late, never that the operation failed. */
            TRUE(results[i] == pcclSuccess || results[i] == pcclInvalidUsage);
            good += results[i] == pcclSuccess;
        }
        TRUE(good > 0 && x[0] == 11);
        pthread_barrier_destroy(&start);
    }
}

static void *update(void *c) {
    OK(pcclUpdateTopology((pcclComm_t *)c));
    return NULL;
}

int main(int argc, char **argv) {
    ccoip_socket_address_t at = loopback(argc > 1 ? atoi(argv[1]) : 48148);
    pcclMasterInstance_t *m;
    pthread_t t;
    OK(pcclInit());
    OK(pcclCreateMaster(at, &m));
    OK(pcclRunMaster(m));
    a = communicator(at);
    b = communicator(at);
    connect_both(a, b);
    one_tag_twice();
    several_waiters();
    /* Nothing is left that was not awaited. */
    TRUE(pthread_create(&t, NULL, update, b) == 0);
    OK(pcclUpdateTopology(a));
    TRUE(pthread_join(t, NULL) == 0);
    OK(pcclDestroyCommunicator(a));
    OK(pcclDestroyCommunicator(b));
    OK(pcclDestroyMaster(m));
    puts("passed");
    return 0;
}
