/* Stands in front of libc's positioned reads and writes, and lets them fail, for files whose path has "faulty" in it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { NOTHING, INTERRUPTED, SHORT, BAD, FULL, GONE, UNALIGNED };

static _Atomic int mode;
static _Atomic int64_t point;
static _Atomic uint64_t injected;
static _Atomic uint64_t number;

void fault_set(int new_mode, int64_t new_point) {
    point = new_point;
    mode = new_mode;
}

uint64_t fault_count(void) { return injected; }

static int is_faulty(int fd) {
    char link[40], path[512];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof path - 1);
    if (len < 0) return 0;
    path[len] = 0;
    return strstr(path, "faulty") != NULL;
}

static int fail(int error) {
    injected++;
    errno = error;
    return -1;
}

/* How many of the bytes may be moved; -1: the call fails, errno says how. */
static ssize_t allowed(int fd, size_t count, int64_t offset, int is_write) {
    int now = mode;
    if (now == NOTHING || count == 0 || !is_faulty(fd)) return (ssize_t)count;
    int is_direct = fcntl(fd, F_GETFL) & O_DIRECT;
    uint64_t mixed = (number++ + 1) * 0x9e3779b97f4a7c15u >> 33;
    switch (now) {
    case INTERRUPTED:
        return mixed % 4 ? fail(EINTR) : (ssize_t)count;
    case SHORT: {
        size_t part = 1 + mixed % count;
        if (is_direct) part = part / 4096 * 4096;
        if (part == 0) part = count;
        if (part < count) injected++;
        return (ssize_t)part;
    }
    case BAD:
    case FULL:
        if (now == FULL && !is_write) break;
        if (offset + (int64_t)count <= point || (now == BAD && offset > point)) break;
        if (offset < point) return point - offset;
        return fail(now == BAD ? EIO : ENOSPC);
    case GONE:
        return fail(EIO);
    case UNALIGNED:
        if (is_direct) return fail(EINVAL);
    }
    return (ssize_t)count;
}

#define REAL(name) (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t pread64(int fd, void *memory, size_t count, off64_t offset) {
    ssize_t part = allowed(fd, count, offset, 0);
    return part < 0 ? part : (REAL(pread64))(fd, memory, (size_t)part, offset);
}

ssize_t pwrite64(int fd, const void *memory, size_t count, off64_t offset) {
    ssize_t part = allowed(fd, count, offset, 1);
    return part < 0 ? part : (REAL(pwrite64))(fd, memory, (size_t)part, offset);
}

/* The vectored ones move one piece at a time when anything may go wrong. */
ssize_t preadv64(int fd, const struct iovec *vectors, int count, off64_t offset) {
    if (mode == NOTHING || !is_faulty(fd)) return (REAL(preadv64))(fd, vectors, count, offset);
    return pread64(fd, vectors[0].iov_base, vectors[0].iov_len, offset);
}

ssize_t pwritev64(int fd, const struct iovec *vectors, int count, off64_t offset) {
    if (mode == NOTHING || !is_faulty(fd)) return (REAL(pwritev64))(fd, vectors, count, offset);
    return pwrite64(fd, vectors[0].iov_base, vectors[0].iov_len, offset);
}
