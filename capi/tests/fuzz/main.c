/*
 * The fuzzer: picks calls by their weights, in one thread or in several, until the time is up; then
 * releases all and checks that every piece of external memory was given back, once.
 *
 *   fuzz_calls [--seed N] [--seconds S] [--threads T] [--provider tcp] [--list]
 */
#define _GNU_SOURCE
#include "fuzz.h"

#include <execinfo.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

enum { MOST_CALLS = 512, MOST_THREADS = 8, HANDLES = 64, TRACE = 48, STUCK_SECONDS = 120 };

static struct call table[MOST_CALLS];
static size_t calls;
static unsigned weights;
static uint64_t came[MOST_CALLS][32];
static unsigned threads = 1;
static const char *provider_name = "tcp";
static uint64_t seed;
static atomic_bool stop;

static struct kind {
    const char *name;
    unsigned least, most, live;
    fcast_status (*make)(void);
    release_by_id *release;
    struct {
        uint64_t id;
        bool live;
    } handles[HANDLES];
} kinds[KINDS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static _Thread_local uint64_t state;
static _Thread_local unsigned self;
/* Per thread: what was called last, and how many. */
static struct {
    const char *name;
    fcast_status status;
} trace[MOST_THREADS][TRACE];
static atomic_ulong turns[MOST_THREADS];

void add_calls(const struct call *more, size_t count)
{
    for (size_t i = 0; i < count && calls < MOST_CALLS; i++) {
        table[calls++] = more[i];
        weights += more[i].weight;
    }
}

void add_kind(int kind, unsigned least, unsigned most, const char *name, fcast_status (*make)(void),
              release_by_id *release)
{
    if (kinds[kind].name != NULL || most >= HANDLES)
        abort();
    kinds[kind].least = least;
    kinds[kind].most = most;
    kinds[kind].make = make;
    kinds[kind].name = name;
    kinds[kind].release = release;
}

static void show_trace(void)
{
    fprintf(stderr, "seed %llu, %u threads, %s; the last calls of each thread:\n",
            (unsigned long long)seed, threads, provider_name);
    for (unsigned t = 0; t < threads; t++) {
        unsigned long turn = atomic_load(&turns[t]);
        fprintf(stderr, "thread %u, %lu calls:", t, turn);
        for (unsigned long i = turn > TRACE ? turn - TRACE + 1 : 0; i <= turn; i++)
            if (trace[t][i % TRACE].name != NULL)
                fprintf(stderr, " %s=%d", trace[t][i % TRACE].name, trace[t][i % TRACE].status);
        fprintf(stderr, "\n");
    }
}

static void remove_folder(void);
static void make_folder(void);

static void on_abort(int signal)
{
    void *frames[64];
    fprintf(stderr, "signal %d\n", signal);
    backtrace_symbols_fd(frames, backtrace(frames, COUNT(frames)), STDERR_FILENO);
    show_trace();
    remove_folder();
    _exit(134);
}

void die(const char *file, int line, const char *what, const char *format, ...)
{
    va_list list;
    fprintf(stderr, "FAILED %s:%d: %s: ", file, line, what);
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fprintf(stderr, "; last error: %s\n", fcast_last_error());
    abort();
}

/* xorshift64*: the same calls for the same seed, as far as time allows. */
uint64_t any_number(void)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * UINT64_C(2685821657736338717);
}

uint64_t below(uint64_t limit) { return (any_number() >> 16) % limit; }
bool alone(void) { return threads == 1; }
const char *provider(void) { return provider_name; }

/* Called with the lock held. */
static uint64_t some_handle(const struct kind *of, bool live)
{
    size_t first = below(HANDLES);
    for (size_t i = 0; i < HANDLES; i++) {
        size_t at = (first + i) % HANDLES;
        if (of->handles[at].id != 0 && of->handles[at].live == live)
            return of->handles[at].id;
    }
    return 0;
}

uint64_t pick_live(int kind)
{
    pthread_mutex_lock(&lock);
    uint64_t id = some_handle(&kinds[kind], true);
    pthread_mutex_unlock(&lock);
    return id;
}

uint64_t pick(int kind)
{
    uint64_t how = below(200);
    pthread_mutex_lock(&lock);
    uint64_t id = some_handle(&kinds[kind], how >= 10);
    if (how >= 196)
        id = some_handle(&kinds[below(KINDS)], true);
    pthread_mutex_unlock(&lock);
    /* A generation or a place that is not reached, or another kind: never what another thread just
     * got. */
    if (how == 194)
        id ^= UINT64_C(1) << (54 + below(10));
    if (how == 195)
        id = any_number() | UINT64_C(1) << 23 | UINT64_C(1) << 22 | UINT64_C(1) << 55;
    return how == 193 ? 0 : id;
}

void keep(int kind, uint64_t id)
{
    struct kind *of = &kinds[kind];
    MUST(id != 0 && id != UNTOUCHED, "a %s without a number", of->name);
    pthread_mutex_lock(&lock);
    bool room = of->live < of->most;
    if (room) {
        size_t at = below(HANDLES);
        while (of->handles[at].live)
            at = (at + 1) % HANDLES;
        of->handles[at].id = id;
        of->handles[at].live = true;
        of->live++;
    }
    pthread_mutex_unlock(&lock);
    if (!room)
        MUST(of->release(id) == FCAST_OK, "a new %s can't be released", of->name);
}

void gone(int kind, uint64_t id)
{
    struct kind *of = &kinds[kind];
    pthread_mutex_lock(&lock);
    for (size_t at = 0; at < HANDLES; at++)
        if (of->handles[at].id == id && of->handles[at].live) {
            of->handles[at].live = false;
            of->live--;
        }
    pthread_mutex_unlock(&lock);
}

fcast_status checked(fcast_status status)
{
    MUST(status != FCAST_PANIC, "a panic");
    MUST(strcmp(fcast_status_name(status), "unknown") != 0, "status %d", status);
    MUST(status == FCAST_OK || fcast_last_error()[0] != 0, "status %d without words", status);
    return status;
}

fcast_status used_up(int kind, uint64_t id, fcast_status status)
{
    if (status != FCAST_BUSY && status != FCAST_STALE) {
        gone(kind, id);
        MUST(kinds[kind].release(id) == FCAST_STALE, "a %s that was ended is there",
             kinds[kind].name);
    }
    return checked(status);
}

/* Without the first ones nothing else goes far. */
static void make_what_is_missing(void)
{
    for (int kind = 0; kind < KINDS; kind++)
        if (kinds[kind].make != NULL &&
            __atomic_load_n(&kinds[kind].live, __ATOMIC_RELAXED) < kinds[kind].least)
            kinds[kind].make();
}

static size_t any_call(void)
{
    uint64_t at = below(weights);
    size_t which = 0;
    while (at >= table[which].weight)
        at -= table[which++].weight;
    return which;
}

static void one_call(void)
{
    if (once_in(16))
        make_what_is_missing();
    size_t which = any_call();
    unsigned long turn = atomic_load(&turns[self]);
    trace[self][turn % TRACE].name = table[which].name;
    trace[self][turn % TRACE].status = -1;
    fcast_status status = table[which].make();
    trace[self][turn % TRACE].status = status;
    atomic_store(&turns[self], turn + 1);
    __atomic_add_fetch(&came[which][(unsigned)status % 32], 1, __ATOMIC_RELAXED);
}

static void *work(void *number)
{
    self = (unsigned)(size_t)number;
    state = (seed + self + 1) * UINT64_C(0x9e3779b97f4a7c15) | 1;
    while (!atomic_load(&stop))
        one_call();
    return NULL;
}

static void release_all(void)
{
    /* What is held by others last: endpoints first, fabrics at the end. */
    for (int kind = KINDS - 1; kind >= 0; kind--)
        for (size_t at = 0; at < HANDLES; at++)
            if (kinds[kind].handles[at].live)
                MUST(kinds[kind].release(kinds[kind].handles[at].id) == FCAST_OK,
                     "the last release of a %s", kinds[kind].name);
}

/* What was given is given back, at once or when what is under way in the background is done. */
static void all_external_memory_is_back(void);

static unsigned long long argument(int count, char **arguments, const char *name,
                                   unsigned long long other)
{
    for (int i = 1; i + 1 < count; i++)
        if (strcmp(arguments[i], name) == 0)
            return strtoull(arguments[i + 1], NULL, 10);
    return other;
}

/* With what came of each, by status. */
static void list(bool counts)
{
    for (size_t i = 0; i < calls; i++) {
        printf("%s", table[i].name);
        for (int status = 0; counts && status < 32; status++)
            if (came[i][status] != 0)
                printf(" %s=%llu", status == 0 ? "OK" : fcast_status_name(status) + 6,
                       (unsigned long long)came[i][status]);
        printf("\n");
    }
}

/* Until the time is up, or a thread does not come back from a call. */
static void watch(unsigned long long seconds)
{
    unsigned long before[MOST_THREADS] = {0};
    unsigned quiet[MOST_THREADS] = {0};
    for (unsigned long long second = 0; second < seconds; second++) {
        sleep(1);
        for (unsigned t = 0; t < threads; t++) {
            unsigned long turn = atomic_load(&turns[t]);
            quiet[t] = turn == before[t] ? quiet[t] + 1 : 0;
            before[t] = turn;
            MUST(quiet[t] < STUCK_SECONDS, "thread %u does not return from a call", t);
        }
    }
}

int main(int count, char **arguments)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    seed = argument(count, arguments, "--seed",
                    (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000);
    unsigned long long seconds = argument(count, arguments, "--seconds", 10);
    threads = (unsigned)argument(count, arguments, "--threads", 1);
    if (threads < 1 || threads > MOST_THREADS)
        threads = MOST_THREADS;
    for (int i = 1; i < count; i++) {
        if (strcmp(arguments[i], "--provider") == 0 && i + 1 < count)
            provider_name = arguments[i + 1];
        if (strcmp(arguments[i], "--list") == 0) {
            list(false);
            return 0;
        }
    }
    printf("seed %llu, %llu s, %u threads, %s\n", (unsigned long long)seed, seconds, threads,
           provider_name);
    fflush(stdout);
    make_folder();
    signal(SIGABRT, on_abort);
#ifndef __SANITIZE_ADDRESS__
    signal(SIGSEGV, on_abort);
    signal(SIGBUS, on_abort);
#endif
    signal(SIGPIPE, SIG_IGN);
    state = seed * 2 + 1;
    pthread_t workers[MOST_THREADS];
    for (size_t t = 0; t < threads; t++)
        MUST(pthread_create(&workers[t], NULL, work, (void *)t) == 0, "a thread");
    watch(seconds);
    atomic_store(&stop, true);
    unsigned long long sum = 0;
    for (size_t t = 0; t < threads; t++) {
        pthread_join(workers[t], NULL);
        sum += atomic_load(&turns[t]);
    }
    release_all();
    all_external_memory_is_back();
    list(true);
    printf("%llu calls\n", sum);
    return 0;
}

/* ---------------------------------------------------------------- what calls are made of */

unsigned char static_memory[1 << 16];
static atomic_long external_live;
static char addresses[4][96];
static atomic_uint next_address;

static void all_external_memory_is_back(void)
{
    for (int i = 0; i < 6000 && atomic_load(&external_live) != 0; i++)
        usleep(10000);
    MUST(atomic_load(&external_live) == 0, "%ld pieces of external memory were not released",
         atomic_load(&external_live));
}

void read_all(const void *data, size_t len)
{
    static volatile unsigned char sum;
    unsigned char of = 0;
    for (size_t i = 0; i < len; i++)
        of += ((const unsigned char *)data)[i];
    sum = of;
    (void)sum;
}

struct external *new_external(size_t len)
{
    struct external *external = malloc(sizeof *external);
    MUST(external != NULL, "memory");
    external->base = aligned_alloc(4096, (len + 4095) / 4096 * 4096 + 4096);
    MUST(external->base != NULL, "memory");
    memset(external->base, 0x11, len);
    external->len = len;
    atomic_init(&external->released, 0);
    atomic_fetch_add(&external_live, 1);
    return external;
}

/* Called by the library, on any thread; calls back, whatever it likes. */
void external_released(void *context)
{
    static _Thread_local bool within;
    struct external *external = context;
    MUST(atomic_exchange(&external->released, 1) == 0, "released twice");
    if (!within && state != 0 && !atomic_load(&stop)) {
        within = true;
        for (uint64_t times = below(3); times > 0; times--)
            table[any_call()].make();
        within = false;
    }
    free(external->base);
    free(external);
    atomic_fetch_sub(&external_live, 1);
}

void remember_address(const char *text)
{
    if (strlen(text) >= sizeof addresses[0])
        return;
    pthread_mutex_lock(&lock);
    strcpy(addresses[atomic_fetch_add(&next_address, 1) % COUNT(addresses)], text);
    pthread_mutex_unlock(&lock);
}

const char *any_address(char *place, size_t size)
{
    static const char *const bad[] = {
        "",    "127.0.0.1", "127.0.0.1:99999", "127.0.0.1:1", "hex:0011",      "\xff\xfe:1",
        "any", "hex:zz",    "[::1]:0",         "192.0.2.1:9", "fi_shm://1:0:0"};
    if (once_in(12))
        return once_in(4) ? NULL : bad[below(COUNT(bad))];
    pthread_mutex_lock(&lock);
    snprintf(place, size, "%s", addresses[below(COUNT(addresses))]);
    pthread_mutex_unlock(&lock);
    return place;
}

unsigned char file_memory[1 << 16];
static char folder_name[256];

static int remove_one(const char *path, const struct stat *status, int flag, struct FTW *at)
{
    (void)status, (void)flag, (void)at;
    return remove(path);
}

static void remove_folder(void) { nftw(folder_name, remove_one, 16, FTW_DEPTH | FTW_PHYS); }

static void make_folder(void)
{
    const char *at = getenv("TMPDIR");
    snprintf(folder_name, sizeof folder_name, "%s/fuzz_calls.XXXXXX",
             at != NULL && *at != 0 ? at : "/tmp");
    MUST(mkdtemp(folder_name) != NULL, "no folder %s", folder_name);
    atexit(remove_folder);
}

const char *folder(void) { return folder_name; }

const char *any_path(char *place, size_t size)
{
    static const char *const bad[] = {"", "/nowhere/\xff", "/nowhere/at/all", "."};
    if (once_in(20))
        return once_in(3) ? NULL : bad[below(COUNT(bad))];
    snprintf(place, size, "%s/file%u", folder_name, (unsigned)below(6));
    return place;
}

void *any_place(fcast_region *region, size_t *len)
{
    void *base = static_memory;
    size_t all = 64;
    *region = (fcast_region){pick(REGION)};
    fcast_region_memory(*region, &base, &all);
    size_t offset = below(all + 1);
    /* Without a region it is memory of the program's, which promises that it is there. */
    *len = once_in(30) && region->id != 0 ? (size_t)any_number() : below(all - offset + 1);
    return (char *)base + offset;
}

void *sized_settings(const void *settings, size_t size, void *place, size_t room)
{
    size_t said = size;
    memset(place, 0, room);
    memcpy(place, settings, size);
    if (once_in(40)) {
        static const size_t wrong[] = {0, 1, 7, 8, 9, 16, 24, (1 << 16) + 1, SIZE_MAX};
        said = wrong[below(COUNT(wrong))];
    } else if (once_in(40) && size + 64 <= room) {
        said = size + 8 * below(8);
        ((unsigned char *)place)[size + below(64)] = (unsigned char)below(2);
    }
    memcpy(place, &said, sizeof said);
    return place;
}
