/* A buffered publisher: packed messages of several tags, copies and payloads between them in the
 * order of the calls, whole buffers, what nobody wants any more, the end. */
#include "drive.h"

enum { MESSAGES = 3000, TAGS = 3, FORMATS = 2, COPY = 77, PLAIN = 78, WHOLE = 79 };

static unsigned char memory[4096];
static uint32_t format;
static fcast_endpoint publisher, subscriber;
static unsigned subscribed, unsubscribed, confirmed, told_to, copies[3], failed, ended;
static unsigned arrived[TAGS], others, pushed_in[TAGS];
static uint64_t publisher_id, number_of_failed;

static void on_publisher(fcast_endpoint endpoint, const fcast_event *event)
{
    (void)endpoint;
    subscribed += event->kind == FCAST_EVENT_SUBSCRIBED;
    unsubscribed += event->kind == FCAST_EVENT_UNSUBSCRIBED;
    ended += event->kind == FCAST_EVENT_DISCONNECTED;
    if (event->kind == FCAST_EVENT_PUBLISHED) {
        CHECK(event->value == 1 && event->dropped == 0 && event->failed == 0);
        if (event->count == 0) {
            CHECK(event->tag == 0 && event->key >= COPY && event->key <= WHOLE);
            copies[event->key - COPY]++;
        }
        confirmed += event->count;
        CHECK(event->tag < TAGS);
    }
    if (event->kind == FCAST_EVENT_PUSH_FAILED) {
        IS(event->status, FCAST_NOT_FOUND);
        CHECK(event->key == number_of_failed && event->value == 2 && event->count == 2);
        CHECK(event->tag == 1 && strstr(event->text, "subscribed") != NULL);
        fcast_small_cursor cursor = {0};
        fcast_small_message messages[4];
        size_t count;
        OK(fcast_coalesced_next(format, event->data, event->data_len, &cursor, messages, 4, &count));
        CHECK(count == 2 && messages[0].tag == 1 && memcmp(messages[1].data, "two", 3) == 0);
        failed++;
    }
    if (event->kind == FCAST_EVENT_PUBLISHED_TO) {
        IS(event->status, FCAST_OK);
        CHECK(event->tag < TAGS && event->connection != 0 && (event->count || event->key >= COPY));
        told_to++;
    }
    CHECK(event->kind != FCAST_EVENT_FAILED);
}

static void read_packed(const fcast_event *event)
{
    fcast_small_cursor cursor = {0};
    for (;;) {
        fcast_small_message messages[7];
        size_t count;
        OK(fcast_coalesced_next(format, event->data, event->data_len, &cursor, messages, 7, &count));
        if (count == 0)
            break;
        for (size_t i = 0; i < count; i++) {
            unsigned number;
            CHECK(messages[i].tag == event->key && messages[i].len == sizeof number + 5);
            memcpy(&number, messages[i].data, sizeof number);
            CHECK(number == arrived[event->key] && messages[i].status == number % 3);
            arrived[event->key]++;
        }
    }
}

static void on_subscriber(fcast_endpoint endpoint, const fcast_event *event)
{
    (void)endpoint;
    if (event->kind != FCAST_EVENT_PUBLICATION)
        return;
    CHECK(event->key < TAGS && event->value == 0);
    if (event->header_len == 0) {
        read_packed(event);
        return;
    }
    /* Behind all that was pushed of its tag before it. */
    CHECK(event->key == 0 && event->header_len == sizeof others);
    CHECK(memcmp(event->header, &others, sizeof others) == 0);
    CHECK(event->data_len == 100 && memcmp(event->data, memory, 100) == 0);
    CHECK(arrived[0] == pushed_in[0]);
    others++;
}

static void open_both(fcast_domain domain, fcast_region region)
{
    fcast_settings settings = {.size = sizeof settings, .region = region, .format = format};
    settings.slow = FCAST_SLOW_WAIT;
    settings.slow_queue = 100;
    settings.slow_ms = 60000;
    settings.buffers = 8;
    settings.buffer_size = 1024;
    settings.tags = 2;
    settings.tell_sent = 1;
    settings.flush_interval_us = FCAST_NEVER;
    settings.waiting = 3;
    IS(fcast_buffered_publisher_open(domain, any_port(), &settings, &publisher), FCAST_INVALID);
    CHECK(strstr(fcast_last_error(), "waiting: a buffered publisher has none") != NULL);
    settings.waiting = 0;
    settings.tags = 100000;
    IS(fcast_buffered_publisher_open(domain, any_port(), &settings, &publisher), FCAST_INVALID);
    CHECK(strstr(fcast_last_error(), "tags") != NULL);
    IS(fcast_publisher_open(domain, any_port(), &settings, &publisher), FCAST_INVALID);
    settings.tags = 2;
    OK(fcast_buffered_publisher_open(domain, any_port(), &settings, &publisher));
    char address[128];
    OK(fcast_endpoint_address(publisher, address, sizeof address, NULL));
    OK(fcast_subscriber_open(domain, NULL, &subscriber));
    OK(fcast_subscriber_connect(subscriber, address, &publisher_id));
    IS(fcast_push(publisher, 0, 0, "early", 5, NULL), FCAST_NOT_FOUND);
    for (uint64_t tag = 0; tag < TAGS; tag++)
        OK(fcast_subscribe(subscriber, publisher_id, tag));
    DRIVE(publisher, on_publisher, subscriber, on_subscriber, subscribed == TAGS);
}

/* Pushes in each of the ways there are; FCAST_AGAIN where none is taken. */
static fcast_status push(unsigned at)
{
    uint64_t tag = at % TAGS, told = UINT64_MAX;
    char text[9] = "....-more";
    unsigned number = pushed_in[tag];
    memcpy(text, &number, sizeof number);
    fcast_bytes pieces[2] = {{text, 3}, {text + 3, 6}};
    fcast_small_message one = {.tag = tag, .data = text, .len = 9, .status = number % 3};
    size_t taken = 1;
    fcast_status status = at % 2   ? fcast_push(publisher, tag, number % 3, text, 9, &told)
                          : at % 4 ? fcast_pushv(publisher, tag, number % 3, pieces, 2, &told)
                                   : fcast_push_batch(publisher, &one, 1, &taken);
    if (status == FCAST_OK) {
        CHECK(taken == 1 && (told != UINT64_MAX || at % 4 == 0));
        pushed_in[tag]++;
    }
    return status;
}

/* One payload in each of the ways there are, behind what was pushed. */
static void publish_payloads(fcast_region region)
{
    fcast_publication told;
    unsigned header = 0;
    size_t size = sizeof header;
    OK(fcast_publish_copied(publisher, 0, memory, 100, &header, size, COPY, &told));
    CHECK(told.posted + told.waiting == 1 && told.dropped == 0);
    IS(fcast_publish_copied(publisher, 9, memory, 1, NULL, 0, COPY, NULL), FCAST_NOT_FOUND);
    IS(fcast_publish_copied(publisher, 0, memory, 1025, NULL, 0, COPY, NULL), FCAST_TOO_LONG);
    IS(fcast_publish_copied(publisher, 0, NULL, 1, NULL, 0, COPY, NULL), FCAST_INVALID);
    header = 1;
    OK(fcast_publish(publisher, 0, region, memory, 100, &header, size, PLAIN, &told));
    fcast_pool pool;
    OK(fcast_endpoint_pool(publisher, &pool));
    fcast_buffer buffer;
    void *data;
    OK(fcast_pool_acquire(pool, 60000, &buffer, &data, NULL));
    memcpy(data, memory, 100);
    fcast_payload payload;
    OK(fcast_buffer_freeze(buffer, 100, &payload));
    header = 2;
    OK(fcast_publish_payload(publisher, 0, payload, &header, size, WHOLE, NULL));
    DRIVE(publisher, on_publisher, subscriber, on_subscriber,
          others == 3 && copies[0] && copies[1] && copies[2]);
    size_t slots, free_slots;
    OK(fcast_pool_status(pool, &slots, &free_slots, NULL));
    CHECK(slots == 8 && free_slots == 8);
    OK(fcast_pool_release(pool));
}

static void check_counters(void)
{
    fcast_buffered_stats small = {.size = sizeof small};
    OK(fcast_endpoint_buffered_stats(publisher, &small));
    CHECK(small.accepted == MESSAGES && small.confirmed == MESSAGES && small.pending == 0);
    fcast_publish_stats publications = {.size = sizeof publications};
    OK(fcast_endpoint_publish_stats(publisher, &publications));
    CHECK(publications.over == publications.published && publications.over == small.buffers + 2);
    CHECK(publications.sent == told_to && small.bytes > MESSAGES * 9);
    fcast_send_stats sends = {.size = sizeof sends};
    IS(fcast_endpoint_send_stats(publisher, &sends), FCAST_UNSUPPORTED);
    size_t count;
    OK(fcast_publisher_subscribers(publisher, 1, &count));
    CHECK(count == 1);
    fcast_buffer buffer;
    void *data;
    IS(fcast_buffered_acquire(publisher, &buffer, &data, NULL), FCAST_UNSUPPORTED);
    IS(fcast_flush_tag(subscriber, 1), FCAST_UNSUPPORTED);
    IS(fcast_publish_copied(subscriber, 1, memory, 1, NULL, 0, 0, NULL), FCAST_UNSUPPORTED);
    IS(fcast_publisher_set_slow(publisher, 1, FCAST_SLOW_DROP, 0, 0), FCAST_NOT_FOUND);
    check_waitable(publisher);
}

static void run(fcast_domain domain, fcast_region region)
{
    subscribed = unsubscribed = confirmed = told_to = failed = ended = others = 0;
    memset(copies, 0, sizeof copies);
    memset(arrived, 0, sizeof arrived);
    memset(pushed_in, 0, sizeof pushed_in);
    open_both(domain, region);
    unsigned pushed = 0;
    DRIVE_AND(publisher, on_publisher, subscriber, on_subscriber, pushed == MESSAGES) {
        while (pushed < MESSAGES) {
            fcast_status status = push(pushed);
            if (status == FCAST_AGAIN)
                break;
            OK(status);
            pushed++;
        }
    }
    OK(fcast_flush_tag(publisher, 1));
    OK(fcast_flush(publisher));
    DRIVE(publisher, on_publisher, subscriber, on_subscriber, confirmed == MESSAGES);
    /* What is pushed now leaves in front of the payloads behind it, without a flush. */
    publish_payloads(region);
    CHECK(arrived[0] + arrived[1] + arrived[2] == MESSAGES);
    check_counters();

    OK(fcast_push(publisher, 1, 0, "one", 3, &number_of_failed));
    uint64_t again;
    OK(fcast_push(publisher, 1, 0, "two", 3, &again));
    CHECK(again == number_of_failed);
    OK(fcast_unsubscribe(subscriber, publisher_id, 1));
    DRIVE(publisher, on_publisher, subscriber, on_subscriber, unsubscribed == 1);
    OK(fcast_flush(publisher));
    DRIVE(publisher, on_publisher, subscriber, on_subscriber, failed == 1);

    /* What is packed is published by a polite close. */
    pushed = 0;
    OK(push(pushed + 6));
    OK(fcast_endpoint_begin_close(publisher, 60000));
    IS(fcast_push(publisher, 0, 0, "late", 4, NULL), FCAST_CLOSED);
    DRIVE(publisher, on_publisher, subscriber, on_subscriber,
          ended == 1 && confirmed == MESSAGES + 1 && arrived[0] == pushed_in[0]);
    OK(fcast_endpoint_close(publisher, 60000));
    IS(fcast_push(publisher, 0, 0, "late", 4, NULL), FCAST_CLOSED);
    OK(fcast_endpoint_release(publisher));
    OK(fcast_endpoint_release(subscriber));
}

static unsigned dropped, dropped_to;

static void on_dropping(fcast_endpoint endpoint, const fcast_event *event)
{
    (void)endpoint;
    subscribed += event->kind == FCAST_EVENT_SUBSCRIBED;
    if (event->kind == FCAST_EVENT_PUBLISHED && event->dropped == 1) {
        CHECK(event->value == 0 && event->failed == 0 && event->key == COPY && event->tag == 5);
        dropped++;
    }
    if (event->kind == FCAST_EVENT_PUBLISHED_TO) {
        IS(event->status, FCAST_AGAIN);
        CHECK(event->key == COPY && event->tag == 5 && event->count == 0 && *event->text != 0);
        dropped_to++;
    }
}

/* A subscriber that takes nothing misses what it has no room for. */
static void drop_for_the_slow(fcast_domain domain)
{
    subscribed = 0;
    char address[128];
    OK(fcast_buffered_publisher_open(domain, any_port(), NULL, &publisher));
    OK(fcast_endpoint_address(publisher, address, sizeof address, NULL));
    fcast_settings few = {.size = sizeof few, .credits = 1};
    OK(fcast_subscriber_open(domain, &few, &subscriber));
    OK(fcast_subscriber_connect(subscriber, address, &publisher_id));
    OK(fcast_subscribe(subscriber, publisher_id, 5));
    DRIVE(publisher, on_dropping, subscriber, on_subscriber, subscribed == 1);
    fcast_publication told = {0};
    double until = now_s() + 60;
    while (dropped == 0 || dropped_to == 0) {
        CHECK(now_s() < until);
        if (told.dropped == 0)
            OK(fcast_publish_copied(publisher, 5, memory, 100, NULL, 0, COPY, &told));
        (void)poll_once(publisher, on_dropping);
    }
    CHECK(told.dropped == 1 && told.posted + told.waiting == 0);
    OK(fcast_endpoint_release(subscriber));
    OK(fcast_endpoint_release(publisher));
}

int main(void)
{
    for (size_t i = 0; i < sizeof memory; i++)
        memory[i] = (unsigned char)(i % 251);
    fcast_domain domain = open_domain();
    fcast_region region;
    OK(fcast_region_external(memory, sizeof memory, NULL, NULL, &region));
    OK(fcast_region_register(region, domain));
    for (format = 0; format < FORMATS; format++)
        run(domain, region);
    drop_for_the_slow(domain);
    OK(fcast_region_release(region));
    OK(fcast_domain_release(domain));
    printf("%d small messages of %d tags in each of %d formats\n", MESSAGES, TAGS, FORMATS);
    return 0;
}
