/* A run in TLS: secure PORT HEAD ENROLL FIRST SECOND JOIN; what is - is left to the environment. */
#include <gopccl.h>

#include "common.h"

static const char *given(const char *text) { return strcmp(text, "-") ? text : NULL; }

int main(int argc, char **argv) {
    static const char rubbish[] = "gopccl1.rubbish-that-is-not-told";
    pcclMasterInstance_t *m;
    pcclComm_t *a, *b;
    float x[4] = {1, 1, 1, 1}, y[4] = {2, 2, 2, 2};
    pcclReduceDescriptor_t d = descriptor(4, pcclSum, 7, pcclFloat);
    pcclAsyncReduceOp_t h;
    int port;
    TRUE(argc == 7);
    port = atoi(argv[1]);
    OK(pcclInit());
    OK(pcclCreateMaster(loopback(port), &m));
    EXPECT(pcclInvalidArgument, gopcclSetMasterCredential(m, NULL, NULL));
    EXPECT(pcclInvalidArgument, gopcclSetMasterCredential(NULL, argv[2], NULL));
    OK(gopcclSetMasterCredential(m, given(argv[2]), given(argv[3])));
    OK(pcclRunMaster(m));
    EXPECT(pcclInvalidUsage, gopcclSetMasterCredential(m, argv[2], NULL));

    a = communicator(loopback(port));
    b = communicator(loopback(port));
    EXPECT(pcclInvalidArgument, gopcclSetCredential(a, NULL, NULL));
    EXPECT(pcclInvalidArgument, gopcclSetCredential(NULL, argv[4], NULL));
    EXPECT(pcclInvalidArgument, gopcclSetCredential(a, NULL, rubbish));
    TRUE(strstr(gopcclLastError(), "join") && !strstr(gopcclLastError(), "rubbish"));
    if (given(argv[4])) OK(gopcclSetCredential(a, argv[4], NULL));
    OK(gopcclSetCredential(b, argv[5], given(argv[6])));
    connect_both(a, b);
    EXPECT(pcclInvalidUsage, gopcclSetCredential(a, argv[4], NULL));
    OK(pcclAllReduceAsync(x, x, &d, a, &h));
    OK(pcclAllReduce(y, y, &d, b, NULL));
    OK(pcclAwaitAsyncReduce(&h, NULL));
    TRUE(x[0] == 3 && y[3] == 3);
    OK(pcclDestroyCommunicator(a));
    OK(pcclDestroyCommunicator(b));
    OK(pcclDestroyMaster(m));
    puts("passed");
    return 0;
}
