/* What programs do wrong: each of it has a status and words, and none of it harms the next call. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The call has this status, and its words say this. */
#define SAYS(call, expected, words)                                                                \
    do {                                                                                           \
        IS(call, expected);                                                                        \
        if (strstr(fcast_last_error(), words) == NULL) {                                           \
            fprintf(stderr, "%s:%d: %s says \"%s\", not \"%s\"\n", __FILE__, __LINE__, #call,      \
                    fcast_last_error(), words);                                                    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum { SECONDS = 60 };

static fcast_domain domain;
static unsigned char memory[1 << 16];

static bool in_time(time_t begin) { return time(NULL) - begin < SECONDS; }

/* ---------------------------------------------------------------- handles that name nothing */

/* Every function that takes a handle, of one that names nothing. */
static void refuse_all(uint64_t id, const char *words)
{
    char text[64];
    size_t len;
    uint32_t key = 0;
    void *data;
    bool may;
    int32_t timeout;
    fcast_event event = {0};
    fcast_iov piece = {memory, 1, {0}};
    SAYS(fcast_fabric_report((fcast_fabric){id}, text, sizeof text, &len), FCAST_STALE, words);
    SAYS(fcast_fabric_release((fcast_fabric){id}), FCAST_STALE, words);
    SAYS(fcast_domain_open((fcast_fabric){id}, &(fcast_domain){0}), FCAST_STALE, words);
    SAYS(fcast_domain_release((fcast_domain){id}), FCAST_STALE, words);
    SAYS(fcast_region_register((fcast_region){id}, domain), FCAST_STALE, words);
    SAYS(fcast_region_deregister((fcast_region){id}, domain), FCAST_STALE, words);
    SAYS(fcast_region_memory((fcast_region){id}, &data, &len), FCAST_STALE, words);
    SAYS(fcast_region_slice_at((fcast_region){id}, memory, 1, &len), FCAST_STALE, words);
    SAYS(fcast_region_release((fcast_region){id}), FCAST_STALE, words);
    SAYS(fcast_pool_create((fcast_region){id}, 64, 0, &(fcast_pool){0}), FCAST_STALE, words);
    SAYS(fcast_pool_region((fcast_pool){id}, &(fcast_region){0}), FCAST_STALE, words);
    SAYS(fcast_pool_status((fcast_pool){id}, &len, NULL, NULL), FCAST_STALE, words);
    SAYS(fcast_pool_acquire((fcast_pool){id}, 0, &(fcast_buffer){0}, &data, &len), FCAST_STALE,
         words);
    SAYS(fcast_pool_release((fcast_pool){id}), FCAST_STALE, words);
    SAYS(fcast_buffer_freeze((fcast_buffer){id}, 1, &(fcast_payload){0}), FCAST_STALE, words);
    SAYS(fcast_buffer_release((fcast_buffer){id}), FCAST_STALE, words);
    SAYS(fcast_payload_len((fcast_payload){id}, &len), FCAST_STALE, words);
    SAYS(fcast_payload_release((fcast_payload){id}), FCAST_STALE, words);
    SAYS(fcast_message_release((fcast_message){id}), FCAST_STALE, words);
    SAYS(fcast_sender_open((fcast_domain){id}, "127.0.0.1:1", NULL, &(fcast_endpoint){0}),
         FCAST_STALE, words);
    SAYS(fcast_receiver_open((fcast_domain){id}, "127.0.0.1:0", NULL, &(fcast_endpoint){0}),
         FCAST_STALE, words);
    fcast_endpoint endpoint = {id};
    SAYS(fcast_endpoint_address(endpoint, text, sizeof text, &len), FCAST_STALE, words);
    SAYS(fcast_endpoint_poll(endpoint, &event, 1, &len), FCAST_STALE, words);
    SAYS(fcast_endpoint_accept(endpoint, 1), FCAST_STALE, words);
    SAYS(fcast_endpoint_refuse(endpoint, 1, 0, 0), FCAST_STALE, words);
    SAYS(fcast_endpoint_wait(endpoint, 0), FCAST_STALE, words);
    SAYS(fcast_endpoint_fds(endpoint, &timeout, 1, &len), FCAST_STALE, words);
    SAYS(fcast_endpoint_prepare_wait(endpoint, &may, &timeout), FCAST_STALE, words);
    SAYS(fcast_endpoint_begin_close(endpoint, 0), FCAST_STALE, words);
    SAYS(fcast_endpoint_close(endpoint, 0), FCAST_STALE, words);
    SAYS(fcast_endpoint_release(endpoint), FCAST_STALE, words);
    SAYS(fcast_message_keep(endpoint, &event, &(fcast_message){0}), FCAST_STALE, words);
    SAYS(fcast_send(endpoint, (fcast_region){0}, memory, 1, NULL, 0, key), FCAST_STALE, words);
    SAYS(fcast_sendv(endpoint, &piece, 1, NULL, 0, key), FCAST_STALE, words);
    SAYS(fcast_send_payload(endpoint, (fcast_payload){id}, NULL, 0, key), FCAST_STALE, words);
    SAYS(fcast_flush(endpoint), FCAST_STALE, words);
}

static void handles_that_name_nothing(void)
{
    refuse_all(0, "the handle is zero");
    refuse_all(1, "it was released, or never was");
    refuse_all(UINT64_MAX, "it was released, or never was");
    fcast_region region;
    OK(fcast_region_allocate(4096, 0, -1, &region));
    /* The next generation, the place behind it, and another table's. */
    IS(fcast_region_release((fcast_region){region.id + (UINT64_C(1) << 24)}), FCAST_STALE);
    IS(fcast_region_release((fcast_region){region.id + (1 << 20)}), FCAST_STALE);
    SAYS(fcast_fabric_release((fcast_fabric){region.id}), FCAST_STALE, "no such fabric");
    SAYS(fcast_endpoint_poll((fcast_endpoint){region.id}, NULL, 0, &(size_t){0}), FCAST_STALE,
         "no such endpoint");
    SAYS(fcast_region_release((fcast_region){domain.id}), FCAST_STALE, "no such region");
    OK(fcast_region_release(region));
    SAYS(fcast_region_release(region), FCAST_STALE, "no such region: it was released");
    refuse_all(region.id, "it was released, or never was");
    /* Its place is taken by another one, which the old handle does not name. */
    fcast_region other;
    OK(fcast_region_allocate(4096, 0, -1, &other));
    CHECK(other.id != region.id);
    IS(fcast_region_memory(region, NULL, NULL), FCAST_STALE);
    OK(fcast_region_release(other));
}

/* ---------------------------------------------------------------- pointers and numbers */

static void null_pointers(void)
{
    fcast_fabric_settings how = {.size = sizeof how, .provider = "tcp"};
    SAYS(fcast_fabric_open(&how, NULL), FCAST_INVALID, "fabric is null");
    SAYS(fcast_region_allocate(4096, 0, -1, NULL), FCAST_INVALID, "region is null");
    SAYS(fcast_sender_open(domain, NULL, NULL, &(fcast_endpoint){0}), FCAST_INVALID,
         "peer is null");
    SAYS(fcast_sender_open(domain, "127.0.0.1:1", NULL, NULL), FCAST_INVALID, "endpoint is null");
    SAYS(fcast_receiver_open(domain, NULL, NULL, &(fcast_endpoint){0}), FCAST_INVALID,
         "local is null");
    fcast_region region;
    OK(fcast_region_allocate(8192, 0, -1, &region));
    SAYS(fcast_region_slice_at(region, memory, 1, NULL), FCAST_INVALID, "offset is null");
    OK(fcast_region_memory(region, NULL, NULL));
    SAYS(fcast_pool_create(region, 4096, 0, NULL), FCAST_INVALID, "pool is null");
    fcast_pool pool;
    OK(fcast_pool_create(region, 4096, 0, &pool));
    void *data;
    fcast_buffer buffer;
    SAYS(fcast_pool_acquire(pool, 0, NULL, &data, NULL), FCAST_INVALID, "buffer is null");
    SAYS(fcast_pool_acquire(pool, 0, &buffer, NULL, NULL), FCAST_INVALID, "data is null");
    OK(fcast_pool_acquire(pool, 0, &buffer, &data, NULL));
    SAYS(fcast_buffer_freeze(buffer, 1, NULL), FCAST_INVALID, "payload is null");
    SAYS(fcast_buffer_freeze(buffer, 4097, &(fcast_payload){0}), FCAST_INVALID,
         "len = 4097: the buffer has 4096 bytes");
    /* Nothing of that used the buffer up. */
    OK(fcast_buffer_release(buffer));
    fcast_endpoint receiver;
    OK(fcast_receiver_open(domain, any_port(), NULL, &receiver));
    size_t count;
    SAYS(fcast_endpoint_poll(receiver, NULL, 4, &count), FCAST_INVALID, "events is null");
    SAYS(fcast_endpoint_poll(receiver, NULL, 0, NULL), FCAST_INVALID, "count is null");
    OK(fcast_endpoint_poll(receiver, NULL, 0, &count));
    OK(fcast_endpoint_address(receiver, NULL, 0, &count));
    SAYS(fcast_endpoint_address(receiver, NULL, 1, &count), FCAST_INVALID, "text is null");
    SAYS(fcast_message_keep(receiver, NULL, &(fcast_message){0}), FCAST_INVALID, "event is null");
    OK(fcast_endpoint_release(receiver));
    OK(fcast_pool_release(pool));
    OK(fcast_region_release(region));
}

static void numbers_out_of_range(void)
{
    fcast_region region = {7};
    SAYS(fcast_region_allocate(4096, 1u << 31, -1, &region), FCAST_INVALID, "flags = 0x80000000");
    CHECK(fcast_region_allocate(SIZE_MAX, 0, -1, &region) != FCAST_OK);
    CHECK(fcast_region_allocate((size_t)1 << 60, 0, -1, &region) != FCAST_OK);
    CHECK(fcast_region_allocate(0, 0, -1, &region) != FCAST_OK);
    CHECK(fcast_region_external(memory, SIZE_MAX, NULL, NULL, &region) != FCAST_OK);
    CHECK(fcast_region_external(memory, 0, NULL, NULL, &region) != FCAST_OK);
    SAYS(fcast_region_external(NULL, 4096, NULL, NULL, &region), FCAST_INVALID, "base is null");
    CHECK(region.id == 7);
    OK(fcast_region_allocate(4096, 0, -1, &region));
    CHECK(fcast_pool_create(region, SIZE_MAX, 0, &(fcast_pool){0}) != FCAST_OK);
    CHECK(fcast_pool_create(region, 64, SIZE_MAX, &(fcast_pool){0}) != FCAST_OK);
    CHECK(fcast_pool_create(region, 0, 0, &(fcast_pool){0}) != FCAST_OK);
    void *base;
    size_t offset;
    OK(fcast_region_memory(region, &base, NULL));
    SAYS(fcast_region_slice_at(region, base, SIZE_MAX, &offset), FCAST_NOT_FOUND,
         "are not in the region");
    SAYS(fcast_region_slice_at(region, memory, 1, &offset), FCAST_NOT_FOUND,
         "are not in the region");
    SAYS(fcast_region_slice_at(region, NULL, 1, &offset), FCAST_NOT_FOUND, "are not in the region");
    OK(fcast_region_release(region));

    fcast_endpoint receiver, sender;
    char address[128];
    size_t count;
    fcast_event event;
    OK(fcast_receiver_open(domain, any_port(), NULL, &receiver));
    OK(fcast_endpoint_address(receiver, address, sizeof address, NULL));
    OK(fcast_sender_open(domain, address, NULL, &sender));
    SAYS(fcast_endpoint_poll(receiver, &event, SIZE_MAX, &count), FCAST_INVALID, "can't be");
    /* More than there can be memory for, though no address is wrong yet. */
    CHECK(fcast_endpoint_poll(sender, &event, (size_t)1 << 56, &count) == FCAST_INVALID ||
          count == 0);
    SAYS(fcast_sendv(sender, (fcast_iov *)(void *)memory, SIZE_MAX / 2, NULL, 0, 0), FCAST_INVALID,
         "can't be");
    SAYS(fcast_send(sender, (fcast_region){0}, memory, 1, memory, SIZE_MAX, 0), FCAST_INVALID,
         "can't be");
    SAYS(fcast_send(sender, (fcast_region){0}, memory, 1, NULL, 1, 0), FCAST_INVALID,
         "header is null");
    SAYS(fcast_send(sender, (fcast_region){0}, memory, 1, NULL, 0, 0), FCAST_NOT_REGISTERED,
         "no region was named");
    SAYS(fcast_send(receiver, (fcast_region){0}, memory, 1, NULL, 0, 0), FCAST_NOT_REGISTERED,
         "no region");
    SAYS(fcast_flush(receiver), FCAST_UNSUPPORTED, "a receiver does not flush");
    SAYS(fcast_endpoint_address(sender, address, sizeof address, NULL), FCAST_UNSUPPORTED,
         "a sender does not listen");
    SAYS(fcast_endpoint_accept(sender, 1), FCAST_UNSUPPORTED,
         "a sender does not accept connections");
    IS(fcast_endpoint_accept(receiver, 1), FCAST_NOT_FOUND);
    OK(fcast_endpoint_release(sender));
    OK(fcast_endpoint_release(receiver));
}

static void texts(void)
{
    fcast_endpoint endpoint;
    SAYS(fcast_sender_open(domain, "\xff\xfe:1", NULL, &endpoint), FCAST_INVALID,
         "peer is not UTF-8");
    SAYS(fcast_sender_open(domain, "nowhere", NULL, &endpoint), FCAST_INVALID, "want host:port");
    SAYS(fcast_sender_open(domain, "127.0.0.1:99999", NULL, &endpoint), FCAST_INVALID, "99999");
    SAYS(fcast_sender_open(domain, "", NULL, &endpoint), FCAST_INVALID, "want host:port");
    fcast_fabric fabric;
    fcast_fabric_settings how = {.size = sizeof how, .provider = "\xc3\x28"};
    SAYS(fcast_fabric_open(&how, &fabric), FCAST_INVALID, "provider is not UTF-8");
    how.provider = "nobody";
    CHECK(fcast_fabric_open(&how, &fabric) != FCAST_OK);
    CHECK(strstr(fcast_last_error(), "nobody") != NULL);
    how.provider = "tcp";
    how.kind = 3;
    SAYS(fcast_fabric_open(&how, &fabric), FCAST_INVALID, "kind = 3");
    CHECK(strcmp(fcast_status_name(-1), "unknown") == 0);
    CHECK(strcmp(fcast_status_name(INT32_MAX), "unknown") == 0);
}

/* ---------------------------------------------------------------- settings of other sizes */

static void sizes_of_settings(void)
{
    /* As of a header that is newer by two fields. */
    struct {
        fcast_settings known;
        uint64_t more[2];
    } newer = {.known = {.size = sizeof newer}};
    fcast_endpoint receiver;
    OK(fcast_receiver_open(domain, any_port(), &newer.known, &receiver));
    OK(fcast_endpoint_release(receiver));
    newer.more[1] = 1;
    SAYS(fcast_receiver_open(domain, any_port(), &newer.known, &receiver), FCAST_UNSUPPORTED,
         "is not known to this version");
    fcast_settings settings = {0};
    const size_t wrong[] = {0, 1, sizeof(size_t) - 1, sizeof(size_t) + 1, (1 << 16) + 8, SIZE_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        settings.size = wrong[i];
        SAYS(fcast_receiver_open(domain, any_port(), &settings, &receiver), FCAST_INVALID,
             "set it to sizeof the struct");
    }
    /* An older header: what is behind its end is not looked at. */
    memset(&settings, 0xff, sizeof settings);
    settings.size = sizeof settings.size;
    OK(fcast_receiver_open(domain, any_port(), &settings, &receiver));
    OK(fcast_endpoint_release(receiver));
    settings = (fcast_settings){.size = sizeof settings, .max_message = 1024};
    SAYS(fcast_sender_open(domain, "127.0.0.1:1", &settings, &receiver), FCAST_INVALID,
         "setting max_message: a sender has none");
    settings = (fcast_settings){.size = sizeof settings, .header_mode = 9};
    SAYS(fcast_sender_open(domain, "127.0.0.1:1", &settings, &receiver), FCAST_INVALID,
         "header_mode = 9");
    settings = (fcast_settings){.size = sizeof settings, .pool = {domain.id}};
    SAYS(fcast_receiver_open(domain, any_port(), &settings, &receiver), FCAST_STALE,
         "no such pool");
}

/* ---------------------------------------------------------------- threads */

static fcast_endpoint shared;
static atomic_bool over;

static void *drive(void *busy)
{
    while (!atomic_load(&over)) {
        fcast_event event;
        size_t count;
        fcast_status status = fcast_endpoint_wait(shared, 20);
        if (status == FCAST_OK)
            status = fcast_endpoint_poll(shared, &event, 1, &count);
        CHECK(status == FCAST_OK || status == FCAST_BUSY);
        if (status == FCAST_BUSY) {
            CHECK(strstr(fcast_last_error(), "this endpoint is in use by another call") != NULL);
            atomic_fetch_add((atomic_int *)busy, 1);
        }
    }
    return NULL;
}

static void two_threads_in_one_endpoint(void)
{
    time_t begin = time(NULL);
    atomic_int busy;
    pthread_t threads[2];
    atomic_init(&busy, 0);
    OK(fcast_receiver_open(domain, any_port(), NULL, &shared));
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, drive, &busy) == 0);
    while (atomic_load(&busy) == 0 && in_time(begin))
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    atomic_store(&over, true);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    CHECK(atomic_load(&busy) > 0);
    /* Neither harmed it. */
    OK(fcast_endpoint_poll(shared, NULL, 0, &(size_t){0}));
    OK(fcast_endpoint_release(shared));
}

static void *wait_long(void *status)
{
    *(fcast_status *)status = fcast_endpoint_wait(shared, 500);
    return NULL;
}

/* It goes when the call of the other thread ends; its handle names nothing at once. */
static void released_in_a_call(void)
{
    time_t begin = time(NULL);
    size_t count;
    pthread_t thread;
    fcast_status waited = -1;
    OK(fcast_receiver_open(domain, any_port(), NULL, &shared));
    CHECK(pthread_create(&thread, NULL, wait_long, &waited) == 0);
    while (fcast_endpoint_poll(shared, NULL, 0, &count) != FCAST_BUSY && in_time(begin))
        nanosleep(&(struct timespec){0, 100000}, NULL);
    OK(fcast_endpoint_release(shared));
    SAYS(fcast_endpoint_poll(shared, NULL, 0, &count), FCAST_STALE, "it was released");
    IS(fcast_endpoint_release(shared), FCAST_STALE);
    pthread_join(thread, NULL);
    IS(waited, FCAST_OK);
    IS(fcast_endpoint_wait(shared, 0), FCAST_STALE);
}

/* ---------------------------------------------------------------- callbacks that call back */

struct called {
    int times;
    fcast_region region;
    fcast_endpoint endpoint;
    fcast_status polled;
};

static void call_back(void *context)
{
    struct called *called = context;
    called->times++;
    /* The region is gone; others can be made, used and released; the endpoint is in use. */
    IS(fcast_region_release(called->region), FCAST_STALE);
    fcast_region other;
    OK(fcast_region_allocate(4096, 0, -1, &other));
    OK(fcast_region_register(other, domain));
    OK(fcast_region_deregister(other, domain));
    OK(fcast_region_release(other));
    size_t count;
    called->polled = fcast_endpoint_poll(called->endpoint, NULL, 0, &count);
}

static void a_release_that_calls_back(void)
{
    struct called called = {.polled = -1};
    OK(fcast_region_external(memory, sizeof memory, call_back, &called, &called.region));
    CHECK(called.times == 0);
    OK(fcast_region_release(called.region));
    CHECK(called.times == 1);
    IS(called.polled, FCAST_STALE);
    /* Also where no region comes of it. */
    called = (struct called){.polled = -1};
    IS(fcast_region_external(memory, 0, call_back, &called, &called.region), FCAST_INVALID);
    CHECK(called.times == 1);
}

/* The last send from a region that was released ends in a poll: so does the region. */
static void a_release_within_a_poll(void)
{
    struct called called = {.polled = -1};
    time_t begin = time(NULL);
    fcast_endpoint receiver;
    char address[128];
    OK(fcast_region_external(memory, sizeof memory, call_back, &called, &called.region));
    OK(fcast_region_register(called.region, domain));
    OK(fcast_receiver_open(domain, any_port(), NULL, &receiver));
    OK(fcast_endpoint_address(receiver, address, sizeof address, NULL));
    OK(fcast_sender_open(domain, address, NULL, &called.endpoint));
    unsigned sent = 0, completed = 0;
    while (!completed && in_time(begin)) {
        fcast_event events[8];
        size_t count;
        OK(fcast_endpoint_poll(receiver, events, 8, &count));
        if (!sent &&
            fcast_send(called.endpoint, called.region, memory, 64, NULL, 0, 1) == FCAST_OK) {
            sent = 1;
            OK(fcast_region_deregister(called.region, domain));
            OK(fcast_region_release(called.region));
            CHECK(called.times == 0);
        }
        OK(fcast_endpoint_poll(called.endpoint, events, 8, &count));
        for (size_t i = 0; i < count; i++)
            completed += events[i].kind == FCAST_EVENT_COMPLETED;
    }
    CHECK(completed == 1);
    CHECK(called.times == 1);
    IS(called.polled, FCAST_BUSY);
    OK(fcast_endpoint_poll(called.endpoint, NULL, 0, &(size_t){0}));
    OK(fcast_endpoint_release(called.endpoint));
    OK(fcast_endpoint_release(receiver));
}

/* ---------------------------------------------------------------- after a fork */

static void in_a_fork(void)
{
    fcast_endpoint receiver, sender;
    char address[128];
    fcast_region region;
    OK(fcast_region_external(memory, sizeof memory, NULL, NULL, &region));
    OK(fcast_receiver_open(domain, any_port(), NULL, &receiver));
    OK(fcast_endpoint_address(receiver, address, sizeof address, NULL));
    fcast_settings settings = {.size = sizeof settings, .region = region};
    OK(fcast_sender_open(domain, address, &settings, &sender));
    pid_t child = fork();
    if (child == 0) {
        size_t count;
        /* Not exit: what the parent registered is not the child's to end. */
        _exit(fcast_endpoint_poll(sender, NULL, 0, &count) == FCAST_OK &&
                      fcast_send(sender, (fcast_region){0}, memory, 1, NULL, 0, 0) != FCAST_FORKED
                  ? 1
                  : 0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(fcast_endpoint_release(sender));
    OK(fcast_endpoint_release(receiver));
    OK(fcast_region_release(region));
}

int main(void)
{
    domain = open_domain();
    handles_that_name_nothing();
    null_pointers();
    numbers_out_of_range();
    texts();
    sizes_of_settings();
    two_threads_in_one_endpoint();
    released_in_a_call();
    a_release_that_calls_back();
    a_release_within_a_poll();
    in_a_fork();
    OK(fcast_domain_release(domain));
    IS(fcast_domain_release(domain), FCAST_STALE);
    puts("each has its status");
    return 0;
}
