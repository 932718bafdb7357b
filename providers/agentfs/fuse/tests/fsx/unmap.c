/* Preloaded into fsx 0.3.2, which does not unmap what it mapped to read: each operation then costs more than the one before, and
   Linux allows a process 65,530 mappings. Here the oldest goes once there are KEPT of them. */

#define _GNU_SOURCE
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { KEPT = 16 };

struct mapping {
    void *at;
    size_t length;
};

/* What was mapped last, until it is unmapped; and what was not, when the next was mapped. fsx maps in one thread only. */
static struct mapping latest, kept[KEPT];
static unsigned count;

int munmap(void *at, size_t length) {
    if (at == latest.at)
        latest.at = NULL;
    return (int)syscall(SYS_munmap, at, length);
}

void *mmap(void *at, size_t length, int protection, int flags, int file, off_t offset) {
    void *made = (void *)syscall(SYS_mmap, at, length, protection, flags, file, offset);
    if (made == MAP_FAILED || !(flags & MAP_SHARED))
        return made;
    if (latest.at) {
        struct mapping *oldest = &kept[count++ % KEPT];
        if (oldest->at)
            syscall(SYS_munmap, oldest->at, oldest->length);
        *oldest = latest;
    }
    latest = (struct mapping){made, length};
    return made;
}
