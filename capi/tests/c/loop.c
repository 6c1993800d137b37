/* An event loop: endpoints, a descriptor, timers, and wake-ups of another thread. */
#include "check.h"

#include <pthread.h>
#include <unistd.h>

static void *waker(void *loop)
{
    OK(fcast_loop_wake(*(fcast_loop *)loop));
    return NULL;
}

static void *stopper(void *loop)
{
    OK(fcast_loop_stop(*(fcast_loop *)loop));
    return NULL;
}

/* Waits for the first event of a kind; others are passed over. */
static fcast_loop_event next_of(fcast_loop loop, uint32_t kind)
{
    for (;;) {
        fcast_loop_event event;
        size_t count;
        OK(fcast_loop_run_once(loop, 60000, &event, 1, &count));
        CHECK(count == 1);
        if (event.kind == kind)
            return event;
    }
}

static void descriptors_and_timers(fcast_loop loop)
{
    int ends[2];
    CHECK(pipe(ends) == 0);
    uint64_t token, once, every;
    IS(fcast_loop_add_fd(loop, ends[0], 4, 7, &token), FCAST_INVALID);
    IS(fcast_loop_add_fd(loop, -1, FCAST_LOOP_READ, 7, &token), FCAST_INVALID);
    OK(fcast_loop_add_fd(loop, ends[0], FCAST_LOOP_READ, 7, &token));
    uint64_t other;
    IS(fcast_loop_add_fd(loop, ends[0], FCAST_LOOP_READ, 8, &other), FCAST_SYSTEM);
    fcast_loop_event event;
    size_t count = 9;
    OK(fcast_loop_run_once(loop, 0, &event, 1, &count));
    CHECK(count == 0);
    CHECK(write(ends[1], "x", 1) == 1);
    event = next_of(loop, FCAST_LOOP_FD);
    CHECK(event.token == token && event.key == 7 && event.readiness == FCAST_LOOP_READ);
    OK(fcast_loop_remove(loop, token));
    IS(fcast_loop_remove(loop, token), FCAST_NOT_FOUND);
    OK(fcast_loop_add_fd(loop, ends[1], FCAST_LOOP_READ, 9, &token));
    OK(fcast_loop_set_interest(loop, token, FCAST_LOOP_WRITE));
    event = next_of(loop, FCAST_LOOP_FD);
    CHECK(event.key == 9 && event.readiness == FCAST_LOOP_WRITE);
    OK(fcast_loop_remove(loop, token));
    close(ends[0]);
    close(ends[1]);

    OK(fcast_loop_add_timer(loop, 0, 0, 10, &once));
    IS(fcast_loop_set_interest(loop, once, FCAST_LOOP_WRITE), FCAST_NOT_FOUND);
    event = next_of(loop, FCAST_LOOP_TIMER);
    CHECK(event.token == once && event.key == 10);
    IS(fcast_loop_remove(loop, once), FCAST_NOT_FOUND);
    OK(fcast_loop_add_timer(loop, 1000, 1000, 11, &every));
    for (int i = 0; i < 3; i++)
        CHECK(next_of(loop, FCAST_LOOP_TIMER).token == every);
    OK(fcast_loop_remove(loop, every));
}

static void *firer(void *signals)
{
    fcast_signal *both = signals;
    OK(fcast_signal_fire(both[1]));
    OK(fcast_signal_fire(both[0]));
    OK(fcast_signal_fire(both[1]));
    return NULL;
}

static void signals(fcast_loop loop)
{
    fcast_signal both[2];
    uint64_t tokens[2];
    OK(fcast_loop_add_signal(loop, 20, &both[0], &tokens[0]));
    OK(fcast_loop_add_signal(loop, 21, &both[1], &tokens[1]));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, firer, both) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    fcast_loop_event event = next_of(loop, FCAST_LOOP_SIGNAL);
    CHECK(event.token == tokens[1] && event.key == 21);
    event = next_of(loop, FCAST_LOOP_SIGNAL);
    CHECK(event.token == tokens[0] && event.key == 20);
    OK(fcast_loop_remove(loop, tokens[0]));
    OK(fcast_signal_fire(both[0]));
    OK(fcast_signal_release(both[0]));
    OK(fcast_signal_release(both[1]));
    IS(fcast_signal_fire(both[1]), FCAST_STALE);
    size_t count;
    OK(fcast_loop_run_once(loop, 0, &event, 1, &count));
    CHECK(count == 0);
}

static void threads(fcast_loop loop)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, waker, &loop) == 0);
    next_of(loop, FCAST_LOOP_WOKEN);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(pthread_create(&thread, NULL, stopper, &loop) == 0);
    next_of(loop, FCAST_LOOP_STOPPED);
    CHECK(pthread_join(thread, NULL) == 0);
    fcast_loop_event event;
    size_t count;
    OK(fcast_loop_run_once(loop, 0, &event, 1, &count));
    CHECK(count == 0);
}

enum { MESSAGES = 100 };

static unsigned char memory[MESSAGES];
static fcast_endpoint sender;
static unsigned connected, sent, completed, received, over;

/* One event a poll: the loop has to come again for what is left. */
static void serve(fcast_endpoint endpoint)
{
    fcast_event event;
    size_t count;
    OK(fcast_endpoint_poll(endpoint, &event, 1, &count));
    if (count == 0)
        return;
    connected += endpoint.id == sender.id && event.kind == FCAST_EVENT_CONNECTED;
    completed += event.kind == FCAST_EVENT_COMPLETED;
    over += event.kind == FCAST_EVENT_DISCONNECTED;
    if (event.kind == FCAST_EVENT_MESSAGE) {
        CHECK(event.data_len == 1 && *(const unsigned char *)event.data == received);
        received++;
    }
}

static void send_more(void)
{
    while (connected && sent < MESSAGES) {
        memory[sent] = (unsigned char)sent;
        fcast_region none = {0};
        fcast_status status = fcast_send(sender, none, memory + sent, 1, NULL, 0, sent);
        if (status == FCAST_AGAIN)
            return;
        OK(status);
        sent++;
    }
}

static void endpoints(fcast_loop loop)
{
    fcast_domain domain = open_domain();
    fcast_region region;
    OK(fcast_region_external(memory, sizeof memory, NULL, NULL, &region));
    fcast_endpoint receiver;
    OK(fcast_receiver_open(domain, any_port(), NULL, &receiver));
    char address[128];
    OK(fcast_endpoint_address(receiver, address, sizeof address, NULL));
    fcast_settings settings = {.size = sizeof settings, .region = region};
    OK(fcast_sender_open(domain, address, &settings, &sender));
    uint64_t of_sender, of_receiver;
    OK(fcast_loop_add_endpoint(loop, sender, 1, &of_sender));
    OK(fcast_loop_add_endpoint(loop, receiver, 2, &of_receiver));

    bool closing = false;
    while (over < 2) {
        fcast_loop_event events[4];
        size_t count;
        OK(fcast_loop_run_once(loop, 60000, events, 4, &count));
        CHECK(count > 0);
        for (size_t i = 0; i < count; i++) {
            CHECK(events[i].kind == FCAST_LOOP_ENDPOINT);
            CHECK(events[i].token == (events[i].key == 1 ? of_sender : of_receiver));
            serve(events[i].key == 1 ? sender : receiver);
            OK(fcast_loop_mark_busy(loop));
        }
        send_more();
        if (!closing && completed == MESSAGES && received == MESSAGES) {
            OK(fcast_endpoint_begin_close(sender, 60000));
            closing = true;
        }
    }
    OK(fcast_loop_remove(loop, of_receiver));
    OK(fcast_endpoint_release(sender));
    OK(fcast_endpoint_release(receiver));
    IS(fcast_loop_add_endpoint(loop, sender, 1, &of_sender), FCAST_STALE);
    OK(fcast_region_release(region));
    OK(fcast_domain_release(domain));
}

int main(void)
{
    fcast_loop loop;
    fcast_loop_settings settings = {.size = sizeof settings, .mode = 3};
    IS(fcast_loop_create(&settings, &loop), FCAST_INVALID);
    settings.mode = FCAST_LOOP_ADAPTIVE;
    IS(fcast_loop_create(&settings, &loop), FCAST_INVALID);
    settings.window_us = 100;
    OK(fcast_loop_create(&settings, &loop));
    descriptors_and_timers(loop);
    threads(loop);
    signals(loop);
    endpoints(loop);
    OK(fcast_loop_release(loop));
    IS(fcast_loop_wake(loop), FCAST_STALE);
    printf("%u messages by a loop\n", received);
    return 0;
}
