/* A sender and a receiver: memory of the program's own, headers, keys, kept messages, the close. */
#include "check.h"

enum { MESSAGES = 1000, SIZE = 64 };

static unsigned char memory[MESSAGES * SIZE];
static int released;

static void on_release(void *context)
{
    released += *(int *)context;
}

int main(void)
{
    CHECK(fcast_version() == FCAST_VERSION);
    fcast_domain domain = open_domain();
    for (size_t i = 0; i < sizeof memory; i++)
        memory[i] = (unsigned char)(i / SIZE + i % SIZE);
    int one = 1;
    fcast_region region;
    OK(fcast_region_external(memory, sizeof memory, on_release, &one, &region));

    fcast_endpoint receiver, sender;
    OK(fcast_receiver_open(domain, any_port(), NULL, &receiver));
    char address[128];
    OK(fcast_endpoint_address(receiver, address, sizeof address, NULL));
    fcast_settings settings = {.size = sizeof settings, .depth = 32, .region = region};
    OK(fcast_sender_open(domain, address, &settings, &sender));

    unsigned sent = 0, completed = 0, received = 0, connected = 0;
    fcast_message kept = {0};
    const unsigned char *kept_data = NULL;
    while (completed < MESSAGES || received < MESSAGES) {
        fcast_event events[16];
        size_t count;
        OK(fcast_endpoint_poll(sender, events, 16, &count));
        for (size_t i = 0; i < count; i++) {
            if (events[i].kind == FCAST_EVENT_CONNECTED)
                connected++;
            if (events[i].kind == FCAST_EVENT_COMPLETED)
                completed++;
            CHECK(events[i].kind != FCAST_EVENT_FAILED);
            CHECK(events[i].kind != FCAST_EVENT_DISCONNECTED);
        }
        while (connected && sent < MESSAGES) {
            fcast_region none = {0};
            fcast_status status =
                fcast_send(sender, none, memory + sent * SIZE, SIZE, &sent, sizeof sent, sent);
            if (status == FCAST_AGAIN)
                break;
            OK(status);
            sent++;
        }
        OK(fcast_endpoint_poll(receiver, events, 16, &count));
        for (size_t i = 0; i < count; i++) {
            if (events[i].kind != FCAST_EVENT_MESSAGE)
                continue;
            CHECK(events[i].sequence == received + 1);
            CHECK(events[i].header_len == sizeof received);
            CHECK(memcmp(events[i].header, &received, sizeof received) == 0);
            CHECK(events[i].data_len == SIZE);
            CHECK(memcmp(events[i].data, memory + received * SIZE, SIZE) == 0);
            if (received == 7) {
                kept_data = events[i].data;
                OK(fcast_message_keep(receiver, &events[i], &kept));
                IS(fcast_message_keep(receiver, &events[i], &kept), FCAST_STALE);
            }
            received++;
        }
    }
    CHECK(memcmp(kept_data, memory + 7 * SIZE, SIZE) == 0);
    OK(fcast_message_release(kept));
    IS(fcast_message_release(kept), FCAST_STALE);

    OK(fcast_endpoint_begin_close(sender, 60000));
    unsigned over = 0;
    while (over < 2) {
        fcast_event events[16];
        size_t count;
        fcast_endpoint both[] = {sender, receiver};
        for (int side = 0; side < 2; side++) {
            OK(fcast_endpoint_poll(both[side], events, 16, &count));
            for (size_t i = 0; i < count; i++)
                if (events[i].kind == FCAST_EVENT_DISCONNECTED) {
                    IS(events[i].status, FCAST_OK);
                    over++;
                }
        }
    }
    IS(fcast_send(sender, (fcast_region){0}, memory, 1, NULL, 0, 0), FCAST_CLOSED);
    OK(fcast_endpoint_release(sender));
    IS(fcast_endpoint_release(sender), FCAST_STALE);
    OK(fcast_endpoint_release(receiver));
    CHECK(released == 0);
    OK(fcast_region_release(region));
    CHECK(released == 1);
    OK(fcast_domain_release(domain));
    printf("%u messages\n", received);
    return 0;
}
