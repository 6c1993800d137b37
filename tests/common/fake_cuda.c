/* A CUDA driver without a GPU: enough of libcuda.so.1 for fabricast and its tests.
 *
 * Work in a stream runs when the stream is synchronised, or when a test says so; with FAKE_STREAMS_RUN, after a first look at it.
 * With FAKE_CUDA_THREADS a thread does it, each piece FAKE_CUDA_DELAY_US after the one before it in its stream.
 *
 * Device memory is host memory; with FAKE_CUDA_PROTECTED it is mapped twice, and nobody can reach it by its device address: who tries
 * with the processor dies there. What a program must not do is counted (fake_cuda_violations); a test can have calls fail
 * (fake_cuda_fail), and a stream stop (fake_cuda_block). */
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
typedef void (*fake_work)(void *);

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, NOT_READY = 600,
       NOT_SUPPORTED = 801 };
enum { PAGE = 4096, GRANULE = 2 << 20, DEVICES = 16, RANGES = 4096 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int synchronize_error, initialised, violations;
static char violation[256];
static __thread void *current;

static int from_env(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

static int threaded(void) { return from_env("FAKE_CUDA_THREADS", 0); }

/* Under the lock. */
static void violate(const char *what)
{
    if (!violations++)
        snprintf(violation, sizeof violation, "%s", what);
}

/* What a program must not do, and how often it was done */
int fake_cuda_violations(void) { return violations; }
const char *fake_cuda_violation(void) { return violation; }

static int hidden(void) { return from_env("FAKE_CUDA_PROTECTED", 0); }

/* Where memory is not protected, the tests allocate without one. */
static int has_context(const char *call)
{
    char text[128];
    if (current || !hidden())
        return current != NULL;
    snprintf(text, sizeof text, "%s without a context", call);
    pthread_mutex_lock(&lock);
    violate(text);
    pthread_mutex_unlock(&lock);
    return 0;
}

/* Calls that fail because a test says so */

static struct {
    char name[64];
    int code, skip, times;
} failing;

void fake_cuda_fail(const char *name, int code, int skip, int times)
{
    pthread_mutex_lock(&lock);
    snprintf(failing.name, sizeof failing.name, "%s", name);
    failing.code = code;
    failing.skip = skip;
    failing.times = times;
    pthread_mutex_unlock(&lock);
}

static CUresult fails(const char *name)
{
    CUresult code = 0;
    pthread_mutex_lock(&lock);
    if (failing.times && !strcmp(name, failing.name) && !(failing.skip && failing.skip--)) {
        failing.times--;
        code = failing.code;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

/* Memory: what is at which address */

enum kind { PLAIN, VIRTUAL, MANAGED, PINNED, REGISTERED };

struct range {
    address base;
    char *view; /* where its bytes can be reached */
    size_t size;
    enum kind kind;
    int device, fd, live, sync_memops;
    unsigned long long handle;
};

static struct range ranges[RANGES];
static int range_count, copies, pageable, dmabufs, flushes;

int fake_cuda_copies(void) { return copies; }
/* Copies in a stream with memory of the host that is not pinned */
int fake_cuda_pageable(void) { return pageable; }
int fake_cuda_dmabufs(void) { return dmabufs; }
int fake_cuda_flushes(void) { return flushes; }

static int live_of(enum kind first, enum kind last)
{
    int live = 0;
    for (int i = 0; i < range_count; i++)
        live += ranges[i].live && ranges[i].kind >= first && ranges[i].kind <= last;
    return live;
}

int fake_cuda_device_live(void) { return live_of(PLAIN, MANAGED); }
int fake_cuda_host_live(void) { return live_of(PINNED, PINNED); }
int fake_cuda_registered_live(void) { return live_of(REGISTERED, REGISTERED); }

/* Whether an allocation is told SYNC_MEMOPS. */
int fake_cuda_sync_memops(address at)
{
    for (int i = 0; i < range_count; i++)
        if (ranges[i].live && at >= ranges[i].base && at < ranges[i].base + ranges[i].size)
            return ranges[i].sync_memops;
    return 0;
}

static struct range *add(address base, char *view, size_t size, enum kind kind)
{
    struct range *range = NULL;
    for (int i = 0; i < range_count && !range; i++)
        if (!ranges[i].live && ranges[i].base == base)
            range = &ranges[i];
    if (!range)
        range = range_count < RANGES ? &ranges[range_count++] : NULL;
    if (!range) {
        violate("the fake has no place for one allocation more");
        return NULL;
    }
    *range = (struct range){base, view, size, kind, 0, -1, 1, 0, 0};
    return range;
}

static struct range *find(address at)
{
    for (int i = 0; i < range_count; i++)
        if (ranges[i].live && at >= ranges[i].base && at < ranges[i].base + ranges[i].size)
            return &ranges[i];
    return NULL;
}

/* Where the bytes of a device's address are. */
static char *device_view(address at, size_t size)
{
    struct range *range = find(at);
    if (!range || range->kind > MANAGED) {
        if (!hidden())
            return (char *)(uintptr_t)at;
        violate("a device's address that is not allocated, or not any more");
        return NULL;
    }
    if (at + size > range->base + range->size) {
        violate("over the end of an allocation");
        return NULL;
    }
    return range->view + (at - range->base);
}

/* Whether the host may be given so many bytes there, and whether they are pinned. */
static int host_is_pinned(const void *at, size_t size)
{
    struct range *range = find((uintptr_t)at);
    if (range && range->kind <= MANAGED && range->kind != MANAGED)
        violate("a device's address where memory of the host belongs");
    if (range && (uintptr_t)at + size > range->base + range->size)
        violate("over the end of pinned memory");
    return range != NULL;
}

static CUresult allocate(address *at, size_t size, enum kind kind, int device)
{
    size_t whole = (size + PAGE - 1) / PAGE * PAGE;
    int fd = memfd_create("device memory", MFD_CLOEXEC);
    char *base, *view;
    struct range *range;
    if (!size || fd < 0 || ftruncate(fd, whole))
        return OUT_OF_MEMORY;
    base = mmap(NULL, whole, hidden() ? PROT_NONE : PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    view = hidden() ? mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : base;
    if (base == MAP_FAILED || view == MAP_FAILED)
        return OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    range = add((uintptr_t)base, view, size, kind);
    if (range) {
        range->device = device;
        range->fd = fd;
    }
    pthread_mutex_unlock(&lock);
    *at = (uintptr_t)base;
    return range ? 0 : OUT_OF_MEMORY;
}

/* Streams: one list of all work, in order */

struct event {
    unsigned long long recorded, done;
    int live;
    void *stream;
};

struct work {
    void *stream;
    fake_work run;
    void *argument;
    struct event *record, *wait;
    unsigned long long version; /* of what is recorded or waited for */
    struct timespec not_before;
    int running;
    struct work *next;
};

static struct work *queue;
static int delay_us = -1, worker_is_there;

void fake_cuda_fail_synchronize(int code) { synchronize_error = code; }
void fake_cuda_delay(int microseconds) { delay_us = microseconds; }

static struct timespec after(int microseconds)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_nsec += microseconds % 1000000 * 1000L;
    at.tv_sec += microseconds / 1000000 + at.tv_nsec / 1000000000;
    at.tv_nsec %= 1000000000;
    return at;
}

static int is_past(struct timespec at)
{
    struct timespec now = after(0);
    return now.tv_sec > at.tv_sec || (now.tv_sec == at.tv_sec && now.tv_nsec >= at.tv_nsec);
}

static void run_copy(void *copy);

/* A copy's argument is the queue's, so that it can be looked at while the copy is under way. */
static void release(struct work *work)
{
    if (work->run == run_copy)
        free(work->argument);
    free(work);
}

static void finish(struct work *done)
{
    struct work **at;
    struct work *next;
    for (at = &queue; *at != done; at = &(*at)->next)
        ;
    *at = done->next;
    if (done->record && done->record->done < done->version)
        done->record->done = done->version;
    for (next = done->next; next && next->stream != done->stream; next = next->next)
        ;
    if (next && next->run)
        next->not_before = after(delay_us < 0 ? from_env("FAKE_CUDA_DELAY_US", 0) : delay_us);
    release(done);
    pthread_cond_broadcast(&changed);
}

static int is_stopped(const struct work *work) { return work->wait && work->wait->done < work->version; }

/* The first of its stream, whose time has come. */
static struct work *runnable(void)
{
    for (struct work *at = queue; at; at = at->next) {
        struct work *before = queue;
        while (before != at && before->stream != at->stream)
            before = before->next;
        if (before == at && !at->running && !is_stopped(at) && is_past(at->not_before))
            return at;
    }
    return NULL;
}

static void *worker(void *nothing)
{
    pthread_mutex_lock(&lock);
    for (;;) {
        struct work *work = runnable();
        struct timespec soon;
        if (work) {
            work->running = 1;
            if (work->run) {
                pthread_mutex_unlock(&lock);
                work->run(work->argument);
                pthread_mutex_lock(&lock);
            }
            finish(work);
            continue;
        }
        clock_gettime(CLOCK_REALTIME, &soon);
        soon.tv_nsec += 50000;
        soon.tv_sec += soon.tv_nsec / 1000000000;
        soon.tv_nsec %= 1000000000;
        if (queue)
            pthread_cond_timedwait(&changed, &lock, &soon);
        else
            pthread_cond_wait(&changed, &lock);
    }
    return nothing;
}

static void enqueue(struct work item)
{
    struct work *work = malloc(sizeof *work), **end;
    pthread_t thread;
    *work = item;
    pthread_mutex_lock(&lock);
    work->not_before = after(work->run ? (delay_us < 0 ? from_env("FAKE_CUDA_DELAY_US", 0) : delay_us) : 0);
    if (work->record)
        work->version = ++work->record->recorded;
    else if (work->wait && !work->version)
        work->version = work->wait->recorded;
    for (end = &queue; *end; end = &(*end)->next)
        ;
    *end = work;
    if (threaded() && !worker_is_there) {
        worker_is_there = 1;
        pthread_create(&thread, NULL, worker, NULL);
        pthread_detach(thread);
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void fake_cuda_enqueue(void *stream, fake_work run, void *argument)
{
    enqueue((struct work){.stream = stream, .run = run, .argument = argument});
}

static struct event gate;

/* The stream stops here until fake_cuda_unblock; for streams that a thread works off. */
void fake_cuda_block(void *stream) { enqueue((struct work){.stream = stream, .wait = &gate, .version = gate.done + 1}); }

/* All streams go on. */
void fake_cuda_unblock(void)
{
    pthread_mutex_lock(&lock);
    gate.done++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static int is_busy(void *stream, int any)
{
    int busy = 0;
    for (struct work *at = queue; at; at = at->next)
        busy |= any || at->stream == stream;
    return busy;
}

/* Runs what is in the stream, and what that waits for; with threads, waits for it. */
void fake_cuda_run(void *stream)
{
    pthread_mutex_lock(&lock);
    while (threaded() && is_busy(stream, 0))
        pthread_cond_wait(&changed, &lock);
    while (!threaded()) {
        struct work *work = queue;
        while (work && work->stream != stream)
            work = work->next;
        if (!work)
            break;
        if (is_stopped(work)) {
            void *other = work->wait->stream;
            pthread_mutex_unlock(&lock);
            fake_cuda_run(other);
            pthread_mutex_lock(&lock);
            continue;
        }
        if (work->run) {
            /* Out of the list first: it may add to it. */
            struct work **at;
            for (at = &queue; *at != work; at = &(*at)->next)
                ;
            *at = work->next;
            pthread_mutex_unlock(&lock);
            work->run(work->argument);
            pthread_mutex_lock(&lock);
            release(work);
            continue;
        }
        finish(work);
    }
    pthread_mutex_unlock(&lock);
}

static void run_all(void)
{
    for (;;) {
        void *stream;
        pthread_mutex_lock(&lock);
        stream = queue ? queue->stream : NULL;
        if (!queue) {
            pthread_mutex_unlock(&lock);
            return;
        }
        pthread_mutex_unlock(&lock);
        fake_cuda_run(stream);
    }
}

/* The driver and its devices */

CUresult cuInit(unsigned flags)
{
    int code = from_env("FAKE_CUDA_INIT", 0);
    initialised = flags == 0 && code == 0;
    return code;
}

static int device_count(void) { return from_env("FAKE_CUDA_DEVICES", 1); }

CUresult cuDeviceGetCount(int *count)
{
    if (!initialised)
        return NOT_INITIALIZED;
    *count = device_count();
    return 0;
}

CUresult cuDeviceGet(int *device, int ordinal)
{
    if (ordinal < 0 || ordinal >= device_count())
        return INVALID_DEVICE;
    *device = ordinal;
    return 0;
}

CUresult cuDeviceGetName(char *name, int len, int device)
{
    snprintf(name, len, "Fake GPU %d", device);
    return 0;
}

CUresult cuDeviceGetPCIBusId(char *id, int len, int device)
{
    snprintf(id, len, "0000:F%X:00.0", device);
    return 0;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    switch (attribute) {
    case 118:
        *value = from_env("FAKE_CUDA_ORDERED", 0);
        return 0;
    case 98: case 102: case 110: case 116: case 117: case 124:
        *value = 1;
        return 0;
    case 115: /* no memory pools */
        *value = 0;
        return 0;
    }
    return INVALID_VALUE;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    (void)device;
    *bytes = (size_t)1 << 30;
    return 0;
}

CUresult cuFlushGPUDirectRDMAWrites(int target, int scope)
{
    flushes++;
    return fails("cuFlushGPUDirectRDMAWrites") ? 700 : !current ? INVALID_CONTEXT : target == 0 && (scope == 100 || scope == 200) ? 0 : INVALID_VALUE;
}

/* Contexts */

static int contexts_pushed;
static __thread void *stack[16];

int fake_cuda_contexts_pushed(void) { return contexts_pushed; }

/* Contexts that are no device's primary one are somebody's own, who may destroy them. */
static int strangers_pushed;

int fake_cuda_strangers_pushed(void) { return strangers_pushed; }

CUresult cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = (void *)(uintptr_t)(0x1000 + device);
    return 0;
}

CUresult cuDevicePrimaryCtxRelease_v2(int device)
{
    return device < device_count() ? 0 : INVALID_DEVICE;
}

CUresult cuCtxGetCurrent(void **context)
{
    *context = current;
    return 0;
}

CUresult cuCtxSetCurrent(void *context)
{
    current = context;
    return 0;
}

CUresult cuCtxPushCurrent_v2(void *context)
{
    for (int i = 15; i > 0; i--)
        stack[i] = stack[i - 1];
    stack[0] = current;
    current = context;
    if ((uintptr_t)context - 0x1000 >= 0x1000)
        __atomic_add_fetch(&strangers_pushed, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&contexts_pushed, 1, __ATOMIC_SEQ_CST);
    return 0;
}

CUresult cuCtxGetDevice(int *device)
{
    if (!current)
        return INVALID_CONTEXT;
    *device = (int)((uintptr_t)current & 0xf);
    return 0;
}

CUresult cuCtxPopCurrent_v2(void **context)
{
    *context = current;
    current = stack[0];
    for (int i = 0; i < 15; i++)
        stack[i] = stack[i + 1];
    __atomic_sub_fetch(&contexts_pushed, 1, __ATOMIC_SEQ_CST);
    return 0;
}

CUresult cuCtxSynchronize(void)
{
    if (!current)
        return INVALID_CONTEXT;
    run_all();
    return synchronize_error;
}

static int current_device(void) { return (int)((uintptr_t)current - 0x1000); }

/* Streams and events */

struct stream {
    void *context;
    int live;
    struct stream *next;
};

static struct stream *streams;

int fake_cuda_streams_live(void)
{
    int live = 0;
    for (struct stream *at = streams; at; at = at->next)
        live += at->live;
    return live;
}

/* The context of a stream that was made here; any other number is somebody's own stream. */
static void *context_of(void *stream)
{
    void *context = NULL;
    pthread_mutex_lock(&lock);
    for (struct stream *at = streams; at; at = at->next)
        if (at == stream) {
            context = at->context;
            if (!at->live)
                violate("a stream that was destroyed");
        }
    pthread_mutex_unlock(&lock);
    return context;
}

CUresult cuStreamCreate(void **stream, unsigned flags)
{
    struct stream *made = calloc(1, sizeof *made);
    CUresult code = fails("cuStreamCreate");
    (void)flags;
    if (code || !has_context("cuStreamCreate"))
        return code ? code : INVALID_CONTEXT;
    made->context = current;
    made->live = 1;
    pthread_mutex_lock(&lock);
    made->next = streams;
    streams = made;
    pthread_mutex_unlock(&lock);
    *stream = made;
    return 0;
}

/* Never freed, so that no other stream has its address. */
CUresult cuStreamDestroy_v2(void *stream)
{
    context_of(stream);
    pthread_mutex_lock(&lock);
    for (struct stream *at = streams; at; at = at->next)
        if (at == stream)
            at->live = 0;
    pthread_mutex_unlock(&lock);
    return 0;
}

CUresult cuStreamGetCtx(void *stream, void **context)
{
    *context = context_of(stream);
    return 0;
}

CUresult cuStreamSynchronize(void *stream)
{
    CUresult code = fails("cuStreamSynchronize");
    context_of(stream);
    if (code || synchronize_error)
        return code ? code : synchronize_error;
    fake_cuda_run(stream);
    return 0;
}

CUresult cuStreamQuery(void *stream)
{
    int busy;
    context_of(stream);
    if (synchronize_error)
        return synchronize_error;
    pthread_mutex_lock(&lock);
    busy = is_busy(stream, 0);
    pthread_mutex_unlock(&lock);
    if (busy && getenv("FAKE_STREAMS_RUN"))
        fake_cuda_run(stream);
    return busy ? NOT_READY : 0;
}

static int events_live;

int fake_cuda_events_live(void) { return events_live; }

CUresult cuEventCreate(void **event, unsigned flags)
{
    struct event *made = calloc(1, sizeof *made);
    CUresult code = fails("cuEventCreate");
    (void)flags;
    if (code || !has_context("cuEventCreate"))
        return code ? code : INVALID_CONTEXT;
    made->live = 1;
    __atomic_add_fetch(&events_live, 1, __ATOMIC_SEQ_CST);
    *event = made;
    return 0;
}

static struct event *alive(void *event)
{
    struct event *at = event;
    if (!at->live) {
        pthread_mutex_lock(&lock);
        violate("an event that was destroyed");
        pthread_mutex_unlock(&lock);
    }
    return at;
}

/* Never freed: streams may wait for it. */
CUresult cuEventDestroy_v2(void *event)
{
    alive(event)->live = 0;
    __atomic_sub_fetch(&events_live, 1, __ATOMIC_SEQ_CST);
    return 0;
}

CUresult cuEventRecord(void *event, void *stream)
{
    CUresult code = fails("cuEventRecord");
    context_of(stream);
    alive(event)->stream = stream;
    if (code)
        return code;
    enqueue((struct work){.stream = stream, .record = event});
    return 0;
}

CUresult cuEventQuery(void *event)
{
    int pending;
    struct event *at = alive(event);
    CUresult code = fails("cuEventQuery");
    if (code || synchronize_error)
        return code ? code : synchronize_error;
    pthread_mutex_lock(&lock);
    pending = at->done < at->recorded;
    pthread_mutex_unlock(&lock);
    if (pending && getenv("FAKE_STREAMS_RUN"))
        fake_cuda_run(at->stream);
    return pending ? NOT_READY : 0;
}

CUresult cuEventSynchronize(void *event)
{
    struct event *at = alive(event);
    CUresult code = fails("cuEventSynchronize");
    if (code || synchronize_error)
        return code ? code : synchronize_error;
    if (!threaded()) {
        fake_cuda_run(at->stream);
        return 0;
    }
    pthread_mutex_lock(&lock);
    while (at->done < at->recorded)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return 0;
}

CUresult cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    (void)flags;
    context_of(stream);
    enqueue((struct work){.stream = stream, .wait = alive(event)});
    return 0;
}

/* Memory */

CUresult cuMemAlloc_v2(address *at, size_t size)
{
    CUresult code = fails("cuMemAlloc");
    if (code || (!has_context("cuMemAlloc") && hidden()))
        return code ? code : INVALID_CONTEXT;
    return allocate(at, size, PLAIN, current ? current_device() : 0);
}

CUresult cuMemAllocManaged(address *at, size_t size, unsigned flags)
{
    (void)flags;
    return allocate(at, size, MANAGED, current ? current_device() : 0);
}

CUresult cuMemFree_v2(address at)
{
    struct range *range;
    if (!has_context("cuMemFree") && hidden())
        return INVALID_CONTEXT;
    if (threaded())
        run_all();
    pthread_mutex_lock(&lock);
    range = find(at);
    if (!range || range->base != at || range->kind == VIRTUAL || range->kind > MANAGED)
        violate("cuMemFree of what is not allocated");
    else {
        size_t whole = (range->size + PAGE - 1) / PAGE * PAGE;
        range->live = 0;
        close(range->fd);
        if (hidden()) {
            munmap(range->view, whole);
            /* The address is nobody's any more, and never another's. */
            mmap((void *)(uintptr_t)at, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        } else
            munmap((void *)(uintptr_t)at, whole);
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

CUresult cuMemGetAddressRange_v2(address *base, size_t *size, address at)
{
    struct range *range;
    pthread_mutex_lock(&lock);
    range = find(at);
    pthread_mutex_unlock(&lock);
    if (!range)
        return INVALID_VALUE;
    *base = range->base;
    *size = range->size;
    return 0;
}

CUresult cuMemHostAlloc(void **memory, size_t size, unsigned flags)
{
    if (!current || flags != 1 || from_env("FAKE_CUDA_NO_PINNED", 0))
        return OUT_OF_MEMORY;
    if (posix_memalign(memory, PAGE, size))
        return OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    add((uintptr_t)*memory, *memory, size, PINNED);
    pthread_mutex_unlock(&lock);
    return 0;
}

static int is_copied(const struct range *range);

static CUresult unpin(void *memory, enum kind kind)
{
    struct range *range;
    pthread_mutex_lock(&lock);
    range = find((uintptr_t)memory);
    if (range && is_copied(range))
        violate("memory of the host was let go while a copy used it");
    if (!range || range->base != (uintptr_t)memory || range->kind != kind)
        violate("memory is unpinned that is not pinned");
    else
        range->live = 0;
    pthread_mutex_unlock(&lock);
    return range ? 0 : INVALID_VALUE;
}

CUresult cuMemFreeHost(void *memory)
{
    CUresult code = unpin(memory, PINNED);
    free(memory);
    return code;
}

CUresult cuMemHostRegister_v2(void *memory, size_t size, unsigned flags)
{
    CUresult code = fails("cuMemHostRegister");
    (void)flags;
    if (code || !has_context("cuMemHostRegister"))
        return code ? code : INVALID_CONTEXT;
    if (from_env("FAKE_CUDA_NO_PINNED", 0))
        return OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    add((uintptr_t)memory, memory, size, REGISTERED);
    pthread_mutex_unlock(&lock);
    return 0;
}

CUresult cuMemHostUnregister(void *memory) { return unpin(memory, REGISTERED); }

CUresult cuPointerGetAttribute(void *into, int attribute, address at)
{
    struct range range = {0};
    struct range *found;
    pthread_mutex_lock(&lock);
    found = find(at);
    if (found)
        range = *found;
    pthread_mutex_unlock(&lock);
    if (!at || (!found && (hidden() || (attribute != 1 && attribute != 9))))
        return INVALID_VALUE;
    switch (attribute) {
    case 1:
        *(void **)into = from_env("FAKE_CUDA_NO_CONTEXT", 0) || range.kind == VIRTUAL ? NULL : (void *)(uintptr_t)(0x1000 + range.device);
        return 0;
    case 2:
        *(unsigned *)into = range.kind >= PINNED ? 1 : 2;
        return 0;
    case 8:
        *(unsigned *)into = range.kind == MANAGED;
        return 0;
    case 9:
        *(int *)into = range.device;
        return 0;
    case 17:
        *(void **)into = NULL;
        return 0;
    }
    return INVALID_VALUE;
}

CUresult cuPointerSetAttribute(const void *value, int attribute, address at)
{
    struct range *range;
    pthread_mutex_lock(&lock);
    range = find(at);
    if (range && attribute == 6)
        range->sync_memops = *(const unsigned *)value;
    pthread_mutex_unlock(&lock);
    return range && attribute == 6 ? 0 : INVALID_VALUE;
}

/* Copies */

enum direction { TO_DEVICE, TO_HOST, WITHIN, FILL };

struct copy {
    enum direction direction;
    uintptr_t to, from;
    size_t size;
    int pinned;
};

static void copy_now(struct copy *copy)
{
    char *to = (char *)copy->to, *from = (char *)copy->from;
    uintptr_t host = copy->direction == TO_DEVICE ? copy->from : copy->to;
    pthread_mutex_lock(&lock);
    copies++;
    if (copy->direction != TO_HOST)
        to = device_view(copy->to, copy->size);
    if (copy->direction == TO_HOST || copy->direction == WITHIN)
        from = device_view(copy->from, copy->size);
    if (copy->pinned && !find(host)) {
        violate("pinned memory was freed under a copy");
        to = NULL;
    }
    pthread_mutex_unlock(&lock);
    if (to && copy->direction == FILL)
        memset(to, (int)copy->from, copy->size);
    else if (to && from)
        memcpy(to, from, copy->size);
}

static void run_copy(void *argument) { copy_now(argument); }

/* Whether a copy that waits or runs uses that memory of the host. */
static int is_copied(const struct range *range)
{
    int used = 0;
    for (struct work *at = queue; at; at = at->next)
        if (at->run == run_copy) {
            struct copy *copy = at->argument;
            uintptr_t host = copy->direction == TO_DEVICE ? copy->from : copy->to;
            used |= copy->pinned && host < range->base + range->size && host + copy->size > range->base;
        }
    return used;
}

static CUresult later(enum direction direction, uintptr_t to, uintptr_t from, size_t size, void *stream)
{
    static const char *const names[] = {"cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync", "cuMemsetD8Async"};
    struct copy *copy;
    int pinned = 1;
    CUresult code = fails(names[direction]);
    if (code || !has_context(names[direction]))
        return code ? code : INVALID_CONTEXT;
    context_of(stream);
    pthread_mutex_lock(&lock);
    if (direction == TO_DEVICE || direction == TO_HOST)
        pinned = host_is_pinned((void *)(direction == TO_DEVICE ? from : to), size);
    pageable += !pinned;
    /* What is wrong at once. */
    if (direction != TO_HOST && !device_view(to, size))
        size = 0;
    if ((direction == TO_HOST || direction == WITHIN) && !device_view(from, size))
        size = 0;
    pthread_mutex_unlock(&lock);
    copy = malloc(sizeof *copy);
    *copy = (struct copy){direction, to, from, size, pinned && (direction == TO_DEVICE || direction == TO_HOST)};
    fake_cuda_enqueue(stream, run_copy, copy);
    /* Memory that is not pinned is copied before the call returns. */
    if (!pinned && threaded())
        fake_cuda_run(stream);
    return 0;
}

CUresult cuMemcpyHtoDAsync_v2(address to, const void *from, size_t size, void *stream)
{
    return later(TO_DEVICE, to, (uintptr_t)from, size, stream);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, address from, size_t size, void *stream)
{
    return later(TO_HOST, (uintptr_t)to, from, size, stream);
}

CUresult cuMemcpyDtoDAsync_v2(address to, address from, size_t size, void *stream)
{
    return later(WITHIN, to, from, size, stream);
}

CUresult cuMemsetD8Async(address to, unsigned char value, size_t size, void *stream)
{
    return later(FILL, to, value, size, stream);
}

static CUresult now(enum direction direction, uintptr_t to, uintptr_t from, size_t size)
{
    struct copy copy = {direction, to, from, size, 0};
    copy_now(&copy);
    return 0;
}

CUresult cuMemcpyHtoD_v2(address to, const void *from, size_t size) { return now(TO_DEVICE, to, (uintptr_t)from, size); }
CUresult cuMemcpyDtoH_v2(void *to, address from, size_t size) { return now(TO_HOST, (uintptr_t)to, from, size); }
CUresult cuMemsetD8_v2(address to, unsigned char value, size_t size) { return now(FILL, to, value, size); }

/* Virtual memory: an allocation, a range of addresses, and one mapped into the other */

struct physical {
    int fd, references, device;
    size_t size;
};

CUresult cuMemGetAllocationGranularity(size_t *granularity, const void *properties, int option)
{
    (void)properties, (void)option;
    *granularity = GRANULE;
    return 0;
}

CUresult cuMemCreate(unsigned long long *handle, size_t size, const void *properties, unsigned long long flags)
{
    struct physical *made = calloc(1, sizeof *made);
    const int *numbers = properties;
    if (size % GRANULE || flags || numbers[0] != 1 || numbers[2] != 1)
        return INVALID_VALUE;
    *made = (struct physical){memfd_create("virtual memory", MFD_CLOEXEC), 1, numbers[3], size};
    if (made->fd < 0 || ftruncate(made->fd, size))
        return OUT_OF_MEMORY;
    *handle = (uintptr_t)made;
    return 0;
}

CUresult cuMemRelease(unsigned long long handle)
{
    struct physical *at = (void *)(uintptr_t)handle;
    if (--at->references == 0) {
        close(at->fd);
        free(at);
    }
    return 0;
}

CUresult cuMemAddressReserve(address *at, size_t size, size_t alignment, address fixed, unsigned long long flags)
{
    char *whole = mmap(NULL, size + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    (void)fixed, (void)flags;
    if (whole == MAP_FAILED)
        return OUT_OF_MEMORY;
    *at = ((uintptr_t)whole + alignment - 1) / alignment * alignment;
    return 0;
}

CUresult cuMemAddressFree(address at, size_t size)
{
    pthread_mutex_lock(&lock);
    if (find(at))
        violate("addresses are freed with something mapped there");
    pthread_mutex_unlock(&lock);
    (void)size;
    return 0;
}

CUresult cuMemMap(address at, size_t size, size_t offset, unsigned long long handle, unsigned long long flags)
{
    struct physical *physical = (void *)(uintptr_t)handle;
    char *view = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, physical->fd, offset);
    struct range *range;
    if (view == MAP_FAILED || flags)
        return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    range = add(at, view, size, VIRTUAL);
    physical->references++;
    range->device = physical->device;
    range->fd = dup(physical->fd);
    range->handle = handle;
    pthread_mutex_unlock(&lock);
    return 0;
}

CUresult cuMemSetAccess(address at, size_t size, const void *descriptors, size_t count)
{
    struct range *range = find(at);
    const int *numbers = descriptors;
    return range && size == range->size && count == 1 && numbers[2] == 3 ? 0 : INVALID_VALUE;
}

CUresult cuMemUnmap(address at, size_t size)
{
    struct range *range;
    unsigned long long handle;
    pthread_mutex_lock(&lock);
    if (is_busy(NULL, 1))
        violate("memory is unmapped with work under way");
    range = find(at);
    if (!range || range->kind != VIRTUAL || range->size != size) {
        pthread_mutex_unlock(&lock);
        return INVALID_VALUE;
    }
    range->live = 0;
    close(range->fd);
    munmap(range->view, size);
    handle = range->handle;
    pthread_mutex_unlock(&lock);
    return cuMemRelease(handle);
}

CUresult cuMemRetainAllocationHandle(unsigned long long *handle, void *at)
{
    struct range *range;
    pthread_mutex_lock(&lock);
    range = find((uintptr_t)at);
    if (range && range->kind == VIRTUAL) {
        *handle = range->handle;
        ((struct physical *)(uintptr_t)range->handle)->references++;
    }
    pthread_mutex_unlock(&lock);
    return range && range->kind == VIRTUAL ? 0 : INVALID_VALUE;
}

/* A descriptor begins where the range does, and a file in memory can't begin inside another: so this is what lies there now. */
static int snapshot(const char *from, size_t size)
{
    int fd = memfd_create("a part of device memory", MFD_CLOEXEC);
    if (fd >= 0 && write(fd, from, size) != (ssize_t)size) {
        close(fd);
        fd = -1;
    }
    return fd;
}

CUresult cuMemGetHandleForAddressRange(void *handle, address at, size_t size, int type, unsigned long long flags)
{
    struct range *range;
    int fd = -1;
    if (!current)
        return INVALID_CONTEXT;
    if (from_env("FAKE_CUDA_NO_DMABUF", 0) || (flags == 1 && from_env("FAKE_CUDA_NO_PCIE", 0)))
        return NOT_SUPPORTED;
    pthread_mutex_lock(&lock);
    range = find(at);
    if (range && range->kind <= VIRTUAL && type == 1 && at % PAGE == 0 && size % PAGE == 0 && flags <= 1)
        fd = at == range->base ? dup(range->fd) : snapshot(range->view + (at - range->base), size);
    dmabufs += fd >= 0;
    pthread_mutex_unlock(&lock);
    *(int *)handle = fd;
    return fd >= 0 ? 0 : INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult code, const char **name)
{
    switch (code) {
    case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; return 0;
    case OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; return 0;
    case NOT_SUPPORTED: *name = "CUDA_ERROR_NOT_SUPPORTED"; return 0;
    case 700: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; return 0;
    }
    return INVALID_VALUE;
}
