/* What communicators of libgopccl do when their master ends: reattach PORT. */
#include <gopccl.h>

#include "common.h"

int main(int argc, char **argv) {
    static char state[1 << 16];
    pcclMasterInstance_t *m;
    pcclComm_t *waits, *ends;
    float x[4] = {1, 1, 1, 1}, y[4] = {2, 2, 2, 2};
    pcclReduceDescriptor_t d = descriptor(4, pcclSum, 7, pcclFloat);
    pcclAsyncReduceOp_t h;
    bool pending;
    int port;
    TRUE(argc == 2);
    port = atoi(argv[1]);
    OK(pcclInit());
    OK(pcclCreateMaster(loopback(port), &m));
    OK(pcclRunMaster(m));
    waits = communicator(loopback(port));
    ends = communicator(loopback(port));
    EXPECT(pcclInvalidArgument, gopcclSetReattachTimeout(NULL, 0));
    EXPECT(pcclInvalidArgument, gopcclSetReattachTimeout(ends, 24 * 60 * 60 * 1000 + 1));
    EXPECT(pcclInvalidArgument, gopcclSetMasters(NULL, "127.0.0.1:1"));
    EXPECT(pcclInvalidArgument, gopcclSetMasters(ends, NULL));
    EXPECT(pcclInvalidArgument, gopcclSetMasters(ends, ""));
    EXPECT(pcclInvalidArgument, gopcclSetMasters(ends, "127.0.0.1:1,there"));
    TRUE(snprintf(state, sizeof state, "127.0.0.1:1, localhost:%d", port) > 0); /* nobody is at the first */
    OK(gopcclSetMasters(ends, state));
    OK(gopcclSetReattachTimeout(ends, 60000));
    OK(gopcclSetReattachTimeout(ends, 0));
    connect_both(waits, ends);
    EXPECT(pcclInvalidUsage, gopcclSetReattachTimeout(ends, 0));
    EXPECT(pcclInvalidUsage, gopcclSetMasters(ends, state));
    OK(pcclAllReduceAsync(x, x, &d, waits, &h));
    OK(pcclAllReduce(y, y, &d, ends, NULL));
    OK(pcclAwaitAsyncReduce(&h, NULL));
    OK(pcclDestroyMaster(m));
    EXPECT(pcclUpdateTopologyFailed, pcclUpdateTopology(ends));
    EXPECT(pcclInvalidUsage, pcclArePeersPending(ends, &pending));
    OK(pcclDestroyCommunicator(ends));
    do {
        TRUE(gopcclDumpState(state, sizeof state) < sizeof state);
    } while (!strstr(state, "no master for "));
    OK(pcclDestroyCommunicator(waits)); /* at once */
    puts("passed");
    return 0;
}
