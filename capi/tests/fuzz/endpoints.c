/* Senders and receivers: how they are opened, driven, sent with and closed. */
#include "fuzz.h"

/* Small numbers mostly; each field is set seldom, so that many of them can be opened. */
static void random_settings(fcast_settings *settings, bool sender)
{
    *settings = (fcast_settings){.size = sizeof *settings};
    uint32_t *fields[] = {&settings->connect_timeout_ms,
                          &settings->close_timeout_ms,
                          &settings->unresponsive_after_ms,
                          &settings->lost_after_ms,
                          &settings->fence_timeout_ms,
                          &settings->tcp_user_timeout_ms,
                          &settings->reconnect_first_ms,
                          &settings->reconnect_max_ms,
                          &settings->reconnect_attempts,
                          &settings->max_connections,
                          &settings->windows,
                          &settings->ask,
                          &settings->depth,
                          &settings->header_slots,
                          &settings->header_slot_size,
                          &settings->header_mode,
                          &settings->header_fixed,
                          &settings->shape,
                          &settings->inject,
                          &settings->packing,
                          &settings->no_gather,
                          &settings->delivered,
                          &settings->deadline_ms,
                          &settings->tell_late,
                          &settings->max_message,
                          &settings->slots,
                          &settings->credits,
                          &settings->format,
                          &settings->max_peers,
                          &settings->subscriptions};
    for (size_t i = below(6); i > 0; i--) {
        uint32_t *field = fields[below(COUNT(fields))];
        *field = once_in(30) ? UINT32_MAX : once_in(3) ? (uint32_t)below(3) : (uint32_t)below(3000);
    }
    settings->ask = settings->ask != 0 || once_in(8);
    if (once_in(2) && sender)
        settings->region.id = pick(REGION);
    if (once_in(4) && sender) {
        settings->headers.id = pick(HEADERS);
        if (!once_in(4))
            settings->header_slots = settings->header_slot_size = 0;
    }
    if (once_in(3) && !sender)
        settings->pool.id = pick(POOL);
}

static fcast_status open_receiver(void)
{
    fcast_settings settings;
    unsigned char place[1024];
    char address[96];
    fcast_endpoint endpoint = {UNTOUCHED};
    random_settings(&settings, false);
    const char *local = strcmp(provider(), "shm") == 0 ? "any" : "127.0.0.1:0";
    fcast_status status = checked(fcast_receiver_open(
        (fcast_domain){pick(DOMAIN)}, once_in(20) ? any_address(address, sizeof address) : local,
        once_in(3) ? NULL : sized_settings(&settings, sizeof settings, place, sizeof place),
        once_in(50) ? NULL : &endpoint));
    if (status != FCAST_OK) {
        MUST(endpoint.id == UNTOUCHED, "written by a call that failed");
        return status;
    }
    size_t len = 0;
    if (fcast_endpoint_address(endpoint, address, sizeof address, &len) == FCAST_OK &&
        len <= sizeof address)
        remember_address(address);
    keep(RECEIVER, endpoint.id);
    return status;
}

static fcast_status open_sender(void)
{
    fcast_settings settings;
    unsigned char place[1024];
    char address[96];
    fcast_endpoint endpoint = {UNTOUCHED};
    random_settings(&settings, true);
    fcast_status status = checked(fcast_sender_open(
        (fcast_domain){pick(DOMAIN)}, any_address(address, sizeof address),
        once_in(3) ? NULL : sized_settings(&settings, sizeof settings, place, sizeof place),
        once_in(50) ? NULL : &endpoint));
    if (status == FCAST_OK)
        keep(SENDER, endpoint.id);
    else
        MUST(endpoint.id == UNTOUCHED, "written by a call that failed");
    return status;
}

static fcast_status address_of(void)
{
    char text[64] = "";
    size_t len = 0;
    return checked(fcast_endpoint_address((fcast_endpoint){pick_endpoint()},
                                          once_in(9) ? NULL : text, below(sizeof text + 1),
                                          once_in(9) ? NULL : &len));
}

/* A buffer that was a window: nobody else has it. */
static void look_at_buffer(fcast_endpoint endpoint, const fcast_event *event)
{
    fcast_buffer buffer = {UNTOUCHED};
    void *data = NULL;
    size_t capacity = 0;
    if (alone())
        read_all(event->data, event->data_len);
    if (fcast_buffer_keep(endpoint, event, &buffer, &data, &capacity) != FCAST_OK)
        return;
    MUST(data == event->data && capacity == event->data_len, "another buffer");
    memset(data, 5, capacity);
    keep(BUFFER, buffer.id);
}

/* What is told is so: pointers that can be read, where nobody else polls meanwhile. */
static void look_at(fcast_endpoint endpoint, const fcast_event *event)
{
    MUST(event->kind >= FCAST_EVENT_CONNECTED && event->kind < 1000, "an event of kind %u",
         event->kind);
    MUST(strcmp(fcast_status_name(event->status), "unknown") != 0, "status %d", event->status);
    if (event->kind == FCAST_EVENT_REQUEST && once_in(2))
        checked(once_in(4) ? fcast_endpoint_refuse(endpoint, event->connection, 1, 2)
                           : fcast_endpoint_accept(endpoint, event->connection));
    if (alone() && event->text != NULL)
        MUST(strlen(event->text) < 4096, "a long text");
    if (alone() && (event->kind == FCAST_EVENT_CONNECTED || event->kind == FCAST_EVENT_REQUEST))
        read_all(event->data, event->data_len);
    if (event->kind == FCAST_EVENT_WINDOW_RELEASED && event->data != NULL)
        look_at_buffer(endpoint, event);
    if (event->kind != FCAST_EVENT_MESSAGE)
        return;
    if (alone()) {
        read_all(event->header, event->header_len);
        read_all(event->data, event->data_len);
    }
    fcast_message message = {UNTOUCHED};
    if (once_in(4) && fcast_message_keep(endpoint, event, &message) == FCAST_OK) {
        read_all(event->header, event->header_len);
        read_all(event->data, event->data_len);
        keep(MESSAGE, message.id);
    }
}

static _Thread_local fcast_event last_event;

static fcast_status poll_one(void)
{
    fcast_event events[16];
    fcast_endpoint endpoint = {pick_endpoint()};
    size_t count = SIZE_MAX, capacity = once_in(9) ? below(17) : 16;
    if (once_in(100))
        return checked(
            fcast_endpoint_poll(endpoint, NULL, once_in(2) ? 0 : 4, once_in(2) ? NULL : &count));
    fcast_status status = checked(fcast_endpoint_poll(endpoint, events, capacity, &count));
    if (status != FCAST_OK) {
        MUST(count == SIZE_MAX, "written by a call that failed");
        return status;
    }
    MUST(count <= capacity, "%zu events in %zu places", count, capacity);
    for (size_t i = 0; i < count; i++)
        look_at(endpoint, &events[i]);
    if (count > 0)
        last_event = events[below(count)];
    return status;
}

static fcast_status poll_completed(void)
{
    uint64_t keys[16];
    size_t count = SIZE_MAX, capacity = below(17);
    bool has_events = false;
    fcast_status status = checked(
        fcast_poll_completed((fcast_endpoint){pick(SENDER)}, once_in(50) ? NULL : keys, capacity,
                             once_in(50) ? NULL : &count, once_in(20) ? NULL : &has_events));
    MUST(status == FCAST_OK || count == SIZE_MAX, "written by a call that failed");
    MUST(status != FCAST_OK || count <= capacity, "%zu keys in %zu places", count, capacity);
    return status;
}

static fcast_status receive(void)
{
    fcast_received messages[8];
    size_t count = SIZE_MAX, capacity = below(9);
    bool has_events = false;
    fcast_status status =
        checked(fcast_receive((fcast_endpoint){pick(RECEIVER)}, once_in(50) ? NULL : messages,
                              capacity, &count, once_in(20) ? NULL : &has_events));
    MUST(status != FCAST_OK || count <= capacity, "%zu messages in %zu places", count, capacity);
    for (size_t i = 0; status == FCAST_OK && alone() && i < count; i++) {
        read_all(messages[i].header, messages[i].header_len);
        read_all(messages[i].data, messages[i].data_len);
    }
    return status;
}

/* Of an event of whatever poll, at whatever endpoint. */
static fcast_status keep_any(void)
{
    fcast_message message = {UNTOUCHED};
    fcast_buffer buffer = {UNTOUCHED};
    fcast_event event = last_event;
    void *data;
    size_t capacity;
    if (once_in(4))
        event.index = (uint32_t)any_number();
    if (checked(fcast_buffer_keep((fcast_endpoint){pick_endpoint()}, once_in(20) ? NULL : &event,
                                  once_in(20) ? NULL : &buffer, &data, &capacity)) == FCAST_OK)
        keep(BUFFER, buffer.id);
    fcast_status status =
        checked(fcast_message_keep((fcast_endpoint){pick_endpoint()}, once_in(20) ? NULL : &event,
                                   once_in(20) ? NULL : &message));
    if (status == FCAST_OK)
        keep(MESSAGE, message.id);
    return status;
}

static fcast_status wait_one(void)
{
    return checked(fcast_endpoint_wait((fcast_endpoint){pick_endpoint()}, (uint32_t)below(3)));
}

static fcast_status fds(void)
{
    int32_t places[8];
    size_t count = 0;
    fcast_status status =
        checked(fcast_endpoint_fds((fcast_endpoint){pick_endpoint()}, once_in(20) ? NULL : places,
                                   below(9), once_in(20) ? NULL : &count));
    return status;
}

static fcast_status prepare_wait(void)
{
    bool may_sleep = false;
    int32_t timeout = -2;
    fcast_status status = checked(fcast_endpoint_prepare_wait((fcast_endpoint){pick_endpoint()},
                                                              once_in(20) ? NULL : &may_sleep,
                                                              once_in(20) ? NULL : &timeout));
    MUST(status != FCAST_OK || timeout >= -1, "a timeout of %d", timeout);
    return status;
}

static fcast_status accept_any(void)
{
    return checked(fcast_endpoint_accept((fcast_endpoint){pick_endpoint()},
                                         once_in(2) ? last_event.connection : any_number()));
}

static fcast_status refuse_any(void)
{
    return checked(fcast_endpoint_refuse((fcast_endpoint){pick_endpoint()}, last_event.connection,
                                         any_number(), any_number()));
}

static fcast_status begin_close(void)
{
    return checked(fcast_endpoint_begin_close((fcast_endpoint){pick_endpoint()},
                                              once_in(9) ? UINT32_MAX : (uint32_t)below(500)));
}

static fcast_status close_one(void)
{
    return checked(fcast_endpoint_close((fcast_endpoint){pick_endpoint()}, (uint32_t)below(20)));
}

static size_t header_length(void) { return once_in(20) ? below(sizeof static_memory) : below(40); }

/* A sender that is over makes room for another one. */
static fcast_status sent(uint64_t sender, fcast_status status)
{
    if (checked(status) == FCAST_CLOSED && once_in(4) &&
        fcast_endpoint_release((fcast_endpoint){sender}) == FCAST_OK) {
        gone(SENDER, sender);
        gone(RECEIVER, sender);
    }
    return status;
}

static uint64_t pick_sender(void) { return once_in(20) ? pick_endpoint() : pick(SENDER); }

static fcast_status send_one(void)
{
    fcast_region region = {pick(REGION)};
    void *base = static_memory;
    size_t len = 64;
    fcast_region_memory(region, &base, &len);
    size_t offset = below(len + 1), asked = below(len - offset + 1);
    if (once_in(2))
        asked %= 257;
    if (once_in(30))
        asked = (size_t)any_number();
    size_t header = header_length();
    uint64_t sender = pick_sender();
    return sent(sender,
                fcast_send((fcast_endpoint){sender}, once_in(5) ? (fcast_region){0} : region,
                           (char *)base + offset, asked, once_in(30) ? NULL : static_memory, header,
                           any_number()));
}

static fcast_status send_pieces(void)
{
    fcast_iov pieces[12];
    size_t count = once_in(20) ? below(13) : 1 + below(3);
    for (size_t i = 0; i < count; i++) {
        fcast_region region = {pick(REGION)};
        void *base = static_memory;
        size_t len = 64;
        fcast_region_memory(region, &base, &len);
        size_t offset = below(len + 1);
        size_t asked = once_in(30) ? (size_t)any_number() : below(len - offset + 1) % 512;
        pieces[i] =
            (fcast_iov){(char *)base + offset, asked, once_in(9) ? (fcast_region){0} : region};
    }
    uint64_t sender = pick_sender();
    return sent(sender,
                fcast_sendv((fcast_endpoint){sender}, once_in(50) ? NULL : pieces, count,
                            once_in(50) ? NULL : static_memory, header_length(), any_number()));
}

static fcast_status send_payload(void)
{
    uint64_t payload = pick(PAYLOAD);
    fcast_status status = checked(
        fcast_send_payload((fcast_endpoint){pick_sender()}, (fcast_payload){payload},
                           once_in(50) ? NULL : static_memory, header_length(), any_number()));
    if (status == FCAST_OK)
        gone(PAYLOAD, payload);
    return status;
}

static fcast_status flush(void) { return checked(fcast_flush((fcast_endpoint){pick_sender()})); }

static fcast_status end_endpoint(uint64_t id)
{
    return fcast_endpoint_release((fcast_endpoint){id});
}

static fcast_status release_endpoint(void)
{
    uint64_t id = pick_endpoint();
    fcast_status status = checked(end_endpoint(id));
    if (status == FCAST_OK) {
        gone(SENDER, id);
        gone(RECEIVER, id);
    }
    return status;
}

/* A receiver and a sender to one of those that are there, with nothing odd in them. */
static fcast_status open_pair(void)
{
    fcast_domain domain = {pick_live(DOMAIN)};
    fcast_endpoint receiver, sender;
    char address[96];
    const char *local = strcmp(provider(), "shm") == 0 ? "any" : "127.0.0.1:0";
    if (checked(fcast_receiver_open(domain, local, NULL, &receiver)) == FCAST_OK) {
        if (checked(fcast_endpoint_address(receiver, address, sizeof address, NULL)) == FCAST_OK)
            remember_address(address);
        keep(RECEIVER, receiver.id);
    }
    fcast_settings settings = {.size = sizeof settings, .region = {pick_live(REGION)}};
    const char *peer = any_address(address, sizeof address);
    fcast_status status = checked(fcast_sender_open(domain, peer, &settings, &sender));
    if (status == FCAST_OK)
        keep(SENDER, sender.id);
    return status;
}

__attribute__((constructor)) static void add_the_kind(void)
{
    add_kind(RECEIVER, 3, 8, "receiver", open_pair, end_endpoint);
    add_kind(SENDER, 5, 12, "sender", open_pair, end_endpoint);
}

static const struct call table[] = {
    {"fcast_receiver_open", 4, open_receiver},
    {"fcast_sender_open", 8, open_sender},
    {"fcast_endpoint_address", 3, address_of},
    {"fcast_endpoint_poll", 400, poll_one},
    {"fcast_receive", 60, receive},
    {"fcast_poll_completed", 40, poll_completed},
    {"fcast_message_keep", 10, keep_any},
    {"fcast_buffer_keep", 10, keep_any},
    {"fcast_endpoint_release", 4, release_endpoint},
    {"fcast_endpoint_wait", 20, wait_one},
    {"fcast_endpoint_fds", 4, fds},
    {"fcast_endpoint_prepare_wait", 8, prepare_wait},
    {"fcast_endpoint_accept", 4, accept_any},
    {"fcast_endpoint_refuse", 2, refuse_any},
    {"fcast_endpoint_begin_close", 2, begin_close},
    {"fcast_endpoint_close", 1, close_one},
    {"fcast_send", 120, send_one},
    {"fcast_sendv", 60, send_pieces},
    {"fcast_send_payload", 60, send_payload},
    {"fcast_flush", 10, flush},
};
ADD_CALLS(table)
