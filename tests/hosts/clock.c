/* The wall clock of a host: this machine's and the nanoseconds that the file LAB_CLOCK holds, read anew each time.
 * Preloaded. The monotonic clocks stay. (libfaketime 0.9.10 does more, and Python's time.sleep fails with it.) */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t none, *ahead = &none;

__attribute__((constructor)) static void map_clock(void) {
    const char *path = getenv("LAB_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *page = file < 0 ? MAP_FAILED : mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) ahead = page;
    if (file >= 0) close(file);
}

static int64_t nanoseconds(void) {
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec + *ahead;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) {
        static int (*real)(clockid_t, struct timespec *);
        if (!real) *(void **)&real = dlvsym(RTLD_NEXT, "clock_gettime", "GLIBC_2.17");
        return real ? real(clock, now) : (int)syscall(SYS_clock_gettime, clock, now);
    }
    int64_t all = nanoseconds();
    now->tv_sec = all / 1000000000LL;
    now->tv_nsec = all % 1000000000LL;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    int64_t all = nanoseconds();
    now->tv_sec = all / 1000000000LL;
    now->tv_usec = all % 1000000000LL / 1000;
    return 0;
}

time_t time(time_t *result) {
    time_t now = nanoseconds() / 1000000000LL;
    if (result) *result = now;
    return now;
}
