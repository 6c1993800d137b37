/* A CUDA driver without a GPU: enough of libcuda.so.1 for fabricast and its tests.
 *
 * The memory of a device is mapped twice: where its address says, nobody may touch it (PROT_NONE); the copies go by the other mapping.
 * Each stream has a thread, which does its work in order, after a delay that a test sets. What a real driver would not forgive is counted:
 * unknown or freed memory, calls without a context, memory of the host that is let go while a copy uses it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef int CUresult;
typedef unsigned long long address;

enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NO_CONTEXT = 201, NOT_REGISTERED = 713, BUSY = 600 };
enum { COPY, FILL, RECORD, WAIT, BLOCK };

struct event {
    uint64_t recorded, done;
    int destroyed;
};

struct work {
    int kind;
    char *to;
    const char *from;
    size_t size;
    unsigned char byte;
    struct event *event;
    uint64_t version;
    struct work *next;
};

struct stream {
    struct work *first;
    int busy, destroyed, started;
    void *context;
    struct stream *next;
};

struct allocation {
    address base;
    char *shadow;
    size_t size;
    int device, freed;
    struct allocation *next;
};

struct pinned {
    char *base;
    size_t size;
    struct pinned *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct allocation *allocations;
static struct pinned *pins;
static struct stream *streams;
static struct stream defaults[8];
static int contexts[8];
static long delay_us, faults, copies, pageable, blocked, live_streams, live_events, live_allocations;
static char fault[256];
static struct {
    char name[64];
    int code, skip, times;
} failing;
static __thread void *stack[32];
static __thread int depth;

static int from_env(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

static void bad(const char *what)
{
    if (!faults++)
        snprintf(fault, sizeof fault, "%s", what);
}

static int fails(const char *name)
{
    if (strcmp(name, failing.name) || !failing.times)
        return 0;
    if (failing.skip) {
        failing.skip--;
        return 0;
    }
    failing.times--;
    return failing.code;
}

/* ---- what a test says and asks ---------------------------------------------------------------------------------- */

void fake_cuda_delay_us(long us) { delay_us = us; }

void fake_cuda_fail(const char *name, int code, int skip, int times)
{
    pthread_mutex_lock(&lock);
    snprintf(failing.name, sizeof failing.name, "%s", name);
    failing.code = code;
    failing.skip = skip;
    failing.times = times;
    pthread_mutex_unlock(&lock);
}

/* Blocked work of all streams goes on. */
void fake_cuda_unblock(void)
{
    pthread_mutex_lock(&lock);
    blocked++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* Mistakes so far, and what the first one was. */
long fake_cuda_faults(const char **first)
{
    *first = fault;
    return faults;
}

/* Of: 0 copies, 1 those with memory of the host that is not pinned, 2 streams, 3 events, 4 allocations. */
long fake_cuda_count(int of)
{
    long counts[] = {copies, pageable, live_streams, live_events, live_allocations};
    return counts[of];
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static char *shadow_of(address at, size_t size)
{
    for (struct allocation *a = allocations; a; a = a->next)
        if (at >= a->base && at - a->base <= a->size && size <= a->size - (at - a->base)) {
            if (!a->freed)
                return a->shadow + (at - a->base);
            bad("device memory that was freed");
            return NULL;
        }
    bad("an address that is none of a device");
    return NULL;
}

static int is_pinned(const void *base, size_t size)
{
    for (struct pinned *p = pins; p; p = p->next)
        if ((char *)base >= p->base && (char *)base + size <= p->base + p->size)
            return 1;
    return 0;
}

static int in_use(const char *base, size_t size)
{
    for (struct stream *s = streams; s; s = s->next)
        for (struct work *w = s->first; w; w = w->next)
            if (w->kind == COPY && ((w->to < base + size && w->to + w->size > base) ||
                                    (w->from < base + size && w->from + w->size > base)))
                return 1;
    return 0;
}

static int has_context(const char *call)
{
    if (depth && stack[depth - 1])
        return 1;
    bad(call);
    return 0;
}

static int device_of(void) { return (int)((int *)stack[depth - 1] - contexts); }

static void drain_all(void)
{
    for (struct stream *s = streams; s; s = s->next)
        while (s->first)
            pthread_cond_wait(&changed, &lock);
}

CUresult cuMemAlloc_v2(address *at, size_t size)
{
    int fd, code;
    struct allocation *a;
    size_t bytes = (size + 4095) & ~(size_t)4095;
    pthread_mutex_lock(&lock);
    if ((code = fails("cuMemAlloc")) || !has_context("cuMemAlloc without a context")) {
        pthread_mutex_unlock(&lock);
        return code ? code : NO_CONTEXT;
    }
    fd = memfd_create("device", 0);
    a = calloc(1, sizeof *a);
    if (fd < 0 || ftruncate(fd, (off_t)bytes)) {
        pthread_mutex_unlock(&lock);
        return NO_MEMORY;
    }
    a->base = (address)mmap(NULL, bytes, PROT_NONE, MAP_SHARED, fd, 0);
    a->shadow = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    a->size = size;
    a->device = device_of();
    a->next = allocations;
    allocations = a;
    live_allocations++;
    *at = a->base;
    pthread_mutex_unlock(&lock);
    return OK;
}

CUresult cuMemFree_v2(address at)
{
    CUresult code = INVALID;
    pthread_mutex_lock(&lock);
    if (!has_context("cuMemFree without a context"))
        code = NO_CONTEXT;
    else
        drain_all();
    for (struct allocation *a = allocations; a && code == INVALID; a = a->next)
        if (a->base == at && !a->freed) {
            a->freed = 1;
            munmap(a->shadow, (a->size + 4095) & ~(size_t)4095);
            live_allocations--;
            code = OK;
        }
    if (code == INVALID)
        bad("cuMemFree of what is no allocation");
    pthread_mutex_unlock(&lock);
    return code;
}

CUresult cuMemGetAddressRange_v2(address *base, size_t *size, address at)
{
    CUresult code = INVALID;
    pthread_mutex_lock(&lock);
    for (struct allocation *a = allocations; a; a = a->next)
        if (!a->freed && at >= a->base && at < a->base + a->size) {
            *base = a->base;
            *size = a->size;
            code = OK;
        }
    pthread_mutex_unlock(&lock);
    return code;
}

static void pin(void *base, size_t size)
{
    struct pinned *p = calloc(1, sizeof *p);
    *p = (struct pinned){base, size, pins};
    pins = p;
}

static CUresult unpin(void *base)
{
    for (struct pinned **at = &pins; *at; at = &(*at)->next)
        if ((*at)->base == base) {
            struct pinned *p = *at;
            if (in_use(p->base, p->size))
                bad("memory of the host was let go while a copy used it");
            *at = p->next;
            free(p);
            return OK;
        }
    bad("memory of the host that was not pinned");
    return NOT_REGISTERED;
}

CUresult cuMemHostRegister_v2(void *base, size_t size, unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    CUresult code = fails("cuMemHostRegister");
    if (!code && !has_context("cuMemHostRegister without a context"))
        code = NO_CONTEXT;
    if (!code)
        pin(base, size);
    pthread_mutex_unlock(&lock);
    return code;
}

CUresult cuMemHostUnregister(void *base)
{
    pthread_mutex_lock(&lock);
    CUresult code = unpin(base);
    pthread_mutex_unlock(&lock);
    return code;
}

CUresult cuMemHostAlloc(void **base, size_t size, unsigned flags)
{
    (void)flags;
    if (posix_memalign(base, 4096, size))
        return NO_MEMORY;
    pthread_mutex_lock(&lock);
    pin(*base, size);
    pthread_mutex_unlock(&lock);
    return OK;
}

CUresult cuMemFreeHost(void *base)
{
    pthread_mutex_lock(&lock);
    CUresult code = unpin(base);
    pthread_mutex_unlock(&lock);
    if (!code)
        free(base);
    return code;
}

CUresult cuPointerGetAttribute(void *into, int attribute, address at)
{
    CUresult code = INVALID;
    pthread_mutex_lock(&lock);
    for (struct allocation *a = allocations; a; a = a->next)
        if (!a->freed && at >= a->base && at < a->base + a->size) {
            code = OK;
            switch (attribute) {
            case 1: *(void **)into = &contexts[a->device]; break;
            case 2: *(unsigned *)into = 2; break;
            case 8: *(unsigned *)into = 0; break;
            case 9: *(int *)into = a->device; break;
            default: code = INVALID;
            }
        }
    if (code && is_pinned((void *)at, 1) && attribute == 2) {
        *(unsigned *)into = 1;
        code = OK;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

CUresult cuPointerSetAttribute(const void *value, int attribute, address at)
{
    (void)value, (void)attribute;
    pthread_mutex_lock(&lock);
    CUresult code = shadow_of(at, 1) ? OK : INVALID;
    pthread_mutex_unlock(&lock);
    return code;
}

/* ---- streams ------------------------------------------------------------------------------------------------------ */

static void pause_us(long us)
{
    struct timespec time = {us / 1000000, us % 1000000 * 1000};
    if (us > 0)
        nanosleep(&time, NULL);
}

/* The lock is held; it is let go while bytes move. */
static void run(struct work *work)
{
    switch (work->kind) {
    case COPY:
        pthread_mutex_unlock(&lock);
        pause_us(delay_us);
        memcpy(work->to, work->from, work->size);
        pthread_mutex_lock(&lock);
        break;
    case FILL:
        memset(work->to, work->byte, work->size);
        break;
    case RECORD:
        if (work->event->done < work->version)
            work->event->done = work->version;
        break;
    case WAIT:
        while (work->event->done < work->version)
            pthread_cond_wait(&changed, &lock);
        break;
    case BLOCK:
        while ((uint64_t)blocked <= work->version)
            pthread_cond_wait(&changed, &lock);
        break;
    }
}

static void *serve(void *argument)
{
    struct stream *stream = argument;
    pthread_mutex_lock(&lock);
    for (;;) {
        struct work *work = stream->first;
        if (!work) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        run(work);
        stream->first = work->next;
        free(work);
        pthread_cond_broadcast(&changed);
    }
    return NULL;
}

static struct stream *find_stream(void *raw)
{
    struct stream *stream = raw;
    if (!raw) {
        if (!has_context("the default stream without a context"))
            return NULL;
        stream = &defaults[device_of()];
        if (!stream->context) {
            stream->context = stack[depth - 1];
            stream->next = streams;
            streams = stream;
        }
    }
    if (stream->destroyed)
        bad("a stream that was destroyed");
    return stream;
}

static void enqueue(struct stream *stream, struct work what)
{
    struct work *work = malloc(sizeof *work), **end;
    *work = what;
    work->next = NULL;
    for (end = &stream->first; *end; end = &(*end)->next)
        ;
    *end = work;
    if (!stream->started) {
        pthread_t thread;
        stream->started = 1;
        pthread_create(&thread, NULL, serve, stream);
        pthread_detach(thread);
    }
    pthread_cond_broadcast(&changed);
}

CUresult cuStreamCreate(void **raw, unsigned flags)
{
    (void)flags;
    CUresult code;
    pthread_mutex_lock(&lock);
    code = fails("cuStreamCreate");
    if (!code && !has_context("cuStreamCreate without a context"))
        code = NO_CONTEXT;
    if (!code) {
        struct stream *stream = calloc(1, sizeof *stream);
        stream->context = stack[depth - 1];
        stream->next = streams;
        streams = stream;
        live_streams++;
        *raw = stream;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

/* What it was given is still done; its memory stays, so that a use of it is seen. */
CUresult cuStreamDestroy_v2(void *raw)
{
    pthread_mutex_lock(&lock);
    struct stream *stream = find_stream(raw);
    stream->destroyed = 1;
    live_streams--;
    pthread_mutex_unlock(&lock);
    return OK;
}

CUresult cuStreamGetCtx(void *raw, void **context)
{
    pthread_mutex_lock(&lock);
    struct stream *stream = find_stream(raw);
    *context = stream ? stream->context : NULL;
    pthread_mutex_unlock(&lock);
    return stream ? OK : NO_CONTEXT;
}

CUresult cuStreamSynchronize(void *raw)
{
    pthread_mutex_lock(&lock);
    CUresult code = fails("cuStreamSynchronize");
    struct stream *stream = find_stream(raw);
    while (!code && stream && stream->first)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return code ? code : stream ? OK : NO_CONTEXT;
}

CUresult cuStreamQuery(void *raw)
{
    pthread_mutex_lock(&lock);
    struct stream *stream = find_stream(raw);
    CUresult code = !stream ? NO_CONTEXT : stream->first ? BUSY : OK;
    pthread_mutex_unlock(&lock);
    return code;
}

/* The stream stops there until `fake_cuda_unblock`. */
void fake_cuda_block(void *raw)
{
    pthread_mutex_lock(&lock);
    enqueue(raw, (struct work){.kind = BLOCK, .version = (uint64_t)blocked});
    pthread_mutex_unlock(&lock);
}

static CUresult copy(const char *name, char *to, const char *from, size_t size, const void *host, void *raw)
{
    CUresult code = fails(name);
    struct stream *stream = code ? NULL : find_stream(raw);
    if (!code && (!to || !from))
        code = INVALID;
    if (!code && (!stream || !has_context(name)))
        code = NO_CONTEXT;
    if (!code) {
        copies++;
        enqueue(stream, (struct work){.kind = COPY, .to = to, .from = from, .size = size});
        if (host && !is_pinned(host, size)) {
            pageable++;
            while (stream->first)
                pthread_cond_wait(&changed, &lock);
        }
    }
    pthread_mutex_unlock(&lock);
    return code;
}

CUresult cuMemcpyHtoDAsync_v2(address to, const void *from, size_t size, void *stream)
{
    pthread_mutex_lock(&lock);
    return copy("cuMemcpyHtoDAsync", shadow_of(to, size), from, size, from, stream);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, address from, size_t size, void *stream)
{
    pthread_mutex_lock(&lock);
    return copy("cuMemcpyDtoHAsync", to, shadow_of(from, size), size, to, stream);
}

CUresult cuMemcpyDtoDAsync_v2(address to, address from, size_t size, void *stream)
{
    pthread_mutex_lock(&lock);
    return copy("cuMemcpyDtoDAsync", shadow_of(to, size), shadow_of(from, size), size, NULL, stream);
}

CUresult cuMemsetD8Async(address to, unsigned char byte, size_t size, void *raw)
{
    pthread_mutex_lock(&lock);
    struct stream *stream = find_stream(raw);
    char *shadow = shadow_of(to, size);
    if (stream && shadow)
        enqueue(stream, (struct work){.kind = FILL, .to = shadow, .size = size, .byte = byte});
    pthread_mutex_unlock(&lock);
    return stream && shadow ? OK : INVALID;
}

/* ---- events ------------------------------------------------------------------------------------------------------- */

CUresult cuEventCreate(void **raw, unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    CUresult code = fails("cuEventCreate");
    if (!code && !has_context("cuEventCreate without a context"))
        code = NO_CONTEXT;
    if (!code) {
        *raw = calloc(1, sizeof(struct event));
        live_events++;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

CUresult cuEventDestroy_v2(void *raw)
{
    pthread_mutex_lock(&lock);
    ((struct event *)raw)->destroyed = 1;
    live_events--;
    pthread_mutex_unlock(&lock);
    return OK;
}

CUresult cuEventRecord(void *raw, void *on)
{
    struct event *event = raw;
    pthread_mutex_lock(&lock);
    CUresult code = fails("cuEventRecord");
    struct stream *stream = find_stream(on);
    if (event->destroyed)
        bad("an event that was destroyed");
    if (!code && stream)
        enqueue(stream, (struct work){.kind = RECORD, .event = event, .version = ++event->recorded});
    pthread_mutex_unlock(&lock);
    return code;
}

CUresult cuEventQuery(void *raw)
{
    struct event *event = raw;
    pthread_mutex_lock(&lock);
    CUresult code = fails("cuEventQuery");
    if (event->destroyed)
        bad("an event that was destroyed");
    if (!code)
        code = event->done >= event->recorded ? OK : BUSY;
    pthread_mutex_unlock(&lock);
    return code;
}

CUresult cuEventSynchronize(void *raw)
{
    struct event *event = raw;
    pthread_mutex_lock(&lock);
    CUresult code = fails("cuEventSynchronize");
    if (event->destroyed)
        bad("an event that was destroyed");
    while (!code && event->done < event->recorded)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return code;
}

CUresult cuStreamWaitEvent(void *on, void *raw, unsigned flags)
{
    (void)flags;
    struct event *event = raw;
    pthread_mutex_lock(&lock);
    struct stream *stream = find_stream(on);
    if (stream && event->done < event->recorded)
        enqueue(stream, (struct work){.kind = WAIT, .event = event, .version = event->recorded});
    pthread_mutex_unlock(&lock);
    return stream ? OK : NO_CONTEXT;
}

/* ---- devices and contexts ---------------------------------------------------------------------------------------- */

static int devices(void) { return from_env("FAKE_CUDA_DEVICES", 1); }

CUresult cuInit(unsigned flags)
{
    (void)flags;
    delay_us = from_env("FAKE_CUDA_DELAY_US", (int)delay_us);
    return OK;
}

CUresult cuDeviceGetCount(int *count)
{
    *count = devices();
    return OK;
}

CUresult cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal >= 0 && ordinal < devices() ? OK : 101;
}

CUresult cuDeviceGetName(char *name, int size, int device)
{
    snprintf(name, (size_t)size, "Fake GPU %d", device);
    return OK;
}

CUresult cuDeviceGetPCIBusId(char *id, int size, int device)
{
    snprintf(id, (size_t)size, "ffff:%02x:00.0", device);
    return OK;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)attribute, (void)device;
    *value = 0;
    return OK;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    (void)device;
    *bytes = (size_t)1 << 34;
    return OK;
}

CUresult cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = &contexts[device];
    return OK;
}

CUresult cuCtxGetCurrent(void **context)
{
    *context = depth ? stack[depth - 1] : NULL;
    return OK;
}

CUresult cuCtxSetCurrent(void *context)
{
    depth = depth ? depth : 1;
    stack[depth - 1] = context;
    return OK;
}

CUresult cuCtxPushCurrent_v2(void *context)
{
    if (depth == 32)
        return INVALID;
    stack[depth++] = context;
    return OK;
}

CUresult cuCtxPopCurrent_v2(void **context)
{
    if (!depth)
        return NO_CONTEXT;
    *context = stack[--depth];
    return OK;
}

CUresult cuCtxSynchronize(void)
{
    pthread_mutex_lock(&lock);
    drain_all();
    pthread_mutex_unlock(&lock);
    return OK;
}

CUresult cuGetErrorName(CUresult code, const char **name)
{
    *name = code == NOT_REGISTERED ? "FAKE_NOT_REGISTERED" : "FAKE_ERROR";
    return OK;
}
