/* Streams: of files, bytes and payloads, into a folder. */
#include "fuzz.h"

#include <unistd.h>

static char addresses[4][96];
static atomic_uint next_address;

static const char *any_listener(char *place, size_t size)
{
    /* Torn by another thread that writes it now, it is an address that is wrong. */
    snprintf(place, size, "%.80s", addresses[below(COUNT(addresses))]);
    return once_in(12) ? any_address(place, size) : place;
}

static const fcast_stream_settings *any_settings(unsigned char *place, size_t size)
{
    fcast_stream_settings settings = {.size = sizeof settings};
    uint32_t *fields[] = {&settings.block_bytes,
                          &settings.buffers,
                          &settings.connections,
                          &settings.threads,
                          &settings.connect_timeout_ms,
                          &settings.lost_after_ms,
                          &settings.depth,
                          &settings.credits,
                          &settings.stalled_after_ms,
                          &settings.streams};
    settings.block_bytes = 4096 << below(3);
    settings.buffers = 8;
    for (size_t i = below(3); i > 0; i--)
        *fields[below(COUNT(fields))] = (uint32_t)below(once_in(4) ? 100000 : 40);
    settings.threads %= 8;
    if (once_in(8)) {
        settings.key = static_memory;
        settings.key_len = below(64);
    }
    return sized_settings(&settings, sizeof settings, place, size);
}

void keep_receiver(fcast_stream_receiver receiver)
{
    size_t len = 0;
    char text[96] = "";
    if (fcast_stream_receiver_address(receiver, text, sizeof text, &len) == FCAST_OK)
        memcpy(addresses[atomic_fetch_add(&next_address, 1) % COUNT(addresses)], text, sizeof text);
    keep(STREAM_RECEIVER, receiver.id);
}

static fcast_status open_receiver(void)
{
    unsigned char place[1024];
    const char *local = strcmp(provider(), "shm") == 0 ? "any" : "127.0.0.1:0";
    fcast_domain domain = {pick(DOMAIN)};
    fcast_stream_receiver receiver = {UNTOUCHED};
    fcast_status status = checked(fcast_stream_receiver_open(
        once_in(30) ? NULL : &domain, once_in(30) ? NULL : &local, once_in(30) ? 0 : 1,
        once_in(20) ? "/nowhere/at/all" : folder(),
        once_in(3) ? NULL : any_settings(place, sizeof place), &receiver));
    if (status != FCAST_OK) {
        MUST(receiver.id == UNTOUCHED, "written by a call that failed");
        return status;
    }
    keep_receiver(receiver);
    return status;
}

static fcast_status address_of(void)
{
    char text[64] = "";
    return checked(fcast_stream_receiver_address((fcast_stream_receiver){pick(STREAM_RECEIVER)},
                                                 text, below(sizeof text + 1), NULL));
}

static fcast_status poll_receiver(void)
{
    fcast_stream_event events[4];
    size_t count = SIZE_MAX, capacity = below(5);
    fcast_status status =
        checked(fcast_stream_receiver_poll((fcast_stream_receiver){pick(STREAM_RECEIVER)},
                                           (uint32_t)below(3), events, capacity, &count));
    MUST(status != FCAST_OK || count <= capacity, "%zu events in %zu places", count, capacity);
    for (size_t i = 0; status == FCAST_OK && alone() && i < count; i++) {
        const char *texts[] = {events[i].peer, events[i].name, events[i].text, events[i].report};
        for (size_t t = 0; t < COUNT(texts); t++)
            if (texts[t] != NULL)
                read_all(texts[t], strlen(texts[t]));
    }
    return status;
}

static fcast_status close_receiver(void)
{
    return checked(fcast_stream_receiver_close((fcast_stream_receiver){pick(STREAM_RECEIVER)},
                                               (uint32_t)below(20)));
}

static fcast_status open_sender(void)
{
    unsigned char place[1024];
    fcast_domain domain = {pick(DOMAIN)};
    fcast_stream_sender sender = {UNTOUCHED};
    fcast_status status = checked(
        fcast_stream_sender_open(once_in(30) ? NULL : &domain, once_in(30) ? 0 : 1,
                                 once_in(3) ? NULL : any_settings(place, sizeof place), &sender));
    if (status == FCAST_OK)
        keep(STREAM_SENDER, sender.id);
    else
        MUST(sender.id == UNTOUCHED, "written by a call that failed");
    return status;
}

static fcast_status close_sender(void)
{
    uint64_t id = pick(STREAM_SENDER);
    return used_up(STREAM_SENDER, id,
                   fcast_stream_sender_close((fcast_stream_sender){id}, (uint32_t)below(20)));
}

static const fcast_stream_options *any_options(unsigned char *place, size_t size)
{
    fcast_stream_options options = {.size = sizeof options};
    options.flags = once_in(2) ? (uint32_t)below(once_in(9) ? 64 : 32) : 0;
    options.transport = once_in(4) ? (uint32_t)below(4) : 0;
    options.slow = once_in(4) ? (uint32_t)below(4) : 0;
    options.deadline_ms = once_in(4) ? (uint32_t)below(2000) : 0;
    options.rate = once_in(4) ? 1000 + below(1 << 20) : 0;
    options.stamp[below(16)] = (uint8_t)below(256);
    return once_in(3) ? NULL : sized_settings(&options, sizeof options, place, size);
}

static fcast_status send_one(void)
{
    char paths[2][300], peers[2][96];
    unsigned char place[1024];
    const char *path[] = {any_path(paths[0], sizeof paths[0]), any_path(paths[1], sizeof paths[1])};
    const char *peer[] = {any_listener(peers[0], sizeof peers[0]),
                          any_listener(peers[1], sizeof peers[1])};
    static const char *const names[] = {"a", "b", "c", "../x", "", "\xff"};
    const char *name = once_in(30) ? NULL : names[below(once_in(9) ? COUNT(names) : 3)];
    size_t count = once_in(9) ? below(3) : 1;
    fcast_stream_sender sender = {pick(STREAM_SENDER)};
    fcast_stream_transfer transfer = {UNTOUCHED};
    const fcast_stream_options *options = any_options(place, sizeof place);
    uint64_t how = below(3), payload = pick(PAYLOAD);
    fcast_status status;
    if (how == 0) {
        status =
            fcast_stream_send_files(sender, path, 1 + below(2), peer, count, options, &transfer);
    } else if (how == 1) {
        struct external *memory = new_external(1 + below(100000));
        status = fcast_stream_send_bytes(sender, name, memory->base, memory->len, external_released,
                                         memory, peer, count, options, &transfer);
    } else {
        status = fcast_stream_send_payload(sender, name, (fcast_payload){payload}, peer, count,
                                           options, &transfer);
        if (status == FCAST_OK)
            gone(PAYLOAD, payload);
    }
    if (checked(status) == FCAST_OK)
        keep(STREAM_TRANSFER, transfer.id);
    else
        MUST(transfer.id == UNTOUCHED, "written by a call that failed");
    return status;
}

static fcast_stream_transfer any_transfer(void)
{
    return (fcast_stream_transfer){pick(STREAM_TRANSFER)};
}

static fcast_status progress(void)
{
    fcast_stream_progress peers[2];
    size_t count = 0;
    return checked(fcast_stream_transfer_progress(any_transfer(), peers, below(3),
                                                  once_in(20) ? NULL : &count));
}

static fcast_status wait_for_it(void)
{
    return checked(fcast_stream_transfer_wait(any_transfer(), (uint32_t)below(4)));
}

static fcast_status outcome(void)
{
    fcast_stream_report report = {.size = once_in(9) ? 8 * below(1 + sizeof report / 8)
                                                     : sizeof report};
    return checked(
        fcast_stream_transfer_outcome(any_transfer(), below(3), once_in(20) ? NULL : &report));
}

static fcast_status report_text(void)
{
    char text[256];
    size_t len;
    return checked(fcast_stream_transfer_report_text(any_transfer(), below(3), text,
                                                     below(sizeof text + 1), &len));
}

static fcast_status pause_it(void) { return checked(fcast_stream_transfer_pause(any_transfer())); }
static fcast_status resume_it(void)
{
    return checked(fcast_stream_transfer_resume(any_transfer()));
}
static fcast_status cancel_it(void)
{
    return checked(fcast_stream_transfer_cancel(any_transfer()));
}

static fcast_status set_rate(void)
{
    return checked(
        fcast_stream_transfer_set_rate(any_transfer(), once_in(2) ? 0 : any_number() >> below(64)));
}

RELEASE(STREAM_RECEIVER, stream_receiver, fcast_stream_receiver_release)
RELEASE(STREAM_SENDER, stream_sender, fcast_stream_sender_release)
RELEASE(STREAM_TRANSFER, stream_transfer, fcast_stream_transfer_release)

__attribute__((constructor)) static void add_the_kinds(void)
{
    add_kind(STREAM_RECEIVER, 1, 3, "receiver of streams", open_receiver, end_stream_receiver);
    add_kind(STREAM_SENDER, 1, 3, "sender of streams", open_sender, end_stream_sender);
    add_kind(STREAM_TRANSFER, 0, 6, "transfer", NULL, end_stream_transfer);
}

static const struct call table[] = {
    {"fcast_stream_receiver_open", 1, open_receiver},
    {"fcast_stream_receiver_address", 1, address_of},
    {"fcast_stream_receiver_poll", 12, poll_receiver},
    {"fcast_stream_receiver_close", 1, close_receiver},
    {"fcast_stream_receiver_release", 1, release_stream_receiver},
    {"fcast_stream_sender_open", 1, open_sender},
    {"fcast_stream_sender_close", 1, close_sender},
    {"fcast_stream_sender_release", 1, release_stream_sender},
    {"fcast_stream_send_files", 1, send_one},
    {"fcast_stream_send_bytes", 1, send_one},
    {"fcast_stream_send_payload", 1, send_one},
    {"fcast_stream_transfer_progress", 3, progress},
    {"fcast_stream_transfer_wait", 4, wait_for_it},
    {"fcast_stream_transfer_outcome", 3, outcome},
    {"fcast_stream_transfer_report_text", 2, report_text},
    {"fcast_stream_transfer_pause", 1, pause_it},
    {"fcast_stream_transfer_resume", 2, resume_it},
    {"fcast_stream_transfer_cancel", 1, cancel_it},
    {"fcast_stream_transfer_set_rate", 2, set_rate},
    {"fcast_stream_transfer_release", 3, release_stream_transfer},
};
ADD_CALLS(table)
