/* Counters, as structs that can grow, and as text. */
#include "check.h"

/* Those of the kinds that are not senders and receivers alone. */
static void other_kinds(fcast_domain domain)
{
    fcast_endpoint publisher, subscriber;
    OK(fcast_publisher_open(domain, any_port(), NULL, &publisher));
    OK(fcast_subscriber_open(domain, NULL, &subscriber));
    fcast_publish_stats published = {.size = sizeof published, .open = 7};
    OK(fcast_endpoint_publish_stats(publisher, &published));
    CHECK(published.open == 0 && published.subscriptions == 0);
    IS(fcast_endpoint_publish_stats(subscriber, &published), FCAST_UNSUPPORTED);
    fcast_subscribe_stats subscribed = {.size = sizeof subscribed, .missed = 7};
    OK(fcast_endpoint_subscribe_stats(subscriber, &subscribed));
    CHECK(subscribed.missed == 0);
    fcast_send_stats sent = {.size = sizeof sent};
    IS(fcast_endpoint_send_stats(publisher, &sent), FCAST_UNSUPPORTED);
    fcast_buffered_stats buffered = {.size = sizeof buffered};
    IS(fcast_endpoint_buffered_stats(publisher, &buffered), FCAST_UNSUPPORTED);
    char text[4096];
    OK(fcast_endpoint_stats_text(subscriber, text, sizeof text, NULL));
    CHECK(strncmp(text, "fabricast_subscribe_received{endpoint=\"", 39) == 0);
    OK(fcast_endpoint_close(publisher, 0));
    IS(fcast_endpoint_publish_stats(publisher, &published), FCAST_CLOSED);
    IS(fcast_endpoint_stats_text(publisher, text, sizeof text, NULL), FCAST_CLOSED);
    OK(fcast_endpoint_release(publisher));
    OK(fcast_endpoint_release(subscriber));
}

int main(void)
{
    fcast_domain domain = open_domain();
    fcast_endpoint receiver, sender;
    OK(fcast_receiver_open(domain, any_port(), NULL, &receiver));
    char address[128];
    OK(fcast_endpoint_address(receiver, address, sizeof address, NULL));
    OK(fcast_sender_open(domain, address, NULL, &sender));
    unsigned connected = 0;
    while (connected < 2) {
        fcast_endpoint both[] = {sender, receiver};
        for (int side = 0; side < 2; side++) {
            fcast_event event;
            size_t count;
            OK(fcast_endpoint_poll(both[side], &event, 1, &count));
            connected += count && event.kind == FCAST_EVENT_CONNECTED;
        }
    }

    fcast_receive_stats received = {.size = sizeof received};
    OK(fcast_endpoint_receive_stats(receiver, &received));
    CHECK(received.size == sizeof received);
    CHECK(received.connections == 1 && received.messages == 0 && received.cq_reads > 0);
    fcast_send_stats sent = {.size = sizeof sent};
    OK(fcast_endpoint_send_stats(sender, &sent));
    CHECK(sent.posted == 0 && sent.cq_reads > 0);
    IS(fcast_endpoint_send_stats(receiver, &sent), FCAST_UNSUPPORTED);
    IS(fcast_endpoint_send_stats(sender, NULL), FCAST_INVALID);
    sent.size = 0;
    IS(fcast_endpoint_send_stats(sender, &sent), FCAST_INVALID);

    /* A program with an older header, and one with a newer header. */
    struct {
        fcast_process_stats known;
        uint64_t more;
    } newer = {.known = {.size = sizeof newer}, .more = 7};
    OK(fcast_process_read_stats(&newer.known));
    CHECK(newer.more == 0 && newer.known.size == sizeof newer);
    fcast_process_stats older = {.size = sizeof(size_t) + sizeof(uint64_t), .leaked = 7};
    OK(fcast_process_read_stats(&older));
    CHECK(older.leaked == 7);

    char text[16384];
    size_t len;
    OK(fcast_endpoint_stats_text(receiver, text, sizeof text, &len));
    CHECK(len == strlen(text) + 1);
    CHECK(strstr(text, "fabricast_receive_connections{endpoint=\"") != NULL);
    CHECK(strstr(text, "fabricast_receive_packed_frames{endpoint=\"") != NULL);
    OK(fcast_process_stats_text(text, sizeof text, &len));
    CHECK(strstr(text, "fabricast_process_leaked 0\n") != NULL);
    CHECK(strstr(text, "fabricast_file_read_bytes 0\n") != NULL);

    size_t needed;
    OK(fcast_metrics_text(NULL, 0, &needed));
    // Nothing is made or released meanwhile, but numbers may become longer.
    size_t capacity = needed + 65536;
    char *metrics = malloc(capacity);
    CHECK(metrics != NULL);
    OK(fcast_metrics_text(metrics, capacity, &needed));
    CHECK(needed <= capacity && needed == strlen(metrics) + 1);
    CHECK(strcmp(metrics + needed - 1 - strlen("# EOF\n"), "# EOF\n") == 0);
    CHECK(strstr(metrics, "fabricast_endpoint_received_messages_total{kind=\"receive\",name=\"receive-1\"}") != NULL);
    OK(fcast_metrics_text(metrics, 8, &needed));
    CHECK(strlen(metrics) == 7 && needed > 8);
    free(metrics);

    fcast_loop loop;
    OK(fcast_loop_create(NULL, &loop));
    fcast_loop_event event;
    size_t count;
    OK(fcast_loop_run_once(loop, 0, &event, 1, &count));
    fcast_loop_stats counted = {.size = sizeof counted};
    OK(fcast_loop_read_stats(loop, &counted));
    CHECK(counted.rounds == 1);
    OK(fcast_loop_release(loop));
    OK(fcast_endpoint_release(sender));
    OK(fcast_endpoint_release(receiver));
    other_kinds(domain);
    OK(fcast_domain_release(domain));
    puts("counters");
    return 0;
}
