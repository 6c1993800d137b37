/* Windows, buffered senders, connectionless endpoints, publishers, subscribers, rings, batches, memory of GPUs. */
#include "fuzz.h"

enum { WINDOW = SPARE + 8, REMOTE, RING, RESERVATION };

static fcast_endpoint endpoint(void) { return (fcast_endpoint){pick_endpoint()}; }

static const char *local(void) { return strcmp(provider(), "shm") == 0 ? "any" : "127.0.0.1:0"; }

/* Numbers that events and calls gave: connections, peers, publishers. */
static _Thread_local uint64_t names[16];

static void remember_name(uint64_t name) { names[below(COUNT(names))] = name; }

static uint64_t any_name(void) { return once_in(20) ? any_number() : names[below(COUNT(names))]; }

/* Bytes of a region, mostly within it. */
struct part {
    fcast_region region;
    void *base;
    size_t len;
};

static struct part any_part(void)
{
    struct part part = {{pick(REGION)}, static_memory, 64};
    fcast_region_memory(part.region, &part.base, &part.len);
    size_t offset = below(part.len + 1);
    part.base = (char *)part.base + offset;
    part.len = once_in(30) ? (size_t)any_number() : below(part.len - offset + 1) % (once_in(2) ? 257 : 1 << 16);
    if (once_in(6))
        part.region.id = 0;
    return part;
}

static fcast_status kept_endpoint(int kind, fcast_endpoint made, fcast_status status)
{
    char address[96];
    if (checked(status) != FCAST_OK) {
        MUST(made.id == UNTOUCHED, "written by a call that failed");
        return status;
    }
    if (fcast_endpoint_address(made, address, sizeof address, NULL) == FCAST_OK)
        remember_address(address);
    keep(kind, made.id);
    return status;
}

/* ---- windows -------------------------------------------------------------------------------------- */

static unsigned char last_descriptor[FCAST_WINDOW_DESCRIPTOR_LEN];

static fcast_status expose(void)
{
    struct part part = any_part();
    fcast_window window = {UNTOUCHED};
    fcast_status status = checked(fcast_window_expose(endpoint(), any_name(), part.region, part.base, part.len,
                                                      (uint32_t)(once_in(9) ? below(9) : 1 + below(3)),
                                                      once_in(50) ? NULL : &window));
    if (status == FCAST_OK)
        keep(WINDOW, window.id);
    else
        MUST(window.id == UNTOUCHED, "written by a call that failed");
    return status;
}

static fcast_status descriptor(void)
{
    unsigned char bytes[FCAST_WINDOW_DESCRIPTOR_LEN];
    fcast_status status = fcast_window_descriptor((fcast_window){pick(WINDOW)}, once_in(30) ? NULL : bytes);
    if (status == FCAST_OK && alone())
        memcpy(last_descriptor, bytes, sizeof bytes);
    return checked(status);
}

static fcast_status window_id(void)
{
    uint64_t id;
    return checked(fcast_window_id((fcast_window){pick(WINDOW)}, once_in(30) ? NULL : &id));
}

static fcast_status revoke(void)
{
    uint64_t window = pick(WINDOW);
    fcast_status status = checked(fcast_window_revoke(endpoint(), (fcast_window){window}, (uint32_t)below(500)));
    if (status == FCAST_OK || status == FCAST_NOT_FOUND)
        gone(WINDOW, window);
    return status;
}

static fcast_status open_remote(void)
{
    unsigned char bytes[FCAST_WINDOW_DESCRIPTOR_LEN];
    memcpy(bytes, alone() ? last_descriptor : static_memory, sizeof bytes);
    if (once_in(10))
        bytes[below(sizeof bytes)] ^= (unsigned char)any_number();
    fcast_remote_window window = {UNTOUCHED};
    fcast_status status = checked(fcast_remote_window_open(endpoint(), any_name(), bytes,
                                                           once_in(9) ? below(65) : sizeof bytes, &window));
    if (status == FCAST_OK)
        keep(REMOTE, window.id);
    return status;
}

static fcast_status remote_info(void)
{
    uint64_t id, len;
    uint32_t access;
    return checked(fcast_remote_window_info((fcast_remote_window){pick(REMOTE)}, &id, once_in(9) ? NULL : &len,
                                            &access));
}

static uint64_t any_offset(void) { return once_in(9) ? any_number() : below(5000); }

static fcast_status write_window(void)
{
    struct part part = any_part();
    fcast_remote_window window = {pick(REMOTE)};
    return checked(fcast_window_write(endpoint(), window, any_offset(), part.region, part.base, part.len, any_number()));
}

static fcast_status write_with_data(void)
{
    struct part part = any_part();
    fcast_remote_window window = {pick(REMOTE)};
    return checked(fcast_window_write_with_data(endpoint(), window, any_offset(), part.region, part.base, part.len,
                                                (uint32_t)any_number(), any_number()));
}

static fcast_status write_unconfirmed(void)
{
    struct part part = any_part();
    fcast_remote_window window = {pick(REMOTE)};
    return checked(fcast_window_write_unconfirmed(endpoint(), window, any_offset(), part.region, part.base,
                                                  part.len, any_number()));
}

static fcast_status used_up(uint64_t payload, fcast_status status)
{
    if (checked(status) == FCAST_OK)
        gone(PAYLOAD, payload);
    return status;
}

static fcast_status write_payload(void)
{
    uint64_t payload = pick(PAYLOAD);
    return used_up(payload, fcast_window_write_payload(endpoint(), (fcast_remote_window){pick(REMOTE)}, any_offset(),
                                                       (fcast_payload){payload}, any_number()));
}

static fcast_status read_window(void)
{
    struct part part = any_part();
    return checked(fcast_window_read(endpoint(), (fcast_remote_window){pick(REMOTE)}, any_offset(), part.region,
                                     part.base, part.len, any_number()));
}

/* ---- buffered senders ----------------------------------------------------------------------------- */

static uint32_t small_or(uint64_t most, uint32_t otherwise) { return once_in(3) ? (uint32_t)below(most) : otherwise; }

static fcast_status open_buffered(void)
{
    char address[96];
    unsigned char place[1024];
    fcast_settings settings = {.size = sizeof settings};
    settings.format = once_in(20) ? (uint32_t)below(4) : (uint32_t)below(2);
    settings.buffers = small_or(9, 4);
    settings.buffer_size = small_or(3000, 2048);
    settings.flush_interval_us = once_in(9) ? FCAST_NEVER : small_or(2000, 0);
    settings.waiting = small_or(5, 0);
    settings.pool.id = once_in(4) ? pick(POOL) : 0;
    fcast_endpoint made = {UNTOUCHED};
    fcast_status status = fcast_buffered_open((fcast_domain){pick(DOMAIN)}, any_address(address, sizeof address),
                                              sized_settings(&settings, sizeof settings, place, sizeof place), &made);
    return kept_endpoint(SENDER, made, status);
}

static fcast_status push(void)
{
    uint64_t number;
    return checked(fcast_push(endpoint(), any_number(), (uint8_t)below(256), once_in(30) ? NULL : static_memory,
                              once_in(9) ? below(sizeof static_memory) : below(100), once_in(2) ? NULL : &number));
}

static fcast_status pushv(void)
{
    fcast_bytes pieces[4];
    for (size_t i = 0; i < COUNT(pieces); i++)
        pieces[i] = (fcast_bytes){once_in(20) ? NULL : static_memory + below(100), below(200)};
    return checked(fcast_pushv(endpoint(), below(5), 0, once_in(30) ? NULL : pieces, below(5), NULL));
}

static fcast_status acquire(void)
{
    fcast_buffer buffer = {UNTOUCHED};
    void *data;
    size_t capacity = 0;
    fcast_status status = checked(fcast_buffered_acquire(endpoint(), &buffer, &data, &capacity));
    if (status == FCAST_OK) {
        memset(data, (int)below(256), capacity < 100 ? capacity : 100);
        keep(BUFFER, buffer.id);
    }
    return status;
}

static fcast_status send_buffer(void)
{
    uint64_t buffer = pick(BUFFER);
    size_t len = once_in(9) ? (size_t)any_number() : below(200);
    fcast_status status = checked(fcast_buffered_send(endpoint(), (fcast_buffer){buffer}, len, any_number()));
    if (status == FCAST_OK)
        gone(BUFFER, buffer);
    return status;
}

static fcast_status coalesced_next(void)
{
    static const unsigned char begin[] = {'F', 'b', 'C', 'o', 1, 0, 0, 0, 2, 0, 0, 0, 60, 0, 0, 0, 3, 0, 0, 0, 1, 2, 3};
    unsigned char bytes[60];
    memcpy(bytes, static_memory + below(1000), sizeof bytes);
    if (once_in(2))
        memcpy(bytes, begin, sizeof begin);
    bytes[below(sizeof bytes)] = (unsigned char)any_number();
    fcast_small_cursor cursor = {0};
    if (once_in(4))
        cursor = (fcast_small_cursor){any_number(), any_number(), (uint32_t)any_number(), (uint32_t)below(2)};
    fcast_status status = FCAST_OK;
    size_t len = once_in(4) ? below(61) : 60;
    for (int round = 0; round < 20 && status == FCAST_OK; round++) {
        fcast_small_message messages[5];
        size_t count = 0, capacity = below(6);
        status = fcast_coalesced_next((uint32_t)below(3), bytes, len, &cursor, messages, capacity, &count);
        MUST(count <= capacity, "%zu in %zu places", count, capacity);
        for (size_t i = 0; i < count; i++) {
            MUST((const unsigned char *)messages[i].data >= bytes, "in front of the buffer");
            read_all(messages[i].data, messages[i].len);
        }
    }
    return checked(status);
}

/* ---- connectionless endpoints --------------------------------------------------------------------- */

static fcast_status open_connectionless(void)
{
    fcast_settings settings = {.size = sizeof settings};
    settings.max_peers = small_or(5, 4);
    settings.refuse_unknown = once_in(5);
    settings.no_add_on_send = once_in(5);
    settings.total_depth = small_or(50, 0);
    settings.region.id = once_in(2) ? pick(REGION) : 0;
    fcast_endpoint made = {UNTOUCHED};
    fcast_status status = fcast_connectionless_open((fcast_domain){pick(DOMAIN)}, local(), &settings, &made);
    return kept_endpoint(RECEIVER, made, status);
}

static fcast_status peer_add(void)
{
    char address[96];
    uint64_t peer;
    fcast_status status = checked(fcast_peer_add(endpoint(), any_address(address, sizeof address), &peer));
    if (status == FCAST_OK)
        remember_name(peer);
    return status;
}

static fcast_status peer_remove(void) { return checked(fcast_peer_remove(endpoint(), any_name(), (uint32_t)below(300))); }

static fcast_status peer_at(void)
{
    char address[96];
    uint64_t peer;
    return checked(fcast_peer_at(endpoint(), any_address(address, sizeof address), once_in(30) ? NULL : &peer));
}

static fcast_status peer_info(void)
{
    char text[64];
    size_t len;
    bool is_up;
    return checked(fcast_peer_info(endpoint(), any_name(), text, below(65), &len, once_in(9) ? NULL : &is_up));
}

static fcast_status send_to(void)
{
    struct part part = any_part();
    return checked(fcast_send_to(endpoint(), any_name(), part.region, part.base, part.len, static_memory, below(50),
                                 any_number()));
}

static fcast_status send_to_address(void)
{
    char address[96];
    struct part part = any_part();
    return checked(fcast_send_to_address(endpoint(), any_address(address, sizeof address), part.region, part.base,
                                         part.len, static_memory, below(50), any_number()));
}

static fcast_status send_payload_to(void)
{
    uint64_t payload = pick(PAYLOAD);
    return used_up(payload, fcast_send_payload_to(endpoint(), any_name(), (fcast_payload){payload}, static_memory,
                                                  below(50), any_number()));
}

/* ---- publish and subscribe ------------------------------------------------------------------------ */

static fcast_status open_publisher(void)
{
    fcast_settings settings = {.size = sizeof settings};
    settings.slow = (uint32_t)below(once_in(9) ? 5 : 3);
    settings.slow_queue = small_or(20, 10);
    settings.slow_ms = small_or(300, 200);
    settings.publications = small_or(20, 0);
    settings.subscriptions = small_or(5, 0);
    settings.tell_sent = once_in(2);
    settings.ask = once_in(4);
    settings.region.id = once_in(2) ? pick(REGION) : 0;
    fcast_endpoint made = {UNTOUCHED};
    fcast_status status = fcast_publisher_open((fcast_domain){pick(DOMAIN)}, local(), &settings, &made);
    return kept_endpoint(RECEIVER, made, status);
}

static fcast_status publish(void)
{
    struct part part = any_part();
    fcast_publication told;
    return checked(fcast_publish(endpoint(), below(4), part.region, part.base, part.len, static_memory, below(50),
                                 any_number(), once_in(2) ? NULL : &told));
}

static fcast_status publish_payload(void)
{
    uint64_t payload = pick(PAYLOAD);
    return used_up(payload, fcast_publish_payload(endpoint(), below(4), (fcast_payload){payload}, static_memory,
                                                  below(50), any_number(), NULL));
}

static fcast_status set_slow(void)
{
    return checked(fcast_publisher_set_slow(endpoint(), any_name(), (uint32_t)below(4), (uint32_t)below(20),
                                            (uint32_t)below(300)));
}

static fcast_status subscribers(void)
{
    size_t count;
    return checked(fcast_publisher_subscribers(endpoint(), below(4), once_in(30) ? NULL : &count));
}

static fcast_status open_subscriber(void)
{
    fcast_settings settings = {.size = sizeof settings};
    settings.subscriptions = small_or(5, 0);
    settings.credits = small_or(20, 0);
    fcast_endpoint made = {UNTOUCHED};
    fcast_status status = fcast_subscriber_open((fcast_domain){pick(DOMAIN)}, &settings, &made);
    return kept_endpoint(SENDER, made, status);
}

static fcast_status connect_subscriber(void)
{
    char address[96];
    uint64_t publisher;
    fcast_status status =
        checked(fcast_subscriber_connect(endpoint(), any_address(address, sizeof address), &publisher));
    if (status == FCAST_OK)
        remember_name(publisher);
    return status;
}

static fcast_status subscribe(void) { return checked(fcast_subscribe(endpoint(), any_name(), below(4))); }

static fcast_status unsubscribe(void) { return checked(fcast_unsubscribe(endpoint(), any_name(), below(4))); }

/* ---- pairs that go well ---------------------------------------------------------------------------- */

/* Polls both for a while; names are learnt, and descriptors are the last ones. */
static void drive_both(fcast_endpoint a, fcast_endpoint b, int rounds)
{
    fcast_event events[8];
    size_t count;
    for (int i = 0; i < rounds; i++) {
        fcast_endpoint one = i % 2 ? a : b;
        if (fcast_endpoint_poll(one, events, 8, &count) != FCAST_OK)
            return;
        for (size_t at = 0; at < count; at++)
            if (events[at].connection != 0)
                names[at % COUNT(names)] = events[at].connection;
        if (count == 0)
            fcast_endpoint_wait(one, 1);
    }
}

/* A receiver with windows and a sender to it, connected; one window is exposed. */
static fcast_status good_windows(void)
{
    fcast_domain domain = {pick_live(DOMAIN)};
    fcast_region region = {pick_live(REGION)};
    fcast_settings settings = {.size = sizeof settings, .windows = 8, .max_connections = 4};
    fcast_settings sending = {.size = sizeof sending};
    fcast_endpoint receiver, sender;
    fcast_status status = checked(fcast_receiver_open(domain, local(), &settings, &receiver));
    if (kept_endpoint(RECEIVER, status == FCAST_OK ? receiver : (fcast_endpoint){UNTOUCHED}, status) != FCAST_OK)
        return status;
    char address[96];
    if (fcast_endpoint_address(receiver, address, sizeof address, NULL) != FCAST_OK)
        return FCAST_OK;
    sending.region = region;
    status = checked(fcast_sender_open(domain, address, &sending, &sender));
    if (status != FCAST_OK)
        return status;
    keep(SENDER, sender.id);
    drive_both(receiver, sender, 60);
    void *base;
    size_t len;
    fcast_window window;
    fcast_remote_window remote;
    unsigned char bytes[FCAST_WINDOW_DESCRIPTOR_LEN];
    if (fcast_region_memory(region, &base, &len) != FCAST_OK)
        return FCAST_OK;
    for (size_t i = 0; i < COUNT(names); i++) {
        if (fcast_window_expose(receiver, names[i], region, base, len, 3, &window) != FCAST_OK)
            continue;
        keep(WINDOW, window.id);
        if (fcast_window_descriptor(window, bytes) != FCAST_OK ||
            fcast_remote_window_open(sender, 0, bytes, sizeof bytes, &remote) != FCAST_OK)
            break;
        keep(REMOTE, remote.id);
        checked(fcast_window_write(sender, remote, below(len), region, base, below(len + 1), 1));
        checked(fcast_window_write_with_data(sender, remote, below(len), region, base, below(100), 2, 2));
        checked(fcast_window_read(sender, remote, below(len), region, base, below(len + 1), 3));
        drive_both(receiver, sender, (int)below(20));
        if (once_in(2) && fcast_window_revoke(receiver, window, 200) == FCAST_OK)
            gone(WINDOW, window.id);
        break;
    }
    return FCAST_OK;
}

/* A publisher and a subscriber of its tags. */
static fcast_status good_publishing(void)
{
    fcast_domain domain = {pick_live(DOMAIN)};
    fcast_settings settings = {.size = sizeof settings, .region = {pick_live(REGION)}};
    fcast_endpoint publisher = {UNTOUCHED}, subscriber = {UNTOUCHED};
    fcast_status status = fcast_publisher_open(domain, local(), &settings, &publisher);
    if (kept_endpoint(RECEIVER, publisher, status) != FCAST_OK)
        return status;
    status = fcast_subscriber_open(domain, NULL, &subscriber);
    if (kept_endpoint(SENDER, subscriber, status) != FCAST_OK)
        return status;
    char address[96];
    uint64_t name;
    if (fcast_endpoint_address(publisher, address, sizeof address, NULL) != FCAST_OK ||
        fcast_subscriber_connect(subscriber, address, &name) != FCAST_OK)
        return FCAST_OK;
    remember_name(name);
    for (uint64_t tag = 0; tag < 3; tag++)
        checked(fcast_subscribe(subscriber, name, tag));
    drive_both(publisher, subscriber, 60);
    for (int i = 0; i < 5; i++) {
        struct part part = any_part();
        checked(fcast_publish(publisher, below(3), part.region, part.base, part.len, static_memory, below(50), 7, NULL));
    }
    drive_both(publisher, subscriber, (int)below(20));
    return FCAST_OK;
}

/* A buffered sender that is connected. */
static fcast_status good_buffered(void)
{
    fcast_domain domain = {pick_live(DOMAIN)};
    fcast_endpoint receiver = {UNTOUCHED}, sender = {UNTOUCHED};
    fcast_status status = fcast_receiver_open(domain, local(), NULL, &receiver);
    if (kept_endpoint(RECEIVER, receiver, status) != FCAST_OK)
        return status;
    char address[96];
    if (fcast_endpoint_address(receiver, address, sizeof address, NULL) != FCAST_OK)
        return FCAST_OK;
    status = fcast_buffered_open(domain, address, NULL, &sender);
    if (kept_endpoint(SENDER, sender, status) != FCAST_OK)
        return status;
    drive_both(receiver, sender, 60);
    for (size_t i = below(200); i > 0; i--)
        checked(fcast_push(sender, below(3), 0, static_memory, below(3000), NULL));
    drive_both(receiver, sender, (int)below(20));
    return FCAST_OK;
}

/* ---- all endpoints -------------------------------------------------------------------------------- */

static fcast_status close_connection(void)
{
    return checked(fcast_endpoint_close_connection(endpoint(), any_name(), (uint32_t)below(300)));
}

/* What is told may be of any connection: names are learnt here. */
static fcast_status poll_names(void)
{
    fcast_event events[8];
    size_t count;
    fcast_status status = checked(fcast_endpoint_poll(endpoint(), events, 8, &count));
    for (size_t i = 0; status == FCAST_OK && i < count; i++)
        if (events[i].connection != 0)
            remember_name(events[i].connection);
    return status;
}

static fcast_status connected(void)
{
    size_t count;
    return checked(fcast_endpoint_connected(endpoint(), once_in(30) ? NULL : &count));
}

static fcast_status pending(void)
{
    uint64_t keys[8];
    size_t count;
    return checked(fcast_endpoint_pending(endpoint(), keys, below(9), once_in(30) ? NULL : &count));
}

static fcast_status pool_of(void)
{
    fcast_pool pool = {UNTOUCHED};
    fcast_status status = checked(fcast_endpoint_pool(endpoint(), &pool));
    if (status == FCAST_OK)
        keep(POOL, pool.id);
    return status;
}

static fcast_status send_batch(void)
{
    fcast_outgoing messages[9];
    size_t count = below(10), sent = SIZE_MAX;
    for (size_t i = 0; i < count; i++) {
        struct part part = any_part();
        messages[i] = (fcast_outgoing){.data = part.base, .len = part.len, .region = part.region, .key = i};
        messages[i].header = once_in(30) ? NULL : static_memory;
        messages[i].header_len = below(50);
    }
    fcast_status status = fcast_send_batch(endpoint(), once_in(50) ? NULL : messages, count, &sent);
    MUST(status == FCAST_OK ? sent <= count : sent == SIZE_MAX, "%zu of %zu", sent, count);
    return checked(status);
}

static fcast_status stats(void)
{
    fcast_buffered_stats buffered = {.size = sizeof buffered};
    fcast_publish_stats published = {.size = sizeof published};
    fcast_subscribe_stats subscribed = {.size = sizeof subscribed};
    checked(fcast_endpoint_buffered_stats(endpoint(), &buffered));
    checked(fcast_endpoint_publish_stats(endpoint(), &published));
    return checked(fcast_endpoint_subscribe_stats(endpoint(), once_in(30) ? NULL : &subscribed));
}

/* ---- rings and messages --------------------------------------------------------------------------- */

static fcast_status create_ring(void)
{
    fcast_ring ring = {UNTOUCHED};
    fcast_status status = checked(fcast_ring_create((fcast_region){pick(REGION)}, once_in(3) ? (uint32_t)below(9) : 0,
                                                    once_in(4) ? below(200) : 0, once_in(50) ? NULL : &ring));
    if (status == FCAST_OK)
        keep(RING, ring.id);
    return status;
}

static fcast_status reserve(void)
{
    fcast_reservation reservation = {UNTOUCHED};
    fcast_span spans[2] = {{NULL, 0}, {NULL, 0}};
    size_t len = once_in(20) ? (size_t)any_number() : below(3000);
    fcast_status status = checked(fcast_ring_reserve((fcast_ring){pick(RING)}, len, &reservation, spans));
    if (status != FCAST_OK)
        return status;
    MUST(spans[0].len + spans[1].len == len, "%zu and %zu of %zu", spans[0].len, spans[1].len, len);
    keep(RESERVATION, reservation.id);
    return status;
}

static fcast_status commit(void)
{
    uint64_t reservation = pick(RESERVATION);
    fcast_payload payload = {UNTOUCHED};
    size_t len = once_in(9) ? (size_t)any_number() : below(100);
    fcast_status status = checked(fcast_ring_commit((fcast_ring){pick(RING)}, (fcast_reservation){reservation}, len,
                                                    once_in(50) ? NULL : &payload));
    if (status == FCAST_OK) {
        gone(RESERVATION, reservation);
        keep(PAYLOAD, payload.id);
    }
    return status;
}

static fcast_status ring_status(void)
{
    uint64_t head = 0, tail = 0;
    size_t free_bytes, outstanding;
    fcast_status status =
        checked(fcast_ring_status((fcast_ring){pick(RING)}, &head, &tail, &free_bytes, &outstanding, NULL));
    MUST(status != FCAST_OK || tail <= head, "the tail is in front");
    return status;
}

static fcast_status message_payload(void)
{
    uint64_t message = pick(MESSAGE);
    fcast_payload payload = {UNTOUCHED};
    fcast_status status =
        checked(fcast_message_payload((fcast_message){message}, once_in(50) ? NULL : &payload));
    if (status == FCAST_OK) {
        gone(MESSAGE, message);
        keep(PAYLOAD, payload.id);
    }
    return status;
}

/* ---- memory of GPUs, of which there may be none ---------------------------------------------------- */

static fcast_status device(void)
{
    fcast_region region = {UNTOUCHED};
    fcast_status status = fcast_region_device(below(10000), (uint32_t)below(3), once_in(2), &region);
    if (status == FCAST_OK)
        keep(REGION, region.id);
    return checked(status);
}

static fcast_status external_device(void)
{
    struct external *memory = new_external(4096);
    fcast_region region = {UNTOUCHED};
    /* CUDA knows nothing of it. */
    fcast_status status = fcast_region_external_device((uint64_t)(uintptr_t)memory->base, memory->len, FCAST_ANY_DEVICE,
                                                       external_released, memory, &region);
    MUST(status != FCAST_OK, "plain memory taken as a device's");
    return checked(status);
}

static fcast_status dlpack(void)
{
    fcast_region region;
    checked(fcast_region_from_dlpack_versioned(NULL, &region));
    return checked(fcast_region_from_dlpack(NULL, once_in(2) ? NULL : &region));
}

static fcast_status path(void)
{
    uint32_t which;
    char text[100];
    return checked(fcast_region_path((fcast_region){pick(REGION)}, (fcast_domain){pick(DOMAIN)}, &which, text,
                                     below(101), NULL));
}

static fcast_status staging(void)
{
    fcast_staging ring = {UNTOUCHED};
    fcast_status status = checked(fcast_staging_create(1, 4096, 0, -1, &ring));
    checked(fcast_staging_release((fcast_staging){status == FCAST_OK ? ring.id : any_number()}));
    return status;
}

static fcast_status device_pool(void)
{
    fcast_device_pool pool = {UNTOUCHED};
    fcast_status status = checked(fcast_device_pool_create((fcast_region){pick(REGION)}, 1024, &pool));
    checked(fcast_device_pool_release((fcast_device_pool){status == FCAST_OK ? pool.id : any_number()}));
    return status;
}

RELEASE(WINDOW, window, fcast_window_release)
RELEASE(REMOTE, remote_window, fcast_remote_window_release)
RELEASE(RING, ring, fcast_ring_release)
RELEASE(RESERVATION, reservation, fcast_reservation_release)

__attribute__((constructor)) static void add_the_kinds(void)
{
    add_kind(WINDOW, 0, 8, "window", NULL, end_window);
    add_kind(REMOTE, 0, 8, "remote window", NULL, end_remote_window);
    add_kind(RING, 0, 4, "ring", NULL, end_ring);
    add_kind(RESERVATION, 0, 12, "reservation", NULL, end_reservation);
}

static const struct call table[] = {
    {"fcast_window_expose", 20, expose},
    {"windows that go well", 2, good_windows},
    {"publications that go well", 2, good_publishing},
    {"small messages that go well", 2, good_buffered},
    {"fcast_window_descriptor", 20, descriptor},
    {"fcast_window_id", 2, window_id},
    {"fcast_window_revoke", 6, revoke},
    {"fcast_window_release", 3, release_window},
    {"fcast_remote_window_open", 30, open_remote},
    {"fcast_remote_window_info", 2, remote_info},
    {"fcast_remote_window_release", 3, release_remote_window},
    {"fcast_window_write", 20, write_window},
    {"fcast_window_write_with_data", 20, write_with_data},
    {"fcast_window_write_unconfirmed", 10, write_unconfirmed},
    {"fcast_window_write_payload", 10, write_payload},
    {"fcast_window_read", 20, read_window},
    {"fcast_buffered_open", 3, open_buffered},
    {"fcast_push", 40, push},
    {"fcast_pushv", 20, pushv},
    {"fcast_buffered_acquire", 10, acquire},
    {"fcast_buffered_send", 10, send_buffer},
    {"fcast_coalesced_next", 10, coalesced_next},
    {"fcast_connectionless_open", 2, open_connectionless},
    {"fcast_peer_add", 6, peer_add},
    {"fcast_peer_remove", 3, peer_remove},
    {"fcast_peer_at", 3, peer_at},
    {"fcast_peer_info", 3, peer_info},
    {"fcast_send_to", 20, send_to},
    {"fcast_send_to_address", 20, send_to_address},
    {"fcast_send_payload_to", 10, send_payload_to},
    {"fcast_publisher_open", 2, open_publisher},
    {"fcast_publish", 20, publish},
    {"fcast_publish_payload", 10, publish_payload},
    {"fcast_publisher_set_slow", 3, set_slow},
    {"fcast_publisher_subscribers", 2, subscribers},
    {"fcast_subscriber_open", 2, open_subscriber},
    {"fcast_subscriber_connect", 8, connect_subscriber},
    {"fcast_subscribe", 10, subscribe},
    {"fcast_unsubscribe", 4, unsubscribe},
    {"fcast_endpoint_close_connection", 4, close_connection},
    {"fcast_endpoint_poll", 100, poll_names},
    {"fcast_endpoint_connected", 4, connected},
    {"fcast_endpoint_pending", 4, pending},
    {"fcast_endpoint_pool", 4, pool_of},
    {"fcast_send_batch", 20, send_batch},
    {"fcast_endpoint_buffered_stats, _publish_stats, _subscribe_stats", 3, stats},
    {"fcast_ring_create", 4, create_ring},
    {"fcast_ring_reserve", 30, reserve},
    {"fcast_ring_commit", 30, commit},
    {"fcast_ring_status", 4, ring_status},
    {"fcast_reservation_release", 4, release_reservation},
    {"fcast_ring_release", 2, release_ring},
    {"fcast_message_payload", 8, message_payload},
    {"fcast_region_device", 1, device},
    {"fcast_region_external_device", 1, external_device},
    {"fcast_region_from_dlpack", 1, dlpack},
    {"fcast_region_path", 3, path},
    {"fcast_staging_create", 1, staging},
    {"fcast_device_pool_create", 1, device_pool},
};
ADD_CALLS(table)
