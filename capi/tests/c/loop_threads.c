/*
 * A loop that one thread runs, and another thread's calls on what is in it: an endpoint and a
 * channel of objects are each used by one thread, so none of its calls is answered FCAST_BUSY.
 */
#include "drive.h"

#include <pthread.h>
#include <stdatomic.h>

enum { POLLS = 30000 };

static atomic_bool done;
static atomic_ulong rounds;

/* Never sleeps: it looks at all that is in the loop in each round. */
static void *run(void *loop)
{
    while (!atomic_load(&done)) {
        fcast_loop_event events[8];
        size_t count;
        OK(fcast_loop_run_once(*(fcast_loop *)loop, 0, events, 8, &count));
        atomic_fetch_add(&rounds, 1);
    }
    return NULL;
}

/*
 * How many calls were answered FCAST_BUSY: of POLLS at least, and as many as it takes until the loop
 * has looked 300 times beside them.
 */
static unsigned busy_of(fcast_status poll(uint64_t id, fcast_event *into), uint64_t id)
{
    unsigned busy = 0;
    unsigned long beside = atomic_load(&rounds) + 300;
    for (int i = 0; i < POLLS || atomic_load(&rounds) < beside; i++) {
        fcast_event event;
        fcast_status status = poll(id, &event);
        CHECK(status == FCAST_OK || status == FCAST_BUSY);
        busy += status == FCAST_BUSY;
    }
    return busy;
}

static fcast_status poll_endpoint(uint64_t id, fcast_event *into)
{
    size_t count;
    return fcast_endpoint_poll((fcast_endpoint){id}, into, 1, &count);
}

static fcast_status poll_channel(uint64_t id, fcast_event *into)
{
    size_t count;
    return fcast_object_channel_poll((fcast_object_channel){id}, into, 1, &count);
}

int main(void)
{
    fcast_domain domain = open_domain();
    fcast_endpoint receiver;
    OK(fcast_receiver_open(domain, any_port(), NULL, &receiver));
    fcast_loop loop;
    fcast_loop_settings settings = {.size = sizeof settings, .mode = FCAST_LOOP_SPIN};
    OK(fcast_loop_create(&settings, &loop));
    uint64_t token;
    OK(fcast_loop_add_endpoint(loop, receiver, 1, &token));
    fcast_fabric fabric = find_fabric(FCAST_KIND_RDM, "tcp,net");
    fcast_object_server server = {0};
    fcast_object_channel channel = {0};
    if (fabric.id != 0) {
        OK(fcast_object_server_open(fabric, NULL, &server));
        OK(fcast_object_channel_open(server, &channel));
        OK(fcast_loop_add_channel(loop, channel, 2, &token));
    }

    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run, &loop) == 0);
    unsigned of_endpoint = busy_of(poll_endpoint, receiver.id);
    unsigned of_channel = channel.id != 0 ? busy_of(poll_channel, channel.id) : 0;
    atomic_store(&done, true);
    CHECK(pthread_join(thread, NULL) == 0);
    printf("%u and %u of %d polls and more were answered FCAST_BUSY, in %lu rounds of the loop\n",
           of_endpoint, of_channel, POLLS, atomic_load(&rounds));
    CHECK(of_endpoint == 0 && of_channel == 0);

    if (channel.id != 0) {
        OK(fcast_object_channel_release(channel));
        OK(fcast_object_server_release(server));
        OK(fcast_fabric_release(fabric));
    }
    OK(fcast_endpoint_release(receiver));
    OK(fcast_loop_release(loop));
    OK(fcast_domain_release(domain));
    return 0;
}
