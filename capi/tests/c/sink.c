/* Streams that go where the program says: to a function, or into memory of its own. */
#include "check.h"

#include <stdatomic.h>
#include <unistd.h>

enum { SIZE = 1 << 20, BLOCK = 1 << 16, BLOCKS = SIZE / BLOCK };

static unsigned char data[SIZE];
/* Where streams go. */
static unsigned char memory[SIZE];

/* What has become of streams: of those that were taken, each is closed. */
static struct {
    fcast_stream_receiver receiver;
    fcast_region region;
    atomic_int begun, written, finished, complete, closed, released;
    bool resumes;
} all;

/* One stream. */
struct stream {
    char name[64];
    atomic_int written;
};

static bool is(const struct stream *stream, const char *name)
{
    return strcmp(stream->name, name) == 0;
}

static fcast_status begin(void *context, const fcast_stream_offer *offer, void **sink,
                          fcast_stream_place *place)
{
    CHECK(context == &all && place->region.id == 0 && place->data == NULL && place->len == 0);
    fcast_stream_entry entry;
    OK(fcast_stream_manifest_entry(offer->manifest, 0, &entry));
    IS(fcast_stream_manifest_entry(offer->manifest, 0, NULL), FCAST_INVALID);
    /* Asked for again and again, a name takes the memory of one. */
    for (int i = 0; i < 1000; i++) {
        fcast_stream_entry again;
        OK(fcast_stream_manifest_entry(offer->manifest, 0, &again));
        CHECK(again.name == entry.name);
    }
    if (strcmp(entry.name, "full") == 0)
        return FCAST_NO_RESOURCES;
    if (strcmp(entry.name, "busy") == 0)
        return FCAST_BUSY;
    if (strcmp(entry.name, "one") == 0) {
        /* Two files; the second one begins where the first one ends. */
        fcast_stream_entry other;
        OK(fcast_stream_manifest_entry(offer->manifest, 1, &other));
        CHECK(strcmp(entry.name, "one") == 0 && strcmp(other.name, "two") == 0);
        CHECK(entry.start == 0 && other.start == entry.size && !other.is_directory);
        CHECK(offer->entries == 2 && (other.mode & 0400) != 0 && other.modified_s > 0);
        CHECK(offer->flags == FCAST_STREAM_BLAKE3 && offer->stamp[0] != 0);
    } else {
        CHECK(offer->entries == 1 && offer->bytes == entry.size && offer->block_bytes == BLOCK);
    }
    IS(fcast_stream_manifest_entry(offer->manifest, offer->entries, &entry), FCAST_NOT_FOUND);
    IS(fcast_stream_receiver_close(all.receiver, 0), FCAST_BUSY);
    struct stream *stream = calloc(1, sizeof *stream);
    OK(fcast_stream_manifest_entry(offer->manifest, 0, &entry));
    snprintf(stream->name, sizeof stream->name, "%s", entry.name);
    if (strncmp(stream->name, "memory", 6) == 0 || is(stream, "one")) {
        memset(memory, 0, SIZE);
        *place = (fcast_stream_place){.region = all.region, .data = memory, .len = SIZE};
    }
    if (is(stream, "small"))
        *place = (fcast_stream_place){.region = all.region, .data = memory, .len = SIZE - 1};
    if (is(stream, "outside"))
        *place = (fcast_stream_place){.region = all.region, .data = memory + 1, .len = SIZE};
    if (is(stream, "stale"))
        *place = (fcast_stream_place){.region = {4711}, .data = memory, .len = SIZE};
    *sink = stream;
    atomic_fetch_add(&all.begun, 1);
    return FCAST_OK;
}

static fcast_stream_kept last_kept;

static fcast_status resume(void *context, void *sink, fcast_stream_kept kept)
{
    (void)context;
    struct stream *stream = sink;
    last_kept = kept;
    if (is(stream, "other"))
        return FCAST_DATA;
    if (!all.resumes)
        return FCAST_OK;
    IS(fcast_stream_kept_add(kept, BLOCKS, data, BLOCK), FCAST_NOT_FOUND);
    IS(fcast_stream_kept_add(kept, 1, data + BLOCK, BLOCK - 1), FCAST_INVALID);
    IS(fcast_stream_kept_add(kept, 1, NULL, BLOCK), FCAST_INVALID);
    for (uint64_t i = 1; i < 4; i++) {
        memcpy(memory + i * BLOCK, data + i * BLOCK, BLOCK);
        OK(fcast_stream_kept_add(kept, i, data + i * BLOCK, BLOCK));
        OK(fcast_stream_kept_add(kept, i, data + i * BLOCK, BLOCK));
    }
    return FCAST_OK;
}

static fcast_status write_block(void *context, void *sink, const fcast_stream_block *block,
                                const void *bytes)
{
    (void)context;
    struct stream *stream = sink;
    CHECK(block->entry == 0 && block->start == block->offset && block->len == BLOCK);
    CHECK(block->index * BLOCK == block->offset && block->crc32c != 0);
    if (is(stream, "fails") && block->index == 3)
        return FCAST_SYSTEM;
    memcpy(memory + block->start, bytes, block->len);
    atomic_fetch_add(&stream->written, 1);
    return FCAST_OK;
}

static fcast_status finish(void *context, void *sink)
{
    (void)context;
    struct stream *stream = sink;
    all.written = stream->written;
    atomic_fetch_add(&all.finished, 1);
    return is(stream, "unfinished") ? FCAST_TIMED_OUT : FCAST_OK;
}

static void close_one(void *context, void *sink, bool is_complete)
{
    (void)context;
    free(sink);
    atomic_fetch_add(&all.complete, is_complete);
    atomic_fetch_add(&all.closed, 1);
}

static void release(void *context)
{
    CHECK(context == &all);
    atomic_fetch_add(&all.released, 1);
}

static const fcast_stream_sink_calls calls = {
    .size = sizeof calls,
    .context = &all,
    .release = release,
    .begin = begin,
    .resume = resume,
    .write = write_block,
    .finish = finish,
    .close = close_one,
};

static void wait_for(atomic_int *value, int wanted)
{
    for (int i = 0; i < 60000 && atomic_load(value) != wanted; i++)
        usleep(1000);
    CHECK(atomic_load(value) == wanted);
}

/* What becomes of a stream, at its sender and at the receiver. */
static fcast_stream_event outcome(fcast_stream_transfer transfer, fcast_status status)
{
    IS(fcast_stream_transfer_wait(transfer, 60000), status);
    OK(fcast_stream_transfer_release(transfer));
    fcast_stream_event event;
    do {
        size_t count;
        OK(fcast_stream_receiver_poll(all.receiver, 60000, &event, 1, &count));
        CHECK(count == 1);
    } while (event.kind == FCAST_STREAM_BEGAN);
    CHECK((event.kind == FCAST_STREAM_COMPLETE) == (status == FCAST_OK));
    wait_for(&all.closed, all.begun);
    return event;
}

static fcast_stream_event stream(fcast_stream_sender sender, const char *to, const char *name,
                                 size_t len, fcast_status status)
{
    fcast_stream_options options = {.size = sizeof options, .reconnects = FCAST_OFF};
    options.stamp[0] = 7;
    fcast_stream_transfer transfer;
    OK(fcast_stream_send_bytes(sender, name, data, len, NULL, NULL, &to, 1, &options, &transfer));
    return outcome(transfer, status);
}

static void check_memory(void)
{
    CHECK(memcmp(memory, data, SIZE) == 0);
    memset(memory, 0, SIZE);
}

static void complete(fcast_stream_sender sender, const char *to)
{
    stream(sender, to, "function", SIZE, FCAST_OK);
    CHECK(all.written == BLOCKS && all.complete == 1);
    check_memory();
    stream(sender, to, "memory", SIZE, FCAST_OK);
    CHECK(all.written == 0 && all.complete == 2);
    check_memory();
    stream(sender, to, "empty", 0, FCAST_OK);
    stream(sender, to, "memory of nothing", 0, FCAST_OK);
    CHECK(all.complete == 4);
    all.resumes = true;
    fcast_stream_event event = stream(sender, to, "function", SIZE, FCAST_OK);
    CHECK(event.resumed_bytes == 3 * BLOCK && all.written == BLOCKS - 3);
    check_memory();
    event = stream(sender, to, "memory", SIZE, FCAST_OK);
    CHECK(event.resumed_bytes == 3 * BLOCK);
    check_memory();
    all.resumes = false;
    IS(fcast_stream_kept_add(last_kept, 1, data, BLOCK), FCAST_STALE);
    IS(fcast_stream_manifest_entry((fcast_stream_manifest){0}, 0, NULL), FCAST_INVALID);
}

static void files(fcast_stream_sender sender, const char *to)
{
    char dir[] = "/tmp/fabricast-c-sink-XXXXXX", one[64], two[64], command[64];
    CHECK(mkdtemp(dir) != NULL);
    const char *paths[] = {one, two};
    snprintf(one, sizeof one, "%s/one", dir);
    snprintf(two, sizeof two, "%s/two", dir);
    for (int i = 0; i < 2; i++) {
        FILE *file = fopen(paths[i], "wb");
        size_t len = i == 0 ? 100001 : SIZE - 100001;
        CHECK(file != NULL && fwrite(data + (i == 0 ? 0 : 100001), 1, len, file) == len);
        CHECK(fclose(file) == 0);
    }
    fcast_stream_options options = {.size = sizeof options, .flags = FCAST_STREAM_BLAKE3};
    fcast_stream_transfer transfer;
    OK(fcast_stream_send_files(sender, paths, 2, &to, 1, &options, &transfer));
    outcome(transfer, FCAST_OK);
    check_memory();
    snprintf(command, sizeof command, "rm -r %s", dir);
    CHECK(system(command) == 0);
}

static void wrong(fcast_stream_sender sender, const char *to)
{
    const struct {
        const char *name, *words;
        fcast_status status;
    } cases[] = {
        {"full", "begin", FCAST_REFUSED},
        {"busy", "under way", FCAST_REFUSED},
        {"small", "room", FCAST_REFUSED},
        {"outside", "not in the region", FCAST_REFUSED},
        {"stale", "no such region", FCAST_REFUSED},
        {"other", "another content", FCAST_REFUSED},
        {"fails", "write", FCAST_SYSTEM},
        {"unfinished", "FCAST_TIMED_OUT", FCAST_SYSTEM},
    };
    int is_complete = all.complete;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fcast_stream_event event = stream(sender, to, cases[i].name, SIZE, cases[i].status);
        if (strstr(event.text, cases[i].words) == NULL)
            fprintf(stderr, "%s: %s\n", cases[i].name, event.text);
        CHECK(strstr(event.text, cases[i].words) != NULL);
    }
    CHECK(all.complete == is_complete);
}

/* What opens no receiver gives the sink back. */
static void refused(fcast_domain domain, const char *any)
{
    fcast_stream_sink_calls bad = calls;
    fcast_stream_receiver receiver;
    IS(fcast_stream_receiver_open_sink(&domain, &any, 1, NULL, NULL, &receiver), FCAST_INVALID);
    bad.size = 7;
    IS(fcast_stream_receiver_open_sink(&domain, &any, 1, &bad, NULL, &receiver), FCAST_INVALID);
    CHECK(all.released == 0);
    IS(fcast_stream_receiver_open_sink(&domain, &any, 1, &calls, NULL, NULL), FCAST_INVALID);
    IS(fcast_stream_receiver_open_sink(&domain, &any, 0, &calls, NULL, &receiver), FCAST_INVALID);
    bad = calls;
    bad.begin = NULL;
    IS(fcast_stream_receiver_open_sink(&domain, &any, 1, &bad, NULL, &receiver), FCAST_INVALID);
    CHECK(all.released == 3);
    all.released = 0;
}

int main(void)
{
    for (size_t i = 0; i < SIZE; i++)
        data[i] = (unsigned char)(i % 253 + 1);
    fcast_domain domain = open_domain();
    OK(fcast_region_external(memory, SIZE, NULL, NULL, &all.region));
    const char *any = any_port();
    refused(domain, any);
    fcast_stream_settings settings = {.size = sizeof settings, .block_bytes = BLOCK};
    OK(fcast_stream_receiver_open_sink(&domain, &any, 1, &calls, &settings, &all.receiver));
    char address[128];
    OK(fcast_stream_receiver_address(all.receiver, address, sizeof address, NULL));
    fcast_stream_sender sender;
    OK(fcast_stream_sender_open(&domain, 1, &settings, &sender));

    complete(sender, address);
    files(sender, address);
    wrong(sender, address);

    OK(fcast_stream_sender_close(sender, 1000));
    OK(fcast_stream_receiver_close(all.receiver, 1000));
    OK(fcast_stream_receiver_release(all.receiver));
    wait_for(&all.released, 1);
    CHECK(all.begun == all.closed);
    OK(fcast_region_release(all.region));
    OK(fcast_domain_release(domain));
    puts("sink");
    return 0;
}
