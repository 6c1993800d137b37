/* Two receivers over one pool: each gets what is kept for it, and both go on when messages come back. */
#include "drive.h"

enum { SLOTS = 64, MESSAGES = 300, SIZE = 100 };

static fcast_endpoint receivers[2], senders[2];
static unsigned char memory[SIZE];
static unsigned connected, received[2], completed;

static void on_receiver(fcast_endpoint endpoint, const fcast_event *event)
{
    int which = endpoint.id == receivers[1].id;
    if (event->kind != FCAST_EVENT_MESSAGE)
        return;
    CHECK(event->data_len == SIZE && memcmp(event->data, memory, SIZE) == 0);
    CHECK(memcmp(event->header, &received[which], sizeof(unsigned)) == 0);
    received[which]++;
}

static void on_sender(fcast_endpoint endpoint, const fcast_event *event)
{
    (void)endpoint;
    connected += event->kind == FCAST_EVENT_CONNECTED;
    completed += event->kind == FCAST_EVENT_COMPLETED;
    CHECK(event->kind != FCAST_EVENT_FAILED && event->kind != FCAST_EVENT_DISCONNECTED);
}

int main(void)
{
    fcast_domain domain = open_domain();
    fcast_region region, outgoing, none = {0};
    OK(fcast_region_allocate(SLOTS * 2048, 0, -1, &region));
    OK(fcast_region_external(memory, sizeof memory, NULL, NULL, &outgoing));
    memset(memory, 7, sizeof memory);
    fcast_pool pool;
    OK(fcast_pool_create(region, 2048, 0, &pool));
    size_t slots, free_slots;
    OK(fcast_pool_status(pool, &slots, &free_slots, NULL));
    CHECK(slots >= SLOTS && free_slots == slots);

    fcast_settings settings = {.size = sizeof settings, .max_connections = 2, .credits = 4, .pool_most = 40};
    IS(fcast_receiver_open(domain, any_port(), &settings, &receivers[0]), FCAST_INVALID);
    settings.pool = pool;
    settings.pool_reserved = 16;
    fcast_settings sending = {.size = sizeof sending, .region = outgoing, .packing = FCAST_OFF};
    for (int i = 0; i < 2; i++) {
        char address[128];
        OK(fcast_receiver_open(domain, any_port(), &settings, &receivers[i]));
        OK(fcast_endpoint_address(receivers[i], address, sizeof address, NULL));
        OK(fcast_sender_open(domain, address, &sending, &senders[i]));
    }
    OK(fcast_pool_status(pool, NULL, &free_slots, NULL));
    CHECK(free_slots == slots - 32);
    settings.pool_reserved = SLOTS;
    settings.pool_most = SLOTS;
    fcast_endpoint third;
    fcast_status status = fcast_receiver_open(domain, any_port(), &settings, &third);
    CHECK(status == FCAST_NO_RESOURCES || status == FCAST_INVALID);

    unsigned sent[2] = {0, 0};
    for (double until = now_s() + 60; received[0] < MESSAGES || received[1] < MESSAGES || completed < 2 * MESSAGES;) {
        for (int i = 0; i < 2; i++) {
            poll_both(receivers[i], on_receiver, senders[i], on_sender, until);
            while (connected == 2 && sent[i] < MESSAGES) {
                status = fcast_send(senders[i], none, memory, SIZE, &sent[i], sizeof sent[i], sent[i]);
                if (status == FCAST_AGAIN)
                    break;
                OK(status);
                sent[i]++;
            }
        }
    }
    for (int i = 0; i < 2; i++) {
        OK(fcast_endpoint_release(senders[i]));
        OK(fcast_endpoint_release(receivers[i]));
    }
    OK(fcast_pool_status(pool, NULL, &free_slots, NULL));
    CHECK(free_slots == slots);
    OK(fcast_pool_release(pool));
    OK(fcast_region_release(region));
    OK(fcast_region_release(outgoing));
    OK(fcast_domain_release(domain));
    printf("%u messages into one pool\n", received[0] + received[1]);
    return 0;
}
