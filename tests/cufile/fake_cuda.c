/* A CUDA driver without a GPU: enough of libcuda.so.1 for fabricast and its tests. Device memory is host memory; work in a
 * stream runs when the stream is synchronised, or when a test says so; with FAKE_STREAMS_RUN, after a first look at it. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult;
typedef void (*fake_work)(void *);

struct work {
    void *stream;
    fake_work run;
    void *argument;
    struct work *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct work *queue;
static int synchronize_error;
static int initialised;
static __thread void *current;

static int from_env(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}

/* What a test says */

void fake_cuda_fail_synchronize(int code) { synchronize_error = code; }

void fake_cuda_enqueue(void *stream, fake_work run, void *argument)
{
    struct work *work = calloc(1, sizeof *work), **end;
    *work = (struct work){stream, run, argument, NULL};
    pthread_mutex_lock(&lock);
    for (end = &queue; *end; end = &(*end)->next)
        ;
    *end = work;
    pthread_mutex_unlock(&lock);
}

/* Runs what is in the stream. */
void fake_cuda_run(void *stream)
{
    for (;;) {
        struct work **at, *found = NULL;
        pthread_mutex_lock(&lock);
        for (at = &queue; *at; at = &(*at)->next)
            if ((*at)->stream == stream) {
                found = *at;
                *at = found->next;
                break;
            }
        pthread_mutex_unlock(&lock);
        if (!found)
            return;
        found->run(found->argument);
        free(found);
    }
}

/* The driver */

CUresult cuInit(unsigned flags)
{
    int code = from_env("FAKE_CUDA_INIT", 0);
    initialised = flags == 0 && code == 0;
    return code;
}

CUresult cuDeviceGetCount(int *count)
{
    if (!initialised)
        return 3;
    *count = from_env("FAKE_CUDA_DEVICES", 1);
    return 0;
}

CUresult cuDeviceGet(int *device, int ordinal)
{
    if (ordinal < 0 || ordinal >= from_env("FAKE_CUDA_DEVICES", 1))
        return 101;
    *device = ordinal;
    return 0;
}

CUresult cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = (void *)(uintptr_t)(0x1000 + device);
    return 0;
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

CUresult cuStreamCreate(void **stream, unsigned flags)
{
    (void)flags;
    *stream = malloc(1);
    return 0;
}

CUresult cuStreamDestroy_v2(void *stream)
{
    free(stream);
    return 0;
}

CUresult cuStreamSynchronize(void *stream)
{
    if (synchronize_error)
        return synchronize_error;
    fake_cuda_run(stream);
    return 0;
}

CUresult cuStreamQuery(void *stream)
{
    struct work *at;
    int busy = 0;
    if (synchronize_error)
        return synchronize_error;
    pthread_mutex_lock(&lock);
    for (at = queue; at; at = at->next)
        busy |= at->stream == stream;
    pthread_mutex_unlock(&lock);
    if (busy && getenv("FAKE_STREAMS_RUN"))
        fake_cuda_run(stream);
    return busy ? 600 : 0;
}

CUresult cuMemAlloc_v2(unsigned long long *address, size_t size)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, size))
        return 2;
    *address = (uintptr_t)memory;
    return 0;
}

CUresult cuMemFree_v2(unsigned long long address)
{
    free((void *)(uintptr_t)address);
    return 0;
}

CUresult cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t size)
{
    memcpy((void *)(uintptr_t)to, from, size);
    return 0;
}

CUresult cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t size)
{
    memcpy(to, (void *)(uintptr_t)from, size);
    return 0;
}

CUresult cuMemsetD8_v2(unsigned long long to, unsigned char value, size_t size)
{
    memset((void *)(uintptr_t)to, value, size);
    return 0;
}

/* Memory of the host and copies in a stream: they run when the stream does, so who does not wait for them reads what was there
 * before. */

static int host_live, contexts_pushed;
static __thread void *stack[16];

int fake_cuda_host_live(void) { return host_live; }
int fake_cuda_contexts_pushed(void) { return contexts_pushed; }

CUresult cuMemHostAlloc(void **memory, size_t size, unsigned flags)
{
    if (!current || flags != 1 || from_env("FAKE_CUDA_NO_PINNED", 0))
        return 2;
    __atomic_add_fetch(&host_live, 1, __ATOMIC_SEQ_CST);
    return posix_memalign(memory, 4096, size) ? 2 : 0;
}

CUresult cuMemFreeHost(void *memory)
{
    __atomic_sub_fetch(&host_live, 1, __ATOMIC_SEQ_CST);
    free(memory);
    return 0;
}

struct copy { void *to; const void *from; size_t size; };

static void run_copy(void *argument)
{
    struct copy *copy = argument;
    memcpy(copy->to, copy->from, copy->size);
    free(copy);
}

static CUresult later(void *to, const void *from, size_t size, void *stream)
{
    struct copy *copy = malloc(sizeof *copy);
    if (!current)
        return 201;
    *copy = (struct copy){to, from, size};
    fake_cuda_enqueue(stream, run_copy, copy);
    return 0;
}

CUresult cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t size, void *stream)
{
    return later((void *)(uintptr_t)to, from, size, stream);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t size, void *stream)
{
    return later(to, (const void *)(uintptr_t)from, size, stream);
}

CUresult cuPointerGetAttribute(void *into, int attribute, unsigned long long address)
{
    if (!address)
        return 1;
    if (attribute == 1)
        *(void **)into = from_env("FAKE_CUDA_NO_CONTEXT", 0) ? NULL : (void *)(uintptr_t)0x1000;
    else if (attribute == 9)
        *(int *)into = 0;
    else
        return 1;
    return 0;
}

CUresult cuCtxPushCurrent_v2(void *context)
{
    for (int i = 15; i > 0; i--)
        stack[i] = stack[i - 1];
    stack[0] = current;
    current = context;
    __atomic_add_fetch(&contexts_pushed, 1, __ATOMIC_SEQ_CST);
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

CUresult cuGetErrorName(CUresult code, const char **name)
{
    if (code != 700)
        return 1;
    *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
    return 0;
}
