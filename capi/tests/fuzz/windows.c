/* Windows of memory, rings, batches, payloads of messages, memory of GPUs. */
#include "fuzz.h"

static _Thread_local unsigned char descriptor[FCAST_WINDOW_DESCRIPTOR_LEN];

static uint64_t any_connection(void) { return once_in(4) ? any_number() : below(3); }

static fcast_status expose(void)
{
    fcast_region region;
    size_t len;
    void *base = any_place(&region, &len);
    fcast_window window = {UNTOUCHED};
    fcast_status status = checked(
        fcast_window_expose((fcast_endpoint){pick_endpoint()}, any_connection(), region, base, len,
                            (uint32_t)below(once_in(9) ? 8 : 4), once_in(50) ? NULL : &window));
    if (status == FCAST_OK)
        keep(WINDOW, window.id);
    else
        MUST(window.id == UNTOUCHED, "written by a call that failed");
    return status;
}

static fcast_status expose_what_is_kept(void)
{
    fcast_endpoint endpoint = {pick_endpoint()};
    uint64_t buffer = pick(BUFFER), payload = pick(PAYLOAD);
    uint32_t access = (uint32_t)below(once_in(9) ? 8 : 4);
    fcast_window window = {UNTOUCHED}, *out = once_in(50) ? NULL : &window;
    fcast_status status;
    if (once_in(2)) {
        status = checked(fcast_window_expose_buffer(
            endpoint, any_connection(), (fcast_buffer){buffer}, access, out));
        if (status == FCAST_OK)
            gone(BUFFER, buffer);
    } else {
        status = checked(fcast_window_expose_payload(
            endpoint, any_connection(), (fcast_payload){payload}, access, out));
        if (status == FCAST_OK)
            gone(PAYLOAD, payload);
    }
    if (status == FCAST_OK)
        keep(WINDOW, window.id);
    else
        MUST(window.id == UNTOUCHED, "written by a call that failed");
    return status;
}

static fcast_status about_window(void)
{
    fcast_window window = {pick(WINDOW)};
    uint64_t id = 0;
    checked(fcast_window_id(window, once_in(20) ? NULL : &id));
    return checked(fcast_window_descriptor(window, once_in(20) ? NULL : descriptor));
}

static fcast_status revoke(void)
{
    return checked(fcast_window_revoke((fcast_endpoint){pick_endpoint()},
                                       (fcast_window){pick(WINDOW)}, (uint32_t)below(20)));
}

static fcast_status open_remote(void)
{
    unsigned char bytes[FCAST_WINDOW_DESCRIPTOR_LEN];
    memcpy(bytes, descriptor, sizeof bytes);
    /* As a peer that lies would: another length, or another byte. */
    if (once_in(9))
        bytes[below(sizeof bytes)] ^= (unsigned char)(1 << below(8));
    fcast_remote_window window = {UNTOUCHED};
    fcast_status status =
        checked(fcast_remote_window_open((fcast_endpoint){pick_endpoint()}, any_connection(), bytes,
                                         once_in(9) ? below(sizeof bytes) : sizeof bytes, &window));
    if (status == FCAST_OK)
        keep(REMOTE_WINDOW, window.id);
    return status;
}

static fcast_status about_remote(void)
{
    uint64_t id, len;
    uint32_t access;
    return checked(fcast_remote_window_info((fcast_remote_window){pick(REMOTE_WINDOW)}, &id,
                                            once_in(9) ? NULL : &len, &access));
}

static fcast_status move_window(void)
{
    fcast_region region;
    size_t len;
    void *data = any_place(&region, &len);
    fcast_endpoint endpoint = {pick_endpoint()};
    fcast_remote_window window = {pick(REMOTE_WINDOW)};
    uint64_t offset = once_in(20) ? any_number() : below(4096), payload = pick(PAYLOAD);
    fcast_status status;
    len = once_in(20) ? len : len % 600;
    switch (below(5)) {
    case 0:
        return checked(
            fcast_window_read(endpoint, window, offset, region, data, len, any_number()));
    case 1:
        return checked(fcast_window_write_with_data(endpoint, window, offset, region, data, len, 7,
                                                    any_number()));
    case 2:
        return checked(fcast_window_write_unconfirmed(endpoint, window, offset, region, data, len,
                                                      any_number()));
    case 3:
        status = checked(fcast_window_write_payload(endpoint, window, offset,
                                                    (fcast_payload){payload}, any_number()));
        if (status == FCAST_OK)
            gone(PAYLOAD, payload);
        return status;
    default:
        return checked(
            fcast_window_write(endpoint, window, offset, region, data, len, any_number()));
    }
}

static fcast_status create_ring(void)
{
    fcast_region region;
    fcast_ring ring = {UNTOUCHED};
    if (checked(fcast_region_allocate(1 << 14, 0, -1, &region)) != FCAST_OK)
        return FCAST_AGAIN;
    checked(fcast_region_register(region, (fcast_domain){pick_live(DOMAIN)}));
    fcast_status status =
        checked(fcast_ring_create(once_in(9) ? (fcast_region){pick(REGION)} : region,
                                  (uint32_t)below(40), once_in(3) ? 64 : 0, &ring));
    if (status == FCAST_OK)
        keep(RING, ring.id);
    MUST(fcast_region_release(region) == FCAST_OK, "a region of this thread's own");
    return status;
}

static fcast_status reserve(void)
{
    fcast_span spans[2] = {{NULL, 0}, {NULL, 0}};
    fcast_reservation reservation = {UNTOUCHED};
    fcast_status status = checked(fcast_ring_reserve(
        (fcast_ring){pick(RING)}, once_in(20) ? (size_t)any_number() : below(3000), &reservation,
        once_in(20) ? NULL : spans));
    if (status != FCAST_OK)
        return status;
    for (size_t i = 0; i < 2; i++)
        memset(spans[i].len != 0 ? spans[i].data : (void *)file_memory, 3, spans[i].len);
    keep(RESERVATION, reservation.id);
    return status;
}

static fcast_status commit(void)
{
    uint64_t reservation = pick(RESERVATION);
    fcast_payload payload = {UNTOUCHED};
    fcast_status status = checked(fcast_ring_commit(
        (fcast_ring){pick(RING)}, (fcast_reservation){reservation}, below(3000), &payload));
    if (status == FCAST_OK) {
        gone(RESERVATION, reservation);
        keep(PAYLOAD, payload.id);
    }
    return status;
}

static fcast_status ring_status(void)
{
    uint64_t head, tail, oldest;
    size_t left, out;
    return checked(fcast_ring_status((fcast_ring){pick(RING)}, &head, &tail,
                                     once_in(9) ? NULL : &left, &out, &oldest));
}

static fcast_status message_payload(void)
{
    uint64_t message = pick(MESSAGE);
    fcast_payload payload = {UNTOUCHED};
    fcast_status status =
        checked(fcast_message_payload((fcast_message){message}, once_in(20) ? NULL : &payload));
    if (status == FCAST_OK) {
        gone(MESSAGE, message);
        keep(PAYLOAD, payload.id);
    }
    return status;
}

static fcast_status send_batch(void)
{
    fcast_outgoing messages[8];
    size_t count = below(9), sent = SIZE_MAX;
    for (size_t i = 0; i < count; i++) {
        messages[i] =
            (fcast_outgoing){.header = static_memory, .header_len = below(40), .key = any_number()};
        messages[i].data = any_place(&messages[i].region, &messages[i].len);
        messages[i].len %= once_in(20) ? SIZE_MAX : 500;
    }
    fcast_status status = checked(fcast_send_batch((fcast_endpoint){pick(SENDER)},
                                                   once_in(50) ? NULL : messages, count, &sent));
    MUST(status != FCAST_OK || sent <= count, "%zu of %zu sent", sent, count);
    return status;
}

static fcast_status endpoint_pool(void)
{
    fcast_pool pool = {UNTOUCHED};
    fcast_status status = checked(fcast_endpoint_pool((fcast_endpoint){pick_endpoint()}, &pool));
    if (status == FCAST_OK)
        keep(POOL, pool.id);
    return status;
}

static fcast_status about_endpoint(void)
{
    fcast_endpoint endpoint = {pick_endpoint()};
    uint64_t keys[8];
    size_t count = 0;
    checked(fcast_endpoint_connected(endpoint, &count));
    return checked(fcast_endpoint_pending(endpoint, once_in(9) ? NULL : keys, below(9), &count));
}

static fcast_status close_connection(void)
{
    return checked(fcast_endpoint_close_connection((fcast_endpoint){pick_endpoint()},
                                                   any_connection(), (uint32_t)below(50)));
}

static fcast_status device_memory(void)
{
    fcast_region region = {UNTOUCHED};
    struct external *memory = new_external(4096);
    fcast_status status =
        checked(fcast_region_device(below(8192), (uint32_t)below(3), once_in(2), &region));
    if (status == FCAST_OK)
        keep(REGION, region.id);
    status = checked(fcast_region_external_device(
        once_in(4) ? 0 : (uint64_t)(uintptr_t)memory->base, memory->len, (int32_t)below(4) - 2,
        external_released, memory, &region));
    if (status == FCAST_OK)
        keep(REGION, region.id);
    checked(fcast_region_from_dlpack(NULL, &region));
    return checked(fcast_region_from_dlpack_versioned(NULL, &region));
}

static fcast_status region_path(void)
{
    uint32_t path;
    char text[128];
    size_t len;
    return checked(fcast_region_path((fcast_region){pick(REGION)}, (fcast_domain){pick(DOMAIN)},
                                     once_in(9) ? NULL : &path, text, below(sizeof text + 1),
                                     &len));
}

static fcast_status create_staging(void)
{
    fcast_staging staging = {UNTOUCHED};
    fcast_status status =
        checked(fcast_staging_create((uint32_t)below(8), below(9000), below(100), -1, &staging));
    if (status == FCAST_OK)
        keep(STAGING, staging.id);
    return status;
}

static fcast_status create_device_pool(void)
{
    fcast_device_pool pool = {UNTOUCHED};
    fcast_status status =
        checked(fcast_device_pool_create((fcast_region){pick(REGION)}, below(9000), &pool));
    if (status == FCAST_OK)
        keep(DEVICE_POOL, pool.id);
    return status;
}

RELEASE(WINDOW, window, fcast_window_release)
RELEASE(REMOTE_WINDOW, remote_window, fcast_remote_window_release)
RELEASE(RING, ring, fcast_ring_release)
RELEASE(RESERVATION, reservation, fcast_reservation_release)
RELEASE(STAGING, staging, fcast_staging_release)
RELEASE(DEVICE_POOL, device_pool, fcast_device_pool_release)

__attribute__((constructor)) static void add_the_kinds(void)
{
    add_kind(WINDOW, 0, 8, "window", NULL, end_window);
    add_kind(REMOTE_WINDOW, 0, 8, "remote window", NULL, end_remote_window);
    add_kind(RING, 1, 3, "ring", create_ring, end_ring);
    add_kind(RESERVATION, 0, 8, "reservation", NULL, end_reservation);
    add_kind(STAGING, 0, 2, "staging ring", NULL, end_staging);
    add_kind(DEVICE_POOL, 0, 2, "pool of a GPU", NULL, end_device_pool);
}

static const struct call table[] = {
    {"fcast_window_expose", 8, expose},
    {"fcast_window_expose_buffer", 6, expose_what_is_kept},
    {"fcast_window_expose_payload", 6, expose_what_is_kept},
    {"fcast_window_descriptor", 6, about_window},
    {"fcast_window_id", 2, about_window},
    {"fcast_window_revoke", 3, revoke},
    {"fcast_window_release", 3, release_window},
    {"fcast_remote_window_open", 8, open_remote},
    {"fcast_remote_window_info", 2, about_remote},
    {"fcast_remote_window_release", 3, release_remote_window},
    {"fcast_window_write", 6, move_window},
    {"fcast_window_write_with_data", 6, move_window},
    {"fcast_window_write_unconfirmed", 6, move_window},
    {"fcast_window_write_payload", 6, move_window},
    {"fcast_window_read", 6, move_window},
    {"fcast_ring_create", 1, create_ring},
    {"fcast_ring_reserve", 20, reserve},
    {"fcast_ring_commit", 20, commit},
    {"fcast_ring_status", 2, ring_status},
    {"fcast_ring_release", 1, release_ring},
    {"fcast_reservation_release", 4, release_reservation},
    {"fcast_message_payload", 5, message_payload},
    {"fcast_send_batch", 30, send_batch},
    {"fcast_endpoint_pool", 2, endpoint_pool},
    {"fcast_endpoint_connected", 2, about_endpoint},
    {"fcast_endpoint_pending", 2, about_endpoint},
    {"fcast_endpoint_close_connection", 1, close_connection},
    {"fcast_region_device", 1, device_memory},
    {"fcast_region_external_device", 1, device_memory},
    {"fcast_region_from_dlpack", 1, device_memory},
    {"fcast_region_from_dlpack_versioned", 1, device_memory},
    {"fcast_region_path", 2, region_path},
    {"fcast_staging_create", 1, create_staging},
    {"fcast_staging_release", 1, release_staging},
    {"fcast_device_pool_create", 1, create_device_pool},
    {"fcast_device_pool_release", 1, release_device_pool},
};
ADD_CALLS(table)
