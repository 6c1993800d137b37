/* Many small messages: batches out of two regions, keys of what is done and messages that came
 * without an event for each. */
#include "drive.h"

enum { MESSAGES = 5000, SIZE = 24, BATCH = 32 };

static unsigned char own[MESSAGES * SIZE], other[MESSAGES * SIZE];
static unsigned released, connected, received;

static void on_release(void *context)
{
    (void)context;
    released++;
}

static void on_sender(fcast_endpoint endpoint, const fcast_event *event)
{
    (void)endpoint;
    CHECK(event->kind != FCAST_EVENT_FAILED);
    /* Keys of what is done are taken by fcast_poll_completed, which stops at this one. */
    CHECK(event->kind != FCAST_EVENT_COMPLETED);
    connected += event->kind == FCAST_EVENT_CONNECTED;
}

/* Message `number` lies in one region or the other, three in a row. */
static const unsigned char *data_of(unsigned number)
{
    return (number / 3 % 2 ? other : own) + (size_t)number * SIZE;
}

static unsigned send_some(fcast_endpoint sender, fcast_region second, unsigned from)
{
    fcast_outgoing messages[BATCH];
    unsigned numbers[BATCH], count = 0;
    for (; count < BATCH && from + count < MESSAGES; count++) {
        numbers[count] = from + count;
        messages[count] = (fcast_outgoing){
            .data = data_of(from + count),
            .len = SIZE,
            .header = &numbers[count],
            .header_len = sizeof numbers[count],
            .key = from + count,
        };
        if ((from + count) / 3 % 2)
            messages[count].region = second;
    }
    size_t sent = 0;
    fcast_status status = fcast_send_batch(sender, messages, count, &sent);
    if (status == FCAST_AGAIN)
        return 0;
    OK(status);
    CHECK(sent > 0 && sent <= count);
    return (unsigned)sent;
}

static void check_message(uint64_t sequence, const void *header, size_t header_len,
                          const void *data, size_t len)
{
    CHECK(sequence == received + 1 && header_len == sizeof received && len == SIZE);
    CHECK(memcmp(header, &received, sizeof received) == 0);
    CHECK(memcmp(data, data_of(received), SIZE) == 0);
    received++;
}

static void on_receiver(fcast_endpoint endpoint, const fcast_event *event)
{
    (void)endpoint;
    if (event->kind == FCAST_EVENT_MESSAGE)
        check_message(event->sequence, event->header, event->header_len, event->data,
                      event->data_len);
}

static void receive_some(fcast_endpoint receiver)
{
    fcast_received messages[64];
    size_t count = 0;
    bool has_events = false;
    OK(fcast_receive(receiver, messages, 64, &count, &has_events));
    for (size_t i = 0; i < count; i++)
        check_message(messages[i].sequence, messages[i].header, messages[i].header_len,
                      messages[i].data, messages[i].data_len);
    /* Messages may come by this way, too, behind the events. */
    if (has_events)
        poll_once(receiver, on_receiver);
}

static unsigned ended;

static void on_end(fcast_endpoint endpoint, const fcast_event *event)
{
    (void)endpoint;
    if (event->kind == FCAST_EVENT_DISCONNECTED) {
        IS(event->status, FCAST_OK);
        ended++;
    }
}

int main(void)
{
    fcast_domain domain = open_domain();
    for (size_t i = 0; i < sizeof own; i++) {
        own[i] = (unsigned char)(i / SIZE + i % SIZE);
        other[i] = (unsigned char)(i / SIZE + 2 * i % SIZE + 100);
    }
    fcast_region first, second;
    OK(fcast_region_external(own, sizeof own, on_release, NULL, &first));
    OK(fcast_region_external(other, sizeof other, on_release, NULL, &second));
    OK(fcast_region_register(second, domain));
    fcast_endpoint receiver, sender;
    OK(fcast_receiver_open(domain, any_port(), NULL, &receiver));
    char address[128];
    OK(fcast_endpoint_address(receiver, address, sizeof address, NULL));
    fcast_settings settings = {
        .size = sizeof settings, .depth = 16, .region = first, .packing = 1024};
    OK(fcast_sender_open(domain, address, &settings, &sender));

    unsigned sent = 0, done = 0;
    uint64_t keys[7];
    size_t count = 0;
    bool has_events = false;
    for (double until = now_s() + 60; done < MESSAGES || received < MESSAGES;) {
        CHECK(now_s() < until);
        OK(fcast_poll_completed(sender, keys, 7, &count, &has_events));
        CHECK(count <= 7);
        for (size_t i = 0; i < count; i++)
            CHECK(keys[i] == done++);
        if (has_events && count < 7)
            poll_once(sender, on_sender);
        if (connected && sent < MESSAGES)
            sent += send_some(sender, second, sent);
        receive_some(receiver);
    }
    CHECK(done == MESSAGES && sent == MESSAGES && received == MESSAGES);
    IS(fcast_poll_completed(receiver, keys, 7, &count, &has_events), FCAST_UNSUPPORTED);
    IS(fcast_poll_completed(sender, NULL, 7, &count, &has_events), FCAST_INVALID);

    /* A message that is wrong ends a batch where it stands, and says why by itself. */
    size_t taken = 77;
    fcast_outgoing three[3] = {
        {.data = own, .len = SIZE, .key = 1},
        {.data = other, .len = SIZE, .key = 2},
        {.data = other, .len = SIZE, .region = second, .key = 3},
    };
    OK(fcast_send_batch(sender, three, 3, &taken));
    CHECK(taken == 1);
    IS(fcast_send_batch(sender, three + 1, 2, &taken), FCAST_NOT_FOUND);
    three[1].region.id = second.id + 1;
    IS(fcast_send_batch(sender, three + 1, 2, &taken), FCAST_STALE);
    OK(fcast_send_batch(sender, three + 2, 1, &taken));
    OK(fcast_send_batch(sender, three, 0, &taken));
    CHECK(taken == 0);

    /* What was copied into a frame does not keep its region. */
    OK(fcast_region_release(first));
    OK(fcast_region_release(second));
    OK(fcast_endpoint_begin_close(sender, 60000));
    DRIVE(sender, on_end, receiver, on_end, ended == 2)
    OK(fcast_endpoint_close(sender, 1000));
    IS(fcast_poll_completed(sender, keys, 7, &count, &has_events), FCAST_CLOSED);
    OK(fcast_endpoint_release(sender));
    OK(fcast_endpoint_release(receiver));
    CHECK(released == 2);
    OK(fcast_domain_release(domain));
    printf("%u messages\n", received);
    return 0;
}
