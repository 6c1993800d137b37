/* A libcufile without GPUDirect Storage: real reads and writes of real files, every argument checked, and any failure on
 * demand.
 *
 * FAKE_VERSION says which version it plays: what is exported and how long the statistics are follows from it.
 * FAKE_WITHOUT_READ leaves out a function that every version has. What is wrong with a call is kept as the first
 * violation, which the tests ask for. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#ifndef FAKE_VERSION
#define FAKE_VERSION 1200
#endif
/* What a version is called that does not say its own. */
#define SILENT 1000

/* The ABI, as the reference guide describes it */

typedef struct { int err; int cu_err; } status_t;
typedef struct { int version; int desc_len; const char *desc_str; } rdma_t;
typedef struct {
    const char *(*fs_type)(const void *);
    int (*device_list)(const void *, struct sockaddr **);
    int (*device_priority)(const void *, char *, size_t, loff_t, const struct sockaddr *);
    ssize_t (*read)(const void *, char *, size_t, loff_t, const rdma_t *);
    ssize_t (*write)(const void *, const char *, size_t, loff_t, const rdma_t *);
} fs_ops_t;
typedef struct {
    int type;
    union { int fd; void *handle; uint64_t bits; } handle;
    const fs_ops_t *fs_ops;
} descr_t;
typedef struct {
    struct {
        unsigned major, minor;
        size_t poll_thresh_size, max_direct_io_size;
        unsigned dstatusflags, dcontrolflags;
    } nvfs;
    unsigned fflags, max_device_cache_size, per_buffer_cache_size, max_device_pinned_mem_size;
    unsigned max_batch_io_size, max_batch_io_timeout_msecs;
} props_t;
typedef struct {
    int mode;
    void *base;
    off_t file_offset, buffer_offset;
    size_t size;
    void *handle;
    int opcode;
    void *cookie;
} io_t;
typedef struct { void *cookie; int status; size_t ret; } event_t;
typedef struct { void *base; size_t len; } iovec_t;

_Static_assert(sizeof(status_t) == 8, "CUfileError_t");
_Static_assert(sizeof(fs_ops_t) == 40, "CUfileFSOps_t");
_Static_assert(sizeof(descr_t) == 24 && offsetof(descr_t, handle) == 8, "CUfileDescr_t");
_Static_assert(sizeof(props_t) == 56, "CUfileDrvProps_t");
_Static_assert(sizeof(io_t) == 64 && offsetof(io_t, handle) == 40, "CUfileIOParams_t");
_Static_assert(sizeof(event_t) == 24, "CUfileIOEvents_t");

/* State */

#define MANY 4096
/* `own`: a descriptor of its own without O_DIRECT, as the real one has in compatibility mode. */
struct handle { int live, fd, own; void *fs; const fs_ops_t *ops; };
struct buffer { const char *base; size_t len; };
struct entry {
    int state; /* 0 free, 1 taken */
    io_t params;
    const io_t *theirs;
    int timed_out, canceled;
};
struct batch { int live; unsigned max, used; struct entry entries[256]; };
struct injection { char name[64]; long answer; int extra, skip, left; };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char violation[512];
static int driver_opens, driver_is_open, handles_live, buffers_live;
static struct handle handles[MANY];
static struct buffer buffers[MANY];
static void *streams[64];
static struct injection injections[32];
static struct { char name[64]; int count; } calls[128];
static size_t io_limit = SIZE_MAX;
static int delay_ms, direct, overstate;
static struct { int hold, max_events, time_out, repeat, stray; long ret; int status; } batch_mode;
static int stats_level, stats_on;
static uint64_t reads, writes, read_bytes, write_bytes, read_errors, submits;
static props_t props = {{0, 0, 4, 16384, 1u << 4, 1u << 1}, 1u << 1 | 1u << 2, 131072, 1024, 33554432, 128, 5000};
static size_t sizes[12] = {0, 128, 8, 4096, 4, 16384, 131072, 1024, 33554432, 128, 4, 5000};
static bool bools[14] = {[1] = true, [6] = true};
static char strings[4][256] = {"ERROR", "", "/var/log", ""};
static size_t slab_sizes[3] = {4, 1024, 16384}, slab_counts[3] = {128, 64, 32};

static void wrong(const char *format, ...)
{
    va_list list;
    if (violation[0])
        return;
    va_start(list, format);
    vsnprintf(violation, sizeof violation, format, list);
    va_end(list);
}

/* What a test says */

const char *fake_violation(void) { return violation; }
int fake_driver_opens(void) { return driver_opens; }
int fake_driver_is_open(void) { return driver_is_open; }
int fake_handles_live(void) { return handles_live; }
int fake_buffers_live(void) { return buffers_live; }
void fake_limit_io(size_t bytes) { io_limit = bytes; }
void fake_delay(int ms) { delay_ms = ms; }
void fake_overstate(int on) { overstate = on; }
void fake_gpu_direct(int on) { direct = on; }
void fake_properties(unsigned batch, unsigned nvfs_major)
{
    props.max_batch_io_size = batch;
    props.nvfs.major = nvfs_major;
}

/* The calls of that function after the next `skip` answer that, `times` of them. For functions that answer a number: `extra`
 * is errno. */
void fake_fail(const char *name, long answer, int extra, int skip, int times)
{
    for (size_t i = 0; i < 32; i++)
        if (!injections[i].left || !strcmp(injections[i].name, name)) {
            snprintf(injections[i].name, sizeof injections[i].name, "%s", name);
            injections[i].answer = answer;
            injections[i].extra = extra;
            injections[i].skip = skip;
            injections[i].left = times;
            return;
        }
    abort();
}

/* How batches go: the first `hold` entries stay under way; so many events an answer; the first `time_out` time out once; each
 * is reported `repeat` times more; with `stray`, one that nobody submitted, too; `status` and `ret` are those of each entry. */
void fake_batch(int hold, int max_events, int time_out, int repeat, int stray, int status, long ret)
{
    batch_mode.hold = hold;
    batch_mode.max_events = max_events;
    batch_mode.time_out = time_out;
    batch_mode.repeat = repeat;
    batch_mode.stray = stray;
    batch_mode.status = status;
    batch_mode.ret = ret;
}

int fake_calls(const char *name)
{
    for (size_t i = 0; i < 128; i++)
        if (!strcmp(calls[i].name, name))
            return calls[i].count;
    return 0;
}

static int injected(const char *name, long *answer, int *extra)
{
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < 128; i++) {
        if (!calls[i].name[0])
            snprintf(calls[i].name, sizeof calls[i].name, "%s", name);
        if (!strcmp(calls[i].name, name)) {
            calls[i].count++;
            break;
        }
    }
    int found = 0;
    for (size_t i = 0; i < 32; i++) {
        struct injection *it = &injections[i];
        if (!it->left || strcmp(it->name, name))
            continue;
        if (it->skip) {
            it->skip--;
            continue;
        }
        it->left--;
        *answer = it->answer;
        *extra = it->extra;
        found = 1;
        break;
    }
    pthread_mutex_unlock(&mutex);
    return found;
}

static const status_t ok = {0, 0};
static status_t failed(int code) { return (status_t){code, 0}; }

#define INJECT() \
    do { \
        long answer; \
        int extra; \
        if (injected(__func__, &answer, &extra)) \
            return (status_t){(int)answer, extra}; \
    } while (0)
#define INJECT_NUMBER() \
    do { \
        long answer; \
        int extra; \
        if (injected(__func__, &answer, &extra)) { \
            errno = extra; \
            return answer; \
        } \
    } while (0)
#define OPEN_FIRST() \
    do { \
        if (!driver_is_open) \
            wrong("%s: the driver is not open, and would be opened behind the scenes", __func__); \
    } while (0)

static void pause_ms(int ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    while (nanosleep(&time, &time) && errno == EINTR)
        ;
}

/* Driver */

status_t cuFileDriverOpen(void)
{
    INJECT();
    driver_opens++;
    if (getenv("FAKE_OPEN_HANGS"))
        for (;;)
            pause();
    if (driver_is_open)
        wrong("cuFileDriverOpen: opened twice");
    driver_is_open = 1;
    return ok;
}

static status_t driver_close(const char *name)
{
    if (!driver_is_open)
        wrong("%s: not open", name);
    if (handles_live || buffers_live)
        wrong("%s: %d handles and %d registrations are left", name, handles_live, buffers_live);
    driver_is_open = 0;
    return ok;
}

#if FAKE_VERSION > SILENT
status_t cuFileDriverClose(void)
{
    wrong("cuFileDriverClose: there is cuFileDriverClose_v2");
    return driver_close("cuFileDriverClose");
}

status_t cuFileDriverClose_v2(void)
{
    INJECT();
    return driver_close("cuFileDriverClose_v2");
}

status_t cuFileGetVersion(int *version)
{
    INJECT();
    *version = FAKE_VERSION;
    return ok;
}

long cuFileUseCount(void)
{
    INJECT_NUMBER();
    return driver_is_open;
}

static int settable(const char *name)
{
    if (FAKE_VERSION >= 1160 ? driver_is_open : !driver_is_open) {
        wrong("%s: at the wrong time", name);
        return 0;
    }
    return 1;
}

static void aligned_kb(const char *name, size_t kb)
{
    if (kb % 4 && kb != SIZE_MAX)
        wrong("%s: %zu KiB", name, kb);
}

status_t cuFileDriverGetProperties(props_t *into)
{
    static int inside;
    INJECT();
    OPEN_FIRST();
    /* The real one crashes there. */
    if (__sync_fetch_and_add(&inside, 1) > 0)
        wrong("cuFileDriverGetProperties by two threads at once");
    usleep(500);
    *into = props;
    __sync_fetch_and_sub(&inside, 1);
    return ok;
}

status_t cuFileDriverSetPollMode(bool poll, size_t kb)
{
    INJECT();
    aligned_kb(__func__, kb);
    if (settable(__func__)) {
        props.nvfs.poll_thresh_size = kb;
        props.nvfs.dcontrolflags = (props.nvfs.dcontrolflags & ~1u) | poll;
    }
    return ok;
}

status_t cuFileDriverSetMaxDirectIOSize(size_t kb)
{
    INJECT();
    aligned_kb(__func__, kb);
    if (settable(__func__))
        props.nvfs.max_direct_io_size = kb;
    return ok;
}

status_t cuFileDriverSetMaxCacheSize(size_t kb)
{
    INJECT();
    aligned_kb(__func__, kb);
    if (settable(__func__))
        props.max_device_cache_size = (unsigned)kb;
    return ok;
}

status_t cuFileDriverSetMaxPinnedMemSize(size_t kb)
{
    INJECT();
    aligned_kb(__func__, kb);
    if (settable(__func__))
        props.max_device_pinned_mem_size = (unsigned)kb;
    return ok;
}
#else
status_t cuFileDriverClose(void)
{
    INJECT();
    return driver_close("cuFileDriverClose");
}
#endif

/* Handles and memory */

static int reopen(int fd)
{
    char link[64];
    int flags = fcntl(fd, F_GETFL) & O_ACCMODE;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return open(link, flags | O_CLOEXEC);
}

status_t cuFileHandleRegister(void **into, descr_t *descr)
{
    INJECT();
    OPEN_FIRST();
    uint32_t padding;
    memcpy(&padding, (char *)descr + 4, 4);
    if (padding)
        wrong("cuFileHandleRegister: what is between the fields is not zero");
    if (descr->type == 1) {
        if (descr->handle.bits >> 32)
            wrong("cuFileHandleRegister: the union is not zero behind the descriptor");
        if (descr->fs_ops)
            wrong("cuFileHandleRegister: operations with a descriptor");
    } else if (descr->type == 3) {
        if (!descr->fs_ops || !descr->fs_ops->read || !descr->fs_ops->write)
            wrong("cuFileHandleRegister: a file system without operations");
    } else {
        wrong("cuFileHandleRegister: type %d", descr->type);
    }
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; descr->type == 1 && i < MANY; i++)
        if (handles[i].live && handles[i].fd == descr->handle.fd) {
            pthread_mutex_unlock(&mutex);
            return failed(5028);
        }
    for (size_t i = 0; i < MANY; i++)
        if (!handles[i].live) {
            handles[i] = (struct handle){1, -1, -1, NULL, NULL};
            if (descr->type == 1)
                handles[i].fd = descr->handle.fd, handles[i].own = reopen(descr->handle.fd);
            else
                handles[i].fs = descr->handle.handle, handles[i].ops = descr->fs_ops;
            handles_live++;
            *into = &handles[i];
            break;
        }
    pthread_mutex_unlock(&mutex);
    return ok;
}

static struct handle *live(const char *name, void *raw)
{
    struct handle *handle = raw;
    if (handle < handles || handle >= handles + MANY || !handle->live) {
        wrong("%s: no such handle", name);
        return NULL;
    }
    return handle;
}

void cuFileHandleDeregister(void *raw)
{
    struct handle *handle = live("cuFileHandleDeregister", raw);
    if (!handle)
        return;
    if (handle->fd >= 0 && lseek(handle->fd, 0, SEEK_CUR) < 0 && errno == EBADF)
        wrong("cuFileHandleDeregister: the file was closed before");
    pthread_mutex_lock(&mutex);
    if (handle->own >= 0)
        close(handle->own);
    handle->live = 0;
    handles_live--;
    pthread_mutex_unlock(&mutex);
}

status_t cuFileBufRegister(const void *base, size_t len, int flags)
{
    INJECT();
    OPEN_FIRST();
    if (!base || !len || flags & ~3)
        wrong("cuFileBufRegister: %p, %zu, %d", base, len, flags);
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < MANY; i++)
        if (buffers[i].base == base) {
            pthread_mutex_unlock(&mutex);
            return failed(5023);
        }
    for (size_t i = 0; i < MANY; i++)
        if (!buffers[i].base) {
            buffers[i] = (struct buffer){base, len};
            buffers_live++;
            break;
        }
    pthread_mutex_unlock(&mutex);
    return ok;
}

status_t cuFileBufDeregister(const void *base)
{
    INJECT();
    OPEN_FIRST();
    status_t answer = failed(5024);
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < MANY; i++)
        if (base && buffers[i].base == base) {
            buffers[i].base = NULL;
            buffers_live--;
            answer = ok;
            break;
        }
    pthread_mutex_unlock(&mutex);
    return answer;
}

static int registered(const void *base)
{
    for (size_t i = 0; i < MANY; i++)
        if (base && buffers[i].base == base)
            return 1;
    return 0;
}

/* Reads and writes */

static ssize_t move(const char *name, int writing, void *raw, void *base, size_t size, off_t at, off_t behind)
{
    struct handle *handle = live(name, raw);
    if (!handle)
        return -5027;
    if (!base || at < 0 || behind < 0)
        wrong("%s: %p, %ld, %ld", name, base, (long)at, (long)behind);
    for (size_t i = 0; i < MANY; i++)
        if (buffers[i].base == base && base && (size_t)behind + size > buffers[i].len)
            wrong("%s: leaves the registered memory", name);
    if (delay_ms)
        pause_ms(delay_ms);
    if (size > io_limit)
        size = io_limit;
    char *memory = (char *)base + behind;
    ssize_t done;
    if (handle->fd < 0) {
        rdma_t info = {1, 6, "token"};
        done = writing ? handle->ops->write(handle->fs, memory, size, at, &info)
                       : handle->ops->read(handle->fs, memory, size, at, &info);
    } else {
        done = writing ? pwrite(handle->own, memory, size, at) : pread(handle->own, memory, size, at);
    }
    if (stats_on) {
        if (writing)
            writes++, write_bytes += done > 0 ? done : 0;
        else
            reads++, read_bytes += done > 0 ? done : 0, read_errors += done < 0;
    }
    return done;
}

#ifndef FAKE_WITHOUT_READ
ssize_t cuFileRead(void *handle, void *base, size_t size, off_t at, off_t behind)
{
    INJECT_NUMBER();
    OPEN_FIRST();
    return move(__func__, 0, handle, base, size, at, behind);
}
#endif

ssize_t cuFileWrite(void *handle, const void *base, size_t size, off_t at, off_t behind)
{
    INJECT_NUMBER();
    OPEN_FIRST();
    return move(__func__, 1, handle, (void *)base, size, at, behind);
}

#if FAKE_VERSION >= 1190
static ssize_t move_many(const char *name, int writing, void *handle, const iovec_t *vectors, size_t count, off_t at, unsigned flags)
{
    ssize_t sum = 0;
    if (flags || !vectors || !count)
        wrong("%s: %u, %zu", name, flags, count);
    for (size_t i = 0; i < count; i++) {
        ssize_t done = move(name, writing, handle, vectors[i].base, vectors[i].len, at + sum, 0);
        if (done < 0)
            return sum ? sum : done;
        sum += done;
        if ((size_t)done < vectors[i].len)
            break;
    }
    return sum;
}

ssize_t cuFileReadv(void *handle, const iovec_t *vectors, size_t count, off_t at, unsigned flags)
{
    INJECT_NUMBER();
    return move_many(__func__, 0, handle, vectors, count, at, flags);
}

ssize_t cuFileWritev(void *handle, const iovec_t *vectors, size_t count, off_t at, unsigned flags)
{
    INJECT_NUMBER();
    return move_many(__func__, 1, handle, vectors, count, at, flags);
}
#endif

#if FAKE_VERSION > SILENT
/* Streams */

struct async {
    int writing;
    void *handle, *base;
    size_t *size;
    off_t *at, *behind;
    ssize_t *done;
    long answer;
    size_t submitted;
    int registered;
};

static void run_async(void *argument)
{
    struct async *it = argument;
    ssize_t done = it->answer;
    if (!done) {
        /* As 1.15 does: what is not registered is as long as was submitted. */
        if (!it->registered && (size_t)*it->behind + *it->size > it->submitted)
            done = -EIO;
        else
            done = move("stream", it->writing, it->handle, it->base, *it->size, *it->at, *it->behind);
        if (done == -1)
            done = -errno;
        else if (done >= 0 && overstate)
            done = (ssize_t)*it->size;
    }
    *it->done = done;
    free(it);
}

static status_t enqueue(int writing, void *handle, void *base, size_t *size, off_t *at, off_t *behind, ssize_t *done, void *stream)
{
    static void (*cuda_enqueue)(void *, void (*)(void *), void *);
    const char *name = writing ? "cuFileWriteAsync" : "cuFileReadAsync";
    if (!driver_is_open)
        wrong("%s: the driver is not open", name);
    if (!base || !size || !at || !behind || !done)
        wrong("%s: a null pointer", name);
    else if (*done)
        wrong("%s: the result is not 0 before", name);
    live(name, handle);
    if (!cuda_enqueue) {
        void *cuda = dlopen(getenv("FABRICAST_CUDA"), RTLD_NOW | RTLD_NOLOAD);
        *(void **)&cuda_enqueue = dlsym(cuda, "fake_cuda_enqueue");
    }
    struct async *it = malloc(sizeof *it);
    long answer = 0;
    int extra;
    *it = (struct async){writing, handle, base, size, at, behind, done, 0, size ? *size : 0, 0};
    it->registered = registered(base);
    if (injected("stream", &answer, &extra))
        it->answer = answer;
    cuda_enqueue(stream, run_async, it);
    return ok;
}

status_t cuFileReadAsync(void *handle, void *base, size_t *size, off_t *at, off_t *behind, ssize_t *done, void *stream)
{
    INJECT();
    return enqueue(0, handle, base, size, at, behind, done, stream);
}

status_t cuFileWriteAsync(void *handle, void *base, size_t *size, off_t *at, off_t *behind, ssize_t *done, void *stream)
{
    INJECT();
    return enqueue(1, handle, base, size, at, behind, done, stream);
}

status_t cuFileStreamRegister(void *stream, unsigned flags)
{
    INJECT();
    OPEN_FIRST();
    if (flags & ~15u)
        wrong("cuFileStreamRegister: flags %u", flags);
    for (size_t i = 0; i < 64; i++)
        if (!streams[i]) {
            streams[i] = (char *)stream + 1;
            return ok;
        }
    return failed(5030);
}

status_t cuFileStreamDeregister(void *stream)
{
    INJECT();
    for (size_t i = 0; i < 64; i++)
        if (streams[i] == (char *)stream + 1) {
            streams[i] = NULL;
            return ok;
        }
    wrong("cuFileStreamDeregister: not registered");
    return failed(5022);
}

/* Batches */

status_t cuFileBatchIOSetUp(void **into, unsigned max)
{
    INJECT();
    OPEN_FIRST();
    if (!max || max > props.max_batch_io_size || max > 256) {
        wrong("cuFileBatchIOSetUp: %u entries", max);
        return failed(5022);
    }
    struct batch *batch = calloc(1, sizeof *batch);
    batch->live = 1;
    batch->max = max;
    *into = batch;
    return ok;
}

status_t cuFileBatchIOSubmit(struct batch *batch, unsigned count, io_t *entries, unsigned flags)
{
    INJECT();
    if (!batch->live || !count || flags || count > batch->max - batch->used)
        wrong("cuFileBatchIOSubmit: %u entries, flags %u", count, flags);
    submits++;
    for (unsigned i = 0; i < count; i++) {
        if (entries[i].mode != 1 || (entries[i].opcode & ~1) || !entries[i].base)
            wrong("cuFileBatchIOSubmit: entry %u: mode %d, opcode %d", i, entries[i].mode, entries[i].opcode);
        live("cuFileBatchIOSubmit", entries[i].handle);
        for (unsigned j = 0; j < 256; j++)
            if (!batch->entries[j].state) {
                batch->entries[j] = (struct entry){1, entries[i], &entries[i], 0, 0};
                batch->used++;
                break;
            }
    }
    return ok;
}

static int finish(struct batch *batch, struct entry *entry, event_t *event)
{
    const io_t *it = &entry->params;
    const io_t *now = entry->theirs;
    if (now->mode != it->mode || now->base != it->base || now->file_offset != it->file_offset ||
        now->buffer_offset != it->buffer_offset || now->size != it->size || now->handle != it->handle ||
        now->opcode != it->opcode || now->cookie != it->cookie)
        wrong("batch: the parameters of an entry in flight were changed or freed");
    *event = (event_t){it->cookie, 0x10, 0};
    if (entry->canceled) {
        event->status = 0x08;
    } else if (batch_mode.time_out && !entry->timed_out) {
        entry->timed_out = 1;
        batch_mode.time_out--;
        event->status = 0x20;
        return 1;
    } else if (batch_mode.status) {
        event->status = batch_mode.status;
        event->ret = (size_t)batch_mode.ret;
    } else {
        /* As 1.15 does: the offset counts in registered memory alone. */
        off_t behind = registered(it->base) ? it->buffer_offset : 0;
        ssize_t done = move("batch", it->opcode, it->handle, it->base, it->size, it->file_offset, behind);
        event->ret = done == -1 ? (size_t)-errno : (size_t)done;
        if (done >= 0 && overstate)
            event->ret = it->size;
        if (done < 0)
            event->status = 0x40;
    }
    entry->state = 0;
    batch->used--;
    return 1;
}

status_t cuFileBatchIOGetStatus(struct batch *batch, unsigned min, unsigned *count, event_t *events, struct timespec *timeout)
{
    INJECT();
    unsigned room = *count, found = 0, hold = (unsigned)batch_mode.hold;
    if (!batch->live || min > room || room > batch->max || !timeout || timeout->tv_nsec >= 1000000000L)
        wrong("cuFileBatchIOGetStatus: %u of %u", min, room);
    if (batch_mode.stray && found < room) {
        batch_mode.stray--;
        events[found++] = (event_t){(void *)(uintptr_t)0x7FFFFFFF0001, 0x10, 1};
    }
    for (unsigned i = 0; i < 256 && found < room; i++) {
        struct entry *entry = &batch->entries[i];
        if (!entry->state || (batch_mode.max_events && found >= (unsigned)batch_mode.max_events))
            continue;
        if (hold && !entry->canceled) {
            hold--;
            continue;
        }
        finish(batch, entry, &events[found++]);
        if (batch_mode.repeat && found < room) {
            batch_mode.repeat--;
            events[found] = events[found - 1];
            found++;
        }
    }
    if (found < min)
        pause_ms((int)(timeout->tv_sec * 1000 + timeout->tv_nsec / 1000000));
    *count = found;
    return ok;
}

status_t cuFileBatchIOCancel(struct batch *batch)
{
    INJECT();
    for (unsigned i = 0; i < 256; i++)
        batch->entries[i].canceled |= batch->entries[i].state;
    return ok;
}

void cuFileBatchIODestroy(struct batch *batch)
{
    long answer;
    int extra;
    injected(__func__, &answer, &extra);
    if (!batch->live || batch->used)
        wrong("cuFileBatchIODestroy: %u entries are in flight", batch->used);
    batch->live = 0;
}
#endif

#if FAKE_VERSION >= 1140
/* Parameters */

static status_t parameter(const char *name, int number, int count, int setting)
{
    if (number < 0 || number >= count)
        return failed(5022);
    if (setting && driver_is_open) {
        wrong("%s: the driver is open", name);
        return failed(5026);
    }
    return ok;
}

#define PARAMETER(count, setting) \
    do { \
        INJECT(); \
        status_t status = parameter(__func__, number, count, setting); \
        if (status.err) \
            return status; \
    } while (0)

status_t cuFileGetParameterSizeT(int number, size_t *value)
{
    PARAMETER(12, 0);
    *value = sizes[number];
    return ok;
}

status_t cuFileSetParameterSizeT(int number, size_t value)
{
    PARAMETER(12, 1);
    sizes[number] = value;
    return ok;
}

status_t cuFileGetParameterBool(int number, bool *value)
{
    PARAMETER(FAKE_VERSION >= 1190 ? 14 : 12, 0);
    *value = bools[number];
    return ok;
}

status_t cuFileSetParameterBool(int number, bool value)
{
    PARAMETER(FAKE_VERSION >= 1190 ? 14 : 12, 1);
    bools[number] = value;
    return ok;
}

status_t cuFileGetParameterString(int number, char *into, int len)
{
    PARAMETER(FAKE_VERSION >= 1190 ? 4 : 3, 0);
    if (len <= 0)
        wrong("cuFileGetParameterString: room for %d", len);
    /* As badly as a library might: without a zero byte where it does not fit. */
    strncpy(into, strings[number], (size_t)len);
    return ok;
}

status_t cuFileSetParameterString(int number, const char *text)
{
    PARAMETER(FAKE_VERSION >= 1190 ? 4 : 3, 1);
    snprintf(strings[number], sizeof strings[number], "%s", text);
    return ok;
}
#endif

#if FAKE_VERSION >= 1150
status_t cuFileGetParameterMinMaxValue(int number, size_t *min, size_t *max)
{
    PARAMETER(12, 0);
    *min = 1;
    *max = 1u << 20;
    return ok;
}

static status_t get_slabs(size_t *into_sizes, size_t *into_counts, int len)
{
    if (len != 3)
        return failed(5022);
    memcpy(into_sizes, slab_sizes, sizeof slab_sizes);
    memcpy(into_counts, slab_counts, sizeof slab_counts);
    return ok;
}

static status_t set_slabs(const char *name, const size_t *from_sizes, const size_t *from_counts, int len)
{
    status_t status = parameter(name, 0, 1, 1);
    if (status.err || len != 3)
        return status.err ? status : failed(5022);
    memcpy(slab_sizes, from_sizes, sizeof slab_sizes);
    memcpy(slab_counts, from_counts, sizeof slab_counts);
    return ok;
}

status_t cuFileGetParameterPosixPoolSlabArray(size_t *a, size_t *b, int len)
{
    INJECT();
    return get_slabs(a, b, len);
}

status_t cuFileSetParameterPosixPoolSlabArray(const size_t *a, const size_t *b, int len)
{
    INJECT();
    return set_slabs(__func__, a, b, len);
}

status_t cuFileGetBARSizeInKB(int gpu, size_t *size)
{
    INJECT();
    OPEN_FIRST();
    if (gpu)
        return failed(5022);
    *size = 262144;
    return ok;
}

/* Statistics: of this version's length, and not a byte more */

#if FAKE_VERSION > 1209
#define L1_WORDS 90
#elif FAKE_VERSION >= 1190
#define L1_WORDS 78
#else
#define L1_WORDS 64
#endif
typedef struct {
    uint64_t l1[L1_WORDS];
    uint64_t histograms[64];
    uint32_t gpus;
    uint64_t gpu[16][31];
} stats_t;
_Static_assert(sizeof(stats_t) == 8 * L1_WORDS + 512 + 8 + 16 * 248, "CUfileStatsLevel3_t");

static stats_t stats(void)
{
    stats_t it = {0};
    it.l1[0] = reads - read_errors;
    it.l1[1] = read_errors;
    it.l1[2] = writes;
    it.l1[12] = read_bytes;
    it.l1[13] = write_bytes;
    it.l1[22] = submits;
    it.l1[63] = 64;
    for (int i = 64; i < L1_WORDS; i++)
        it.l1[i] = (uint64_t)i + 1;
    it.histograms[3] = reads;
    it.histograms[32 + 3] = writes;
    it.gpus = 1;
    memcpy(it.gpu[0], "GPU-FAKE-0123456", 16);
    it.gpu[0][2] = read_bytes;
    it.gpu[0][6] = reads;
    it.gpu[0][direct ? 8 : 9] = reads;
    it.gpu[0][2 + 13] = write_bytes;
    it.gpu[0][2 + 17] = writes;
    it.gpu[0][2 + (direct ? 19 : 20)] = writes;
    it.gpu[0][30] = 31;
    return it;
}

status_t cuFileSetStatsLevel(int level)
{
    INJECT();
    if (level < 0 || level > 3)
        return failed(5022);
    stats_level = level;
    return ok;
}

status_t cuFileGetStatsLevel(int *level)
{
    INJECT();
    *level = stats_level;
    return ok;
}

status_t cuFileStatsStart(void)
{
    INJECT();
    OPEN_FIRST();
    stats_on = 1;
    return ok;
}

status_t cuFileStatsStop(void)
{
    INJECT();
    stats_on = 0;
    return ok;
}

status_t cuFileStatsReset(void)
{
    INJECT();
    reads = writes = read_bytes = write_bytes = read_errors = 0;
    return ok;
}

static status_t answer_stats(void *into, int level, size_t size)
{
    stats_t it = stats();
    if (!driver_is_open)
        return failed(5001);
    if (stats_level < level)
        return failed(5022);
    memcpy(into, &it, size);
    return ok;
}

status_t cuFileGetStatsL1(void *into)
{
    INJECT();
    return answer_stats(into, 1, offsetof(stats_t, histograms));
}

status_t cuFileGetStatsL2(void *into)
{
    INJECT();
    return answer_stats(into, 2, offsetof(stats_t, gpus));
}

status_t cuFileGetStatsL3(void *into)
{
    INJECT();
    return answer_stats(into, 3, sizeof(stats_t));
}
#endif

#if FAKE_VERSION >= 1170
static int p2p_flags[16] = {[4] = 2};

status_t cuFileDriverGetP2PFlags(int of, int *flags)
{
    INJECT();
    OPEN_FIRST();
    if (of < 0 || of > 14)
        return failed(5022);
    *flags = p2p_flags[of];
    return ok;
}

status_t cuFileDriverSetP2PFlags(int of, int flags)
{
    INJECT();
    OPEN_FIRST();
    if (of < 0 || of > 14 || flags & ~9)
        return failed(5022);
    p2p_flags[of] = flags;
    return ok;
}

status_t cuFileGetParameterGpuBounceBufferSlabArray(size_t *a, size_t *b, int len)
{
    INJECT();
    return get_slabs(a, b, len);
}

status_t cuFileSetParameterGpuBounceBufferSlabArray(const size_t *a, const size_t *b, int len)
{
    INJECT();
    return set_slabs(__func__, a, b, len);
}

status_t cuFileExportPCIeTopology(const char *name)
{
    INJECT();
    FILE *file = fopen(name, "w");
    if (!file)
        return failed(5022);
    fputs("{}\n", file);
    fclose(file);
    return ok;
}
#endif
