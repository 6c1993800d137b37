/* Streams: files, bytes and a buffer, into a directory. */
#include "check.h"

#include <stdatomic.h>
#include <unistd.h>

enum { SIZE = 3 << 20 };

static unsigned char data[SIZE];
static atomic_int given_back;

static void give_back(void *context)
{
    (void)context;
    atomic_fetch_add(&given_back, 1);
}

static void write_file(const char *dir, const char *name, size_t len)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL && fwrite(data, 1, len, file) == len && fclose(file) == 0);
}

/* Whether the file has these bytes; it is removed. */
static void check_file(const char *dir, const char *name, size_t len)
{
    static unsigned char read[SIZE + 1];
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL && fread(read, 1, sizeof read, file) == len && fclose(file) == 0);
    CHECK(memcmp(read, data, len) == 0 && unlink(path) == 0);
}

/* Polls until an event of this kind, of this name. */
static void expect(fcast_stream_receiver receiver, uint32_t kind, const char *name, uint64_t bytes)
{
    for (;;) {
        fcast_stream_event event;
        size_t count;
        OK(fcast_stream_receiver_poll(receiver, 60000, &event, 1, &count));
        CHECK(count == 1);
        if (event.kind == FCAST_STREAM_BEGAN && kind != FCAST_STREAM_BEGAN)
            continue;
        if (event.kind != kind)
            fprintf(stderr, "kind %u: %s\n", event.kind, event.text);
        CHECK(event.kind == kind && strcmp(event.name, name) == 0 && event.bytes == bytes);
        CHECK(kind != FCAST_STREAM_COMPLETE || strstr(event.report, "\"bytes\"") != NULL);
        return;
    }
}

static void files(fcast_stream_sender sender, fcast_stream_receiver receiver, const char *to,
                  const char *from, const char *into)
{
    char one[256], two[256];
    snprintf(one, sizeof one, "%s/one.dat", from);
    snprintf(two, sizeof two, "%s/none.dat", from);
    write_file(from, "one.dat", SIZE);
    const char *paths[] = {one, two};
    fcast_stream_transfer transfer;
    IS(fcast_stream_send_files(sender, paths, 2, &to, 1, NULL, &transfer), FCAST_NOT_FOUND);
    snprintf(two, sizeof two, "%s/two.dat", from);
    write_file(from, "two.dat", 1000);
    fcast_stream_options options = {.size = sizeof options, .flags = 32};
    IS(fcast_stream_send_files(sender, paths, 2, &to, 1, &options, &transfer), FCAST_INVALID);
    options.flags = FCAST_STREAM_BLAKE3 | FCAST_STREAM_READ_BACK;
    IS(fcast_stream_send_files(sender, paths, 2, &to, 0, &options, &transfer), FCAST_INVALID);
    OK(fcast_stream_send_files(sender, paths, 2, &to, 1, &options, &transfer));
    OK(fcast_stream_transfer_wait(transfer, 60000));
    OK(fcast_stream_transfer_wait(transfer, 0));

    fcast_stream_progress progress;
    size_t count;
    OK(fcast_stream_transfer_progress(transfer, &progress, 1, &count));
    CHECK(count == 1 && progress.over && progress.written == SIZE + 1000);
    CHECK(progress.total == SIZE + 1000);
    fcast_stream_report report = {.size = sizeof report};
    OK(fcast_stream_transfer_outcome(transfer, 0, &report));
    CHECK(report.bytes == SIZE + 1000 && report.has_blake3 && report.blake3_compared);
    CHECK(report.took_ns > 0 && report.blocks == 4);
    IS(fcast_stream_transfer_outcome(transfer, 1, &report), FCAST_NOT_FOUND);
    static char text[8192];
    size_t len;
    OK(fcast_stream_transfer_report_text(transfer, 0, text, sizeof text, &len));
    CHECK(len == strlen(text) + 1 && text[0] == '{');
    OK(fcast_stream_transfer_release(transfer));
    expect(receiver, FCAST_STREAM_COMPLETE, "one.dat", SIZE + 1000);
    check_file(into, "one.dat", SIZE);
    check_file(into, "two.dat", 1000);
    CHECK(unlink(one) == 0 && unlink(two) == 0);
}

static void bytes(fcast_stream_sender sender, fcast_stream_receiver receiver, const char *to,
                  const char *into)
{
    fcast_stream_transfer transfer;
    IS(fcast_stream_send_bytes(sender, "../x", data, 1, give_back, NULL, &to, 1, NULL, &transfer),
       FCAST_INVALID);
    CHECK(given_back == 1);
    fcast_stream_options options = {.size = sizeof options, .rate = 1};
    options.stamp[0] = 7;
    OK(fcast_stream_send_bytes(sender, "event", data, SIZE, give_back, NULL, &to, 1, &options,
                               &transfer));
    IS(fcast_stream_transfer_wait(transfer, 0), FCAST_AGAIN);
    IS(fcast_stream_transfer_wait(transfer, 1), FCAST_TIMED_OUT);
    OK(fcast_stream_transfer_pause(transfer));
    OK(fcast_stream_transfer_set_rate(transfer, 0));
    OK(fcast_stream_transfer_resume(transfer));
    OK(fcast_stream_transfer_wait(transfer, 60000));
    OK(fcast_stream_transfer_release(transfer));
    expect(receiver, FCAST_STREAM_COMPLETE, "event", SIZE);
    check_file(into, "event", SIZE);
}

static void payload(fcast_domain domain, fcast_stream_sender sender,
                    fcast_stream_receiver receiver, const char *to, const char *into)
{
    fcast_region region;
    OK(fcast_region_allocate(1 << 20, 0, -1, &region));
    OK(fcast_region_register(region, domain));
    fcast_pool pool;
    OK(fcast_pool_create(region, 1 << 19, 0, &pool));
    fcast_buffer buffer;
    void *at;
    OK(fcast_pool_acquire(pool, 0, &buffer, &at, NULL));
    memcpy(at, data, 1000);
    fcast_payload payload;
    OK(fcast_buffer_freeze(buffer, 1000, &payload));
    fcast_stream_transfer transfer;
    /* What fails, early or late, leaves the payload what it is. */
    const fcast_stream_options wrong = {.size = sizeof wrong, .rails = 100};
    IS(fcast_stream_send_payload(sender, "../slot", payload, &to, 1, NULL, &transfer), FCAST_INVALID);
    IS(fcast_stream_send_payload(sender, "slot", payload, &to, 0, NULL, &transfer), FCAST_INVALID);
    IS(fcast_stream_send_payload(sender, "slot", payload, &to, 1, &wrong, &transfer), FCAST_INVALID);
    IS(fcast_stream_send_payload((fcast_stream_sender){0}, "slot", payload, &to, 1, NULL, &transfer),
       FCAST_STALE);
    size_t len;
    OK(fcast_payload_len(payload, &len));
    CHECK(len == 1000);
    fcast_payload part;
    fcast_region plain;
    OK(fcast_region_external(data, 1000, NULL, NULL, &plain));
    OK(fcast_payload_of_region(plain, data, 1000, &part));
    IS(fcast_stream_send_payload(sender, "slot", part, &to, 1, NULL, &transfer), FCAST_UNSUPPORTED);
    OK(fcast_payload_release(part));
    OK(fcast_region_release(plain));
    OK(fcast_stream_send_payload(sender, "slot", payload, &to, 1, NULL, &transfer));
    IS(fcast_stream_send_payload(sender, "slot", payload, &to, 1, NULL, &transfer), FCAST_STALE);
    OK(fcast_stream_transfer_wait(transfer, 60000));
    OK(fcast_stream_transfer_release(transfer));
    expect(receiver, FCAST_STREAM_COMPLETE, "slot", 1000);
    check_file(into, "slot", 1000);
    size_t free_slots = 0;
    for (int i = 0; free_slots != 2 && i < 60000; i++) {
        OK(fcast_pool_status(pool, NULL, &free_slots, NULL));
        usleep(1000);
    }
    CHECK(free_slots == 2);
    OK(fcast_pool_release(pool));
    OK(fcast_region_release(region));
}

/* One that is cancelled, and one to nobody. */
static void ends(fcast_stream_sender sender, fcast_stream_receiver receiver, const char *to)
{
    fcast_stream_options options = {.size = sizeof options, .rate = 1};
    fcast_stream_transfer transfer;
    OK(fcast_stream_send_bytes(sender, "cut", data, SIZE, NULL, NULL, &to, 1, &options, &transfer));
    expect(receiver, FCAST_STREAM_BEGAN, "cut", SIZE);
    OK(fcast_stream_transfer_cancel(transfer));
    IS(fcast_stream_transfer_wait(transfer, 60000), FCAST_CLOSED);
    OK(fcast_stream_transfer_release(transfer));
    fcast_stream_event event;
    size_t count;
    OK(fcast_stream_receiver_poll(receiver, 60000, &event, 1, &count));
    CHECK(count == 1 && event.kind == FCAST_STREAM_CUT);
    IS(event.status, FCAST_CLOSED);
    CHECK(strlen(event.text) > 0);

    char nowhere[64];
    const char *nobody = nowhere;
    snprintf(nowhere, sizeof nowhere, "%s:1", test_node());
    options = (fcast_stream_options){.size = sizeof options, .reconnects = FCAST_OFF};
    OK(fcast_stream_send_bytes(sender, "x", data, 1, NULL, NULL, &nobody, 1, &options, &transfer));
    fcast_status status = fcast_stream_transfer_wait(transfer, 60000);
    CHECK(status == FCAST_REFUSED || status == FCAST_CLOSED || status == FCAST_TIMED_OUT);
    CHECK(strstr(fcast_last_error(), nobody) != NULL);
    OK(fcast_stream_transfer_release(transfer));
}

int main(void)
{
    for (size_t i = 0; i < SIZE; i++)
        data[i] = (unsigned char)(i % 253);
    char from[] = "/tmp/fabricast-c-from-XXXXXX", into[] = "/tmp/fabricast-c-into-XXXXXX";
    CHECK(mkdtemp(from) != NULL && mkdtemp(into) != NULL);
    fcast_domain domain = open_domain();
    const char *any = any_port();
    fcast_stream_settings settings = {.size = sizeof settings, .depth = 4};
    settings.key = "0123456789abcdef";
    settings.key_len = 16;
    fcast_stream_receiver receiver;
    IS(fcast_stream_receiver_open(&domain, &any, 1, into, &settings, &receiver), FCAST_INVALID);
    settings.depth = 0;
    IS(fcast_stream_receiver_open(&domain, &any, 1, "/nowhere", &settings, &receiver),
       FCAST_SYSTEM);
    OK(fcast_stream_receiver_open(&domain, &any, 1, into, &settings, &receiver));
    char address[128];
    OK(fcast_stream_receiver_address(receiver, address, sizeof address, NULL));
    fcast_stream_sender sender;
    IS(fcast_stream_sender_open(&domain, 0, &settings, &sender), FCAST_INVALID);
    settings.key_len = 3;
    IS(fcast_stream_sender_open(&domain, 1, &settings, &sender), FCAST_INVALID);
    settings.key_len = 16;
    settings.depth = 4;
    OK(fcast_stream_sender_open(&domain, 1, &settings, &sender));

    files(sender, receiver, address, from, into);
    bytes(sender, receiver, address, into);
    payload(domain, sender, receiver, address, into);
    ends(sender, receiver, address);
    OK(fcast_stream_sender_close(sender, 1000));
    IS(fcast_stream_sender_close(sender, 1000), FCAST_STALE);
    CHECK(given_back == 2);
    OK(fcast_stream_receiver_close(receiver, 1000));
    IS(fcast_stream_receiver_close(receiver, 1000), FCAST_CLOSED);
    OK(fcast_stream_receiver_release(receiver));
    OK(fcast_domain_release(domain));
    char command[128];
    snprintf(command, sizeof command, "rm -r %s %s", from, into);
    CHECK(system(command) == 0);
    puts("streams");
    return 0;
}
