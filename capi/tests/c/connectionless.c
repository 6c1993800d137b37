/* Connectionless endpoints: peers by address and by number, sends both ways, a peer that goes. */
#include "drive.h"
#include "rdm.h"

enum { MESSAGES = 200, SIZE = 512 };

static unsigned char memory[2][MESSAGES * SIZE];
static unsigned completed, received[2], removed, batch_from;
static uint64_t peer_of[2];
static fcast_endpoint sides[2];
static char address[2][128];

static void on_side(fcast_endpoint endpoint, const fcast_event *event)
{
    int side = endpoint.id == sides[1].id;
    if (event->kind == FCAST_EVENT_CONNECTED) {
        CHECK(event->connection != 0 && event->data_len == strlen(address[!side]));
        CHECK(strcmp(event->data, address[!side]) == 0);
        peer_of[side] = event->connection;
    }
    if (event->kind == FCAST_EVENT_MESSAGE) {
        CHECK(event->connection == peer_of[side]);
        CHECK(event->header_len == sizeof received[side]);
        CHECK(memcmp(event->header, &received[side], sizeof received[side]) == 0);
        CHECK(event->data_len == SIZE);
        unsigned place = received[side] - (received[side] >= MESSAGES ? batch_from : 0);
        CHECK(memcmp(event->data, memory[!side] + place * SIZE, SIZE) == 0);
        received[side]++;
    }
    if (event->kind == FCAST_EVENT_COMPLETED)
        completed++;
    if (event->kind == FCAST_EVENT_PEER_REMOVED)
        removed++;
    CHECK(event->kind != FCAST_EVENT_FAILED);
}

/* Several messages in one call: as many as are taken, from the first on. */
static void send_batches(void)
{
    enum { BATCH = 100 };
    fcast_outgoing messages[BATCH];
    unsigned numbers[BATCH], before = received[1], all = 0, over = completed;
    size_t taken = 99;
    for (unsigned i = 0; i < BATCH; i++) {
        numbers[i] = before + i;
        messages[i] = (fcast_outgoing){.data = memory[0] + i * SIZE, .len = SIZE, .key = i};
        messages[i].header = &numbers[i];
        messages[i].header_len = sizeof numbers[i];
    }
    batch_from = before;
    messages[BATCH - 1].data = numbers; /* outside of the region */
    DRIVE_AND(sides[0], on_side, sides[1], on_side, all == BATCH - 1) {
        fcast_status status =
            fcast_send_to_batch(sides[0], peer_of[0], messages + all, BATCH - all, &taken);
        if (status == FCAST_AGAIN)
            continue;
        OK(status);
        CHECK(taken > 0);
        all += (unsigned)taken;
    }
    taken = 99;
    IS(fcast_send_to_batch(sides[0], peer_of[0], messages + all, 1, &taken), FCAST_NOT_FOUND);
    IS(fcast_send_to_batch(sides[0], 4711, messages, 1, &taken), FCAST_NOT_FOUND);
    IS(fcast_send_to_batch(sides[0], peer_of[0], NULL, 1, &taken), FCAST_INVALID);
    IS(fcast_send_batch(sides[0], messages, 1, &taken), FCAST_UNSUPPORTED);
    CHECK(taken == 99);
    OK(fcast_send_to_batch(sides[0], peer_of[0], messages, 0, &taken));
    CHECK(taken == 0);
    DRIVE(sides[0], on_side, sides[1], on_side,
          received[1] == before + BATCH - 1 && completed == over + BATCH - 1);
}

int main(void)
{
    fcast_endpoint refused;
    fcast_domain connected = open_domain();
    IS(fcast_connectionless_open(connected, any_port(), NULL, &refused), FCAST_UNSUPPORTED);
    OK(fcast_domain_release(connected));
    fcast_domain domain;
    if (!open_rdm(&domain)) {
        printf("SKIPPED: no provider of reliable datagrams: %s\n", fcast_last_error());
        return 0;
    }
    fcast_region regions[2], none = {0};
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < sizeof memory[side]; i++)
            memory[side][i] = (unsigned char)(i / SIZE + i % 101 + (size_t)side);
        OK(fcast_region_external(memory[side], sizeof memory[side], NULL, NULL, &regions[side]));
        fcast_settings settings = {.size = sizeof settings, .max_peers = 4, .depth = 16};
        settings.region = regions[side];
        OK(fcast_connectionless_open(domain, any_port(), &settings, &sides[side]));
        OK(fcast_endpoint_address(sides[side], address[side], sizeof address[side], NULL));
    }
    uint64_t peer;
    IS(fcast_peer_at(sides[0], address[1], &peer), FCAST_NOT_FOUND);
    IS(fcast_send_to(sides[0], 99, none, memory[0], 1, NULL, 0, 0), FCAST_NOT_FOUND);
    IS(fcast_peer_add(sides[0], "nowhere", &peer), FCAST_INVALID);
    IS(fcast_send(sides[0], none, memory[0], 1, NULL, 0, 0), FCAST_UNSUPPORTED);
    /* The first send to an address adds the peer. */
    IS(fcast_send_to_address(sides[0], address[1], none, memory[0], SIZE, NULL, 0, 0), FCAST_AGAIN);
    OK(fcast_peer_at(sides[0], address[1], &peer));
    DRIVE(sides[0], on_side, sides[1], on_side, peer_of[0] && peer_of[1]);
    CHECK(peer == peer_of[0]);
    uint64_t again;
    OK(fcast_peer_add(sides[0], address[1], &again));
    CHECK(again == peer);
    char text[128];
    bool is_up;
    OK(fcast_peer_info(sides[0], peer, text, sizeof text, NULL, &is_up));
    CHECK(is_up && strcmp(text, address[1]) == 0);

    unsigned sent[2] = {0, 0};
    DRIVE_AND(sides[0], on_side, sides[1], on_side, completed == 2 * MESSAGES &&
              received[0] == MESSAGES && received[1] == MESSAGES) {
        for (int side = 0; side < 2; side++) {
            while (sent[side] < MESSAGES) {
                unsigned number = sent[side];
                fcast_status status = fcast_send_to(sides[side], peer_of[side], none,
                                                    memory[side] + number * SIZE, SIZE, &number,
                                                    sizeof number, number);
                if (status == FCAST_AGAIN)
                    break;
                OK(status);
                sent[side]++;
            }
            OK(fcast_flush(sides[side]));
        }
    }
    send_batches();
    size_t count;
    OK(fcast_endpoint_pending(sides[0], NULL, 0, &count));
    CHECK(count == 0);

    check_waitable(sides[0]);
    OK(fcast_peer_remove(sides[0], peer, 60000));
    IS(fcast_send_to(sides[0], peer, none, memory[0], 1, NULL, 0, 0), FCAST_CLOSED);
    DRIVE(sides[0], on_side, sides[1], on_side, removed == 2);
    IS(fcast_peer_remove(sides[0], peer, 60000), FCAST_NOT_FOUND);
    for (int side = 0; side < 2; side++) {
        OK(fcast_endpoint_close(sides[side], 60000));
        OK(fcast_endpoint_release(sides[side]));
        OK(fcast_region_release(regions[side]));
    }
    OK(fcast_domain_release(domain));
    printf("%d messages each way\n", MESSAGES);
    return 0;
}
