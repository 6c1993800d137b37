/* Rings over memory of the program's, batches, and messages that are sent on without a copy. */
#include "drive.h"

enum { MESSAGES = 500, PIECE = 300, RING = 4096, BATCH = 32 };

static unsigned char card[RING];
static unsigned char memory[BATCH * PIECE];
static unsigned connected, completed, received, kept_count;
static fcast_message kept[4];
static int whole_ring;

static unsigned char byte_of(unsigned number, size_t at)
{
    return (unsigned char)(number * 5 + at);
}

static void on_sender(fcast_endpoint endpoint, const fcast_event *event)
{
    (void)endpoint;
    if (event->kind == FCAST_EVENT_CONNECTED)
        connected++;
    if (event->kind == FCAST_EVENT_COMPLETED)
        completed++;
    CHECK(event->kind != FCAST_EVENT_FAILED && event->kind != FCAST_EVENT_DISCONNECTED);
}

static void on_receiver(fcast_endpoint endpoint, const fcast_event *event)
{
    if (event->kind != FCAST_EVENT_MESSAGE)
        return;
    unsigned number;
    CHECK(event->header_len == sizeof number && event->data_len == PIECE);
    memcpy(&number, event->header, sizeof number);
    for (size_t i = 0; i < PIECE; i++)
        CHECK(((const unsigned char *)event->data)[i] == byte_of(number, i));
    if (number < 4)
        OK(fcast_message_keep(endpoint, event, &kept[kept_count++]));
    received++;
}

static void fill(const fcast_span *spans, unsigned number)
{
    size_t at = 0;
    for (int s = 0; s < 2; s++)
        for (size_t i = 0; i < spans[s].len; i++)
            ((unsigned char *)spans[s].data)[i] = byte_of(number, at++);
    whole_ring += spans[1].len > 0;
}

int main(void)
{
    fcast_domain domain = open_domain();
    fcast_region region, plain, none = {0};
    OK(fcast_region_external(card, sizeof card, NULL, NULL, &region));
    OK(fcast_region_external(memory, sizeof memory, NULL, NULL, &plain));
    OK(fcast_region_register(region, domain));
    fcast_ring ring;
    OK(fcast_ring_create(region, 0, 0, &ring));

    fcast_endpoint receiver, sender;
    OK(fcast_receiver_open(domain, any_port(), NULL, &receiver));
    char address[128];
    OK(fcast_endpoint_address(receiver, address, sizeof address, NULL));
    fcast_settings settings = {.size = sizeof settings, .region = plain};
    OK(fcast_sender_open(domain, address, &settings, &sender));
    DRIVE(sender, on_sender, receiver, on_receiver, connected);

    fcast_reservation reservation;
    fcast_payload payload = {0};
    fcast_span spans[2];
    IS(fcast_ring_reserve(ring, RING + 1, &reservation, spans), FCAST_TOO_LONG);
    OK(fcast_ring_reserve(ring, RING, &reservation, spans));
    CHECK(spans[0].data == card && spans[0].len == RING && spans[1].len == 0);
    fcast_reservation more;
    IS(fcast_ring_reserve(ring, 1, &more, spans), FCAST_AGAIN);
    OK(fcast_reservation_release(reservation));
    IS(fcast_ring_commit(ring, reservation, 1, &payload), FCAST_STALE);

    unsigned sent = 0;
    bool ready = false;
    DRIVE_AND(sender, on_sender, receiver, on_receiver, completed == MESSAGES && received == MESSAGES) {
        while (sent < MESSAGES) {
            if (!ready) {
                fcast_status status = fcast_ring_reserve(ring, PIECE + 50, &reservation, spans);
                if (status == FCAST_AGAIN)
                    break;
                OK(status);
                IS(fcast_ring_commit(ring, reservation, PIECE + 51, &payload), FCAST_INVALID);
                fill(spans, sent);
                OK(fcast_ring_commit(ring, reservation, PIECE, &payload));
                ready = true;
            }
            fcast_status status = fcast_send_payload(sender, payload, &sent, sizeof sent, sent);
            if (status == FCAST_AGAIN)
                break;
            OK(status);
            ready = false;
            sent++;
        }
    }
    CHECK(whole_ring > 0 && kept_count == 4);
    uint64_t head, tail;
    size_t free_bytes, outstanding;
    OK(fcast_ring_status(ring, &head, &tail, &free_bytes, &outstanding, NULL));
    CHECK(head == tail && free_bytes == RING && outstanding == 0);

    /* Batches: as many as are taken, from the first on. */
    fcast_outgoing messages[BATCH];
    unsigned numbers[BATCH];
    for (unsigned i = 0; i < BATCH; i++) {
        numbers[i] = 1000 + i;
        for (size_t at = 0; at < PIECE; at++)
            memory[i * PIECE + at] = byte_of(numbers[i], at);
        messages[i] = (fcast_outgoing){.data = memory + i * PIECE, .len = PIECE, .key = i};
        messages[i].header = &numbers[i];
        messages[i].header_len = sizeof numbers[i];
    }
    size_t taken, all = 0;
    messages[BATCH - 1].data = card; /* outside of the region */
    DRIVE_AND(sender, on_sender, receiver, on_receiver, all == BATCH - 1) {
        fcast_status status = fcast_send_batch(sender, messages + all, BATCH - all, &taken);
        if (status == FCAST_AGAIN)
            continue;
        OK(status);
        CHECK(taken > 0);
        all += taken;
    }
    IS(fcast_send_batch(sender, messages + all, 1, &taken), FCAST_NOT_FOUND);
    messages[BATCH - 1].data = memory + (BATCH - 1) * PIECE;
    DRIVE_AND(sender, on_sender, receiver, on_receiver,
              fcast_send_batch(sender, messages + all, 1, &taken) == FCAST_OK) {}
    OK(fcast_send_batch(sender, messages, 0, &taken));
    CHECK(taken == 0);
    IS(fcast_send_batch(receiver, messages, 1, &taken), FCAST_UNSUPPORTED);
    unsigned total = MESSAGES + BATCH;
    DRIVE(sender, on_sender, receiver, on_receiver, completed == total && received == total);

    /* A message that came is sent on from where it lies. */
    fcast_pool pool;
    fcast_region came;
    IS(fcast_endpoint_pool(sender, &pool), FCAST_UNSUPPORTED);
    OK(fcast_endpoint_pool(receiver, &pool));
    OK(fcast_pool_region(pool, &came));
    OK(fcast_region_register(came, domain));
    for (unsigned i = 0; i < 4; i++) {
        fcast_payload forward;
        OK(fcast_message_payload(kept[i], &forward));
        IS(fcast_message_payload(kept[i], &forward), FCAST_STALE);
        unsigned number = i;
        kept_count = i;
        OK(fcast_send_payload(sender, forward, &number, sizeof number, number));
        DRIVE(sender, on_sender, receiver, on_receiver,
              completed == total + i + 1 && received == total + i + 1);
        OK(fcast_message_release(kept[i]));
    }
    size_t count;
    uint64_t keys[4];
    OK(fcast_endpoint_pending(sender, keys, 4, &count));
    CHECK(count == 0);
    OK(fcast_send(sender, none, memory, PIECE, &(unsigned){1000}, sizeof(unsigned), 4711));
    OK(fcast_endpoint_pending(sender, keys, 4, &count));
    CHECK(count == 1 && keys[0] == 4711);

    OK(fcast_endpoint_release(sender));
    OK(fcast_endpoint_release(receiver));
    OK(fcast_ring_release(ring));
    IS(fcast_ring_reserve(ring, 1, &reservation, spans), FCAST_STALE);
    OK(fcast_pool_release(pool));
    OK(fcast_region_release(came));
    OK(fcast_region_release(region));
    OK(fcast_region_release(plain));
    OK(fcast_domain_release(domain));
    printf("%u messages by ring, batch and forward\n", received);
    return 0;
}
