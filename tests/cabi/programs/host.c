/*
 * host PORT: a process that has OpenMP threads, a timer signal that interrupts system calls, a broken standard error,
 * and other peers' worth of threads that come and go.
 */
#define _XOPEN_SOURCE 700
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include "common.h"

static volatile sig_atomic_t ticks;

static void tick(int s) {
    (void)s;
    ticks++;
}

static double openmp(void) {
    double sum = 0;
    int i;
#pragma omp parallel for reduction(+ : sum) num_threads(4)
    for (i = 0; i < 100000; i++) sum += i;
    return sum;
}

static void *reduce(void *c) {
    int i;
    for (i = 0; i < 50; i++) {
        float v[1000] = {1};
        pcclReduceDescriptor_t d = descriptor(1000, pcclSum, 1, pcclFloat);
        OK(pcclAllReduce(v, v, &d, c, NULL));
        TRUE(v[0] == 2);
    }
    return NULL;
}

int main(int argc, char **argv) {
    pcclMasterInstance_t *m = NULL;
    pcclComm_t *a, *b;
    pthread_t t;
    struct sigaction action;
    struct itimerval every = {{0, 2000}, {0, 2000}};
    int ends[2];
    TRUE(argc == 2);
    memset(&action, 0, sizeof action);
    action.sa_handler = tick; /* without SA_RESTART and SA_ONSTACK, as programs do that know nothing of Go */
    TRUE(sigaction(SIGALRM, &action, NULL) == 0);
    TRUE(setitimer(ITIMER_REAL, &every, NULL) == 0);
    TRUE(openmp() == 4999950000.0);

    OK(pcclInit());
    OK(pcclCreateMaster(loopback(atoi(argv[1])), &m));
    OK(pcclRunMaster(m));
    a = communicator(loopback(atoi(argv[1])));
    b = communicator(loopback(atoi(argv[1])));
    connect_both(a, b);
    TRUE(pthread_create(&t, NULL, reduce, b) == 0);
    reduce(a);
    TRUE(pthread_join(t, NULL) == 0);
    TRUE(openmp() == 4999950000.0);

    /* Log lines into a pipe that nobody reads any more. */
    TRUE(signal(SIGPIPE, SIG_DFL) != SIG_ERR);
    TRUE(pipe(ends) == 0 && dup2(ends[1], 2) == 2 && close(ends[0]) == 0 && close(ends[1]) == 0);
    EXPECT(pcclInvalidArgument, pcclConnect(NULL));
    OK(pcclDestroyCommunicator(a));
    OK(pcclDestroyCommunicator(b));
    OK(pcclDestroyMaster(m));
    TRUE(ticks > 0);
    puts("passed");
    return 0;
}
