/* The kernel's probes tell a peer that says nothing any more: the network between the two sides goes
 * away, in a namespace of this program's own. */
#include "drive.h"
#include "rdm.h"

#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

static unsigned connected;
static fcast_status ended = -1;

static void on_side(fcast_endpoint endpoint, const fcast_event *event)
{
    (void)endpoint;
    connected += event->kind == FCAST_EVENT_CONNECTED;
    if (event->kind == FCAST_EVENT_DISCONNECTED)
        ended = event->status;
}

/* Has the loop device of the namespace up, or down. */
static int loop_device(int up)
{
    struct ifreq request = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    request.ifr_flags = up ? IFF_UP | IFF_RUNNING : 0;
    int done = ioctl(fd, SIOCSIFFLAGS, &request) == 0;
    close(fd);
    return done;
}

static void refused(fcast_domain domain)
{
    fcast_endpoint none;
    fcast_settings settings = {.size = sizeof settings, .keepalive_idle_s = 9 * 3600 + 1};
    IS(fcast_sender_open(domain, "127.0.0.1:1", &settings, &none), FCAST_INVALID);
    CHECK(strstr(fcast_last_error(), "keepalive.idle") != NULL);
    settings.keepalive_idle_s = 0;
    settings.keepalive_interval_s = 9 * 3600 + 1;
    IS(fcast_subscriber_open(domain, &settings, &none), FCAST_INVALID);
    CHECK(strstr(fcast_last_error(), "keepalive.interval") != NULL);
    settings.keepalive_interval_s = 0;
    settings.keepalive_probes = 128;
    IS(fcast_receiver_open(domain, any_port(), &settings, &none), FCAST_INVALID);
    CHECK(strstr(fcast_last_error(), "keepalive.probes") != NULL);
    fcast_domain datagrams;
    if (!open_rdm(&datagrams)) {
        printf("SKIPPED: no provider of reliable datagrams: %s\n", fcast_last_error());
        return;
    }
    settings.keepalive_probes = 1;
    IS(fcast_connectionless_open(datagrams, any_port(), &settings, &none), FCAST_INVALID);
    CHECK(strstr(fcast_last_error(), "keepalive") != NULL);
    OK(fcast_domain_release(datagrams));
}

int main(void)
{
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0 || !loop_device(1)) {
        printf("SKIPPED: no network namespace of this program's own\n");
        return 0;
    }
    fcast_domain domain = open_domain();
    refused(domain);
    fcast_settings settings = {.size = sizeof settings,
                               .unresponsive_after_ms = FCAST_NEVER,
                               .lost_after_ms = FCAST_NEVER};
    fcast_endpoint sender, receiver;
    char address[128];
    OK(fcast_receiver_open(domain, any_port(), &settings, &receiver));
    OK(fcast_endpoint_address(receiver, address, sizeof address, NULL));
    settings.keepalive_idle_s = 1;
    settings.keepalive_interval_s = 1;
    settings.keepalive_probes = 2;
    OK(fcast_sender_open(domain, address, &settings, &sender));
    DRIVE(sender, on_side, receiver, on_side, connected == 2);
    CHECK(ended == -1 && loop_device(0));
    double down = now_s();
    while (ended == -1) {
        CHECK(now_s() < down + 60);
        OK(fcast_endpoint_wait(sender, 100));
        (void)poll_once(sender, on_side);
    }
    IS(ended, FCAST_CLOSED);
    OK(fcast_endpoint_release(sender));
    OK(fcast_endpoint_release(receiver));
    OK(fcast_domain_release(domain));
    printf("probes of 1 s, two of them: lost after %.1f s\n", now_s() - down);
    return 0;
}
