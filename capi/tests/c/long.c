/* Messages that are longer than the receive buffers: to a receiver, a subscriber and a connectionless
 * endpoint that take them; what is refused by name. */
#include "drive.h"
#include "rdm.h"

enum { SHORT = 4096, LONG = 700000, SLOT = 1 << 20 };

static unsigned char memory[SLOT + 64];
static unsigned got, done, failed, subscribed;
static uint64_t peer;

static void on_sending(fcast_endpoint endpoint, const fcast_event *event)
{
    (void)endpoint;
    if (event->kind == FCAST_EVENT_CONNECTED)
        peer = event->connection;
    subscribed += event->kind == FCAST_EVENT_SUBSCRIBED;
    done += event->kind == FCAST_EVENT_COMPLETED;
    if (event->kind == FCAST_EVENT_PUBLISHED) {
        CHECK(event->value == 1);
        done++;
    }
    if (event->kind == FCAST_EVENT_FAILED) {
        CHECK(event->key == 99 && event->status == FCAST_TOO_LONG);
        CHECK(strstr(event->text, "1048576") != NULL);
        failed++;
    }
}

static void on_receiving(fcast_endpoint endpoint, const fcast_event *event)
{
    (void)endpoint;
    if (event->kind != FCAST_EVENT_MESSAGE && event->kind != FCAST_EVENT_PUBLICATION)
        return;
    size_t len = got == 0 ? LONG : 100;
    CHECK(event->header_len == sizeof got && memcmp(event->header, &got, sizeof got) == 0);
    CHECK(event->data_len == len && memcmp(event->data, memory, len) == 0);
    got++;
}

static fcast_pool slots(void)
{
    fcast_region region;
    fcast_pool pool;
    OK(fcast_region_allocate(2 * SLOT, 0, -1, &region));
    OK(fcast_pool_create(region, SLOT, 0, &pool));
    OK(fcast_region_release(region));
    return pool;
}

static fcast_settings taking(fcast_pool pool)
{
    return (fcast_settings){.size = sizeof(fcast_settings), .max_message = SHORT, .long_pool = pool};
}

/* A long message, and a short one behind it. */
static void talk(fcast_endpoint sending, fcast_endpoint receiving, fcast_region region,
                 fcast_status send(fcast_endpoint, fcast_region, size_t, unsigned))
{
    got = done = 0;
    unsigned sent = 0;
    DRIVE_AND(sending, on_sending, receiving, on_receiving, got == 2 && done == 2) {
        if (sent == 2)
            continue;
        fcast_status status = send(sending, region, sent == 0 ? LONG : 100, sent);
        if (status == FCAST_OK)
            sent++;
        else
            CHECK(status == FCAST_AGAIN || (peer == 0 && status == FCAST_NOT_FOUND));
    }
}

static fcast_status send_one(fcast_endpoint at, fcast_region region, size_t len, unsigned number)
{
    return fcast_send(at, region, memory, len, &number, sizeof number, number);
}

static fcast_status send_to_peer(fcast_endpoint at, fcast_region region, size_t len, unsigned number)
{
    return fcast_send_to(at, peer, region, memory, len, &number, sizeof number, number);
}

static fcast_status publish_one(fcast_endpoint at, fcast_region region, size_t len, unsigned number)
{
    return fcast_publish(at, 7, region, memory, len, &number, sizeof number, number, NULL);
}

static void refused(fcast_domain domain, fcast_pool pool)
{
    fcast_endpoint none;
    fcast_settings settings = taking(pool);
    IS(fcast_sender_open(domain, "127.0.0.1:1", &settings, &none), FCAST_INVALID);
    settings.max_message = 0;
    IS(fcast_sender_open(domain, "127.0.0.1:1", &settings, &none), FCAST_INVALID);
    CHECK(strstr(fcast_last_error(), "long_pool: a sender has none") != NULL);
    settings = taking((fcast_pool){0});
    settings.long_deadline_ms = 1000;
    IS(fcast_receiver_open(domain, any_port(), &settings, &none), FCAST_INVALID);
    CHECK(strstr(fcast_last_error(), "long_deadline_ms") != NULL);
    settings = taking(pool);
    settings.long_deadline_ms = 86400001;
    IS(fcast_receiver_open(domain, any_port(), &settings, &none), FCAST_INVALID);
    CHECK(strstr(fcast_last_error(), "long_messages.deadline") != NULL);
    settings = taking((fcast_pool){pool.id + (1u << 20)});
    IS(fcast_receiver_open(domain, any_port(), &settings, &none), FCAST_STALE);
    settings = taking(pool);
    settings.long_device.id = 4711;
    IS(fcast_subscriber_open(domain, &settings, &none), FCAST_STALE);
    settings.long_pool.id = 0;
    IS(fcast_subscriber_open(domain, &settings, &none), FCAST_INVALID);
    CHECK(strstr(fcast_last_error(), "long_device") != NULL);
}

static void to_a_receiver(fcast_domain domain, fcast_region region)
{
    fcast_pool pool = slots();
    fcast_endpoint sender, receiver;
    char address[128];
    fcast_settings settings = taking(pool);
    settings.long_deadline_ms = FCAST_NEVER;
    /* Of 64 connections each would need five of the 256 buffers. */
    IS(fcast_receiver_open(domain, any_port(), &settings, &receiver), FCAST_INVALID);
    CHECK(strstr(fcast_last_error(), "long messages") != NULL);
    settings.max_connections = 4;
    OK(fcast_receiver_open(domain, any_port(), &settings, &receiver));
    OK(fcast_pool_release(pool));
    OK(fcast_endpoint_address(receiver, address, sizeof address, NULL));
    OK(fcast_sender_open(domain, address, NULL, &sender));
    talk(sender, receiver, region, send_one);
    /* Beyond a slot of the pool; the peer says so. */
    OK(fcast_send(sender, region, memory, SLOT + 1, NULL, 0, 99));
    DRIVE(sender, on_sending, receiver, on_receiving, failed == 1);
    fcast_receive_stats stats = {.size = sizeof stats};
    OK(fcast_endpoint_receive_stats(receiver, &stats));
    CHECK(stats.messages == 2 && stats.long_copied == 0);
    OK(fcast_endpoint_release(sender));
    OK(fcast_endpoint_release(receiver));
}

static void to_a_subscriber(fcast_domain domain, fcast_region region)
{
    fcast_pool pool = slots();
    fcast_endpoint publisher, subscriber;
    uint64_t at;
    char address[128];
    /* What comes behind a long one waits for it, or would be dropped. */
    fcast_settings waiting = {.size = sizeof waiting, .slow = FCAST_SLOW_WAIT, .slow_queue = 4};
    waiting.slow_ms = 60000;
    OK(fcast_publisher_open(domain, any_port(), &waiting, &publisher));
    OK(fcast_endpoint_address(publisher, address, sizeof address, NULL));
    fcast_settings settings = taking(pool);
    OK(fcast_subscriber_open(domain, &settings, &subscriber));
    OK(fcast_subscriber_connect(subscriber, address, &at));
    OK(fcast_subscribe(subscriber, at, 7));
    DRIVE(publisher, on_sending, subscriber, on_receiving, subscribed == 1);
    talk(publisher, subscriber, region, publish_one);
    OK(fcast_endpoint_release(subscriber));
    OK(fcast_endpoint_release(publisher));
    OK(fcast_pool_release(pool));
}

/* Its provider can't take back what a peer may write: such messages are copied once. */
static void to_a_connectionless(void)
{
    fcast_domain domain;
    if (!open_rdm(&domain)) {
        printf("SKIPPED: no provider of reliable datagrams: %s\n", fcast_last_error());
        return;
    }
    fcast_pool pool = slots();
    fcast_region region;
    fcast_endpoint sides[2];
    char address[128];
    OK(fcast_region_external(memory, sizeof memory, NULL, NULL, &region));
    OK(fcast_region_register(region, domain));
    fcast_settings settings = taking(pool);
    settings.max_peers = 4;
    OK(fcast_connectionless_open(domain, any_port(), NULL, &sides[0]));
    OK(fcast_connectionless_open(domain, any_port(), &settings, &sides[1]));
    OK(fcast_endpoint_address(sides[1], address, sizeof address, NULL));
    uint64_t added;
    OK(fcast_peer_add(sides[0], address, &added));
    peer = 0;
    talk(sides[0], sides[1], region, send_to_peer);
    fcast_receive_stats stats = {.size = sizeof stats};
    OK(fcast_endpoint_receive_stats(sides[1], &stats));
    CHECK(stats.long_copied >= LONG);
    for (int side = 0; side < 2; side++)
        OK(fcast_endpoint_release(sides[side]));
    OK(fcast_region_release(region));
    OK(fcast_pool_release(pool));
    OK(fcast_domain_release(domain));
}

int main(void)
{
    for (size_t i = 0; i < sizeof memory; i++)
        memory[i] = (unsigned char)(i % 251 + i / 65536);
    fcast_domain domain = open_domain();
    fcast_region region;
    OK(fcast_region_external(memory, sizeof memory, NULL, NULL, &region));
    OK(fcast_region_register(region, domain));
    fcast_pool pool = slots();
    refused(domain, pool);
    OK(fcast_pool_release(pool));
    to_a_receiver(domain, region);
    to_a_subscriber(domain, region);
    to_a_connectionless();
    OK(fcast_region_release(region));
    OK(fcast_domain_release(domain));
    printf("%d bytes into buffers of %d\n", LONG, SHORT);
    return 0;
}
