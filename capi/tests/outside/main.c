/* What a project of somebody else's does: it finds the library, sends itself a message and says so.
 */
#include <fabricast.h>
#include <stdio.h>
#include <string.h>

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, fcast_last_error());
    return 1;
}

static char memory[4096];

/* One turn of both sides; FCAST_EVENT_MESSAGE where it came. */
static unsigned turn(fcast_endpoint receiver, fcast_endpoint sender, unsigned *connected)
{
    fcast_event events[8];
    size_t count = 0;
    fcast_endpoint_poll(sender, events, 8, &count);
    for (size_t i = 0; i < count; i++) {
        if (events[i].kind == FCAST_EVENT_CONNECTED)
            *connected = 1;
        if (events[i].kind == FCAST_EVENT_DISCONNECTED)
            return FCAST_EVENT_DISCONNECTED;
    }
    fcast_endpoint_poll(receiver, events, 8, &count);
    for (size_t i = 0; i < count; i++)
        if (events[i].kind == FCAST_EVENT_MESSAGE && events[i].data_len == 5 &&
            memcmp(events[i].data, "hello", 5) == 0)
            return FCAST_EVENT_MESSAGE;
    return 0;
}

int main(void)
{
    if (fcast_version() != FCAST_VERSION)
        return failed("the library is not the header's");
    fcast_fabric_settings how = {.size = sizeof how, .provider = "tcp", .node = "127.0.0.1"};
    fcast_fabric fabric;
    fcast_domain domain;
    if (fcast_fabric_open(&how, &fabric) != FCAST_OK ||
        fcast_domain_open(fabric, &domain) != FCAST_OK)
        return failed("fabric");
    fcast_region region;
    if (fcast_region_external(memory, sizeof memory, NULL, NULL, &region) != FCAST_OK)
        return failed("region");
    fcast_endpoint receiver, sender;
    char address[128];
    fcast_settings settings = {.size = sizeof settings, .region = region};
    if (fcast_receiver_open(domain, "127.0.0.1:0", NULL, &receiver) != FCAST_OK ||
        fcast_endpoint_address(receiver, address, sizeof address, NULL) != FCAST_OK ||
        fcast_sender_open(domain, address, &settings, &sender) != FCAST_OK)
        return failed("endpoints");
    memcpy(memory, "hello", 5);
    unsigned connected = 0, sent = 0, came = 0;
    while (came != FCAST_EVENT_MESSAGE) {
        came = turn(receiver, sender, &connected);
        if (came == FCAST_EVENT_DISCONNECTED)
            return failed("disconnected");
        if (connected && !sent) {
            fcast_status status = fcast_send(sender, (fcast_region){0}, memory, 5, NULL, 0, 1);
            if (status != FCAST_OK && status != FCAST_AGAIN)
                return failed("send");
            sent = status == FCAST_OK;
        }
    }
    fcast_endpoint_release(sender);
    fcast_endpoint_release(receiver);
    fcast_region_release(region);
    fcast_domain_release(domain);
    fcast_fabric_release(fabric);
    printf("hello\n");
    return 0;
}
