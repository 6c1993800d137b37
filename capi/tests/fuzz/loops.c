/* Event loops, counters and the log. */
#include "fuzz.h"

#include <unistd.h>

static _Thread_local uint64_t last_token;
static int ends[2];

static uint64_t any_token(void) { return once_in(4) ? any_number() : last_token; }

static fcast_status create(void)
{
    fcast_loop_settings settings = {.size = sizeof settings};
    unsigned char place[1024];
    fcast_loop loop = {UNTOUCHED};
    settings.mode = (uint32_t)below(once_in(9) ? 5 : 3);
    settings.window_us = (uint32_t)below(100);
    settings.poll_interval_us = once_in(3) ? (uint32_t)below(1000) : 0;
    settings.events_max = once_in(3) ? (uint32_t)below(100) : 0;
    fcast_status status = checked(fcast_loop_create(
        once_in(3) ? NULL : sized_settings(&settings, sizeof settings, place, sizeof place),
        once_in(50) ? NULL : &loop));
    if (status == FCAST_OK)
        keep(LOOP, loop.id);
    else
        MUST(loop.id == UNTOUCHED, "written by a call that failed");
    return status;
}

static fcast_status add_endpoint(void)
{
    return checked(fcast_loop_add_endpoint((fcast_loop){pick(LOOP)},
                                           (fcast_endpoint){pick_endpoint()}, any_number(),
                                           once_in(20) ? NULL : &last_token));
}

static fcast_status add_channel(void)
{
    return checked(fcast_loop_add_channel((fcast_loop){pick(LOOP)},
                                          (fcast_object_channel){pick(CHANNEL)}, any_number(),
                                          once_in(20) ? NULL : &last_token));
}

static fcast_status add_fd(void)
{
    int fd = once_in(9) ? (int)below(5) - 5 : ends[below(2)];
    return checked(fcast_loop_add_fd((fcast_loop){pick(LOOP)}, fd,
                                     (uint32_t)below(once_in(9) ? 16 : 4), any_number(),
                                     once_in(20) ? NULL : &last_token));
}

static fcast_status add_timer(void)
{
    uint64_t after = once_in(20) ? any_number() : below(3000);
    uint64_t every = once_in(3) ? 500 + below(3000) : 0;
    return checked(fcast_loop_add_timer((fcast_loop){pick(LOOP)}, after,
                                        once_in(20) ? any_number() : every, any_number(),
                                        once_in(20) ? NULL : &last_token));
}

static fcast_status set_interest(void)
{
    return checked(
        fcast_loop_set_interest((fcast_loop){pick(LOOP)}, any_token(), (uint32_t)below(5)));
}

static fcast_status remove_one(void)
{
    return checked(fcast_loop_remove((fcast_loop){pick(LOOP)}, any_token()));
}

static fcast_status run_once(void)
{
    fcast_loop_event events[8];
    size_t count = SIZE_MAX, capacity = below(9);
    fcast_status status = checked(fcast_loop_run_once((fcast_loop){pick(LOOP)}, (int32_t)below(3),
                                                      once_in(50) ? NULL : events, capacity,
                                                      once_in(50) ? NULL : &count));
    MUST(status != FCAST_OK || count <= capacity, "%zu events in %zu places", count, capacity);
    for (size_t i = 0; status == FCAST_OK && i < count; i++)
        MUST(events[i].kind >= FCAST_LOOP_ENDPOINT && events[i].kind < 100, "an event of kind %u",
             events[i].kind);
    return status;
}

static fcast_status mark_busy(void)
{
    return checked(fcast_loop_mark_busy((fcast_loop){pick(LOOP)}));
}
static fcast_status wake(void) { return checked(fcast_loop_wake((fcast_loop){pick(LOOP)})); }
static fcast_status stop(void) { return checked(fcast_loop_stop((fcast_loop){pick(LOOP)})); }

static fcast_status send_stats(void)
{
    fcast_send_stats stats = {.size = once_in(9) ? below(4000) : sizeof stats};
    if (stats.size > sizeof stats)
        stats.size = sizeof stats;
    return checked(
        fcast_endpoint_send_stats((fcast_endpoint){pick_endpoint()}, once_in(20) ? NULL : &stats));
}

static fcast_status receive_stats(void)
{
    fcast_receive_stats stats = {.size = sizeof stats};
    return checked(fcast_endpoint_receive_stats((fcast_endpoint){pick_endpoint()},
                                                once_in(20) ? NULL : &stats));
}

static fcast_status loop_stats(void)
{
    fcast_loop_stats stats = {.size = sizeof stats};
    return checked(fcast_loop_read_stats((fcast_loop){pick(LOOP)}, once_in(20) ? NULL : &stats));
}

static fcast_status process_stats(void)
{
    fcast_process_stats stats = {.size = sizeof stats};
    return checked(fcast_process_read_stats(once_in(20) ? NULL : &stats));
}

static fcast_status stats_text(void)
{
    char text[512] = "";
    size_t len = 0, capacity = below(sizeof text + 1);
    fcast_status status =
        checked(fcast_endpoint_stats_text((fcast_endpoint){pick_endpoint()}, text, capacity, &len));
    MUST(memchr(text, 0, sizeof text) != NULL || capacity == 0, "no zero behind the text");
    return status;
}

static fcast_status process_text(void)
{
    char text[512] = "";
    return checked(
        fcast_process_stats_text(once_in(9) ? NULL : text, below(sizeof text + 1), NULL));
}

static fcast_status metrics_text(void)
{
    char text[512] = "";
    return checked(fcast_metrics_text(once_in(9) ? NULL : text, below(sizeof text + 1), NULL));
}

/* May call back: all is refused. */
static void take_line(void *context, uint32_t level, const char *target, const char *message)
{
    MUST(context == static_memory && level >= 1 && level <= 5, "a line of level %u", level);
    read_all(target, strlen(target));
    read_all(message, strlen(message));
    fcast_region_release((fcast_region){0});
}

static fcast_status set_log(void)
{
    return checked(fcast_log_set(once_in(3) ? NULL : take_line, static_memory, (uint32_t)below(7)));
}

static fcast_status add_signal(void)
{
    fcast_signal signal = {UNTOUCHED};
    fcast_status status = checked(fcast_loop_add_signal((fcast_loop){pick(LOOP)}, any_number(),
                                                        once_in(20) ? NULL : &signal, &last_token));
    if (status == FCAST_OK)
        keep(SIGNAL, signal.id);
    return status;
}

static fcast_status fire(void) { return checked(fcast_signal_fire((fcast_signal){pick(SIGNAL)})); }

RELEASE(LOOP, loop, fcast_loop_release)
RELEASE(SIGNAL, signal, fcast_signal_release)

__attribute__((constructor)) static void add_the_kind(void)
{
    if (pipe(ends) != 0)
        abort();
    add_kind(LOOP, 1, 3, "loop", create, end_loop);
    add_kind(SIGNAL, 0, 6, "signal", NULL, end_signal);
}

static const struct call table[] = {
    {"fcast_loop_create", 1, create},
    {"fcast_loop_add_endpoint", 6, add_endpoint},
    {"fcast_loop_add_channel", 2, add_channel},
    {"fcast_loop_add_fd", 4, add_fd},
    {"fcast_loop_add_timer", 6, add_timer},
    {"fcast_loop_set_interest", 3, set_interest},
    {"fcast_loop_remove", 5, remove_one},
    {"fcast_loop_run_once", 30, run_once},
    {"fcast_loop_mark_busy", 1, mark_busy},
    {"fcast_loop_wake", 3, wake},
    {"fcast_loop_stop", 1, stop},
    {"fcast_loop_release", 1, release_loop},
    {"fcast_loop_add_signal", 3, add_signal},
    {"fcast_signal_fire", 4, fire},
    {"fcast_signal_release", 2, release_signal},
    {"fcast_endpoint_send_stats", 3, send_stats},
    {"fcast_endpoint_receive_stats", 3, receive_stats},
    {"fcast_loop_read_stats", 2, loop_stats},
    {"fcast_process_read_stats", 1, process_stats},
    {"fcast_endpoint_stats_text", 2, stats_text},
    {"fcast_process_stats_text", 1, process_text},
    {"fcast_metrics_text", 1, metrics_text},
    {"fcast_log_set", 1, set_log},
};
ADD_CALLS(table)
