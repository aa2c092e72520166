/* A stand-in for NVIDIA's management library (libnvidia-ml.so.1), for machines without a card.
 *
 * The real nvidia-ml-py calls it through ctypes. It answers from the folder that NVML_STUB names, read anew at every
 * call, so that a test changes the cards while a study runs:
 *
 *   gpus            one card a line: UUID <tab> name <tab> bytes of memory <tab> bytes the driver keeps <tab> state
 *                   state: ok, lost, silent (every query is "unknown error"), mute (optional queries unsupported)
 *   mig             one slice a line: UUID of its card <tab> UUID <tab> name <tab> bytes of memory
 *   processes/PID   UUID <tab> bytes <tab> percent of the card's compute; counts while the process PID lives
 *   foreign         a number: added to process ids, as a container sees those of the host
 *   mps             any text: all processes share their card through MPS, and are listed as such
 *   driver          any text: the driver is not loaded
 */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define INSUFFICIENT_SIZE 7
#define DRIVER_NOT_LOADED 9
#define GPU_IS_LOST 15
#define UNKNOWN 999
#define MOST 32
#define SLICE 1000 /* handles of slices begin here */

typedef struct {
    char uuid[96], name[96], state[16], card[96];
    unsigned long long total, kept;
} Card;

typedef struct {
    unsigned long long total, free, used;
} Memory;

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} MemoryV2;

typedef struct {
    unsigned int gpu, memory;
} Utilization;

typedef struct {
    unsigned int pid;
    unsigned long long used;
    unsigned int gpu_instance, compute_instance;
} Process;

typedef struct {
    unsigned int pid;
    unsigned long long time;
    unsigned int sm, memory, encoder, decoder;
} Sample;

static FILE *open_state(const char *name) {
    char path[4096];
    const char *folder = getenv("NVML_STUB");
    if (folder == NULL) return NULL;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return fopen(path, "r");
}

static int read_cards(Card *cards) {
    FILE *file = open_state("gpus");
    int count = 0;
    char line[512];
    if (file == NULL) return 0;
    while (count < MOST && fgets(line, sizeof line, file) != NULL) {
        Card *card = &cards[count];
        if (sscanf(line, "%95[^\t]\t%95[^\t]\t%llu\t%llu\t%15s", card->uuid, card->name, &card->total, &card->kept,
                   card->state) == 5) {
            card->card[0] = '\0';
            count++;
        }
    }
    fclose(file);
    return count;
}

static int read_slices(Card *slices) {
    FILE *file = open_state("mig");
    int count = 0;
    char line[512];
    if (file == NULL) return 0;
    while (count < MOST && fgets(line, sizeof line, file) != NULL) {
        Card *slice = &slices[count];
        if (sscanf(line, "%95[^\t]\t%95[^\t]\t%95[^\t]\t%llu", slice->card, slice->uuid, slice->name, &slice->total) == 4) {
            slice->kept = 0;
            strcpy(slice->state, "ok");
            count++;
        }
    }
    fclose(file);
    return count;
}

static int find(void *handle, Card *found) {
    Card cards[MOST];
    size_t number = (size_t)handle;
    int count = number > SLICE ? read_slices(cards) : read_cards(cards);
    size_t place = number > SLICE ? number - SLICE - 1 : number - 1;
    if (place >= (size_t)count) return GPU_IS_LOST; /* it was there when the handle was given */
    *found = cards[place];
    if (strcmp(found->state, "lost") == 0) return GPU_IS_LOST;
    if (strcmp(found->state, "silent") == 0) return UNKNOWN;
    return SUCCESS;
}

static unsigned int read_number(const char *name) {
    FILE *file = open_state(name);
    unsigned int number = 0;
    if (file == NULL) return 0;
    if (fscanf(file, "%u", &number) != 1) number = 0;
    fclose(file);
    return number;
}

static int read_shares(const char *uuid, Process *processes, unsigned int *shares) {
    char path[4096];
    const char *folder = getenv("NVML_STUB");
    struct dirent *entry;
    int count = 0;
    unsigned int foreign = read_number("foreign");
    DIR *open_folder;
    if (folder == NULL) return 0;
    snprintf(path, sizeof path, "%s/processes", folder);
    open_folder = opendir(path);
    if (open_folder == NULL) return 0;
    while (count < 256 && (entry = readdir(open_folder)) != NULL) {
        char name[4400], on[96];
        unsigned long long used;
        unsigned int share;
        int pid = atoi(entry->d_name);
        FILE *file;
        if (pid <= 0 || strchr(entry->d_name, '.') != NULL || kill(pid, 0) != 0) continue;
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        file = fopen(name, "r");
        if (file == NULL) continue;
        if (fscanf(file, "%95[^\t]\t%llu\t%u", on, &used, &share) == 3 && strcmp(on, uuid) == 0) {
            processes[count].pid = (unsigned int)pid + foreign;
            processes[count].used = used;
            processes[count].gpu_instance = processes[count].compute_instance = 0xFFFFFFFF;
            shares[count] = share;
            count++;
        }
        fclose(file);
    }
    closedir(open_folder);
    return count;
}

static int read_processes(const char *uuid, Process *processes, unsigned int *percent) {
    unsigned int shares[256];
    int count = read_shares(uuid, processes, shares);
    *percent = 0;
    for (int n = 0; n < count; n++) *percent += shares[n];
    return count;
}

static unsigned long long used_of(const Card *card) {
    Process processes[256];
    unsigned int percent;
    unsigned long long used = card->kept;
    int count = read_processes(card->uuid, processes, &percent);
    for (int n = 0; n < count; n++) used += processes[n].used;
    return used > card->total ? card->total : used;
}

int nvmlInitWithFlags(unsigned int flags) {
    FILE *file = open_state("driver");
    (void)flags;
    if (file == NULL) return SUCCESS;
    fclose(file);
    return DRIVER_NOT_LOADED;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int result) {
    switch (result) {
    case SUCCESS: return "Success";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}

int nvmlDeviceGetCount_v2(unsigned int *count) {
    Card cards[MOST];
    *count = (unsigned int)read_cards(cards);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle) {
    Card cards[MOST];
    if (index >= (unsigned int)read_cards(cards)) return INVALID_ARGUMENT;
    if (strcmp(cards[index].state, "lost") == 0) return GPU_IS_LOST;
    *handle = (void *)(size_t)(index + 1);
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    Card cards[MOST];
    int count = read_cards(cards);
    for (int n = 0; n < count; n++)
        if (strcmp(cards[n].uuid, uuid) == 0) return nvmlDeviceGetHandleByIndex_v2((unsigned int)n, handle);
    count = read_slices(cards);
    for (int n = 0; n < count; n++)
        if (strcmp(cards[n].uuid, uuid) == 0) {
            *handle = (void *)(size_t)(SLICE + n + 1);
            return SUCCESS;
        }
    return NOT_FOUND;
}

static int give_text(void *handle, char *text, unsigned int length, int uuid) {
    Card card;
    int result = find(handle, &card);
    if (result != SUCCESS) return result;
    snprintf(text, length, "%s", uuid ? card.uuid : card.name);
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *handle, char *text, unsigned int length) { return give_text(handle, text, length, 1); }

int nvmlDeviceGetName(void *handle, char *text, unsigned int length) { return give_text(handle, text, length, 0); }

int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
    Card card;
    int result = find(handle, &card);
    if (result != SUCCESS) return result;
    memory->total = card.total;
    memory->used = used_of(&card);
    memory->free = card.total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(void *handle, MemoryV2 *memory) {
    Card card;
    int result = find(handle, &card);
    if (result != SUCCESS) return result;
    memory->total = card.total;
    memory->reserved = card.kept;
    memory->used = used_of(&card) - card.kept;
    memory->free = card.total - memory->used - card.kept;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *handle, Utilization *rates) {
    Card card;
    Process processes[256];
    int result = find(handle, &card);
    if (result != SUCCESS) return result;
    if (card.card[0] != '\0' || strcmp(card.state, "mute") == 0) return NOT_SUPPORTED; /* as of a real slice */
    read_processes(card.uuid, processes, &rates->gpu);
    if (rates->gpu > 100) rates->gpu = 100;
    rates->memory = 0;
    return SUCCESS;
}

static int running(void *handle, unsigned int *count, Process *into, int shared) {
    Card card;
    char path[512];
    Process processes[256];
    unsigned int percent, room = *count;
    int found, result = find(handle, &card);
    if (result != SUCCESS) return result;
    if (strcmp(card.state, "mute") == 0) return NOT_SUPPORTED;
    snprintf(path, sizeof path, "%s/mps", getenv("NVML_STUB"));
    found = (access(path, F_OK) == 0) == shared ? read_processes(card.uuid, processes, &percent) : 0;
    *count = (unsigned int)found;
    if (found == 0) return SUCCESS;
    if (into == NULL || room < (unsigned int)found) return INSUFFICIENT_SIZE;
    memcpy(into, processes, sizeof(Process) * (size_t)found);
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned int *count, Process *into) {
    return running(handle, count, into, 0);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *handle, unsigned int *count, Process *into) {
    return running(handle, count, into, 1);
}

int nvmlDeviceGetProcessUtilization(void *handle, Sample *samples, unsigned int *room, unsigned long long seen) {
    Card card;
    Process processes[256];
    struct timespec now;
    unsigned int shares[256], busy = 0;
    int count, result = find(handle, &card);
    (void)seen; /* each call is later than the last */
    if (result != SUCCESS) return result;
    if (card.card[0] != '\0' || strcmp(card.state, "mute") == 0) return NOT_SUPPORTED;
    count = read_shares(card.uuid, processes, shares);
    clock_gettime(CLOCK_REALTIME, &now);
    for (int n = 0; n < count; n++) {
        if (shares[n] == 0) continue; /* the real one names those that did something */
        if (samples != NULL && busy < *room) {
            memset(&samples[busy], 0, sizeof(Sample));
            samples[busy].pid = processes[n].pid;
            samples[busy].sm = shares[n];
            samples[busy].time = (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
        }
        busy++;
    }
    if (busy == 0) return NOT_FOUND;
    result = samples == NULL || busy > *room ? INSUFFICIENT_SIZE : SUCCESS;
    *room = busy;
    return result;
}

int nvmlDeviceGetMigMode(void *handle, unsigned int *now, unsigned int *pending) {
    Card card, slices[MOST];
    int count, result = find(handle, &card);
    if (result != SUCCESS) return result;
    if (strcmp(card.state, "mute") == 0) return NOT_SUPPORTED;
    *now = 0;
    count = read_slices(slices);
    for (int n = 0; n < count; n++)
        if (strcmp(slices[n].card, card.uuid) == 0) *now = 1;
    *pending = *now;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned int *count) {
    Card card;
    int result = find(handle, &card);
    *count = result == SUCCESS ? 7 : 0;
    return result;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned int index, void **slice) {
    Card card, slices[MOST];
    unsigned int seen = 0;
    int count, result = find(handle, &card);
    if (result != SUCCESS) return result;
    count = read_slices(slices);
    for (int n = 0; n < count; n++)
        if (strcmp(slices[n].card, card.uuid) == 0 && seen++ == index) {
            *slice = (void *)(size_t)(SLICE + n + 1);
            return SUCCESS;
        }
    return NOT_FOUND;
}
