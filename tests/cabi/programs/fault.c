/* A kernel that panics: a result, buffers as before, and the process and the communicator go on: fault PORT */
#define _POSIX_C_SOURCE 200809L
#include "common.h"

enum { N = 1000 };

static void *peer(void *arg) {
    pcclComm_t *c = arg;
    char v[N];
    float f[N];
    int i;
    pcclReduceInfo_t info;
    pcclReduceOpDescriptor_t op;
    pcclReduceDescriptor_t d = descriptor(N, pcclSum, 1, pcclInt8);
    pcclResult_t r;
    memset(v, 7, N);
    r = pcclAllReduce(v, v, &d, c, &info);
    TRUE(r == pcclInternalError || r == pcclRankConnectionLost);
    for (i = 0; i < N; i++) TRUE(v[i] == 7);
    for (i = 0; i < N; i++) f[i] = (float)i;
    op.sendbuf = op.recvbuf = f;
    op.descriptor = descriptor(N, pcclSum, 2, pcclFloat);
    OK(pcclAllReduceMultipleWithRetry(&op, 1, c, &info, 1));
    for (i = 0; i < N; i++) TRUE(f[i] == (float)(2 * i));
    return r == pcclInternalError ? "internal error" : NULL;
}

int main(int argc, char **argv) {
    pcclMasterInstance_t *m;
    pcclComm_t *a, *b;
    pthread_t t;
    void *first, *second;
    TRUE(argc == 2);
    OK(pcclInit());
    OK(pcclCreateMaster(loopback(atoi(argv[1])), &m));
    OK(pcclRunMaster(m));
    a = communicator(loopback(atoi(argv[1])));
    b = communicator(loopback(atoi(argv[1])));
    connect_both(a, b);
    TRUE(pthread_create(&t, NULL, peer, b) == 0);
    first = peer(a);
    TRUE(pthread_join(t, &second) == 0);
    TRUE(first != NULL || second != NULL);
    OK(pcclDestroyCommunicator(a));
    OK(pcclDestroyCommunicator(b));
    OK(pcclInterruptMaster(m));
    OK(pcclMasterAwaitTermination(m));
    OK(pcclDestroyMaster(m));
    puts("passed");
    return 0;
}
