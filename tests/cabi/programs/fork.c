/*
 * fork PORT: a process that has the library and has not used it forks, and both sides then use it; then the same with a
 * process that is in a run.
 */
#define _POSIX_C_SOURCE 200809L
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

static void *reduce(void *c) {
    float v[100] = {1};
    pcclReduceDescriptor_t d = descriptor(100, pcclSum, 1, pcclFloat);
    OK(pcclAllReduce(v, v, &d, c, NULL));
    TRUE(v[0] == 2);
    return NULL;
}

static void run(int port) {
    pcclMasterInstance_t *m = NULL;
    pcclComm_t *a, *b;
    pthread_t t;
    OK(pcclInit());
    OK(pcclCreateMaster(loopback(port), &m));
    OK(pcclRunMaster(m));
    a = communicator(loopback(port));
    b = communicator(loopback(port));
    connect_both(a, b);
    TRUE(pthread_create(&t, NULL, reduce, b) == 0);
    reduce(a);
    TRUE(pthread_join(t, NULL) == 0);
    OK(pcclDestroyCommunicator(a));
    OK(pcclDestroyCommunicator(b));
    OK(pcclDestroyMaster(m));
}

/* The child, like a worker that loads data, lives on while the parent works and leaves. */
static void fork_in_a_run(int port, int other) {
    pcclMasterInstance_t *m = NULL;
    pcclComm_t *a, *b;
    pthread_t t;
    pid_t child;
    int status = -1, ends[2];
    char end;
    OK(pcclCreateMaster(loopback(port), &m));
    OK(pcclRunMaster(m));
    a = communicator(loopback(port));
    b = communicator(loopback(port));
    connect_both(a, b);
    TRUE(pipe(ends) == 0);
    child = fork();
    if (child == 0) {
        pcclComm_t *own;
        close(ends[1]);
        EXPECT(pcclInvalidArgument, pcclUpdateTopology(a));
        own = communicator(loopback(port));
        EXPECT(pcclInvalidArgument, pcclDestroyCommunicator(a));
        OK(pcclDestroyCommunicator(own));
        run(other);
        TRUE(read(ends[0], &end, 1) == 0);
        _exit(0);
    }
    close(ends[0]);
    TRUE(pthread_create(&t, NULL, reduce, b) == 0);
    reduce(a);
    TRUE(pthread_join(t, NULL) == 0);
    OK(pcclDestroyCommunicator(a));
    while (attribute(b, PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE) != 1) OK(pcclUpdateTopology(b));
    OK(pcclDestroyCommunicator(b));
    OK(pcclDestroyMaster(m));
    close(ends[1]);
    TRUE(waitpid(child, &status, 0) == child);
    EXPECT(0, status);
}

int main(int argc, char **argv) {
    int status = -1;
    pid_t child;
    TRUE(argc == 3);
    child = fork();
    if (child == 0) {
        run(atoi(argv[1]));
        _exit(0);
    }
    TRUE(waitpid(child, &status, 0) == child);
    EXPECT(0, status);
    run(atoi(argv[1]));
    fork_in_a_run(atoi(argv[1]), atoi(argv[2]));
    puts("passed");
    return 0;
}
