// Buffered senders and small messages, publishers and subscribers, rings, and the memory of GPUs
// where there is none.
#include "check.hpp"

#include <fabricast_device.hpp>
#include <fabricast_endpoints.hpp>

#include <numeric>
#include <vector>

namespace fc = fabricast;

static fc::event room[64];

/// The settings of whoever sends out of a region.
static fc::settings from(const fc::region &region)
{
    fc::settings of;
    of.region = region.raw();
    return of;
}

static void small_messages(const fc::domain &domain)
{
    const fc::receiver receiver = fc::receiver::open(domain, any_port()).value();
    const std::string address = receiver.address().value();
    const fc::buffered_sender sender = fc::buffered_sender::open(domain, address.c_str()).value();
    std::uint64_t pushed = 0, got = 0;
    while (got < 5000) {
        (void)sender.poll(room).value();
        while (pushed < 5000 && sender.push(pushed % 3, fc::bytes_of(pushed)))
            pushed++;
        CHECK(sender.flush().ok() || pushed == 0);
        for (const fc::event &event : receiver.poll(room).value()) {
            if (!event.is(fc::event_kind::message))
                continue;
            fc::small_messages all(event.payload_bytes());
            fc::small_message some[16];
            for (;;) {
                const auto next = all.next(some).value();
                if (next.empty())
                    break;
                for (const fc::small_message &message : next) {
                    CHECK(message.len == sizeof got && message.tag == got % 3);
                    CHECK(std::memcmp(message.data, &got, sizeof got) == 0);
                    got++;
                }
            }
        }
    }
    const std::uint8_t nonsense[] = {255, 255, 255, 255, 255, 255};
    fc::small_messages broken{fc::bytes(nonsense)};
    fc::small_message some[4];
    CHECK(broken.next(some).code() == FCAST_DATA);
}

static void publications(const fc::domain &domain)
{
    const fc::region memory = fc::region::allocate(4096).value();
    const fc::publisher publisher =
        fc::publisher::open(domain, any_port(), from(memory)).value();
    const fc::subscriber subscriber = fc::subscriber::open(domain).value();
    const std::string address = publisher.address().value();
    const std::uint64_t number = subscriber.connect(address.c_str()).value();
    CHECK(subscriber.subscribe(number, 7));
    CHECK(publisher.publish(7, memory.memory(), {}, 0) == FCAST_NOT_FOUND);
    bool published = false, completed = false, came = false;
    while (!completed || !came) {
        if (!published && publisher.subscribers(7) == 1) {
            CHECK(publisher.publish(7, memory.memory().first(100), fc::bytes_of(number), 9));
            published = true;
        }
        for (const fc::event &event : publisher.poll(room).value())
            if (event.kind == FCAST_EVENT_PUBLISHED)
                completed = event.key == 9;
        for (const fc::event &event : subscriber.poll(room).value())
            if (event.kind == FCAST_EVENT_PUBLICATION) {
                CHECK(event.data_len == 100 && event.header_len == sizeof number);
                came = true;
            }
    }
}

static void rings(const fc::domain &domain)
{
    const fc::region memory = fc::region::allocate(8192).value();
    memory.enroll(domain).value();
    const fc::ring ring = fc::ring::create(memory).value();
    const fc::receiver receiver = fc::receiver::open(domain, any_port()).value();
    const std::string address = receiver.address().value();
    const fc::sender sender = fc::sender::open(domain, address.c_str()).value();
    std::uint64_t sent = 0, done = 0, got = 0;
    bool connected = false;
    fc::payload next;
    while (done < 100 || got < 100) {
        if (!next && sent < 100)
            if (auto place = ring.reserve(1000)) {
                std::iota(place->first().begin(), place->first().end(), std::uint8_t(sent));
                next = ring.commit(*std::move(place), 1000).value();
            }
        if (next && connected && sender.send(next, fc::bytes_of(sent), sent))
            sent++;
        for (const fc::event &event : sender.poll(room).value()) {
            connected |= event.is(fc::event_kind::connected);
            done += event.is(fc::event_kind::completed);
        }
        for (const fc::event &event : receiver.poll(room).value())
            if (event.is(fc::event_kind::message)) {
                CHECK(event.data_len == 1000);
                CHECK(event.payload_bytes()[0] == std::uint8_t(got));
                got++;
            }
    }
    CHECK(ring.reserve(100'000).code() == FCAST_TOO_LONG);
}

static void devices()
{
    if (auto region = fc::device_region(1 << 20)) {
        CHECK(region->memory().size() == 1 << 20);
        CHECK(fc::staging::create(2, 65536).value());
    } else {
        std::printf("SKIPPED: memory of a GPU: %s\n", region.error().words.c_str());
    }
    bool released = false;
    auto none = fc::external_device_region(16, 16, FCAST_ANY_DEVICE, [&] { released = true; });
    CHECK(!none && released);
}

int main()
{
    const fc::domain domain = open_domain();
    small_messages(domain);
    publications(domain);
    rings(domain);
    devices();
    std::printf("endpoints: ok\n");
}
