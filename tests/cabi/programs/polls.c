/* What libgopccl has beyond PCCL's interface: polls PORT. */
#define _POSIX_C_SOURCE 200809L
#include <gopccl.h>
#include <time.h>

#include "common.h"

static pcclMasterInstance_t *m;
static volatile int inside, release, give_up;

static void pause_for(long milliseconds) {
    struct timespec t = {0, 0};
    t.tv_nsec = milliseconds * 1000000;
    nanosleep(&t, NULL);
}

static int get(volatile int *v) { return __atomic_load_n(v, __ATOMIC_SEQ_CST); }
static void set(volatile int *v, int to) { __atomic_store_n(v, to, __ATOMIC_SEQ_CST); }

static int slow(void) {
    set(&inside, 1);
    while (!get(&release)) pause_for(1);
    set(&inside, 0);
    return 0;
}

static int answer(void) { return get(&give_up); }

static void *await_master(void *want) {
    EXPECT((int)(intptr_t)want, pcclMasterAwaitTermination(m));
    return NULL;
}

static void *take_back(void *unused) {
    gopcclSetPoll(NULL);
    TRUE(!get(&inside)); /* nobody is in the function that was there */
    return unused;
}

static void taking_the_function_back(void) {
    pthread_t waits, takes;
    gopcclSetPoll(slow);
    TRUE(pthread_create(&waits, NULL, await_master, (void *)(intptr_t)pcclSuccess) == 0);
    while (!get(&inside)) pause_for(1);
    TRUE(pthread_create(&takes, NULL, take_back, NULL) == 0);
    pause_for(100); /* it may return now, but must not */
    set(&release, 1);
    TRUE(pthread_join(takes, NULL) == 0);
    OK(pcclInterruptMaster(m));
    TRUE(pthread_join(waits, NULL) == 0);
}

static void giving_up(ccoip_socket_address_t at) {
    pthread_t waits;
    OK(pcclCreateMaster(at, &m));
    OK(pcclRunMaster(m));
    gopcclSetPoll(answer);
    TRUE(pthread_create(&waits, NULL, await_master, (void *)(intptr_t)pcclInvalidUsage) == 0);
    set(&give_up, 1);
    TRUE(pthread_join(waits, NULL) == 0);
    set(&give_up, 0);
    gopcclSetPoll(NULL);
}

static void dumps(pcclComm_t *a, pcclComm_t *b) {
    static char text[1 << 16];
    char little[8];
    float x[4] = {1, 1, 1, 1}, y[4] = {2, 2, 2, 2};
    pcclReduceDescriptor_t d = descriptor(4, pcclSum, 4711, pcclFloat);
    pcclAsyncReduceOp_t h;
    gopcclAsyncReduce_t list[2];
    gopcclVerdict_t v = {false, pcclSuccess, {0, 0, 0}};
    size_t n = 9;
    OK(pcclAllReduceAsync(x, x, &d, a, &h));
    OK(gopcclListAsyncReduces(a, list, 2, &n));
    TRUE(n == 1 && list[0].tag == 4711 && !list[0].ended);
    OK(gopcclListAsyncReduces(b, NULL, 0, &n));
    TRUE(n == 0);
    EXPECT(pcclInvalidArgument, gopcclListAsyncReduces(a, NULL, 1, &n));
    EXPECT(pcclInvalidArgument, gopcclListAsyncReduces(a, NULL, 0, NULL));
    TRUE(gopcclDumpState(NULL, 0) > 100);
    n = gopcclDumpState(text, sizeof text);
    TRUE(n == strlen(text));
    TRUE(strstr(text, "operation tag 4711") && strstr(text, "master at 127.0.0.1:"));
    TRUE(gopcclDumpState(little, sizeof little) > sizeof little);
    TRUE(strlen(little) == sizeof little - 1 && memcmp(little, text, sizeof little - 1) == 0);
    OK(pcclAllReduce(y, y, &d, b, NULL));
    OK(gopcclAwaitAsyncReduce(&h, &v));
    TRUE(v.known && v.result == pcclSuccess && v.info.local_world_size == 2 && x[0] == 3);
    v.known = false;
    EXPECT(pcclInvalidUsage, gopcclAwaitAsyncReduce(&h, &v));
    TRUE(!v.known);
    OK(gopcclWaitForPeers(a, 2));
    EXPECT(pcclInvalidArgument, gopcclWaitForPeers(NULL, 2));
    OK(gopcclLeave(b));
    EXPECT(pcclInvalidUsage, gopcclLeave(b));
    EXPECT(pcclInvalidArgument, gopcclLeave(NULL));
    TRUE(pcclAllReduce(y, y, &d, a, NULL) != pcclSuccess);
}

int main(int argc, char **argv) {
    int port = argc > 1 ? atoi(argv[1]) : 48148;
    pcclComm_t *a, *b;
    OK(pcclInit());
    OK(pcclCreateMaster(loopback(port), &m));
    OK(pcclRunMaster(m));
    taking_the_function_back();
    OK(pcclDestroyMaster(m));
    giving_up(loopback(port));
    a = communicator(loopback(port));
    b = communicator(loopback(port));
    connect_both(a, b);
    dumps(a, b);
    OK(pcclDestroyCommunicator(a));
    OK(pcclDestroyCommunicator(b));
    OK(pcclDestroyMaster(m));
    puts("passed");
    return 0;
}
