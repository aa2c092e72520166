/* A stand-in for NVIDIA's driver library (libcuda.so.1), for machines without a card.
 *
 * What a process pays once on a real card is slept here: for its context, and for its first kernels. CUDA_STUB names a
 * folder; each of these is a line "context PID DEVICE PERCENT LIMIT" or "kernels PID" in its file "events". A context
 * holds 32 MB of the computer's memory and, with NVML_STUB, 300 MiB of the card of the stand-in for NVML.
 *
 *   fault-PID   any text: the context of that process is broken from now on, as by a fault of another client of MPS
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUCCESS 0
#define NOT_INITIALIZED 3
#define INVALID_CONTEXT 201
#define LAUNCH_FAILED 719
#define CONTEXT_MS 240
#define KERNELS_MS 200
#define HOST_BYTES (32u << 20)
#define CARD_BYTES (300ull << 20)

static int initialized, kernels;
static char *context;

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value == NULL || *value == '\0' ? "-" : value;
}

static void note(const char *line) {
    char path[4096];
    int file;
    snprintf(path, sizeof path, "%s/events", variable("CUDA_STUB"));
    file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0) abort();
    if (write(file, line, strlen(line)) < 0) abort();
    close(file);
}

static void hold(unsigned long long bytes) {
    char path[4096], side[4200];
    FILE *file;
    if (getenv("NVML_STUB") == NULL) return;
    snprintf(path, sizeof path, "%s/processes/%d", getenv("NVML_STUB"), getpid());
    snprintf(side, sizeof side, "%s.new", path);
    file = fopen(side, "w");
    if (file == NULL) abort();
    fprintf(file, "%s\t%llu\t10\n", variable("CUDA_VISIBLE_DEVICES"), bytes);
    fclose(file);
    rename(side, path);
}

int cuInit(unsigned int flags) {
    (void)flags;
    initialized = 1;
    return SUCCESS;
}

int cuDeviceGetCount(int *count) {
    *count = 1;
    return initialized ? SUCCESS : NOT_INITIALIZED;
}

/* The context of the process: made at the first call, at its cost. */
int cuDevicePrimaryCtxRetain(void **into, int device) {
    char line[512];
    (void)device;
    if (!initialized) return NOT_INITIALIZED;
    if (context == NULL) {
        usleep(CONTEXT_MS * 1000);
        context = malloc(HOST_BYTES);
        memset(context, 1, HOST_BYTES);
        hold(CARD_BYTES);
        snprintf(line, sizeof line, "context %d %s %s %s\n", getpid(), variable("CUDA_VISIBLE_DEVICES"),
                 variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"));
        note(line);
    }
    *into = context;
    return SUCCESS;
}

int cuCtxSynchronize(void) {
    char path[4096];
    if (!initialized) return NOT_INITIALIZED;
    if (context == NULL) return INVALID_CONTEXT;
    snprintf(path, sizeof path, "%s/fault-%d", variable("CUDA_STUB"), getpid());
    return access(path, F_OK) == 0 ? LAUNCH_FAILED : SUCCESS;
}

/* The first launch loads the kernels. */
int cuLaunchKernel(void) {
    char line[64];
    int result = cuCtxSynchronize();
    if (result != SUCCESS) return result;
    if (!kernels) {
        usleep(KERNELS_MS * 1000);
        kernels = 1;
        snprintf(line, sizeof line, "kernels %d\n", getpid());
        note(line);
    }
    return SUCCESS;
}
