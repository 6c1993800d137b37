/* Publish and subscribe: tags, counts, a request that is answered, batches, what is kept, the end. */
#include "drive.h"

enum { MESSAGES = 300, SIZE = 256 };

static unsigned char memory[MESSAGES * SIZE];
static fcast_endpoint publisher, subscriber;
static uint64_t publisher_id, subscriber_id, request;
static unsigned subscribed[2], unsubscribed[2], published, got, others, ended;
static fcast_message kept;
static char address[128];

static void on_publisher(fcast_endpoint endpoint, const fcast_event *event)
{
    (void)endpoint;
    switch (event->kind) {
    case FCAST_EVENT_REQUEST:
        request = event->connection;
        CHECK(strstr(event->text, test_node()) != NULL || *event->text == 0);
        CHECK(event->data == NULL || strcmp(event->data, event->text) == 0);
        break;
    case FCAST_EVENT_CONNECTED:
        CHECK(event->data == NULL || strncmp(event->data, test_node(), strlen(test_node())) == 0);
        subscriber_id = event->connection;
        break;
    case FCAST_EVENT_SUBSCRIBED:
        CHECK(event->connection == subscriber_id);
        subscribed[0]++;
        break;
    case FCAST_EVENT_UNSUBSCRIBED:
        unsubscribed[0]++;
        break;
    case FCAST_EVENT_PUBLISHED:
        CHECK(event->key == published && event->value == 1);
        CHECK(event->dropped == 0 && event->failed == 0);
        published++;
        break;
    case FCAST_EVENT_PUBLISHED_TO:
        IS(event->status, FCAST_OK);
        break;
    case FCAST_EVENT_DISCONNECTED:
        ended++;
        break;
    default:
        break;
    }
}

static void on_subscriber(fcast_endpoint endpoint, const fcast_event *event)
{
    switch (event->kind) {
    case FCAST_EVENT_CONNECTED:
        CHECK(event->data_len == strlen(address) && strcmp(event->data, address) == 0);
        break;
    case FCAST_EVENT_SUBSCRIBED:
        CHECK(event->connection == publisher_id && event->key >= 7 && event->key <= 8);
        subscribed[1]++;
        break;
    case FCAST_EVENT_UNSUBSCRIBED:
        unsubscribed[1]++;
        break;
    case FCAST_EVENT_PUBLICATION:
        if (event->key == 8) {
            others++;
            break;
        }
        CHECK(event->connection == publisher_id && event->key == 7 && event->value == 0);
        CHECK(event->header_len == sizeof got && memcmp(event->header, &got, sizeof got) == 0);
        CHECK(event->data_len == SIZE);
        CHECK(memcmp(event->data, memory + got % MESSAGES * SIZE, SIZE) == 0);
        if (got == 5)
            OK(fcast_message_keep(endpoint, event, &kept));
        got++;
        break;
    case FCAST_EVENT_DISCONNECTED:
        CHECK(event->connection == publisher_id);
        ended++;
        break;
    default:
        break;
    }
}

/* Several publications in one call: as many as are taken, from the first on. */
static void publish_batches(void)
{
    enum { BATCH = 50 };
    fcast_outgoing_publication several[BATCH];
    fcast_publication told[BATCH];
    unsigned numbers[BATCH];
    size_t taken = 99, all = 0;
    unsigned first = got;
    for (unsigned i = 0; i < BATCH; i++) {
        numbers[i] = first + i;
        several[i] = (fcast_outgoing_publication){.tag = 7};
        several[i].message = (fcast_outgoing){.data = memory + i * SIZE, .len = SIZE};
        several[i].message.header = &numbers[i];
        several[i].message.header_len = sizeof numbers[i];
        several[i].message.key = numbers[i];
    }
    several[BATCH - 1].tag = 9; /* nobody wants it */
    DRIVE_AND(publisher, on_publisher, subscriber, on_subscriber, all == BATCH - 1) {
        fcast_status status =
            fcast_publish_batch(publisher, several + all, BATCH - all, told + all, &taken);
        if (status == FCAST_AGAIN)
            continue;
        OK(status);
        CHECK(taken > 0);
        all += taken;
    }
    for (unsigned i = 1; i < BATCH - 1; i++)
        CHECK(told[i].number == told[0].number + i && told[i].posted + told[i].waiting == 1);
    taken = 99;
    IS(fcast_publish_batch(publisher, several + all, 1, NULL, &taken), FCAST_NOT_FOUND);
    several[0].message.data = numbers; /* outside of the region */
    IS(fcast_publish_batch(publisher, several, 2, told, &taken), FCAST_NOT_FOUND);
    IS(fcast_publish_batch(publisher, NULL, 2, told, &taken), FCAST_INVALID);
    IS(fcast_publish_batch(subscriber, several, 2, told, &taken), FCAST_UNSUPPORTED);
    CHECK(taken == 99);
    OK(fcast_publish_batch(publisher, NULL, 0, NULL, &taken));
    CHECK(taken == 0);
    DRIVE(publisher, on_publisher, subscriber, on_subscriber,
          got == first + BATCH - 1 && published == first + BATCH - 1);
}

int main(void)
{
    fcast_domain domain = open_domain();
    fcast_region region, none = {0};
    OK(fcast_region_external(memory, sizeof memory, NULL, NULL, &region));
    for (size_t i = 0; i < sizeof memory; i++)
        memory[i] = (unsigned char)(i / SIZE * 3 + i % SIZE);

    fcast_settings settings = {.size = sizeof settings, .ask = 1, .region = region, .tell_sent = 1};
    settings.slow = FCAST_SLOW_WAIT;
    IS(fcast_publisher_open(domain, any_port(), &settings, &publisher), FCAST_INVALID);
    settings.slow_queue = MESSAGES;
    settings.slow_ms = 60000;
    OK(fcast_publisher_open(domain, any_port(), &settings, &publisher));
    OK(fcast_endpoint_address(publisher, address, sizeof address, NULL));
    fcast_settings incoming = {.size = sizeof incoming, .depth = 1};
    IS(fcast_subscriber_open(domain, &incoming, &subscriber), FCAST_INVALID);
    CHECK(strstr(fcast_last_error(), "depth") != NULL);
    OK(fcast_subscriber_open(domain, NULL, &subscriber));
    OK(fcast_subscriber_connect(subscriber, address, &publisher_id));
    OK(fcast_subscribe(subscriber, publisher_id, 7));
    IS(fcast_subscribe(subscriber, publisher_id, 7), FCAST_INVALID);
    IS(fcast_subscribe(subscriber, 4711, 7), FCAST_NOT_FOUND);
    IS(fcast_unsubscribe(subscriber, publisher_id, 9), FCAST_NOT_FOUND);
    IS(fcast_publish(publisher, 7, none, memory, 1, NULL, 0, 0, NULL), FCAST_NOT_FOUND);

    DRIVE(publisher, on_publisher, subscriber, on_subscriber, request);
    IS(fcast_endpoint_accept(publisher, request + 1), FCAST_NOT_FOUND);
    OK(fcast_endpoint_accept(publisher, request));
    IS(fcast_endpoint_accept(publisher, request), FCAST_NOT_FOUND);
    IS(fcast_endpoint_accept(subscriber, request), FCAST_UNSUPPORTED);
    DRIVE(publisher, on_publisher, subscriber, on_subscriber, subscribed[0] && subscribed[1]);
    check_waitable(publisher);
    check_waitable(subscriber);
    size_t count;
    OK(fcast_publisher_subscribers(publisher, 7, &count));
    CHECK(count == 1);
    OK(fcast_publisher_set_slow(publisher, subscriber_id, FCAST_SLOW_DISCONNECT, 1000, 60000));
    IS(fcast_publisher_set_slow(publisher, 1, FCAST_SLOW_DROP, 0, 0), FCAST_NOT_FOUND);
    IS(fcast_publisher_set_slow(publisher, subscriber_id, 9, 0, 0), FCAST_INVALID);

    unsigned sent = 0;
    DRIVE_AND(publisher, on_publisher, subscriber, on_subscriber,
              got == MESSAGES && published == MESSAGES) {
        while (sent < MESSAGES) {
            fcast_publication told;
            fcast_status status = fcast_publish(publisher, 7, none, memory + sent * SIZE, SIZE, &sent,
                                                sizeof sent, sent, &told);
            if (status == FCAST_AGAIN)
                break;
            OK(status);
            CHECK(told.posted + told.waiting == 1 && told.dropped == 0);
            sent++;
        }
    }
    publish_batches();
    unsigned total = published;
    fcast_publish_stats published_stats = {.size = sizeof published_stats};
    OK(fcast_endpoint_publish_stats(publisher, &published_stats));
    CHECK(published_stats.over == total);
    fcast_subscribe_stats subscribe_stats = {.size = sizeof subscribe_stats};
    OK(fcast_endpoint_subscribe_stats(subscriber, &subscribe_stats));
    IS(fcast_endpoint_subscribe_stats(publisher, &subscribe_stats), FCAST_UNSUPPORTED);
    /* What was kept can be published on, without a copy. */
    fcast_pool pool;
    OK(fcast_endpoint_pool(subscriber, &pool));
    fcast_region pool_region;
    OK(fcast_pool_region(pool, &pool_region));
    OK(fcast_region_register(pool_region, domain));
    fcast_payload payload;
    OK(fcast_message_payload(kept, &payload));
    IS(fcast_message_release(kept), FCAST_STALE);
    size_t len;
    OK(fcast_payload_len(payload, &len));
    CHECK(len == SIZE);
    OK(fcast_subscribe(subscriber, publisher_id, 8));
    DRIVE(publisher, on_publisher, subscriber, on_subscriber, subscribed[0] == 2);
    OK(fcast_publish_payload(publisher, 8, payload, NULL, 0, published, NULL));
    DRIVE(publisher, on_publisher, subscriber, on_subscriber, others == 1 && published == total + 1);

    OK(fcast_unsubscribe(subscriber, publisher_id, 7));
    DRIVE(publisher, on_publisher, subscriber, on_subscriber, unsubscribed[0] && unsubscribed[1]);
    IS(fcast_publish(publisher, 7, none, memory, 1, NULL, 0, 0, NULL), FCAST_NOT_FOUND);
    OK(fcast_endpoint_close_connection(subscriber, publisher_id, 60000));
    DRIVE(publisher, on_publisher, subscriber, on_subscriber, ended == 2);
    OK(fcast_endpoint_close(publisher, 60000));
    IS(fcast_publish(publisher, 7, none, memory, 1, NULL, 0, 0, NULL), FCAST_CLOSED);
    OK(fcast_endpoint_release(publisher));
    OK(fcast_endpoint_release(subscriber));
    OK(fcast_pool_release(pool));
    OK(fcast_region_release(pool_region));
    OK(fcast_region_release(region));
    OK(fcast_domain_release(domain));
    printf("%d publications\n", MESSAGES);
    return 0;
}
