/* Checkpoints of a shared state: checkpoint PORT. It makes and removes a directory in the system's place for such. */
#define _XOPEN_SOURCE 700
#include <gopccl.h>
#include <unistd.h>

#include "common.h"

static float weights[3];
static int64_t step[1];
static pcclTensorInfo_t infos[2] = {
    {"weights", weights, 3, pcclFloat, pcclDeviceCpu, false},
    {"step", step, 1, pcclInt64, pcclDeviceCpu, false},
};

static void fill(float w, int64_t s) {
    weights[0] = weights[1] = weights[2] = w;
    step[0] = s;
}

int main(void) {
    char dir[] = "/tmp/gopccl-checkpoint-XXXXXX", inside[64], inside_too[64], first[256], second[256], found[256], meta[64], none[1] = {7};
    pcclSharedState_t st = {5, 2, infos};
    size_t size = 0;
    FILE *f;
    TRUE(mkdtemp(dir) != NULL);
    snprintf(inside, sizeof inside, "%s/run", dir);
    snprintf(inside_too, sizeof inside_too, "%s/moved", dir);

    EXPECT(pcclNoSharedStateAvailable, gopcclFindCheckpoint(inside, found, sizeof found, &size));
    fill(1, 10);
    OK(gopcclSaveCheckpoint(&st, inside, 2, "{\"data\":\"at \\u0000 100\"}", first, sizeof first, &size));
    TRUE(size == strlen(first) + 1 && strncmp(first, inside, strlen(inside)) == 0);
    fill(2, 20);
    st.revision = 6;
    OK(gopcclSaveCheckpoint(&st, inside, 2, NULL, second, sizeof second, NULL));
    OK(gopcclFindCheckpoint(inside, found, sizeof found, NULL));
    TRUE(strcmp(found, second) == 0);

    fill(3, 30);
    st.revision = 0;
    OK(gopcclLoadCheckpoint(&st, first, none, sizeof none, &size)); /* no room for the meta data: loaded all the same */
    TRUE(none[0] == 7 && size > sizeof none && weights[2] == 1 && step[0] == 10 && st.revision == 5);
    OK(gopcclLoadCheckpoint(&st, first, meta, sizeof meta, &size));
    TRUE(strcmp(meta, "{\"data\":\"at \\u0000 100\"}") == 0 && size == strlen(meta) + 1);
    OK(gopcclLoadCheckpoint(&st, second, meta, sizeof meta, NULL));
    TRUE(strcmp(meta, "{}") == 0 && weights[0] == 2 && st.revision == 6);

    /* What is not loaded changes nothing. */
    fill(4, 40);
    infos[0].count = 2;
    EXPECT(pcclInvalidArgument, gopcclLoadCheckpoint(&st, first, NULL, 0, NULL));
    TRUE(strstr(gopcclLastError(), "weights") != NULL);
    infos[0].count = 3;
    EXPECT(pcclInvalidArgument, gopcclLoadCheckpoint(&st, "/no/such/file", NULL, 0, NULL));
    EXPECT(pcclInvalidArgument, gopcclLoadCheckpoint(&st, NULL, NULL, 0, NULL));
    EXPECT(pcclInvalidArgument, gopcclLoadCheckpoint(NULL, first, NULL, 0, NULL));
    TRUE((f = fopen(second, "r+")) != NULL && fseek(f, -1, SEEK_END) == 0 && fputc('!', f) == '!' && fclose(f) == 0);
    EXPECT(pcclInternalError, gopcclLoadCheckpoint(&st, second, NULL, 0, NULL));
    TRUE(weights[0] == 4 && step[0] == 40 && st.revision == 6);
    OK(gopcclFindCheckpoint(inside, found, sizeof found, NULL)); /* the damaged one is passed over */
    TRUE(strcmp(found, first) == 0);
    TRUE(rename(first, inside_too) == 0);
    EXPECT(pcclInternalError, gopcclFindCheckpoint(inside, found, sizeof found, NULL)); /* none is sound */
    TRUE(rename(inside_too, first) == 0);

    /* What is torn is not saved, and sound when it was loaded. */
    bool torn[2] = {true, false};
    OK(gopcclSetTorn(&st, torn));
    EXPECT(pcclInvalidUsage, gopcclSaveCheckpoint(&st, inside, 2, NULL, NULL, 0, NULL));
    OK(gopcclLoadCheckpoint(&st, first, NULL, 0, NULL));
    OK(gopcclGetTorn(&st, torn));
    TRUE(!torn[0]);

    EXPECT(pcclInvalidArgument, gopcclSaveCheckpoint(&st, inside, 2, "[1]", NULL, 0, NULL));
    EXPECT(pcclInvalidArgument, gopcclSaveCheckpoint(&st, NULL, 2, NULL, NULL, 0, NULL));
    EXPECT(pcclInvalidArgument, gopcclFindCheckpoint(NULL, NULL, 0, NULL));
    st.revision = 7;
    OK(gopcclSaveCheckpoint(&st, inside, 1, NULL, found, sizeof found, NULL)); /* the others are removed */
    TRUE(access(first, F_OK) != 0 && access(second, F_OK) != 0);
    TRUE(unlink(found) == 0 && rmdir(inside) == 0 && rmdir(dir) == 0);
    puts("passed");
    return 0;
}
