/*
 * Memory of a GPU: allocated, the program's own, tensors; sent through a staging ring, and delivered to; sent, published and pushed when
 * work there is done. Over the fake driver of the tests in Rust, which is built here; FABRICAST_TEST_GPU=real: over the machine's own.
 */
#include "drive.h"
#include <dlfcn.h>
#include <stdatomic.h>
#include <unistd.h>

enum { SIZE = 100000, SLOT = 128 * 1024 };

typedef unsigned long long address_t;
static int (*cu_alloc)(address_t *, size_t);
static int (*cu_free)(address_t);
static int (*cu_to_device)(address_t, const void *, size_t);
static int (*cu_to_host)(void *, address_t, size_t);
static int (*cu_fill)(address_t, unsigned char, size_t, void *);
static int (*cu_stream_create)(void **, unsigned), (*cu_stream_destroy)(void *);
static int (*cu_event_create)(void **, unsigned), (*cu_event_record)(void *, void *), (*cu_event_destroy)(void *);
/* Of the real driver, and of the fake one. */
static int (*cu_launch_host)(void *, void (*)(void *), void *);
static void (*fake_block)(void *), (*fake_unblock)(void);
static int (*fake_violations)(void);

static unsigned char pattern[SIZE], back[SIZE];
static unsigned connected, completed, delivered, released;
static fcast_message kept;

static void *symbol(void *library, const char *name)
{
    void *found = dlsym(library, name);
    CHECK(found != NULL);
    return found;
}

/* The fake frees neither streams nor events, so that no other ones have their addresses. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libcuda.so\n";
}

/* The driver that the library will load, too, with a context that is current. */
static int load_driver(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return 0;
    int (*init)(unsigned), (*get)(int *, int), (*retain)(void **, int), (*push)(void *);
    *(void **)&init = symbol(library, "cuInit");
    *(void **)&get = symbol(library, "cuDeviceGet");
    *(void **)&retain = symbol(library, "cuDevicePrimaryCtxRetain");
    *(void **)&push = symbol(library, "cuCtxPushCurrent_v2");
    *(void **)&cu_alloc = symbol(library, "cuMemAlloc_v2");
    *(void **)&cu_free = symbol(library, "cuMemFree_v2");
    *(void **)&cu_to_device = symbol(library, "cuMemcpyHtoD_v2");
    *(void **)&cu_to_host = symbol(library, "cuMemcpyDtoH_v2");
    *(void **)&cu_fill = symbol(library, "cuMemsetD8Async");
    *(void **)&cu_stream_create = symbol(library, "cuStreamCreate");
    *(void **)&cu_stream_destroy = symbol(library, "cuStreamDestroy_v2");
    *(void **)&cu_event_create = symbol(library, "cuEventCreate");
    *(void **)&cu_event_record = symbol(library, "cuEventRecord");
    *(void **)&cu_event_destroy = symbol(library, "cuEventDestroy_v2");
    *(void **)&fake_block = dlsym(library, "fake_cuda_block");
    *(void **)&fake_unblock = dlsym(library, "fake_cuda_unblock");
    *(void **)&fake_violations = dlsym(library, "fake_cuda_violations");
    if (fake_block == NULL)
        *(void **)&cu_launch_host = symbol(library, "cuLaunchHostFunc");
    int device;
    void *context;
    return init(0) == 0 && get(&device, 0) == 0 && retain(&context, device) == 0 && push(context) == 0;
}

/* Builds the fake driver, which stays loaded when its file is gone. */
static int load_fake(void)
{
    char folder[] = "/tmp/fabricast-fake-XXXXXX", command[4096], source[1024], path[64];
    snprintf(source, sizeof source, "%s", __FILE__);
    char *end = strrchr(source, '/');
    if (end != NULL)
        *end = 0;
    if (mkdtemp(folder) == NULL)
        return 0;
    snprintf(path, sizeof path, "%s/libcuda.so", folder);
    snprintf(command, sizeof command,
             "cc -shared -fPIC -O1 %s/../../../tests/common/fake_cuda.c -o %s -lpthread -ldl",
             end == NULL ? "." : source, path);
    int loaded = system(command) == 0 && setenv("FABRICAST_CUDA", path, 1) == 0 &&
                 setenv("FAKE_CUDA_THREADS", "1", 1) == 0 &&
                 setenv("FAKE_CUDA_PROTECTED", "1", 1) == 0 && load_driver(path);
    if (loaded) {
        fcast_region region;
        OK(fcast_region_device(1, 0, false, &region));
        OK(fcast_region_release(region));
    }
    unlink(path);
    rmdir(folder);
    return loaded;
}

static void on_sender(fcast_endpoint endpoint, const fcast_event *event)
{
    (void)endpoint;
    connected += event->kind == FCAST_EVENT_CONNECTED;
    completed += event->kind == FCAST_EVENT_COMPLETED;
    CHECK(event->kind != FCAST_EVENT_FAILED);
}

static void on_receiver(fcast_endpoint endpoint, const fcast_event *event)
{
    CHECK(event->kind != FCAST_EVENT_MESSAGE && event->kind != FCAST_EVENT_UNDELIVERED);
    if (event->kind != FCAST_EVENT_DEVICE_MESSAGE)
        return;
    CHECK(event->header_len == 4 && memcmp(event->header, "head", 4) == 0);
    CHECK(event->data_len == SIZE);
    memset(back, 0, sizeof back);
    CHECK(cu_to_host(back, (address_t)(uintptr_t)event->data, SIZE) == 0);
    CHECK(memcmp(back, pattern, SIZE) == 0);
    if (delivered == 0)
        OK(fcast_message_keep(endpoint, event, &kept));
    delivered++;
}

static void sends(fcast_domain domain)
{
    fcast_region gpu, landing, none = {0};
    OK(fcast_region_device(SIZE, 0, false, &gpu));
    OK(fcast_region_device(4 * SLOT, 0, true, &landing));
    void *base;
    OK(fcast_region_memory(gpu, &base, NULL));
    CHECK(cu_to_device((address_t)(uintptr_t)base, pattern, SIZE) == 0);
    uint32_t path;
    char text[256];
    IS(fcast_region_path(gpu, domain, &path, text, sizeof text, NULL), FCAST_NOT_REGISTERED);
    OK(fcast_region_register(gpu, domain));
    OK(fcast_region_register(landing, domain));
    OK(fcast_region_path(gpu, domain, &path, text, sizeof text, NULL));
    CHECK(path == FCAST_PATH_STAGED && strstr(text, "staged") != NULL);

    fcast_device_pool pool;
    fcast_staging staging;
    OK(fcast_device_pool_create(landing, SLOT, &pool));
    OK(fcast_staging_create(4, SLOT, 0, -1, &staging));
    fcast_settings settings = {.size = sizeof settings, .max_message = SLOT, .deliver_to = pool};
    fcast_endpoint receiver, sender, plain;
    OK(fcast_receiver_open(domain, any_port(), &settings, &receiver));
    char address[128];
    OK(fcast_endpoint_address(receiver, address, sizeof address, NULL));
    OK(fcast_sender_open(domain, address, NULL, &plain));
    fcast_settings sending = {.size = sizeof sending, .staging = staging};
    OK(fcast_sender_open(domain, address, &sending, &sender));
    DRIVE(plain, on_sender, receiver, on_receiver, connected == 1);
    IS(fcast_send(plain, gpu, base, SIZE, "head", 4, 1), FCAST_UNSUPPORTED);
    DRIVE(sender, on_sender, receiver, on_receiver, connected == 2);
    IS(fcast_send(sender, none, base, SIZE, "head", 4, 1), FCAST_NOT_REGISTERED);
    OK(fcast_send(sender, gpu, base, SIZE, "head", 4, 1));
    DRIVE(sender, on_sender, receiver, on_receiver, completed == 1 && delivered == 1);
    /* What was delivered is sent on from the GPU's memory. */
    fcast_payload payload;
    OK(fcast_message_payload(kept, &payload));
    OK(fcast_send_payload(sender, payload, "head", 4, 2));
    DRIVE(sender, on_sender, receiver, on_receiver, completed == 2 && delivered == 2);

    OK(fcast_endpoint_release(sender));
    OK(fcast_endpoint_release(plain));
    OK(fcast_endpoint_release(receiver));
    OK(fcast_staging_release(staging));
    OK(fcast_device_pool_release(pool));
    OK(fcast_region_release(gpu));
    OK(fcast_region_release(landing));
}

/* Where a stream goes. */
static fcast_region landing_place;
static int is_over;

static fcast_status sink_begin(void *context, const fcast_stream_offer *offer, void **sink,
                               fcast_stream_place *place)
{
    (void)context, (void)sink;
    CHECK(offer->bytes == SIZE);
    place->region = landing_place;
    OK(fcast_region_memory(landing_place, &place->data, &place->len));
    return FCAST_OK;
}

static void sink_close(void *context, void *sink, bool is_complete)
{
    (void)context, (void)sink;
    __atomic_store_n(&is_over, is_complete ? 1 : 2, __ATOMIC_RELEASE);
}

/* A stream into a GPU's memory: there is no function that writes blocks. */
static void streams(fcast_domain domain)
{
    OK(fcast_region_device(SIZE, 0, false, &landing_place));
    fcast_stream_sink_calls calls = {.size = sizeof calls};
    calls.begin = sink_begin;
    calls.close = sink_close;
    fcast_stream_settings settings = {.size = sizeof settings, .block_bytes = 8192};
    const char *any = "127.0.0.1:0";
    fcast_stream_receiver receiver;
    OK(fcast_stream_receiver_open_sink(&domain, &any, 1, &calls, &settings, &receiver));
    char address[128];
    const char *to = address;
    OK(fcast_stream_receiver_address(receiver, address, sizeof address, NULL));
    fcast_stream_sender sender;
    OK(fcast_stream_sender_open(&domain, 1, &settings, &sender));
    fcast_stream_transfer transfer;
    OK(fcast_stream_send_bytes(sender, "x", pattern, SIZE, NULL, NULL, &to, 1, NULL, &transfer));
    OK(fcast_stream_transfer_wait(transfer, 60000));
    for (int i = 0; i < 60000 && __atomic_load_n(&is_over, __ATOMIC_ACQUIRE) == 0; i++)
        usleep(1000);
    CHECK(is_over == 1);
    void *base;
    OK(fcast_region_memory(landing_place, &base, NULL));
    memset(back, 0, sizeof back);
    CHECK(cu_to_host(back, (address_t)(uintptr_t)base, SIZE) == 0);
    CHECK(memcmp(back, pattern, SIZE) == 0);
    OK(fcast_stream_transfer_release(transfer));
    OK(fcast_stream_sender_close(sender, 1000));
    OK(fcast_stream_receiver_close(receiver, 1000));
    OK(fcast_stream_receiver_release(receiver));
    OK(fcast_region_release(landing_place));
}

static void on_release(void *context)
{
    released += *(unsigned *)context;
}

static void memory_of_the_program(void)
{
    address_t at;
    unsigned one = 1;
    released = 0;
    fcast_region region;
    CHECK(cu_alloc(&at, SIZE) == 0);
    IS(fcast_region_external_device(at, SIZE, 7, on_release, &one, &region), FCAST_INVALID);
    CHECK(released == 1);
    IS(fcast_region_external_device(at + SIZE, SIZE, FCAST_ANY_DEVICE, on_release, &one, &region),
       FCAST_INVALID);
    CHECK(released == 2);
    IS(fcast_region_external_device(at, SIZE, FCAST_ANY_DEVICE, on_release, &one, NULL), FCAST_INVALID);
    CHECK(released == 3);
    OK(fcast_region_external_device(at, SIZE, 0, on_release, &one, &region));
    CHECK(released == 3);
    OK(fcast_region_release(region));
    CHECK(released == 4);
    CHECK(cu_free(at) == 0);
}

static atomic_int may_go_on;

/* In a thread of the driver's; it ends by itself where the test does not let it. */
static void wait_for_test(void *nothing)
{
    (void)nothing;
    for (int i = 0; !atomic_load(&may_go_on) && i < 30000; i++)
        usleep(1000);
}

/* What the stream is given from now on waits for let_go. */
static void hold(void *stream)
{
    atomic_store(&may_go_on, 0);
    if (fake_block != NULL)
        fake_block(stream);
    else
        CHECK(cu_launch_host(stream, wait_for_test, NULL) == 0);
}

static void let_go(void)
{
    atomic_store(&may_go_on, 1);
    if (fake_block != NULL)
        fake_unblock();
}

/* A stream that is held, has no order with the default one, and then fills the GPU's memory. */
static void *held_stream(address_t base, unsigned char byte)
{
    void *stream;
    CHECK(cu_to_device(base, pattern, SIZE) == 0);
    CHECK(cu_stream_create(&stream, 1) == 0);
    hold(stream);
    CHECK(cu_fill(base, byte, SIZE, stream) == 0);
    return stream;
}

static unsigned char awaited;
static unsigned came, pushed, published, subscribed;

static int is_filled(const void *data, size_t len)
{
    const unsigned char *bytes = data;
    for (size_t i = 0; i < len; i++)
        if (bytes[i] != awaited)
            return 0;
    return 1;
}

static void on_waiting(fcast_endpoint endpoint, const fcast_event *event)
{
    on_sender(endpoint, event);
    CHECK(event->kind != FCAST_EVENT_PUSH_FAILED && event->kind != FCAST_EVENT_PUBLISHED_TO);
    pushed += event->kind == FCAST_EVENT_PUSHED ? (unsigned)event->value : 0;
    published += event->kind == FCAST_EVENT_PUBLISHED;
    subscribed += event->kind == FCAST_EVENT_SUBSCRIBED;
}

/* In the host's memory: a message of SIZE bytes, one behind it, or small messages. */
static void on_host(fcast_endpoint endpoint, const fcast_event *event)
{
    (void)endpoint;
    if (event->kind != FCAST_EVENT_MESSAGE && event->kind != FCAST_EVENT_PUBLICATION)
        return;
    if (event->header_len == 4) {
        CHECK(event->data_len == SIZE || event->data_len == 100);
        CHECK(event->data_len == 100 || is_filled(event->data, SIZE));
        came++;
        return;
    }
    fcast_small_cursor cursor = {0};
    fcast_small_message messages[4];
    size_t count;
    OK(fcast_coalesced_next(FCAST_FORMAT_COMPACT, event->data, event->data_len, &cursor, messages, 4, &count));
    for (size_t i = 0; i < count; i++, came++) {
        CHECK(messages[i].tag == came && messages[i].len == (came == 1 ? 1000 : 6));
        CHECK(came == 1 ? is_filled(messages[i].data, 1000) : memcmp(messages[i].data, "beside", 6) == 0);
    }
}

/* Nothing goes out, however often it is polled. */
static void nothing_goes(fcast_endpoint from, fcast_endpoint to)
{
    const unsigned before = completed + pushed + published;
    for (int i = 0; i < 50; i++) {
        poll_once(from, on_waiting);
        poll_once(to, on_host);
        usleep(500);
    }
    CHECK(came == 0 && completed + pushed + published == before);
}

static void *recorded(void *stream)
{
    void *event;
    CHECK(cu_event_create(&event, 2) == 0 && cu_event_record(event, stream) == 0);
    return event;
}

/* Sends wait for a stream, which may be gone by then, for an event, and for those before them. */
static void sent_after(fcast_domain domain, fcast_region gpu, address_t base)
{
    fcast_endpoint receiver, sender;
    fcast_staging staging;
    char address[128];
    OK(fcast_staging_create(4, SLOT, 0, -1, &staging));
    OK(fcast_receiver_open(domain, any_port(), &(fcast_settings){.size = sizeof(fcast_settings), .max_message = SLOT}, &receiver));
    OK(fcast_endpoint_address(receiver, address, sizeof address, NULL));
    OK(fcast_sender_open(domain, address, &(fcast_settings){.size = sizeof(fcast_settings), .staging = staging}, &sender));
    connected = 0;
    DRIVE(sender, on_waiting, receiver, on_host, connected == 1);
    for (unsigned round = 0; round < 3; round++) {
        fcast_payload payload, behind;
        unsigned one = 1;
        void *event = NULL;
        came = completed = released = 0;
        awaited = (unsigned char)(0x42 + round);
        OK(fcast_payload_of_region(gpu, (void *)(uintptr_t)base, SIZE, &payload));
        OK(fcast_payload_of_region(gpu, (void *)(uintptr_t)base, 100, &behind));
        IS(fcast_payload_after_stream(payload, NULL, 99), FCAST_DEVICE);
        void *stream = held_stream(base, awaited);
        if (round == 1) {
            event = recorded(stream);
            OK(fcast_payload_after_event(payload, event, on_release, &one));
        } else {
            OK(fcast_payload_after_stream(payload, stream, 0));
        }
        size_t len;
        OK(fcast_payload_len(payload, &len));
        CHECK(len == SIZE);
        IS(fcast_window_expose_payload(sender, 0, payload, 1, &(fcast_window){0}), FCAST_UNSUPPORTED);
        CHECK(strstr(fcast_last_error(), "waits") != NULL);
        CHECK(cu_stream_destroy(stream) == 0);
        OK(fcast_send_payload(sender, payload, "head", 4, 1));
        OK(fcast_send_payload(sender, behind, "head", 4, 2));
        nothing_goes(sender, receiver);
        CHECK(released == 0);
        let_go();
        DRIVE(sender, on_waiting, receiver, on_host, completed == 2 && came == 2);
        CHECK(released == (round == 1));
        CHECK(event == NULL || cu_event_destroy(event) == 0);
    }
    /* An endpoint that goes waits for no event. */
    unsigned one = 1;
    fcast_payload payload;
    void *stream = held_stream(base, 1), *event = recorded(stream);
    released = 0;
    OK(fcast_payload_of_region(gpu, (void *)(uintptr_t)base, SIZE, &payload));
    OK(fcast_payload_after_event(payload, event, on_release, &one));
    OK(fcast_send_payload(sender, payload, "head", 4, 3));
    poll_once(sender, on_waiting);
    CHECK(released == 0);
    OK(fcast_endpoint_release(sender));
    CHECK(released == 1);
    let_go();
    CHECK(cu_event_destroy(event) == 0 && cu_stream_destroy(stream) == 0);
    OK(fcast_endpoint_release(receiver));
    OK(fcast_staging_release(staging));
}

/* Small messages beside one whose bytes a GPU has yet to make: they leave in their order. */
static void pushed_after(fcast_domain domain, fcast_region gpu, address_t base)
{
    fcast_endpoint receiver, sender;
    fcast_region pinned;
    fcast_pool pool;
    char address[128];
    OK(fcast_region_allocate(8 * 4096, FCAST_REGION_PINNED, -1, &pinned));
    OK(fcast_pool_create(pinned, 4096, 0, &pool));
    OK(fcast_receiver_open(domain, any_port(), NULL, &receiver));
    OK(fcast_endpoint_address(receiver, address, sizeof address, NULL));
    OK(fcast_buffered_open(domain, address, &(fcast_settings){.size = sizeof(fcast_settings), .pool = pool}, &sender));
    connected = 0;
    DRIVE(sender, on_waiting, receiver, on_host, connected == 1);
    came = completed = pushed = released = 0;
    awaited = 0x55;
    unsigned one = 1;
    uint64_t number = 0;
    fcast_payload payload;
    void *stream = held_stream(base, awaited), *event = recorded(stream);
    OK(fcast_payload_of_region(gpu, (void *)(uintptr_t)base, 1000, &payload));
    OK(fcast_payload_after_event(payload, event, on_release, &one));
    OK(fcast_push(sender, 0, 0, "beside", 6, NULL));
    OK(fcast_push_payload(sender, 1, 0, payload, &number));
    CHECK(number == 1);
    IS(fcast_push_payload(sender, 1, 0, payload, &number), FCAST_STALE);
    OK(fcast_push(sender, 2, 0, "beside", 6, NULL));
    OK(fcast_flush(sender));
    nothing_goes(sender, receiver);
    CHECK(released == 0);
    let_go();
    DRIVE(sender, on_waiting, receiver, on_host, pushed == 3 && came == 3);
    CHECK(released == 1);
    CHECK(cu_event_destroy(event) == 0 && cu_stream_destroy(stream) == 0);
    OK(fcast_endpoint_release(sender));
    OK(fcast_endpoint_release(receiver));
    OK(fcast_pool_release(pool));
    OK(fcast_region_release(pinned));
}

/* A frozen buffer of the host's, that a GPU's work is to fill, say: published when that is done. */
static void published_after(fcast_domain domain, address_t base)
{
    fcast_endpoint publisher, subscriber;
    fcast_region region;
    fcast_pool pool;
    fcast_buffer buffer;
    fcast_payload payload;
    fcast_stream_sender streams;
    fcast_stream_transfer transfer;
    char address[128];
    const char *to = address;
    void *data;
    uint64_t number;
    OK(fcast_region_allocate(2 * SLOT, 0, -1, &region));
    OK(fcast_region_register(region, domain));
    OK(fcast_pool_create(region, SLOT, 0, &pool));
    OK(fcast_publisher_open(domain, any_port(), NULL, &publisher));
    OK(fcast_endpoint_address(publisher, address, sizeof address, NULL));
    OK(fcast_subscriber_open(domain, &(fcast_settings){.size = sizeof(fcast_settings), .max_message = SLOT}, &subscriber));
    OK(fcast_subscriber_connect(subscriber, address, &number));
    OK(fcast_subscribe(subscriber, number, 3));
    DRIVE(publisher, on_waiting, subscriber, on_host, subscribed == 1);
    came = completed = pushed = published = 0;
    awaited = 0x66;
    OK(fcast_pool_acquire(pool, 0, &buffer, &data, NULL));
    memset(data, awaited, SIZE);
    OK(fcast_buffer_freeze(buffer, SIZE, &payload));
    void *stream = held_stream(base, 1);
    OK(fcast_payload_after_stream(payload, stream, 0));
    /* A stream of blocks would not wait. */
    OK(fcast_stream_sender_open(&domain, 1, NULL, &streams));
    IS(fcast_stream_send_payload(streams, "x", payload, &to, 1, NULL, &transfer), FCAST_UNSUPPORTED);
    OK(fcast_stream_sender_close(streams, 1000));
    OK(fcast_publish_payload(publisher, 3, payload, "head", 4, 1, NULL));
    nothing_goes(publisher, subscriber);
    let_go();
    DRIVE(publisher, on_waiting, subscriber, on_host, published == 1 && came == 1);
    CHECK(cu_stream_destroy(stream) == 0);
    OK(fcast_endpoint_release(publisher));
    OK(fcast_endpoint_release(subscriber));
    OK(fcast_pool_release(pool));
    OK(fcast_region_release(region));
}

/* A part of a GPU's memory as a stream, which becomes a file. */
static void streamed(fcast_domain domain, fcast_region gpu, void *base)
{
    char into[] = "/tmp/fabricast-c-device-XXXXXX", path[64], address[128];
    const char *any = any_port(), *to = address;
    fcast_stream_receiver receiver;
    fcast_stream_sender sender;
    fcast_stream_transfer transfer;
    fcast_payload payload;
    size_t len;
    CHECK(mkdtemp(into) != NULL);
    OK(fcast_stream_receiver_open(&domain, &any, 1, into, NULL, &receiver));
    OK(fcast_stream_receiver_address(receiver, address, sizeof address, NULL));
    OK(fcast_stream_sender_open(&domain, 1, NULL, &sender));
    CHECK(cu_to_device((address_t)(uintptr_t)base, pattern, SIZE) == 0);
    OK(fcast_payload_of_region(gpu, base, SIZE, &payload));
    IS(fcast_stream_send_payload(sender, "../x", payload, &to, 1, NULL, &transfer), FCAST_INVALID);
    IS(fcast_stream_send_payload(sender, "x", payload, &to, 0, NULL, &transfer), FCAST_INVALID);
    OK(fcast_payload_len(payload, &len));
    CHECK(len == SIZE);
    OK(fcast_stream_send_payload(sender, "x", payload, &to, 1, NULL, &transfer));
    IS(fcast_payload_release(payload), FCAST_STALE);
    OK(fcast_stream_transfer_wait(transfer, 60000));
    OK(fcast_stream_transfer_release(transfer));
    OK(fcast_stream_sender_close(sender, 1000));
    OK(fcast_stream_receiver_close(receiver, 1000));
    OK(fcast_stream_receiver_release(receiver));
    snprintf(path, sizeof path, "%s/x", into);
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL && fread(back, 1, SIZE, file) == SIZE && fgetc(file) == EOF && fclose(file) == 0);
    CHECK(memcmp(back, pattern, SIZE) == 0);
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", into);
    CHECK(system(command) == 0);
}

static void after_work(fcast_domain domain)
{
    fcast_region gpu;
    fcast_payload payload;
    void *base;
    unsigned one = 1;
    OK(fcast_region_device(SIZE, 0, false, &gpu));
    OK(fcast_region_register(gpu, domain));
    OK(fcast_region_memory(gpu, &base, NULL));
    const address_t at = (address_t)(uintptr_t)base;
    sent_after(domain, gpu, at);
    pushed_after(domain, gpu, at);
    published_after(domain, at);
    streamed(domain, gpu, base);
    /* One that is not sent after all, of the default stream, too; its event is free at once. */
    released = 0;
    void *stream = held_stream(at, 1), *event = recorded(stream);
    OK(fcast_payload_of_region(gpu, base, SIZE, &payload));
    OK(fcast_payload_after_event(payload, event, on_release, &one));
    OK(fcast_payload_after_stream(payload, NULL, 0));
    IS(fcast_payload_after_event((fcast_payload){0}, event, on_release, &one), FCAST_STALE);
    CHECK(released == 1);
    OK(fcast_payload_release(payload));
    CHECK(released == 2);
    let_go();
    CHECK(cu_event_destroy(event) == 0 && cu_stream_destroy(stream) == 0);
    OK(fcast_region_release(gpu));
}

/* The structs of dlpack.h. */
struct tensor {
    void *data;
    int32_t device_type, device_id, ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
};

struct managed {
    struct tensor tensor;
    void *context;
    void (*deleter)(struct managed *);
};

struct managed_versioned {
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct managed_versioned *);
    uint64_t flags;
    struct tensor tensor;
};

static void delete_managed(struct managed *managed)
{
    released++;
    free(managed);
}

static void delete_versioned(struct managed_versioned *managed)
{
    released++;
    free(managed);
}

static struct managed *managed(struct tensor tensor)
{
    struct managed *made = malloc(sizeof *made);
    *made = (struct managed){.tensor = tensor, .deleter = delete_managed};
    return made;
}

static struct managed_versioned *versioned(struct tensor tensor, uint32_t major)
{
    struct managed_versioned *made = malloc(sizeof *made);
    *made = (struct managed_versioned){.major = major, .tensor = tensor, .deleter = delete_versioned};
    return made;
}

static void tensors(void)
{
    released = 0;
    address_t at;
    CHECK(cu_alloc(&at, SIZE) == 0);
    int64_t shape[2] = {100, 250}, crossed[2] = {1, 100};
    struct tensor of_gpu = {.data = (void *)(uintptr_t)at, .device_type = 2, .ndim = 2, .bits = 32, .lanes = 1};
    of_gpu.shape = shape;
    struct tensor of_host = of_gpu;
    of_host.data = back;
    of_host.device_type = 1;
    fcast_region region;
    void *base;
    size_t len;
    OK(fcast_region_from_dlpack(managed(of_gpu), &region));
    OK(fcast_region_memory(region, &base, &len));
    CHECK(base == of_gpu.data && len == SIZE && released == 0);
    OK(fcast_region_release(region));
    CHECK(released == 1);
    OK(fcast_region_from_dlpack_versioned(versioned(of_host, 1), &region));
    OK(fcast_region_memory(region, &base, &len));
    CHECK(base == back && len == SIZE);
    OK(fcast_region_release(region));
    CHECK(released == 2);
    /* The deleter is called where it fails, too. */
    IS(fcast_region_from_dlpack_versioned(versioned(of_host, 2), &region), FCAST_INVALID);
    of_gpu.strides = crossed;
    IS(fcast_region_from_dlpack(managed(of_gpu), &region), FCAST_INVALID);
    IS(fcast_region_from_dlpack(managed(of_host), NULL), FCAST_INVALID);
    CHECK(released == 5);
    IS(fcast_region_from_dlpack(NULL, &region), FCAST_INVALID);
    CHECK(cu_free(at) == 0);
}

int main(void)
{
    const char *which = getenv("FABRICAST_TEST_GPU");
    int real = which != NULL && strcmp(which, "real") == 0;
    if (!(real ? load_driver("libcuda.so.1") : load_fake())) {
        printf("SKIPPED: no CUDA driver, and no compiler for the fake one\n");
        return 0;
    }
    for (size_t i = 0; i < SIZE; i++)
        pattern[i] = (unsigned char)(i * 31 + i / 997);
    fcast_region region;
    IS(fcast_region_device(SIZE, 99, false, &region), FCAST_DEVICE);
    fcast_domain domain = open_domain();
    sends(domain);
    after_work(domain);
    streams(domain);
    memory_of_the_program();
    tensors();
    OK(fcast_domain_release(domain));
    CHECK(fake_violations == NULL || fake_violations() == 0);
    printf("a GPU's memory: %u messages, %u tensors\n", delivered, released);
    return 0;
}
