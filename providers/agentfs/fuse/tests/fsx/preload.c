/* Preloaded into fsx 0.3.2.

   It does not unmap what it mapped to read: each operation then costs more than the one before, and Linux allows a process 65,530
   mappings. Here the oldest goes once there are KEPT of them.

   It waits for ever for the rest of a sendfile that a signal cut short, as the one does by which the test has it stand still. Here it
   goes on, unless the file ends too early, which is what fsx looks for. */

#define _GNU_SOURCE
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
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

ssize_t sendfile64(int to, int from, off64_t *offset, size_t count) {
    size_t sent = 0;
    while (sent < count) {
        long more = syscall(SYS_sendfile, to, from, offset, count - sent);
        if (more < 0)
            return -1;
        if (more == 0) {
            fprintf(stderr, "sendfile found the end after %zu of %zu bytes\n", sent, count);
            abort();
        }
        sent += (size_t)more;
    }
    return (ssize_t)sent;
}
