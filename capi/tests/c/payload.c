/* Payloads of regions: sent, published, pushed, of one piece and of several; and those that would wait for a GPU where there is none. */
#include "drive.h"

enum { SIZE = 8192, SLOT = 4096 };

static unsigned char memory[2 * SIZE], together[SIZE];
static unsigned connected, completed, published, pushed, arrived, subscribed, released;

static void on_sender(fcast_endpoint endpoint, const fcast_event *event)
{
    (void)endpoint;
    connected += event->kind == FCAST_EVENT_CONNECTED;
    completed += event->kind == FCAST_EVENT_COMPLETED;
    published += event->kind == FCAST_EVENT_PUBLISHED;
    subscribed += event->kind == FCAST_EVENT_SUBSCRIBED;
    pushed += event->kind == FCAST_EVENT_PUSHED ? (unsigned)event->value : 0;
    CHECK(event->kind != FCAST_EVENT_FAILED && event->kind != FCAST_EVENT_PUSH_FAILED);
}

static void on_receiver(fcast_endpoint endpoint, const fcast_event *event)
{
    (void)endpoint;
    if (event->kind != FCAST_EVENT_MESSAGE && event->kind != FCAST_EVENT_PUBLICATION)
        return;
    if (event->header_len == 4 && memcmp(event->header, "head", 4) == 0) {
        CHECK(event->data_len == 1500 && memcmp(event->data, together, 1500) == 0);
        arrived++;
        return;
    }
    fcast_small_cursor cursor = {0};
    fcast_small_message message;
    size_t count;
    OK(fcast_coalesced_next(FCAST_FORMAT_COMPACT, event->data, event->data_len, &cursor, &message, 1, &count));
    CHECK(count == 1 && message.tag == 5 && message.status == 1 && message.len == 100);
    CHECK(memcmp(message.data, together, 100) == 0);
    arrived++;
}

/* Pieces of two regions, with the bytes of `together`. */
static fcast_payload pieces(fcast_region first, fcast_region second)
{
    fcast_payload payload;
    const fcast_iov iov[] = {{memory + 1000, 1000, first}, {memory + SIZE, 500, second}};
    const fcast_iov wrong[] = {iov[0], {memory + SIZE, 500, {0}}};
    memcpy(together, memory + 1000, 1000);
    memcpy(together + 1000, memory + SIZE, 500);
    payload.id = 77;
    IS(fcast_payload_of_pieces(iov, 2, NULL), FCAST_INVALID);
    IS(fcast_payload_of_pieces(NULL, 2, &payload), FCAST_INVALID);
    IS(fcast_payload_of_pieces(wrong, 2, &payload), FCAST_STALE);
    CHECK(payload.id == 77);
    OK(fcast_payload_of_pieces(iov, 2, &payload));
    return payload;
}

static void made_of_regions(fcast_region first, fcast_region second)
{
    fcast_payload payload = {77};
    size_t len;
    IS(fcast_payload_of_region(first, memory, SIZE + 1, &payload), FCAST_NOT_FOUND);
    IS(fcast_payload_of_region(first, memory + SIZE, 1, &payload), FCAST_NOT_FOUND);
    IS(fcast_payload_of_region(first, memory, 1, NULL), FCAST_INVALID);
    IS(fcast_payload_of_region((fcast_region){0}, memory, 1, &payload), FCAST_STALE);
    CHECK(payload.id == 77);
    OK(fcast_payload_of_region(first, memory + 7, 100, &payload));
    OK(fcast_payload_len(payload, &len));
    CHECK(len == 100);
    OK(fcast_payload_release(payload));
    payload = pieces(first, second);
    OK(fcast_payload_len(payload, &len));
    CHECK(len == 1500);
    OK(fcast_payload_release(payload));
}

static void on_release(void *context)
{
    ++*(unsigned *)context;
}

/* Without CUDA nothing waits for it, and a payload that was asked to is as it was. */
static void without_cuda(fcast_payload payload)
{
    int not_an_event;
    IS(fcast_payload_after_stream(payload, NULL, 0), FCAST_DEVICE);
    CHECK(strlen(fcast_last_error()) > 10);
    IS(fcast_payload_after_event(payload, NULL, on_release, &released), FCAST_INVALID);
    CHECK(released == 1);
    IS(fcast_payload_after_event(payload, &not_an_event, on_release, &released), FCAST_DEVICE);
    CHECK(released == 2);
    IS(fcast_payload_after_event(payload, NULL, NULL, NULL), FCAST_INVALID);
    size_t len;
    OK(fcast_payload_len(payload, &len));
    CHECK(len == 1500);
}

static void send(fcast_domain domain, fcast_region first, fcast_region second)
{
    fcast_endpoint receiver, sender;
    OK(fcast_receiver_open(domain, any_port(), NULL, &receiver));
    char address[128];
    OK(fcast_endpoint_address(receiver, address, sizeof address, NULL));
    OK(fcast_sender_open(domain, address, NULL, &sender));
    connected = arrived = 0;
    DRIVE(sender, on_sender, receiver, on_receiver, connected == 1);
    fcast_payload payload = pieces(first, second);
    without_cuda(payload);
    OK(fcast_send_payload(sender, payload, "head", 4, 1));
    IS(fcast_payload_after_stream(payload, NULL, 0), FCAST_DEVICE);
    IS(fcast_payload_release(payload), FCAST_STALE);
    DRIVE(sender, on_sender, receiver, on_receiver, completed == 1 && arrived == 1);
    OK(fcast_endpoint_release(sender));
    OK(fcast_endpoint_release(receiver));
}

static void publish(fcast_domain domain, fcast_region first, fcast_region second)
{
    fcast_endpoint publisher, subscriber;
    OK(fcast_publisher_open(domain, any_port(), NULL, &publisher));
    char address[128];
    OK(fcast_endpoint_address(publisher, address, sizeof address, NULL));
    OK(fcast_subscriber_open(domain, NULL, &subscriber));
    uint64_t number;
    OK(fcast_subscriber_connect(subscriber, address, &number));
    OK(fcast_subscribe(subscriber, number, 3));
    fcast_payload payload = pieces(first, second);
    arrived = 0;
    IS(fcast_publish_payload(publisher, 3, payload, "head", 4, 1, NULL), FCAST_NOT_FOUND);
    DRIVE(publisher, on_sender, subscriber, on_receiver, subscribed == 1);
    OK(fcast_publish_payload(publisher, 3, payload, "head", 4, 1, NULL));
    IS(fcast_payload_release(payload), FCAST_STALE);
    DRIVE(publisher, on_sender, subscriber, on_receiver, published == 1 && arrived == 1);
    OK(fcast_endpoint_release(publisher));
    OK(fcast_endpoint_release(subscriber));
}

static fcast_payload frozen(fcast_pool pool, size_t len)
{
    fcast_buffer buffer;
    fcast_payload payload;
    void *data;
    OK(fcast_pool_acquire(pool, 0, &buffer, &data, NULL));
    memcpy(data, together, len);
    OK(fcast_buffer_freeze(buffer, len, &payload));
    return payload;
}

/* What lies in the host's memory and does not change is copied by the push. */
static void push(fcast_domain domain, fcast_region first)
{
    fcast_endpoint receiver, sender;
    OK(fcast_receiver_open(domain, any_port(), NULL, &receiver));
    char address[128];
    OK(fcast_endpoint_address(receiver, address, sizeof address, NULL));
    fcast_settings settings = {.size = sizeof settings, .buffer_size = 2048};
    OK(fcast_buffered_open(domain, address, &settings, &sender));
    fcast_region region;
    fcast_pool pool;
    OK(fcast_region_allocate(4 * SLOT, 0, -1, &region));
    OK(fcast_pool_create(region, SLOT, 0, &pool));
    size_t all, left;
    OK(fcast_pool_status(pool, &all, NULL, NULL));
    fcast_payload payload = frozen(pool, 100), large = frozen(pool, 3000), of_region;
    uint64_t number = 99;
    IS(fcast_push_payload(sender, 5, 1, payload, &number), FCAST_AGAIN);
    connected = arrived = 0;
    DRIVE(sender, on_sender, receiver, on_receiver, connected == 1);
    IS(fcast_push_payload(receiver, 5, 1, payload, &number), FCAST_UNSUPPORTED);
    IS(fcast_push_payload(sender, 5, 1, large, &number), FCAST_TOO_LONG);
    OK(fcast_payload_of_region(first, memory, 100, &of_region));
    IS(fcast_push_payload(sender, 5, 1, of_region, &number), FCAST_INVALID);
    CHECK(number == 99);
    OK(fcast_payload_release(large));
    OK(fcast_payload_release(of_region));
    OK(fcast_push_payload(sender, 5, 1, payload, &number));
    CHECK(number == 0);
    IS(fcast_push_payload(sender, 5, 1, payload, &number), FCAST_STALE);
    OK(fcast_pool_status(pool, NULL, &left, NULL));
    CHECK(left == all);
    OK(fcast_flush(sender));
    DRIVE(sender, on_sender, receiver, on_receiver, pushed == 1 && arrived == 1);
    OK(fcast_endpoint_release(sender));
    OK(fcast_endpoint_release(receiver));
    OK(fcast_pool_release(pool));
    OK(fcast_region_release(region));
}

int main(void)
{
    CHECK(setenv("FABRICAST_CUDA", "/nowhere/libcuda.so", 1) == 0);
    for (size_t i = 0; i < sizeof memory; i++)
        memory[i] = (unsigned char)(i * 7 + i / 251);
    fcast_domain domain = open_domain();
    fcast_region first, second;
    OK(fcast_region_external(memory, SIZE, NULL, NULL, &first));
    OK(fcast_region_external(memory + SIZE, SIZE, NULL, NULL, &second));
    OK(fcast_region_register(first, domain));
    OK(fcast_region_register(second, domain));
    made_of_regions(first, second);
    send(domain, first, second);
    publish(domain, first, second);
    push(domain, first);
    OK(fcast_region_release(first));
    OK(fcast_region_release(second));
    OK(fcast_domain_release(domain));
    printf("payloads: sent, published, pushed; without CUDA none waits\n");
    return 0;
}
