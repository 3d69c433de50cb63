/* Heartbeats of masters of libgopccl, by default and where the program says it: heartbeat PORT PORT. Prints both. */
#include <gopccl.h>

#include "common.h"

#define DAY (24ULL * 60 * 60 * 1000)

/* Prints the line of a dump that has the word. */
static void tell(const char *word) {
    static char state[1 << 16];
    char *line, *from, *end;
    TRUE(gopcclDumpState(state, sizeof state) < sizeof state);
    from = strstr(state, word);
    TRUE(from != NULL);
    for (line = from; line > state && line[-1] != '\n'; line--) {
    }
    end = strchr(from, '\n');
    printf("%.*s\n", (int)(end - line), line);
}

/* Two peers of the master at the port. */
static void work(int port) {
    pcclComm_t *a = communicator(loopback(port)), *b = communicator(loopback(port));
    float x[4] = {1, 1, 1, 1}, y[4] = {2, 2, 2, 2};
    pcclReduceDescriptor_t d = descriptor(4, pcclSum, 7, pcclFloat);
    pcclAsyncReduceOp_t h;
    connect_both(a, b);
    OK(pcclAllReduceAsync(x, x, &d, a, &h));
    OK(pcclAllReduce(y, y, &d, b, NULL));
    OK(pcclAwaitAsyncReduce(&h, NULL));
    TRUE(x[0] == 3 && y[3] == 3);
    OK(pcclDestroyCommunicator(a));
    OK(pcclDestroyCommunicator(b));
}

int main(int argc, char **argv) {
    pcclMasterInstance_t *m;
    TRUE(argc == 3);
    OK(pcclInit());
    OK(pcclCreateMaster(loopback(atoi(argv[1])), &m));
    OK(pcclRunMaster(m));
    tell("heartbeats");
    work(atoi(argv[1]));
    EXPECT(pcclInvalidUsage, gopcclSetDefaultHeartbeat(m, 500, 1500));
    OK(pcclDestroyMaster(m));
    OK(pcclCreateMaster(loopback(atoi(argv[2])), &m));
    EXPECT(pcclInvalidArgument, gopcclSetDefaultHeartbeat(NULL, 500, 1500));
    EXPECT(pcclInvalidArgument, gopcclSetDefaultHeartbeat(m, 0, 1500));
    EXPECT(pcclInvalidArgument, gopcclSetDefaultHeartbeat(m, 500, 999));
    EXPECT(pcclInvalidArgument, gopcclSetDefaultHeartbeat(m, 500, DAY + 1));
    EXPECT(pcclInvalidArgument, gopcclSetDefaultHeartbeat(m, ~0ULL, ~0ULL));
    OK(gopcclSetDefaultHeartbeat(m, DAY / 2, DAY));
    OK(gopcclSetDefaultHeartbeat(m, 500, 1500));
    OK(pcclRunMaster(m));
    tell("heartbeats");
    work(atoi(argv[2]));
    OK(pcclDestroyMaster(m));
    return 0;
}
