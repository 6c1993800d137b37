/* Sinks of the program's own: functions that answer whatever they like, and memory for streams. */
#include "fuzz.h"

enum { PLACE = 1 << 17 };

/* On threads of the library's, where nobody has made a beginning for any_number. */
static unsigned in_sink(unsigned limit)
{
    static atomic_uint turn;
    uint64_t number = atomic_fetch_add(&turn, 1) * UINT64_C(0x9e3779b97f4a7c15);
    return (unsigned)(number >> 40) % limit;
}

/* Mostly FCAST_OK. */
static fcast_status some_status(void) { return in_sink(9) == 0 ? (fcast_status)in_sink(24) : 0; }

/* A stream, with memory that is freed when the library needs it no more. */
struct sink {
    fcast_region region;
    unsigned char *base;
};

static _Atomic uint64_t last_manifest, last_kept;

static void show(const fcast_stream_offer *offer)
{
    atomic_store(&last_manifest, offer->manifest.id);
    for (uint64_t i = 0; i <= offer->entries && i < 9; i++) {
        fcast_stream_entry entry;
        if (fcast_stream_manifest_entry(offer->manifest, i, &entry) == FCAST_OK)
            read_all(entry.name, strlen(entry.name) + 1);
    }
}

static fcast_status begin(void *context, const fcast_stream_offer *offer, void **sink,
                          fcast_stream_place *place)
{
    read_all(context, sizeof(struct external));
    read_all(offer, sizeof *offer);
    show(offer);
    fcast_status status = some_status();
    if (status != FCAST_OK)
        return status;
    struct sink *it = calloc(1, sizeof *it);
    *sink = it;
    struct external *memory = new_external(PLACE);
    it->base = memory->base;
    if (fcast_region_external(memory->base, PLACE, external_released, memory, &it->region) !=
        FCAST_OK)
        return FCAST_OK;
    if (in_sink(2) == 0) {
        unsigned skipped = in_sink(99);
        place->region = in_sink(20) == 0 ? (fcast_region){skipped} : it->region;
        place->data = it->base + skipped;
        place->len = PLACE - skipped + (in_sink(20) == 0);
    }
    return FCAST_OK;
}

static fcast_status resume(void *context, void *sink, fcast_stream_kept kept)
{
    (void)context, (void)sink;
    static const unsigned char zeros[1 << 14];
    atomic_store(&last_kept, kept.id);
    for (unsigned i = in_sink(3); i > 0; i--)
        fcast_stream_kept_add(kept, in_sink(4), zeros, 4096U << in_sink(3));
    return some_status();
}

static fcast_status write_block(void *context, void *sink, const fcast_stream_block *block,
                                const void *bytes)
{
    (void)context;
    struct sink *it = sink;
    read_all(bytes, block->len);
    if (block->start + block->len <= PLACE)
        memcpy(it->base + block->start, bytes, block->len);
    return in_sink(4) == 0 ? some_status() : FCAST_OK;
}

static fcast_status finish(void *context, void *sink)
{
    (void)context;
    struct sink *it = sink;
    read_all(it->base, PLACE);
    return some_status();
}

static void close_one(void *context, void *sink, bool is_complete)
{
    read_all(context, sizeof(struct external));
    (void)is_complete;
    struct sink *it = sink;
    fcast_region_release(it->region);
    free(it);
}

static fcast_status open_sink(void)
{
    struct external *external = new_external(64);
    fcast_stream_sink_calls calls = {sizeof calls, external,    external_released, begin,
                                     resume,       write_block, finish,            close_one};
    if (once_in(9))
        calls.resume = NULL;
    if (once_in(20))
        calls.write = NULL;
    if (once_in(9))
        calls.finish = NULL;
    if (once_in(40))
        calls.begin = NULL;
    bool is_wrong = once_in(40);
    if (is_wrong)
        calls.size = once_in(2) ? 7 : 0;
    const char *local = strcmp(provider(), "shm") == 0 ? "any" : "127.0.0.1:0";
    fcast_domain domain = {pick(DOMAIN)};
    fcast_stream_settings settings = {.size = sizeof settings, .buffers = 8};
    settings.block_bytes = 4096 << below(3);
    fcast_stream_receiver receiver = {UNTOUCHED};
    fcast_status status = checked(fcast_stream_receiver_open_sink(
        once_in(40) ? NULL : &domain, once_in(40) ? NULL : &local, once_in(30) ? 0 : 1, &calls,
        once_in(3) ? NULL : &settings, once_in(40) ? NULL : &receiver));
    /* The library could not know of it. */
    if (is_wrong)
        external_released(external);
    if (status == FCAST_OK)
        keep_receiver(receiver);
    else
        MUST(receiver.id == UNTOUCHED, "written by a call that failed");
    return status;
}

static fcast_status manifest_entry(void)
{
    fcast_stream_entry entry;
    uint64_t id = once_in(2) ? atomic_load(&last_manifest) : any_number();
    return checked(fcast_stream_manifest_entry((fcast_stream_manifest){id}, below(4),
                                               once_in(20) ? NULL : &entry));
}

static fcast_status kept_add(void)
{
    uint64_t id = once_in(2) ? atomic_load(&last_kept) : any_number();
    return checked(fcast_stream_kept_add((fcast_stream_kept){id}, below(4),
                                         once_in(20) ? NULL : static_memory, 4096));
}

static const struct call table[] = {
    {"fcast_stream_receiver_open_sink", 1, open_sink},
    {"fcast_stream_manifest_entry", 1, manifest_entry},
    {"fcast_stream_kept_add", 1, kept_add},
};
ADD_CALLS(table)
