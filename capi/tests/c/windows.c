/* Windows: the peer writes, tells, and reads; rights, bounds, revocation, stale handles. */
#include "drive.h"

enum { SIZE = 4096 };

static unsigned char memory[4 * SIZE];
static uint64_t connection;
static unsigned connected, written, wrote_value, reads, releases;
static uint64_t wrote_window, released_window;
static fcast_status lost;
static fcast_buffer given_back;
static unsigned char *bytes_back;

static void on_owner(fcast_endpoint endpoint, const fcast_event *event)
{
    (void)endpoint;
    if (event->kind == FCAST_EVENT_CONNECTED)
        connection = event->connection;
    if (event->kind == FCAST_EVENT_PEER_WROTE) {
        wrote_window = event->key;
        wrote_value = (unsigned)event->value;
    }
    if (event->kind == FCAST_EVENT_WINDOW_RELEASED) {
        released_window = event->key;
        releases++;
        void *data = NULL;
        size_t capacity = 0;
        fcast_buffer other = {77};
        if (event->data == NULL) {
            IS(fcast_buffer_keep(endpoint, event, &other, &data, NULL), FCAST_STALE);
            return;
        }
        /* The second one goes to its pool by itself. */
        CHECK(event->data_len == SIZE);
        if (given_back.id != 0)
            return;
        IS(fcast_buffer_keep(endpoint, event, NULL, &data, NULL), FCAST_INVALID);
        IS(fcast_buffer_keep(endpoint, NULL, &other, &data, NULL), FCAST_INVALID);
        fcast_message message;
        IS(fcast_message_keep(endpoint, event, &message), FCAST_STALE);
        OK(fcast_buffer_keep(endpoint, event, &given_back, &data, &capacity));
        CHECK(data == event->data && capacity == SIZE);
        bytes_back = data;
        IS(fcast_buffer_keep(endpoint, event, &other, &data, NULL), FCAST_STALE);
        CHECK(other.id == 77);
    }
}

static size_t free_in(fcast_pool pool)
{
    size_t free;
    OK(fcast_pool_status(pool, NULL, &free, NULL));
    return free;
}

static void on_peer(fcast_endpoint endpoint, const fcast_event *event)
{
    (void)endpoint;
    if (event->kind == FCAST_EVENT_CONNECTED)
        connected++;
    if (event->kind == FCAST_EVENT_WRITTEN) {
        CHECK(event->key == 11 + written);
        written++;
    }
    if (event->kind == FCAST_EVENT_READ) {
        CHECK(event->key == 20);
        reads++;
    }
    if (event->kind == FCAST_EVENT_DISCONNECTED)
        lost = event->status;
    CHECK(event->kind != FCAST_EVENT_WRITE_FAILED && event->kind != FCAST_EVENT_READ_FAILED);
}

static fcast_remote_window opened(fcast_window window, fcast_endpoint peer)
{
    unsigned char descriptor[FCAST_WINDOW_DESCRIPTOR_LEN];
    fcast_remote_window remote;
    OK(fcast_window_descriptor(window, descriptor));
    OK(fcast_remote_window_open(peer, 0, descriptor, sizeof descriptor, &remote));
    return remote;
}

/* Windows of buffers of a pool, which come back with what the peer wrote. */
static void of_buffers(fcast_endpoint owner, fcast_endpoint peer, fcast_pool pool, const unsigned char *mine)
{
    fcast_buffer first, second;
    void *at, *other;
    fcast_window window = {77}, unread;
    const size_t all = free_in(pool);
    unsigned before = releases;
    OK(fcast_pool_acquire(pool, 0, &first, &at, NULL));
    OK(fcast_pool_acquire(pool, 0, &second, &other, NULL));
    memset(at, 1, SIZE);
    IS(fcast_window_expose_buffer(owner, connection, first, 4, &window), FCAST_INVALID);
    IS(fcast_window_expose_buffer(owner, connection, first, 3, NULL), FCAST_INVALID);
    IS(fcast_window_expose_buffer(owner, 0x123456789, first, 3, &window), FCAST_CLOSED);
    CHECK(window.id == 77);
    OK(fcast_window_expose_buffer(owner, connection, first, FCAST_ACCESS_WRITE, &window));
    IS(fcast_window_expose_buffer(owner, connection, first, FCAST_ACCESS_WRITE, &unread), FCAST_STALE);
    OK(fcast_window_expose_buffer(owner, connection, second, 3, &unread));
    fcast_remote_window remote = opened(window, peer);
    OK(fcast_window_write(peer, remote, 100, (fcast_region){0}, mine, 1000, 11 + written));
    const unsigned had = written;
    DRIVE(owner, on_owner, peer, on_peer, written == had + 1);
    CHECK(free_in(pool) == all - 2);
    OK(fcast_window_revoke(owner, window, 60000));
    DRIVE(owner, on_owner, peer, on_peer, releases == before + 1);
    CHECK(bytes_back == at && bytes_back[99] == 1 && bytes_back[1100] == 1);
    CHECK(memcmp(bytes_back + 100, mine, 1000) == 0);
    OK(fcast_window_revoke(owner, unread, 60000));
    DRIVE(owner, on_owner, peer, on_peer, releases == before + 2);
    poll_once(owner, on_owner);
    CHECK(free_in(pool) == all - 1);
    OK(fcast_buffer_release(given_back));
    OK(fcast_remote_window_release(remote));
    CHECK(free_in(pool) == all);
}

/* Windows of payloads: what is frozen is read alone; a part of a region as by its address. */
static void of_payloads(fcast_endpoint owner, fcast_endpoint peer, fcast_pool pool, fcast_region owners,
                        unsigned char *mine)
{
    fcast_buffer buffer;
    fcast_payload frozen, part, pieces;
    fcast_window window, of_part;
    void *at;
    const size_t all = free_in(pool);
    const unsigned before = releases;
    OK(fcast_pool_acquire(pool, 0, &buffer, &at, NULL));
    memset(at, 9, 300);
    OK(fcast_buffer_freeze(buffer, 300, &frozen));
    const fcast_iov iov[] = {{memory, 10, owners}, {memory + 20, 10, owners}};
    OK(fcast_payload_of_pieces(iov, 2, &pieces));
    OK(fcast_payload_of_region(owners, memory, 64, &part));
    IS(fcast_window_expose_payload(owner, connection, frozen, FCAST_ACCESS_WRITE, &window), FCAST_INVALID);
    IS(fcast_window_expose_payload(owner, connection, pieces, FCAST_ACCESS_READ, &window), FCAST_UNSUPPORTED);
    IS(fcast_window_expose_payload(owner, 0x123456789, part, 3, &window), FCAST_CLOSED);
    size_t len;
    OK(fcast_payload_len(part, &len));
    CHECK(len == 64);
    OK(fcast_payload_release(pieces));
    OK(fcast_window_expose_payload(owner, connection, frozen, FCAST_ACCESS_READ, &window));
    OK(fcast_window_expose_payload(owner, connection, part, 3, &of_part));
    IS(fcast_payload_release(frozen), FCAST_STALE);
    IS(fcast_payload_release(part), FCAST_STALE);
    fcast_remote_window remote = opened(window, peer);
    mine[SIZE] = 0;
    const unsigned had = reads;
    OK(fcast_window_read(peer, remote, 0, (fcast_region){0}, mine + SIZE, 300, 20));
    DRIVE(owner, on_owner, peer, on_peer, reads == had + 1);
    CHECK(mine[SIZE] == 9 && mine[SIZE + 299] == 9);
    OK(fcast_window_revoke(owner, window, 60000));
    OK(fcast_window_revoke(owner, of_part, 60000));
    DRIVE(owner, on_owner, peer, on_peer, releases == before + 2);
    CHECK(free_in(pool) == all);
    OK(fcast_remote_window_release(remote));
}

int main(void)
{
    fcast_domain domain = open_domain();
    fcast_region owners, peers, none = {0};
    OK(fcast_region_external(memory, 2 * SIZE, NULL, NULL, &owners));
    OK(fcast_region_external(memory + 2 * SIZE, 2 * SIZE, NULL, NULL, &peers));
    unsigned char *mine = memory + 2 * SIZE;

    fcast_settings settings = {.size = sizeof settings, .windows = 8, .max_connections = 4};
    fcast_endpoint owner, peer;
    OK(fcast_receiver_open(domain, any_port(), &settings, &owner));
    char address[128];
    OK(fcast_endpoint_address(owner, address, sizeof address, NULL));
    fcast_settings sending = {.size = sizeof sending, .region = peers};
    OK(fcast_sender_open(domain, address, &sending, &peer));

    fcast_window window;
    IS(fcast_window_expose(owner, 0, owners, memory, SIZE, 3, &window), FCAST_CLOSED);
    IS(fcast_window_expose(owner, 0x123456789, owners, memory, SIZE, 3, &window), FCAST_CLOSED);
    DRIVE(owner, on_owner, peer, on_peer, connection && connected);
    size_t count;
    OK(fcast_endpoint_connected(peer, &count));
    CHECK(count == 1);
    OK(fcast_endpoint_connected(owner, &count));
    CHECK(count == 1);

    IS(fcast_window_expose(owner, connection, owners, memory, SIZE, 0, &window), FCAST_INVALID);
    IS(fcast_window_expose(owner, connection, owners, memory, 3 * SIZE, 3, &window), FCAST_NOT_FOUND);
    IS(fcast_window_expose(owner, connection, none, memory, SIZE, 3, &window), FCAST_NOT_REGISTERED);
    OK(fcast_window_expose(owner, connection, owners, memory, SIZE, FCAST_ACCESS_WRITE | FCAST_ACCESS_READ,
                           &window));
    fcast_window only_read;
    OK(fcast_window_expose(owner, connection, owners, memory + SIZE, SIZE, FCAST_ACCESS_READ, &only_read));
    unsigned char descriptor[FCAST_WINDOW_DESCRIPTOR_LEN];
    OK(fcast_window_descriptor(window, descriptor));

    fcast_remote_window remote, readable;
    IS(fcast_remote_window_open(peer, 0, descriptor, 10, &remote), FCAST_INVALID);
    OK(fcast_remote_window_open(peer, 0, descriptor, sizeof descriptor, &remote));
    OK(fcast_window_descriptor(only_read, descriptor));
    OK(fcast_remote_window_open(peer, 0, descriptor, sizeof descriptor, &readable));
    uint64_t id, remote_id, len;
    uint32_t access;
    OK(fcast_window_id(window, &id));
    OK(fcast_remote_window_info(remote, &remote_id, &len, &access));
    CHECK(id == remote_id && len == SIZE && access == 3);

    for (int i = 0; i < SIZE; i++) {
        mine[i] = (unsigned char)(i * 7);
        memory[SIZE + i] = (unsigned char)(i * 3);
    }
    IS(fcast_window_write(peer, remote, SIZE - 10, none, mine, 11, 1), FCAST_INVALID);
    IS(fcast_window_write(peer, readable, 0, none, mine, 11, 1), FCAST_INVALID);
    IS(fcast_window_write(owner, remote, 0, owners, memory, 11, 1), FCAST_INVALID);
    OK(fcast_window_write(peer, remote, 100, none, mine, 1000, 11));
    DRIVE(owner, on_owner, peer, on_peer, written == 1);
    CHECK(memcmp(memory + 100, mine, 1000) == 0 && memory[99] == 0 && memory[1100] == 0);

    fcast_status status = fcast_window_write_with_data(peer, remote, 2000, none, mine, 64, 0xfeed, 12);
    if (status == FCAST_OK) {
        DRIVE(owner, on_owner, peer, on_peer, written == 2 && wrote_value);
        CHECK(wrote_value == 0xfeed && wrote_window == id);
        CHECK(memcmp(memory + 2000, mine, 64) == 0);
    } else {
        IS(status, FCAST_UNSUPPORTED);
        written++;
    }

    OK(fcast_window_read(peer, readable, 10, none, mine + SIZE, 500, 20));
    DRIVE(owner, on_owner, peer, on_peer, reads == 1);
    CHECK(memcmp(mine + SIZE, memory + SIZE + 10, 500) == 0);

    /* A payload of a pool, whose handle is used up by a write that is taken alone. */
    fcast_region pool_region;
    OK(fcast_region_allocate(16384, 0, -1, &pool_region));
    fcast_pool pool;
    OK(fcast_pool_create(pool_region, 4096, 0, &pool));
    OK(fcast_region_register(pool_region, domain));
    fcast_buffer buffer;
    void *data;
    OK(fcast_pool_acquire(pool, 0, &buffer, &data, NULL));
    memset(data, 0xaa, 256);
    fcast_payload payload;
    OK(fcast_buffer_freeze(buffer, 256, &payload));
    IS(fcast_window_write_payload(peer, remote, SIZE, payload, 1), FCAST_INVALID);
    OK(fcast_window_write_payload(peer, remote, 3000, payload, 13));
    IS(fcast_window_write_payload(peer, remote, 3000, payload, 13), FCAST_STALE);
    DRIVE(owner, on_owner, peer, on_peer, written == 3);
    CHECK(memory[3000] == 0xaa && memory[3255] == 0xaa && memory[3256] == 0);

    of_buffers(owner, peer, pool, mine);
    of_payloads(owner, peer, pool, owners, mine);
    unsigned before = releases;
    IS(fcast_window_revoke(peer, window, 60000), FCAST_INVALID);
    OK(fcast_window_revoke(owner, window, 60000));
    IS(fcast_window_revoke(owner, window, 60000), FCAST_STALE);
    DRIVE(owner, on_owner, peer, on_peer, releases == before + 1);
    CHECK(released_window == id);
    IS(fcast_window_write(peer, remote, 0, none, mine, 1, 1), FCAST_CLOSED);
    OK(fcast_window_release(only_read));
    IS(fcast_window_id(only_read, &id), FCAST_STALE);
    OK(fcast_remote_window_release(remote));
    OK(fcast_remote_window_release(readable));
    IS(fcast_remote_window_release(readable), FCAST_STALE);

    lost = -1;
    IS(fcast_endpoint_close_connection(owner, 42, 1000), FCAST_NOT_FOUND);
    IS(fcast_endpoint_close_connection(peer, 0, 1000), FCAST_UNSUPPORTED);
    OK(fcast_endpoint_close_connection(owner, connection, 60000));
    DRIVE(owner, on_owner, peer, on_peer, lost != -1);
    IS(lost, FCAST_OK);
    OK(fcast_endpoint_release(peer));
    OK(fcast_endpoint_release(owner));
    OK(fcast_pool_release(pool));
    OK(fcast_region_release(pool_region));
    OK(fcast_region_release(owners));
    OK(fcast_region_release(peers));
    OK(fcast_domain_release(domain));
    printf("windows: written to, read, revoked\n");
    return 0;
}
