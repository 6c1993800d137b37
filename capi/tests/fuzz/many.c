/* Endpoints with many peers and with small messages: connectionless, buffered, publishers and
 * subscribers. */
#include "fuzz.h"

static const char *local(void) { return strcmp(provider(), "shm") == 0 ? "any" : "127.0.0.1:0"; }
static uint64_t any_peer(void) { return once_in(4) ? any_number() : below(3); }
static uint64_t any_tag(void) { return below(4); }
static fcast_endpoint any_endpoint(void) { return (fcast_endpoint){pick_endpoint()}; }

/* Few settings, small ones. */
static const fcast_settings *any_settings(unsigned char *place, size_t size)
{
    fcast_settings settings = {.size = sizeof settings};
    uint32_t *fields[] = {&settings.depth,
                          &settings.buffers,
                          &settings.flush_interval_us,
                          &settings.waiting,
                          &settings.max_peers,
                          &settings.refuse_unknown,
                          &settings.no_add_on_send,
                          &settings.total_depth,
                          &settings.publications,
                          &settings.slow,
                          &settings.slow_queue,
                          &settings.slow_ms,
                          &settings.subscriptions,
                          &settings.subscriptions_per_connection,
                          &settings.tell_sent,
                          &settings.tags,
                          &settings.format,
                          &settings.credits,
                          &settings.slots,
                          &settings.keepalive_idle_s,
                          &settings.keepalive_interval_s,
                          &settings.keepalive_probes,
                          &settings.long_deadline_ms,
                          &settings.windows};
    for (size_t i = below(3); i > 0; i--)
        *fields[below(COUNT(fields))] = (uint32_t)below(once_in(9) ? 5000 : 60);
    if (once_in(4))
        settings.buffer_size = 256 << below(5);
    if (once_in(4))
        settings.region.id = pick(REGION);
    if (once_in(6))
        settings.long_pool.id = pick(POOL);
    if (once_in(20))
        settings.long_device.id = pick(DEVICE_POOL);
    return once_in(3) ? NULL : sized_settings(&settings, sizeof settings, place, size);
}

static fcast_status opened(int kind, fcast_status status, fcast_endpoint endpoint)
{
    char address[96];
    if (checked(status) != FCAST_OK) {
        MUST(endpoint.id == UNTOUCHED, "written by a call that failed");
        return status;
    }
    if (kind == RECEIVER &&
        fcast_endpoint_address(endpoint, address, sizeof address, NULL) == FCAST_OK)
        remember_address(address);
    keep(kind, endpoint.id);
    return status;
}

static fcast_status open_connectionless(void)
{
    unsigned char place[1024];
    fcast_endpoint endpoint = {UNTOUCHED};
    fcast_domain domain = {pick(DOMAIN)};
    const fcast_settings *settings = any_settings(place, sizeof place);
    fcast_status status =
        fcast_connectionless_open(domain, once_in(20) ? NULL : local(), settings, &endpoint);
    return opened(RECEIVER, status, endpoint);
}

static fcast_status open_buffered(void)
{
    unsigned char place[1024];
    char peer[96];
    fcast_endpoint endpoint = {UNTOUCHED};
    fcast_domain domain = {pick(DOMAIN)};
    const fcast_settings *settings = any_settings(place, sizeof place);
    return opened(SENDER,
                  fcast_buffered_open(domain, any_address(peer, sizeof peer), settings, &endpoint),
                  endpoint);
}

static fcast_status open_publisher(void)
{
    unsigned char place[1024];
    fcast_endpoint endpoint = {UNTOUCHED};
    fcast_domain domain = {pick(DOMAIN)};
    const fcast_settings *settings = any_settings(place, sizeof place);
    return opened(RECEIVER, fcast_publisher_open(domain, local(), settings, &endpoint), endpoint);
}

static fcast_status open_buffered_publisher(void)
{
    unsigned char place[1024];
    fcast_endpoint endpoint = {UNTOUCHED};
    fcast_domain domain = {pick(DOMAIN)};
    const fcast_settings *settings = any_settings(place, sizeof place);
    fcast_status status = fcast_buffered_publisher_open(domain, local(), settings, &endpoint);
    return opened(RECEIVER, status, endpoint);
}

static fcast_status open_subscriber(void)
{
    unsigned char place[1024];
    fcast_endpoint endpoint = {UNTOUCHED};
    fcast_domain domain = {pick(DOMAIN)};
    const fcast_settings *settings = any_settings(place, sizeof place);
    return opened(SENDER, fcast_subscriber_open(domain, settings, &endpoint), endpoint);
}

static fcast_status push(void)
{
    uint64_t number = 0;
    size_t len = once_in(20) ? below(sizeof static_memory) : below(100);
    fcast_bytes pieces[3] = {{static_memory, below(50)}, {NULL, 0}, {file_memory, below(50)}};
    if (once_in(3)) {
        size_t pushed = 0;
        fcast_small_message messages[3] = {{.data = static_memory, .len = len, .status = 300},
                                           {.tag = any_tag(), .data = file_memory, .len = 3},
                                           {.data = NULL, .len = below(2)}};
        size_t first = below(3);
        return checked(
            fcast_push_batch(any_endpoint(), messages + first, 3 - first, once_in(9) ? NULL : &pushed));
    }
    if (once_in(2))
        return checked(
            fcast_pushv(any_endpoint(), any_tag(), (uint8_t)below(4), pieces, below(4), &number));
    return checked(fcast_push(any_endpoint(), any_tag(), (uint8_t)below(4), static_memory, len,
                              once_in(9) ? NULL : &number));
}

static fcast_status push_payload(void)
{
    uint64_t payload = pick(PAYLOAD), number = 0;
    fcast_status status =
        checked(fcast_push_payload(any_endpoint(), any_tag(), (uint8_t)below(4),
                                   (fcast_payload){payload}, once_in(9) ? NULL : &number));
    if (status == FCAST_OK)
        gone(PAYLOAD, payload);
    return status;
}

static fcast_status acquire(void)
{
    fcast_buffer buffer = {UNTOUCHED};
    void *data = NULL;
    size_t capacity = 0;
    fcast_status status =
        checked(fcast_buffered_acquire(any_endpoint(), &buffer, &data, &capacity));
    if (status == FCAST_OK) {
        memset(data, 9, capacity < 64 ? capacity : 64);
        keep(BUFFER, buffer.id);
    }
    return status;
}

static fcast_status send_buffer(void)
{
    uint64_t buffer = pick(BUFFER);
    fcast_status status = checked(
        fcast_buffered_send(any_endpoint(), (fcast_buffer){buffer}, below(100), any_number()));
    if (status == FCAST_OK)
        gone(BUFFER, buffer);
    return status;
}

/* Of random bytes: what a peer that lies would send. */
static fcast_status read_small(void)
{
    unsigned char *bytes = malloc(64);
    MUST(bytes != NULL, "memory");
    size_t len = below(65), count = 0;
    for (size_t i = 0; i < 64; i++)
        bytes[i] = once_in(2) ? (unsigned char)below(4) : (unsigned char)any_number();
    fcast_small_cursor cursor = {0};
    fcast_small_message messages[4];
    fcast_status status = FCAST_OK;
    for (int i = 0; i < 70 && status == FCAST_OK; i++) {
        status = checked(fcast_coalesced_next((uint32_t)below(3), bytes, len, &cursor, messages,
                                              1 + below(4), &count));
        for (size_t m = 0; status == FCAST_OK && m < count; m++)
            read_all(messages[m].data, messages[m].len);
        if (once_in(20))
            cursor.at = any_number();
        if (status == FCAST_OK && count == 0)
            break;
    }
    free(bytes);
    return status;
}

static fcast_status peers(void)
{
    char text[96];
    uint64_t peer = 0;
    size_t len;
    bool is_up;
    fcast_endpoint endpoint = any_endpoint();
    switch (below(4)) {
    case 0:
        return checked(
            fcast_peer_add(endpoint, any_address(text, sizeof text), once_in(9) ? NULL : &peer));
    case 1: return checked(fcast_peer_remove(endpoint, any_peer(), (uint32_t)below(50)));
    case 2: return checked(fcast_peer_at(endpoint, any_address(text, sizeof text), &peer));
    default:
        return checked(
            fcast_peer_info(endpoint, any_peer(), text, below(sizeof text + 1), &len, &is_up));
    }
}

static fcast_status send_to(void)
{
    char text[96];
    fcast_region region;
    size_t len;
    void *data = any_place(&region, &len);
    uint64_t payload = pick(PAYLOAD);
    fcast_endpoint endpoint = any_endpoint();
    len = once_in(20) ? len : len % 400;
    if (once_in(3))
        return checked(fcast_send_to_address(endpoint, any_address(text, sizeof text), region, data,
                                             len, static_memory, below(40), any_number()));
    if (once_in(2))
        return checked(fcast_send_to(endpoint, any_peer(), region, data, len, static_memory,
                                     below(40), any_number()));
    fcast_status status = checked(fcast_send_payload_to(
        endpoint, any_peer(), (fcast_payload){payload}, static_memory, below(40), 5));
    if (status == FCAST_OK)
        gone(PAYLOAD, payload);
    return status;
}

static fcast_status publish(void)
{
    fcast_region region;
    size_t len;
    void *data = any_place(&region, &len);
    fcast_publication publication;
    uint64_t payload = pick(PAYLOAD);
    fcast_endpoint endpoint = {pick(RECEIVER)};
    if (once_in(2))
        return checked(fcast_publish(endpoint, any_tag(), region, data, len % 400, static_memory,
                                     below(40), any_number(), &publication));
    fcast_status status =
        checked(fcast_publish_payload(endpoint, any_tag(), (fcast_payload){payload}, static_memory,
                                      below(40), 5, once_in(9) ? NULL : &publication));
    if (status == FCAST_OK)
        gone(PAYLOAD, payload);
    return status;
}

static fcast_status publish_copied(void)
{
    size_t len = once_in(20) ? below(sizeof static_memory) : below(300);
    fcast_publication publication;
    fcast_endpoint endpoint = {pick(RECEIVER)};
    if (once_in(3))
        return checked(fcast_flush_tag(endpoint, any_tag()));
    return checked(fcast_publish_copied(endpoint, any_tag(), static_memory, len, file_memory,
                                        below(40), any_number(),
                                        once_in(9) ? NULL : &publication));
}

static fcast_outgoing any_message(void)
{
    fcast_outgoing message = {.header = static_memory, .header_len = below(40), .key = any_number()};
    message.data = any_place(&message.region, &message.len);
    message.len %= once_in(20) ? SIZE_MAX : 500;
    return message;
}

static fcast_status send_to_batch(void)
{
    fcast_outgoing messages[8];
    size_t count = below(9), sent = SIZE_MAX;
    for (size_t i = 0; i < count; i++)
        messages[i] = any_message();
    fcast_status status = checked(fcast_send_to_batch(
        any_endpoint(), any_peer(), once_in(50) ? NULL : messages, count, &sent));
    MUST(status != FCAST_OK || sent <= count, "%zu of %zu sent", sent, count);
    return status;
}

static fcast_status publish_batch(void)
{
    fcast_outgoing_publication messages[8];
    fcast_publication told[8];
    size_t count = below(9), published = SIZE_MAX;
    for (size_t i = 0; i < count; i++)
        messages[i] = (fcast_outgoing_publication){any_tag(), any_message()};
    fcast_status status = checked(fcast_publish_batch((fcast_endpoint){pick(RECEIVER)}, messages,
                                                      count, once_in(9) ? NULL : told, &published));
    MUST(status != FCAST_OK || published <= count, "%zu of %zu published", published, count);
    return status;
}

static fcast_status about_publisher(void)
{
    size_t count;
    fcast_endpoint endpoint = any_endpoint();
    checked(fcast_publisher_set_slow(endpoint, any_peer(), (uint32_t)below(4), (uint32_t)below(20),
                                     (uint32_t)below(50)));
    return checked(fcast_publisher_subscribers(endpoint, any_tag(), once_in(9) ? NULL : &count));
}

static fcast_status subscriptions(void)
{
    char text[96];
    uint64_t publisher;
    fcast_endpoint endpoint = any_endpoint();
    switch (below(4)) {
    case 0:
        return checked(fcast_subscriber_connect(endpoint, any_address(text, sizeof text),
                                                once_in(9) ? NULL : &publisher));
    case 1: return checked(fcast_unsubscribe(endpoint, any_peer(), any_tag()));
    default: return checked(fcast_subscribe(endpoint, any_peer(), any_tag()));
    }
}

static fcast_status stats(void)
{
    fcast_buffered_stats buffered = {.size = sizeof buffered};
    fcast_publish_stats published = {.size = sizeof published};
    fcast_subscribe_stats subscribed = {.size = sizeof subscribed};
    fcast_endpoint endpoint = any_endpoint();
    checked(fcast_endpoint_buffered_stats(endpoint, once_in(9) ? NULL : &buffered));
    checked(fcast_endpoint_publish_stats(endpoint, once_in(9) ? NULL : &published));
    return checked(fcast_endpoint_subscribe_stats(endpoint, once_in(9) ? NULL : &subscribed));
}

static const struct call table[] = {
    {"fcast_connectionless_open", 1, open_connectionless},
    {"fcast_buffered_open", 2, open_buffered},
    {"fcast_publisher_open", 1, open_publisher},
    {"fcast_buffered_publisher_open", 1, open_buffered_publisher},
    {"fcast_subscriber_open", 2, open_subscriber},
    {"fcast_push", 10, push},
    {"fcast_pushv", 10, push},
    {"fcast_push_batch", 10, push},
    {"fcast_push_payload", 10, push_payload},
    {"fcast_buffered_acquire", 5, acquire},
    {"fcast_buffered_send", 5, send_buffer},
    {"fcast_coalesced_next", 6, read_small},
    {"fcast_peer_add", 2, peers},
    {"fcast_peer_remove", 2, peers},
    {"fcast_peer_at", 2, peers},
    {"fcast_peer_info", 2, peers},
    {"fcast_send_to", 6, send_to},
    {"fcast_send_to_address", 6, send_to},
    {"fcast_send_payload_to", 6, send_to},
    {"fcast_publish", 8, publish},
    {"fcast_publish_payload", 8, publish},
    {"fcast_send_to_batch", 6, send_to_batch},
    {"fcast_publish_batch", 6, publish_batch},
    {"fcast_publish_copied", 5, publish_copied},
    {"fcast_flush_tag", 2, publish_copied},
    {"fcast_publisher_set_slow", 1, about_publisher},
    {"fcast_publisher_subscribers", 1, about_publisher},
    {"fcast_subscriber_connect", 3, subscriptions},
    {"fcast_subscribe", 3, subscriptions},
    {"fcast_unsubscribe", 3, subscriptions},
    {"fcast_endpoint_buffered_stats", 1, stats},
    {"fcast_endpoint_publish_stats", 1, stats},
    {"fcast_endpoint_subscribe_stats", 1, stats},
};
ADD_CALLS(table)
