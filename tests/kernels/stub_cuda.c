// The few functions of the CUDA driver that load and launch, for a machine without one: what a
// launch is given can be read back, and each way in which the driver says no can be asked for.
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CONTEXT ((void *)0xC0)
#define OTHER_CONTEXT ((void *)0xDD)

void *stub_current; // the current context; by pushes
int stub_depth;
int stub_fails_load, stub_fails_launch;
int stub_launches, stub_parameters, stub_second_bytes;
uint64_t stub_sizes[8]; // function, grid x, y, z, threads, shared bytes, stream, context
int64_t stub_values[64];
int stub_dynamic[8]; // by function: what it may use
static char names[8][64];
static int functions;

int cuInit(unsigned flags) { return flags; }
int cuDeviceGet(int *device, int index) { return *device = index, 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = CONTEXT, 0; }
int cuCtxGetCurrent(void **context) { return *context = stub_current, 0; }

int cuCtxPushCurrent_v2(void *context) {
    stub_depth++;
    stub_current = context;
    return 0;
}

int cuCtxPopCurrent_v2(void **context) {
    *context = stub_current;
    stub_depth--;
    stub_current = OTHER_CONTEXT;
    return 0;
}

int cuGetErrorName(int status, const char **name) {
    *name = status == 200 ? "CUDA_ERROR_INVALID_IMAGE" : "CUDA_ERROR_INVALID_VALUE";
    return 0;
}

int cuLibraryLoadData(void **library, const void *image, void *a, void *b, unsigned c, void *d,
                      void *e, unsigned f) {
    if (stub_current != CONTEXT || memcmp(image, "\177ELF", 4) || a || b || c || d || e || f)
        return 1;
    *library = (void *)1;
    return stub_fails_load;
}

int cuLibraryGetKernel(void **kernel, void *library, const char *name) {
    strcpy(names[functions], name);
    *kernel = names[functions++];
    return library == (void *)1 ? 0 : 1;
}

int cuKernelGetFunction(void **function, void *kernel) {
    *function = (void *)(((char(*)[64])kernel - names) + 1);
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = 232448;
    return attribute == 97 ? 0 : 1;
}

int cuFuncGetAttribute(int *value, int attribute, void *function) {
    *value = 256 * (int)(intptr_t)function;
    return attribute == 1 ? 0 : 1;
}

int cuFuncSetAttribute(void *function, int attribute, int value) {
    stub_dynamic[(intptr_t)function] = value;
    return attribute == 8 ? 0 : 1;
}

int cuFuncGetParamInfo(void *function, size_t index, size_t *offset, size_t *size) {
    *offset = 8 * index;
    *size = index == 1 ? (size_t)stub_second_bytes : 8;
    return index < (size_t)stub_parameters ? 0 : 1;
}

const char *stub_name(intptr_t function) { return names[function - 1]; }
void stub_forget(void) {
    functions = stub_depth = stub_fails_load = stub_fails_launch = 0;
    stub_parameters = 3;
    stub_second_bytes = 8;
}

typedef struct {
    unsigned grid[3], block[3], shared;
    void *stream, *attributes;
    unsigned attribute_count;
} Config;

int cuLaunchKernelEx(const Config *config, void *function, void **parameters, void **extra) {
    if (config->block[1] != 1 || config->block[2] != 1 || config->attribute_count || extra)
        return 1;
    uint64_t sizes[] = {(uint64_t)function, config->grid[0], config->grid[1], config->grid[2],
                        config->block[0], config->shared, (uint64_t)config->stream,
                        (uint64_t)stub_current};
    memcpy(stub_sizes, sizes, sizeof sizes);
    for (int i = 0; i < 64; i++) stub_values[i] = *(int64_t *)parameters[i];
    stub_launches++;
    return stub_fails_launch;
}
