/* The log goes to a function of the program's, and to nobody when it was taken off. */
#include "check.h"

struct lines {
    unsigned count;
    unsigned worst;
    int refused;
    char last[512];
};

static void take(void *context, uint32_t level, const char *target, const char *message)
{
    struct lines *lines = context;
    CHECK(level >= FCAST_LOG_ERROR && level <= FCAST_LOG_TRACE);
    CHECK(strlen(target) > 0 && strlen(message) > 0);
    lines->count++;
    if (lines->worst == 0 || level < lines->worst)
        lines->worst = level;
    snprintf(lines->last, sizeof lines->last, "%s: %s", target, message);
    /* Nothing of the interface may be called from here. */
    fcast_region none = {0};
    lines->refused += fcast_region_release(none) == FCAST_BUSY;
    CHECK(strstr(fcast_last_error(), "must not") != NULL);
}

/* Opens and closes what logs about itself. */
static void say_something(void)
{
    fcast_domain domain = open_domain();
    fcast_endpoint receiver, sender;
    OK(fcast_receiver_open(domain, any_port(), NULL, &receiver));
    char address[128];
    OK(fcast_endpoint_address(receiver, address, sizeof address, NULL));
    OK(fcast_sender_open(domain, address, NULL, &sender));
    bool connected = false;
    while (!connected) {
        fcast_event events[4];
        size_t count;
        OK(fcast_endpoint_poll(receiver, events, 4, &count));
        OK(fcast_endpoint_poll(sender, events, 4, &count));
        for (size_t i = 0; i < count; i++)
            connected |= events[i].kind == FCAST_EVENT_CONNECTED;
    }
    OK(fcast_endpoint_release(sender));
    OK(fcast_endpoint_release(receiver));
    OK(fcast_domain_release(domain));
}

int main(void)
{
    struct lines lines = {0}, others = {0};
    OK(fcast_log_set(NULL, NULL, 0));
    say_something();
    IS(fcast_log_set(take, &lines, 0), FCAST_INVALID);
    IS(fcast_log_set(take, &lines, 6), FCAST_INVALID);
    OK(fcast_log_set(take, &lines, FCAST_LOG_TRACE));
    say_something();
    CHECK(lines.count > 0);
    CHECK(lines.refused == (int)lines.count);
    printf("%u lines, such as %s\n", lines.count, lines.last);

    unsigned before = lines.count;
    OK(fcast_log_set(take, &others, FCAST_LOG_TRACE));
    say_something();
    CHECK(lines.count == before && others.count > 0);

    OK(fcast_log_set(take, &lines, FCAST_LOG_ERROR));
    lines.worst = 0;
    before = lines.count;
    say_something();
    CHECK(lines.count == before || lines.worst == FCAST_LOG_ERROR);
    before = others.count;
    OK(fcast_log_set(NULL, NULL, 0));
    say_something();
    CHECK(others.count == before);
    return 0;
}
