/* Fabrics, domains, regions, pools, buffers and payloads. */
#include "fuzz.h"

static fcast_status report_text(void)
{
    char text[256] = "";
    size_t len = 0, capacity = below(sizeof text + 1);
    fcast_status status = fcast_fabric_report(
        (fcast_fabric){pick(FABRIC)}, once_in(8) ? NULL : text, capacity, once_in(4) ? NULL : &len);
    MUST(capacity == 0 || memchr(text, 0, sizeof text) != NULL, "no zero behind the text");
    return checked(status);
}

static fcast_status open_fabric(void)
{
    fcast_fabric_settings settings = {.size = sizeof settings, .provider = provider()};
    unsigned char place[1024] = {0};
    if (strcmp(provider(), "shm") != 0)
        settings.node = once_in(20) ? "127.0.0.x" : "127.0.0.1";
    if (once_in(30))
        settings.provider = once_in(2) ? "\xc3\x28" : "nobody";
    if (once_in(30))
        settings.interface = once_in(2) ? "lo" : "nowhere";
    settings.kind = once_in(20) ? (uint32_t)below(5) : once_in(3) ? FCAST_KIND_RDM : FCAST_KIND_ANY;
    settings.no_wait_object = once_in(8);
    settings.max_registrations = once_in(8) ? (uint32_t)below(8) : 0;
    settings.stage_device_memory = once_in(8);
    fcast_fabric fabric = {UNTOUCHED};
    fcast_status status =
        checked(fcast_fabric_open(sized_settings(&settings, sizeof settings, place, sizeof place),
                                  once_in(50) ? NULL : &fabric));
    if (status == FCAST_OK)
        keep(FABRIC, fabric.id);
    else
        MUST(fabric.id == UNTOUCHED, "written by a call that failed");
    return status;
}

static fcast_status open_domain(void)
{
    fcast_domain domain = {UNTOUCHED};
    fcast_status status =
        checked(fcast_domain_open((fcast_fabric){pick(FABRIC)}, once_in(50) ? NULL : &domain));
    if (status == FCAST_OK)
        keep(DOMAIN, domain.id);
    else
        MUST(domain.id == UNTOUCHED, "written by a call that failed");
    return status;
}

static size_t any_length(void)
{
    static const size_t odd[] = {0, 1, SIZE_MAX, SIZE_MAX / 2 + 1, (size_t)1 << 46, 4095, 4097};
    return once_in(12) ? odd[below(COUNT(odd))] : 4096 * (1 + below(32));
}

static fcast_status allocate(void)
{
    fcast_region region = {UNTOUCHED};
    uint32_t flags = once_in(10) ? (uint32_t)below(8) : 0;
    int32_t node = once_in(10) ? (int32_t)below(70000) - 3 : -1;
    fcast_status status =
        checked(fcast_region_allocate(any_length(), flags, node, once_in(50) ? NULL : &region));
    if (status == FCAST_OK)
        keep(REGION, region.id);
    else
        MUST(region.id == UNTOUCHED, "written by a call that failed");
    return status;
}

static fcast_status external(void)
{
    fcast_region region = {UNTOUCHED};
    struct external *memory = new_external(4096 * (1 + below(32)));
    size_t len = once_in(20) ? below(memory->len + 1) : memory->len;
    void *base = once_in(30) ? NULL : memory->base;
    if (once_in(20) && base != NULL && len > 8) {
        base = (char *)base + 1;
        len -= 8;
    }
    if (once_in(40))
        len = once_in(2) ? SIZE_MAX : 0;
    fcast_status status = checked(
        fcast_region_external(base, len, external_released, memory, once_in(50) ? NULL : &region));
    if (status != FCAST_OK) {
        MUST(region.id == UNTOUCHED, "written by a call that failed");
        return status;
    }
    keep(REGION, region.id);
    /* As most programs do. */
    if (once_in(2))
        checked(fcast_region_register(region, (fcast_domain){pick_live(DOMAIN)}));
    return status;
}

static fcast_status register_region(void)
{
    return checked(
        fcast_region_register((fcast_region){pick(REGION)}, (fcast_domain){pick(DOMAIN)}));
}

static fcast_status deregister_region(void)
{
    return checked(
        fcast_region_deregister((fcast_region){pick(REGION)}, (fcast_domain){pick(DOMAIN)}));
}

static fcast_status region_memory(void)
{
    void *base = NULL;
    size_t len = 0;
    return checked(fcast_region_memory((fcast_region){pick(REGION)}, once_in(9) ? NULL : &base,
                                       once_in(9) ? NULL : &len));
}

static fcast_status slice_at(void)
{
    fcast_region region = {pick(REGION)};
    void *base = static_memory;
    size_t len = 100, offset = SIZE_MAX;
    fcast_region_memory(region, &base, &len);
    char *at = (char *)base + below(len + 1);
    size_t asked = once_in(9) ? (size_t)any_number() : below(len + 2);
    fcast_status status = fcast_region_slice_at(region, at, asked, once_in(30) ? NULL : &offset);
    MUST(status != FCAST_OK || (offset <= len && asked <= len - offset), "a slice outside");
    return checked(status);
}

static fcast_status create_pool(void)
{
    fcast_pool pool = {UNTOUCHED};
    size_t slot = once_in(20) ? (size_t)any_number() : (size_t)64 << below(10);
    size_t headroom = once_in(4) ? below(200) : 0;
    if (once_in(50))
        headroom = (size_t)any_number();
    fcast_status status = checked(fcast_pool_create((fcast_region){pick(REGION)}, slot, headroom,
                                                    once_in(50) ? NULL : &pool));
    if (status == FCAST_OK)
        keep(POOL, pool.id);
    else
        MUST(pool.id == UNTOUCHED, "written by a call that failed");
    return status;
}

/* A pool that senders of a domain can send from. */
static fcast_status good_pool(void)
{
    fcast_region region;
    fcast_pool pool;
    fcast_status status = checked(fcast_region_allocate(1 << 16, 0, -1, &region));
    if (status != FCAST_OK)
        return status;
    checked(fcast_region_register(region, (fcast_domain){pick_live(DOMAIN)}));
    status =
        checked(fcast_pool_create(region, (size_t)256 << below(4), once_in(2) ? 64 : 0, &pool));
    if (status == FCAST_OK)
        keep(POOL, pool.id);
    MUST(fcast_region_release(region) == FCAST_OK, "a region of this thread's own");
    return status;
}

static fcast_status create_headers(void)
{
    fcast_headers headers = {UNTOUCHED};
    uint32_t slots = once_in(20) ? (uint32_t)any_number() : (uint32_t)below(20);
    uint32_t slot_size = once_in(20) ? (uint32_t)any_number() : (uint32_t)below(300);
    fcast_status status =
        checked(fcast_headers_create(slots, slot_size, once_in(50) ? NULL : &headers));
    if (status == FCAST_OK)
        keep(HEADERS, headers.id);
    else
        MUST(headers.id == UNTOUCHED, "written by a call that failed");
    return status;
}

static fcast_status headers_status(void)
{
    size_t slots = 0, free = 0, low = 0;
    fcast_status status =
        fcast_headers_status((fcast_headers){pick(HEADERS)}, once_in(9) ? NULL : &slots,
                             once_in(9) ? NULL : &free, once_in(9) ? NULL : &low);
    MUST(free <= slots || slots == 0, "%zu free of %zu", free, slots);
    return checked(status);
}

static fcast_status pool_region(void)
{
    fcast_region region = {UNTOUCHED};
    fcast_status status =
        checked(fcast_pool_region((fcast_pool){pick(POOL)}, once_in(50) ? NULL : &region));
    if (status == FCAST_OK)
        keep(REGION, region.id);
    return status;
}

static fcast_status pool_status(void)
{
    size_t slots = 0, free = 0, low = 0;
    fcast_status status = fcast_pool_status((fcast_pool){pick(POOL)}, once_in(9) ? NULL : &slots,
                                            once_in(9) ? NULL : &free, once_in(9) ? NULL : &low);
    MUST(free <= slots || slots == 0, "%zu free of %zu", free, slots);
    return checked(status);
}

static fcast_status acquire(void)
{
    fcast_buffer buffer = {UNTOUCHED};
    void *data = NULL;
    size_t capacity = 0;
    fcast_status status = checked(fcast_pool_acquire(
        (fcast_pool){pick(POOL)}, once_in(30) ? 2 : 0, once_in(50) ? NULL : &buffer,
        once_in(50) ? NULL : &data, once_in(50) ? NULL : &capacity));
    if (status == FCAST_OK) {
        memset(data, (int)below(256), capacity < 512 ? capacity : 512);
        keep(BUFFER, buffer.id);
    } else {
        MUST(buffer.id == UNTOUCHED && data == NULL, "written by a call that failed");
    }
    return status;
}

static fcast_status freeze(void)
{
    uint64_t buffer = pick(BUFFER);
    fcast_payload payload = {UNTOUCHED};
    size_t len = once_in(20) ? (size_t)any_number() : below(128);
    fcast_status status =
        checked(fcast_buffer_freeze((fcast_buffer){buffer}, len, once_in(50) ? NULL : &payload));
    if (status == FCAST_OK) {
        gone(BUFFER, buffer);
        keep(PAYLOAD, payload.id);
    }
    return status;
}

static fcast_status payload_len(void)
{
    size_t len = 0;
    return checked(fcast_payload_len((fcast_payload){pick(PAYLOAD)}, once_in(50) ? NULL : &len));
}

static fcast_status payload_of_region(void)
{
    fcast_region region;
    fcast_iov pieces[3];
    size_t len, count = once_in(9) ? below(4) : 2;
    void *data = any_place(&region, &len);
    fcast_payload payload = {UNTOUCHED};
    fcast_status status;
    if (once_in(3)) {
        for (size_t i = 0; i < count; i++) {
            pieces[i].base = any_place(&pieces[i].region, &pieces[i].len);
            pieces[i].len %= 300;
        }
        status = checked(fcast_payload_of_pieces(once_in(50) ? NULL : pieces, count, &payload));
    } else {
        status = checked(fcast_payload_of_region(region, data, once_in(9) ? len : len % 300,
                                                 once_in(50) ? NULL : &payload));
    }
    if (status == FCAST_OK)
        keep(PAYLOAD, payload.id);
    else
        MUST(payload.id == UNTOUCHED, "written by a call that failed");
    return status;
}

/* Events of nobody's are not promised: there is the default stream, where there is a GPU. */
static fcast_status payload_after(void)
{
    fcast_payload payload = {pick(PAYLOAD)};
    checked(fcast_payload_after_stream(payload, NULL, (uint32_t)below(3)));
    return checked(fcast_payload_after_event(payload, NULL, external_released, new_external(8)));
}

static fcast_status nobody_fails(void)
{
    MUST(fcast_version() == FCAST_VERSION, "another version");
    MUST(fcast_status_name((int32_t)any_number()) != NULL, "no name");
    fcast_last_errno();
    MUST(fcast_last_error() != NULL, "no words");
    return FCAST_OK;
}

RELEASE(FABRIC, fabric, fcast_fabric_release)
RELEASE(DOMAIN, domain, fcast_domain_release)
RELEASE(REGION, region, fcast_region_release)
RELEASE(POOL, pool, fcast_pool_release)
RELEASE(HEADERS, headers, fcast_headers_release)
RELEASE(BUFFER, buffer, fcast_buffer_release)
RELEASE(PAYLOAD, payload, fcast_payload_release)
RELEASE(MESSAGE, message, fcast_message_release)

__attribute__((constructor)) static void add_the_kinds(void)
{
    add_kind(FABRIC, 2, 3, "fabric", open_fabric, end_fabric);
    add_kind(DOMAIN, 2, 4, "domain", open_domain, end_domain);
    add_kind(REGION, 12, 24, "region", external, end_region);
    add_kind(POOL, 4, 8, "pool", good_pool, end_pool);
    add_kind(HEADERS, 2, 4, "headers", create_headers, end_headers);
    add_kind(BUFFER, 0, 32, "buffer", NULL, end_buffer);
    add_kind(PAYLOAD, 0, 32, "payload", NULL, end_payload);
    add_kind(MESSAGE, 0, 24, "message", NULL, end_message);
}

static const struct call table[] = {
    {"fcast_fabric_report", 1, report_text},
    {"fcast_fabric_open", 1, open_fabric},
    {"fcast_fabric_release", 1, release_fabric},
    {"fcast_domain_open", 4, open_domain},
    {"fcast_domain_release", 2, release_domain},
    {"fcast_region_allocate", 6, allocate},
    {"fcast_region_external", 12, external},
    {"fcast_region_register", 20, register_region},
    {"fcast_region_deregister", 8, deregister_region},
    {"fcast_region_memory", 4, region_memory},
    {"fcast_region_slice_at", 8, slice_at},
    {"fcast_region_release", 10, release_region},
    {"fcast_pool_create", 12, create_pool},
    {"fcast_pool_region", 4, pool_region},
    {"fcast_pool_status", 4, pool_status},
    {"fcast_pool_acquire", 60, acquire},
    {"fcast_pool_release", 6, release_pool},
    {"fcast_headers_create", 4, create_headers},
    {"fcast_headers_status", 2, headers_status},
    {"fcast_headers_release", 3, release_headers},
    {"fcast_buffer_freeze", 50, freeze},
    {"fcast_buffer_release", 10, release_buffer},
    {"fcast_payload_len", 6, payload_len},
    {"fcast_payload_release", 8, release_payload},
    {"fcast_payload_of_region", 12, payload_of_region},
    {"fcast_payload_of_pieces", 12, payload_of_region},
    {"fcast_payload_after_stream", 2, payload_after},
    {"fcast_payload_after_event", 2, payload_after},
    {"fcast_message_release", 8, release_message},
    {"fcast_version", 1, nobody_fails},
    {"fcast_status_name", 1, nobody_fails},
    {"fcast_last_error", 1, nobody_fails},
    {"fcast_last_errno", 1, nobody_fails},
};
ADD_CALLS(table)
