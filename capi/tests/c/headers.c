/* Header slots that two senders share: each waits for what the other one has, and is told. */
#include "drive.h"

enum { SLOTS = 2, SIZE = 100, MESSAGES = 500 };

static fcast_endpoint senders[2], receiver;
static unsigned char memory[2][SIZE];
static unsigned connected, completed[2], received[2], writable[2], over;

static void on_sender(fcast_endpoint endpoint, const fcast_event *event)
{
    int which = endpoint.id == senders[1].id;
    connected += event->kind == FCAST_EVENT_CONNECTED;
    completed[which] += event->kind == FCAST_EVENT_COMPLETED;
    writable[which] += event->kind == FCAST_EVENT_WRITABLE;
    over += event->kind == FCAST_EVENT_DISCONNECTED;
    CHECK(event->kind != FCAST_EVENT_FAILED);
}

static void on_receiver(fcast_endpoint endpoint, const fcast_event *event)
{
    (void)endpoint;
    if (event->kind != FCAST_EVENT_MESSAGE)
        return;
    /* The header and the data of a message are of one sender. */
    CHECK(event->header_len == 1 && event->data_len == SIZE);
    unsigned char which = *(const unsigned char *)event->header;
    CHECK(which < 2 && memcmp(event->data, memory[which], SIZE) == 0);
    received[which]++;
}

static fcast_status send_one(int which)
{
    unsigned char header = (unsigned char)which;
    return fcast_send(senders[which], (fcast_region){0}, memory[which], SIZE, &header, 1, 0);
}

int main(void)
{
    fcast_domain domain = open_domain();
    fcast_headers headers = {77}, odd = {77};
    IS(fcast_headers_create(SLOTS, 16, NULL), FCAST_INVALID);
    IS(fcast_headers_create(65537, 16, &odd), FCAST_INVALID);
    IS(fcast_headers_create(SLOTS, 4097, &odd), FCAST_INVALID);
    CHECK(odd.id == 77);
    OK(fcast_headers_create(SLOTS, 16, &headers));
    size_t slots, free_slots, low;
    OK(fcast_headers_status(headers, &slots, &free_slots, &low));
    CHECK(slots == SLOTS && free_slots == SLOTS && low == SLOTS);

    OK(fcast_receiver_open(domain, any_port(), NULL, &receiver));
    char address[128];
    OK(fcast_endpoint_address(receiver, address, sizeof address, NULL));
    fcast_settings settings = {.size = sizeof settings, .headers = headers, .packing = FCAST_OFF};
    fcast_endpoint none;
    IS(fcast_receiver_open(domain, any_port(), &settings, &none), FCAST_INVALID);
    settings.header_slots = 3;
    IS(fcast_sender_open(domain, address, &settings, &none), FCAST_INVALID);
    CHECK(strstr(fcast_last_error(), "header_slots") != NULL);
    settings.header_slots = 0;
    fcast_region regions[2];
    for (int i = 0; i < 2; i++) {
        memset(memory[i], 'a' + i, SIZE);
        OK(fcast_region_external(memory[i], SIZE, NULL, NULL, &regions[i]));
        settings.region = regions[i];
        OK(fcast_sender_open(domain, address, &settings, &senders[i]));
    }
    double until = now_s() + 60;
    while (connected < 2) {
        poll_both(senders[0], on_sender, receiver, on_receiver, until);
        poll_once(senders[1], on_sender);
    }

    /* One has all of them, and the other one none. */
    OK(send_one(0));
    OK(send_one(0));
    IS(send_one(0), FCAST_AGAIN);
    IS(send_one(1), FCAST_AGAIN);
    OK(fcast_headers_status(headers, NULL, &free_slots, &low));
    CHECK(free_slots == 0 && low == 0);
    /* It is told when there is one again, though no send of its own ended. */
    for (until = now_s() + 60; writable[1] == 0;) {
        poll_both(senders[0], on_sender, receiver, on_receiver, until);
        poll_once(senders[1], on_sender);
    }
    CHECK(completed[1] == 0);

    unsigned sent[2] = {2, 0};
    until = now_s() + 60;
    while (received[0] < MESSAGES || received[1] < MESSAGES || completed[0] < MESSAGES ||
           completed[1] < MESSAGES) {
        for (int i = 0; i < 2; i++) {
            poll_both(senders[i], on_sender, receiver, on_receiver, until);
            while (sent[i] < MESSAGES) {
                fcast_status status = send_one(i);
                if (status == FCAST_AGAIN)
                    break;
                OK(status);
                sent[i]++;
            }
        }
    }
    OK(fcast_headers_status(headers, NULL, &free_slots, NULL));
    CHECK(free_slots == SLOTS);
    /* Who has them keeps them. */
    OK(fcast_headers_release(headers));
    IS(fcast_headers_release(headers), FCAST_STALE);
    IS(fcast_headers_status(headers, &slots, NULL, NULL), FCAST_STALE);
    OK(send_one(1));
    for (until = now_s() + 60; completed[1] == MESSAGES;)
        poll_both(senders[1], on_sender, receiver, on_receiver, until);
    settings.region.id = 0;
    IS(fcast_sender_open(domain, address, &settings, &none), FCAST_STALE);
    for (int i = 0; i < 2; i++) {
        OK(fcast_endpoint_release(senders[i]));
        OK(fcast_region_release(regions[i]));
    }
    CHECK(over == 0);
    OK(fcast_endpoint_release(receiver));
    OK(fcast_domain_release(domain));
    printf("%u and %u messages by %d header slots\n", received[0], received[1], SLOTS);
    return 0;
}
