/* What the tests of endpoints share: polling until something has happened, for at most a minute. */
#ifndef DRIVE_H
#define DRIVE_H

#define _POSIX_C_SOURCE 200809L

#include "check.h"
#include <time.h>

static inline double now_s(void)
{
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

typedef void on_event(fcast_endpoint endpoint, const fcast_event *event);

/* Polls once; gives the number of events. */
static inline size_t poll_once(fcast_endpoint endpoint, on_event *handle)
{
    fcast_event events[16];
    size_t count;
    OK(fcast_endpoint_poll(endpoint, events, 16, &count));
    for (size_t i = 0; i < count; i++)
        handle(endpoint, &events[i]);
    return count;
}

static inline int poll_both(fcast_endpoint a, on_event *on_a, fcast_endpoint b, on_event *on_b,
                            double until)
{
    CHECK(now_s() < until);
    poll_once(a, on_a);
    poll_once(b, on_b);
    return 1;
}

/* Polls both until the condition is so; what stands behind it is done each time. */
#define DRIVE_AND(a, on_a, b, on_b, condition)                                                     \
    for (double until_ = now_s() + 60; !(condition) && poll_both(a, on_a, b, on_b, until_);)

#define DRIVE(a, on_a, b, on_b, condition) DRIVE_AND(a, on_a, b, on_b, condition) {}

#endif
