/* A libnccl that moves nothing: it logs its calls, and fails, waits or hangs as it is told.
 *
 * Compiled by the tests with -DVERSION=code, and lacks what that version of NCCL lacked.
 */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define COMM ((void *)0x7f0123456789UL)
#define PART ((void *)0x7f9876543210UL)

typedef struct { unsigned char internal[128]; } ncclUniqueId;
typedef struct { size_t size; unsigned magic, version; int fields[64]; } ncclConfig_t;

static char history[65536];
static char failing[64], hanging[64];
static int failure, polls, outcome, count = 2, rank = 1, device = 0;
static volatile int released, looks;

static int call(const char *name, const char *format, ...) {
    size_t used = strlen(history);
    va_list arguments;
    va_start(arguments, format);
    used += snprintf(history + used, sizeof history - used, "%s", name);
    used += vsnprintf(history + used, sizeof history - used, format, arguments);
    snprintf(history + used, sizeof history - used, "\n");
    va_end(arguments);
    while (strcmp(name, hanging) == 0 && !released) usleep(1000);
    return strcmp(name, failing) == 0 ? failure : 0;
}

/* What the tests use. */
void stub_reset(void) {
    history[0] = failing[0] = hanging[0] = 0;
    failure = polls = outcome = released = 0;
    count = 2, rank = 1, device = 0;
}
void stub_fail(const char *name, int code) { strcpy(failing, name), failure = code; }
void stub_hang(const char *name) { strcpy(hanging, name); }
void stub_release(void) { released = 1; }
void stub_async(int after, int code) { polls = after, outcome = code; }
void stub_identity(int c, int r, int d) { count = c, rank = r, device = d; }
int stub_looks(void) { return looks; }
const char *stub_history(void) { return history; }

/* What NCCL offers. */
int ncclGetVersion(int *version) { *version = VERSION; return 0; }
const char *ncclGetErrorString(int code) { return code == 6 ? "remote process exited" : "words"; }
int ncclGetUniqueId(ncclUniqueId *id) {
    for (int i = 0; i < 128; i++) id->internal[i] = 128 + i;
    return call("ncclGetUniqueId", "");
}
int ncclCommCount(void *comm, int *n) { *n = count; return call("ncclCommCount", " %p", comm); }
int ncclCommUserRank(void *comm, int *n) { *n = rank; return call("ncclCommUserRank", " %p", comm); }
int ncclCommCuDevice(void *comm, int *n) { *n = device; return call("ncclCommCuDevice", " %p", comm); }
int ncclCommDestroy(void *comm) { return call("ncclCommDestroy", " %p", comm); }
int ncclAllReduce(void *in, void *out, size_t n, int dtype, int op, void *comm, void *stream) {
    return call("ncclAllReduce", " %p %p %zu %d %d %p %p", in, out, n, dtype, op, comm, stream);
}
int ncclReduceScatter(void *in, void *out, size_t n, int dtype, int op, void *comm, void *stream) {
    return call("ncclReduceScatter", " %p %p %zu %d %d %p %p", in, out, n, dtype, op, comm, stream);
}
int ncclBroadcast(void *in, void *out, size_t n, int dtype, int root, void *comm, void *stream) {
    return call("ncclBroadcast", " %p %p %zu %d %d %p %p", in, out, n, dtype, root, comm, stream);
}
int ncclAllGather(void *in, void *out, size_t n, int dtype, void *comm, void *stream) {
    return call("ncclAllGather", " %p %p %zu %d %p %p", in, out, n, dtype, comm, stream);
}
int ncclGroupStart(void) { return call("ncclGroupStart", ""); }
int ncclGroupEnd(void) { return call("ncclGroupEnd", ""); }
#if VERSION >= 2400
int ncclCommAbort(void *comm) { return call("ncclCommAbort", " %p", comm); }
int ncclCommGetAsyncError(void *comm, int *code) {
    (void)comm;
    looks++;
    *code = polls > 0 ? 7 : outcome;
    polls -= polls > 0;
    return 0;
}
#endif
#if VERSION >= 2700
int ncclSend(void *buffer, size_t n, int dtype, int peer, void *comm, void *stream) {
    return call("ncclSend", " %p %zu %d %d %p %p", buffer, n, dtype, peer, comm, stream);
}
int ncclRecv(void *buffer, size_t n, int dtype, int peer, void *comm, void *stream) {
    return call("ncclRecv", " %p %zu %d %d %p %p", buffer, n, dtype, peer, comm, stream);
}
#endif
#if VERSION >= 21300
const char *ncclGetLastError(void *comm) { (void)comm; return "what went wrong last"; }
#endif
#if VERSION >= 21400
static const char *spell(ncclConfig_t *config) {
    static char text[1024];
    if (!config) return "inherited";
    size_t used = snprintf(text, sizeof text, "%zu %x %u", config->size, config->magic, config->version);
    for (size_t i = 0; i < (config->size - 16) / 4; i++)
        used += snprintf(text + used, sizeof text - used, " %d", config->fields[i]);
    return text;
}
int ncclCommInitRankConfig(void **comm, int n, ncclUniqueId id, int r, ncclConfig_t *config) {
    int intact = 1;
    for (int i = 0; i < 128; i++) intact &= id.internal[i] == 128 + i;
    *comm = COMM;
    return call("ncclCommInitRankConfig", " %d %d id:%d config: %s", n, r, intact, spell(config));
}
#endif
#if VERSION >= 21800
int ncclCommSplit(void *comm, int color, int key, void **part, ncclConfig_t *config) {
    *part = color < 0 ? NULL : PART;
    return call("ncclCommSplit", " %p %d %d config: %s", comm, color, key, spell(config));
}
#endif
#if VERSION >= 22803
int ncclAlltoAll(void *in, void *out, size_t n, int dtype, void *comm, void *stream) {
    return call("ncclAlltoAll", " %p %p %zu %d %p %p", in, out, n, dtype, comm, stream);
}
#endif
