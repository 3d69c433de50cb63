/*
 * cycles PORT COUNT TIMES: creates, connects, reduces and destroys two peers 50 times, and TIMES times COUNT times
 * more. Prints descriptors, threads and resident pages after the first 50 cycles and after each COUNT.
 */
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <time.h>

#include "common.h"

static int entries(const char *dir) {
    DIR *d = opendir(dir);
    int n = 0;
    TRUE(d != NULL);
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

/* The master closes its ends of the last connections in its own time: the fewest of some looks count. */
static void print(void) {
    long total, resident;
    int look, descriptors = entries("/proc/self/fd");
    FILE *f = fopen("/proc/self/statm", "r");
    TRUE(f != NULL);
    EXPECT(2, fscanf(f, "%ld %ld", &total, &resident));
    fclose(f);
    for (look = 0; look < 50; look++) {
        struct timespec moment = {0, 2000000};
        int n = entries("/proc/self/fd");
        if (n < descriptors) descriptors = n;
        nanosleep(&moment, NULL);
    }
    printf("%d %d %ld\n", descriptors, entries("/proc/self/task"), resident);
}

static void *reduce(void *c) {
    enum { N = 10000 };
    float *v = calloc(N, sizeof *v);
    pcclReduceDescriptor_t d = descriptor(N, pcclSum, 1, pcclFloat);
    TRUE(v != NULL);
    v[N - 1] = 1;
    OK(pcclAllReduce(v, v, &d, c, NULL));
    TRUE(v[N - 1] == 2);
    free(v);
    return NULL;
}

int main(int argc, char **argv) {
    pcclMasterInstance_t *m = NULL;
    int port, count, last, i;
    TRUE(argc == 4);
    port = atoi(argv[1]);
    count = atoi(argv[2]);
    last = 50 + atoi(argv[3]) * count;
    OK(pcclInit());
    OK(pcclCreateMaster(loopback(port), &m));
    OK(pcclRunMaster(m));
    for (i = 0; i < last; i++) {
        pthread_t t;
        pcclComm_t *a, *b;
        if (i >= 50 && (i - 50) % count == 0) print();
        a = communicator(loopback(port));
        b = communicator(loopback(port));
        connect_both(a, b);
        TRUE(pthread_create(&t, NULL, reduce, b) == 0);
        reduce(a);
        TRUE(pthread_join(t, NULL) == 0);
        OK(pcclDestroyCommunicator(b));
        OK(pcclDestroyCommunicator(a));
    }
    print();
    OK(pcclDestroyMaster(m));
    return 0;
}
