/* Small messages: packed by a buffered sender, whole buffers between them, taken apart again. */
#include "drive.h"

enum { MESSAGES = 5000, FORMATS = 2 };

static uint32_t format;
static unsigned pushed, confirmed, arrived, whole, sent_whole, writable;

static void on_sender(fcast_endpoint endpoint, const fcast_event *event)
{
    (void)endpoint;
    if (event->kind == FCAST_EVENT_PUSHED) {
        CHECK(event->key == confirmed);
        confirmed += (unsigned)event->value;
    }
    if (event->kind == FCAST_EVENT_COMPLETED) {
        CHECK(event->key == 77);
        sent_whole++;
    }
    if (event->kind == FCAST_EVENT_WRITABLE)
        writable++;
    CHECK(event->kind != FCAST_EVENT_FAILED && event->kind != FCAST_EVENT_PUSH_FAILED);
}

static void on_receiver(fcast_endpoint endpoint, const fcast_event *event)
{
    (void)endpoint;
    if (event->kind != FCAST_EVENT_MESSAGE)
        return;
    if (event->data_len == 9 && memcmp(event->data, "a buffer!", 9) == 0) {
        whole++;
        return;
    }
    fcast_small_cursor cursor = {0};
    for (;;) {
        fcast_small_message messages[7];
        size_t count;
        OK(fcast_coalesced_next(format, event->data, event->data_len, &cursor, messages, 7, &count));
        if (count == 0)
            break;
        for (size_t i = 0; i < count; i++) {
            unsigned number;
            CHECK(messages[i].len == sizeof number + arrived % 13);
            memcpy(&number, messages[i].data, sizeof number);
            CHECK(number == arrived);
            CHECK(messages[i].tag == arrived / 100 && messages[i].status == arrived % 2);
            arrived++;
        }
    }
}

/* Malformed bytes: what is in front of the fault, then one error, then nothing. */
static void read_garbage(void)
{
    unsigned char bytes[64];
    memset(bytes, 0x5a, sizeof bytes);
    fcast_small_cursor cursor = {0};
    fcast_small_message message;
    size_t count = 9;
    IS(fcast_coalesced_next(FCAST_FORMAT_COMPACT, bytes, 64, &cursor, &message, 1, &count), FCAST_DATA);
    CHECK(count == 9);
    OK(fcast_coalesced_next(FCAST_FORMAT_COMPACT, bytes, 64, &cursor, &message, 1, &count));
    CHECK(count == 0);
    IS(fcast_coalesced_next(2, bytes, 64, &cursor, &message, 1, &count), FCAST_INVALID);
    IS(fcast_coalesced_next(0, NULL, 64, &cursor, &message, 1, &count), FCAST_INVALID);
    IS(fcast_coalesced_next(0, bytes, 64, NULL, &message, 1, &count), FCAST_INVALID);
    /* A header that promises two messages, one of which is there, of 3 bytes. */
    static const unsigned char cut[] = {'F', 'b', 'C', 'o', 1, 0, 0, 0, 2, 0, 0, 0, 27, 0, 0, 0,
                                        3,   0,   0,   0,   'o', 'n', 'e', 9, 0, 0, 0};
    fcast_small_message found[4];
    cursor = (fcast_small_cursor){0};
    OK(fcast_coalesced_next(FCAST_FORMAT_COMPACT, cut, sizeof cut, &cursor, found, 4, &count));
    CHECK(count == 1 && found[0].len == 3 && memcmp(found[0].data, "one", 3) == 0);
    IS(fcast_coalesced_next(FCAST_FORMAT_COMPACT, cut, sizeof cut, &cursor, found, 4, &count), FCAST_DATA);
    OK(fcast_coalesced_next(FCAST_FORMAT_COMPACT, cut, sizeof cut, &cursor, found, 4, &count));
    CHECK(count == 0);
    /* A cursor of somebody's own reads whatever is there, and nothing else. */
    for (uint64_t at = 0; at < 100; at++) {
        cursor = (fcast_small_cursor){.at = at % 50 ? at : UINT64_MAX - at, .tag = 1, .found = 7};
        fcast_status status = FCAST_OK;
        for (int i = 0; i < 100 && status == FCAST_OK; i++)
            status = fcast_coalesced_next((uint32_t)(at % 2), cut, sizeof cut, &cursor, found, 4, &count);
        CHECK(status == FCAST_OK || status == FCAST_DATA);
    }
}

static void run(fcast_domain domain)
{
    pushed = confirmed = arrived = whole = sent_whole = writable = 0;
    fcast_endpoint receiver, sender;
    OK(fcast_receiver_open(domain, any_port(), NULL, &receiver));
    char address[128];
    OK(fcast_endpoint_address(receiver, address, sizeof address, NULL));
    fcast_settings settings = {.size = sizeof settings};
    settings.format = format;
    settings.buffers = 4;
    settings.buffer_size = 2048;
    settings.flush_interval_us = FCAST_NEVER;
    settings.max_peers = 3;
    IS(fcast_buffered_open(domain, address, &settings, &sender), FCAST_INVALID);
    CHECK(strstr(fcast_last_error(), "max_peers") != NULL);
    settings.max_peers = 0;
    OK(fcast_buffered_open(domain, address, &settings, &sender));

    char text[64] = {0};
    DRIVE_AND(sender, on_sender, receiver, on_receiver, pushed == MESSAGES) {
        while (pushed < MESSAGES) {
            if (pushed % 100 == 50) {
                /* Three in one call, of which fewer may be taken. */
                char texts[3][64] = {{0}};
                fcast_small_message several[3] = {{0}};
                for (unsigned i = 0; i < 3; i++) {
                    unsigned number = pushed + i;
                    memcpy(texts[i], &number, sizeof number);
                    several[i] = (fcast_small_message){.tag = number / 100,
                                                       .data = texts[i],
                                                       .len = sizeof number + number % 13,
                                                       .status = number % 2};
                }
                size_t taken = 99;
                fcast_status status = fcast_push_batch(sender, several, 3, &taken);
                if (status == FCAST_AGAIN) {
                    CHECK(taken == 99);
                    break;
                }
                OK(status);
                CHECK(taken >= 1 && taken <= 3);
                pushed += (unsigned)taken;
                continue;
            }
            unsigned number = pushed;
            memcpy(text, &number, sizeof number);
            size_t len = sizeof number + pushed % 13;
            fcast_bytes pieces[2] = {{text, 2}, {text + 2, len - 2}};
            uint64_t told = 0;
            fcast_status status =
                pushed % 3 ? fcast_push(sender, pushed / 100, pushed % 2, text, len, &told)
                           : fcast_pushv(sender, pushed / 100, pushed % 2, pieces, 2, &told);
            if (status == FCAST_AGAIN)
                break;
            OK(status);
            CHECK(told == pushed);
            pushed++;
        }
    }
    char *large = calloc(1, 4096);
    IS(fcast_push(sender, 1, 0, large, 4096, NULL), FCAST_TOO_LONG);
    fcast_small_message wrong = {.data = large, .len = 4096};
    size_t none = 99;
    IS(fcast_push_batch(sender, &wrong, 1, &none), FCAST_TOO_LONG);
    wrong = (fcast_small_message){.data = large, .len = 1, .status = 256};
    IS(fcast_push_batch(sender, &wrong, 1, &none), FCAST_INVALID);
    IS(fcast_push_batch(sender, NULL, 1, &none), FCAST_INVALID);
    CHECK(none == 99);
    OK(fcast_push_batch(sender, NULL, 0, &none));
    CHECK(none == 0);
    free(large);
    OK(fcast_flush(sender));
    DRIVE(sender, on_sender, receiver, on_receiver, confirmed == MESSAGES && arrived == MESSAGES);

    fcast_buffer buffer;
    void *data;
    size_t capacity;
    OK(fcast_buffered_acquire(sender, &buffer, &data, &capacity));
    CHECK(capacity == 2048);
    memcpy(data, "a buffer!", 9);
    IS(fcast_buffered_send(sender, buffer, 2049, 77), FCAST_INVALID);
    OK(fcast_buffered_send(sender, buffer, 9, 77));
    IS(fcast_buffered_send(sender, buffer, 9, 77), FCAST_STALE);
    DRIVE(sender, on_sender, receiver, on_receiver, whole == 1 && sent_whole == 1);

    check_waitable(sender);
    fcast_buffered_stats stats = {.size = sizeof stats};
    OK(fcast_endpoint_buffered_stats(sender, &stats));
    fcast_send_stats sends = {.size = sizeof sends};
    OK(fcast_endpoint_send_stats(sender, &sends));
    CHECK(sends.posted > 1 && sends.posted == sends.completed);
    IS(fcast_push(receiver, 1, 0, text, 1, NULL), FCAST_UNSUPPORTED);
    IS(fcast_send(sender, (fcast_region){0}, text, 1, NULL, 0, 0), FCAST_NOT_REGISTERED);
    /* What is pushed before the close arrives; what is pushed after it is refused. */
    unsigned last[4] = {MESSAGES};
    OK(fcast_push(sender, MESSAGES / 100, 0, last, 4 + MESSAGES % 13, NULL));
    OK(fcast_endpoint_begin_close(sender, 60000));
    IS(fcast_push(sender, 1, 0, text, 1, NULL), FCAST_CLOSED);
    DRIVE(sender, on_sender, receiver, on_receiver, arrived == MESSAGES + 1);
    OK(fcast_endpoint_close(sender, 60000));
    OK(fcast_endpoint_release(sender));
    OK(fcast_endpoint_release(receiver));
}

int main(void)
{
    read_garbage();
    fcast_domain domain = open_domain();
    for (format = 0; format < FORMATS; format++)
        run(domain);
    OK(fcast_domain_release(domain));
    printf("%d small messages in each of %d formats\n", MESSAGES, FORMATS);
    return 0;
}
