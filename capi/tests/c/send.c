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

    /* One that names no memory of its own, whose receiver is gone before it stands. */
    fcast_endpoint nobody, without;
    fcast_region unregistered;
    OK(fcast_receiver_open(domain, any_port(), NULL, &nobody));
    OK(fcast_endpoint_address(nobody, address, sizeof address, NULL));
    OK(fcast_endpoint_release(nobody));
    OK(fcast_sender_open(domain, address, NULL, &without));
    OK(fcast_region_allocate(4096, 0, -1, &unregistered));
    IS(fcast_send(without, (fcast_region){0}, memory, 1, NULL, 0, 0), FCAST_NOT_REGISTERED);

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
    while (over < 3) {
        fcast_event events[16];
        size_t count;
        fcast_endpoint all[] = {sender, receiver, without};
        for (int side = 0; side < 3; side++) {
            OK(fcast_endpoint_poll(all[side], events, 16, &count));
            for (size_t i = 0; i < count; i++)
                if (events[i].kind == FCAST_EVENT_DISCONNECTED) {
                    CHECK((events[i].status == FCAST_OK) == (side < 2));
                    over++;
                }
        }
    }
    /* Whatever is sent, and from wherever: that it is over comes first. */
    for (int again = 0; again < 2; again++) {
        fcast_region named[] = {{0}, region, unregistered};
        for (int i = 0; i < 3; i++) {
            IS(fcast_send(sender, named[i], memory, 1, NULL, 0, 0), FCAST_CLOSED);
            IS(fcast_send(without, named[i], memory, 1, NULL, 0, 0), FCAST_CLOSED);
            fcast_iov piece = {.base = memory, .len = 1, .region = named[i]};
            IS(fcast_sendv(sender, &piece, 1, NULL, 0, 0), FCAST_CLOSED);
            IS(fcast_sendv(without, &piece, 1, NULL, 0, 0), FCAST_CLOSED);
            fcast_outgoing message = {.region = named[i], .data = memory, .len = 1};
            size_t taken;
            IS(fcast_send_batch(without, &message, 1, &taken), FCAST_CLOSED);
        }
    }
    OK(fcast_region_release(unregistered));
    OK(fcast_endpoint_release(without));
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
