/*
 * load LIBRARY [NAME=VALUE | NAME...]: loads the library, sets or removes variables, creates a communicator; prints the
 * result.
 */
#define _XOPEN_SOURCE 700
#include <dlfcn.h>
#include <pccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRUE(what)                                 \
    do {                                           \
        if (!(what)) {                             \
            fprintf(stderr, "not %s\n", #what);    \
            exit(1);                               \
        }                                          \
    } while (0)

int main(int argc, char **argv) {
    pcclResult_t (*init)(void);
    pcclResult_t (*create)(const pcclCommCreateParams_t *, pcclComm_t **);
    pcclCommCreateParams_t p;
    pcclComm_t *c = NULL;
    void *lib;
    int i;
    TRUE(argc > 1);
    lib = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (lib == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    for (i = 2; i < argc; i++) TRUE(putenv(argv[i]) == 0); /* after loading: read when needed */
    *(void **)&init = dlsym(lib, "pcclInit");
    *(void **)&create = dlsym(lib, "pcclCreateCommunicator");
    TRUE(init != NULL && create != NULL);
    memset(&p, 0, sizeof p);
    p.master_address.port = 1;
    TRUE(init() == pcclSuccess);
    printf("%d\n", (int)create(&p, &c));
    return 0;
}
