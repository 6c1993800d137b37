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
    const fc::region region = fc::region::allocate(4096).value();
    const fc::pool pool = fc::pool::create(region, 4096).value();
    const auto frozen = [&pool](std::uint64_t number) {
        fc::buffer buffer = pool.acquire().value();
        std::memcpy(buffer.data(), &number, sizeof number);
        return std::move(buffer).freeze(sizeof number).value();
    };
    while (got < 5000) {
        (void)sender.poll(room).value();
        while (pushed < 5000 && pushed % 100 && sender.push(pushed % 3, fc::bytes_of(pushed)))
            pushed++;
        if (pushed < 5000 && pushed % 100 == 0) {
            fc::payload next = frozen(pushed);
            if (sender.push(pushed % 3, next))
                pushed++;
        }
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
            fcast_outgoing_publication two[2] = {};
            for (fcast_outgoing_publication &one : two)
                one = {7, {memory.memory().data(), 100, {0}, &number, sizeof number, 10}};
            CHECK(publisher.publish_batch({two, 2}).value() == 2);
            published = true;
        }
        for (const fc::event &event : publisher.poll(room).value())
            if (event.kind == FCAST_EVENT_PUBLISHED)
                completed = event.key == 10;
        for (const fc::event &event : subscriber.poll(room).value())
            if (event.kind == FCAST_EVENT_PUBLICATION) {
                CHECK(event.data_len == 100 && event.header_len == sizeof number);
                came = true;
            }
    }
}

static void packed_publications(const fc::domain &domain)
{
    const auto publisher = fc::buffered_publisher::open(domain, any_port()).value();
    const fc::subscriber subscriber = fc::subscriber::open(domain).value();
    const std::string address = publisher.address().value();
    const std::uint64_t number = subscriber.connect(address.c_str()).value();
    CHECK(subscriber.subscribe(number, 7));
    CHECK(publisher.push(7, fc::bytes_of(number)) == FCAST_NOT_FOUND);
    std::uint64_t pushed = 0, got = 0, confirmed = 0, copied = 0;
    while (confirmed < 3000 || got < 3000 || copied == 0) {
        while (pushed < 3000 && publisher.push(7, fc::bytes_of(pushed)))
            pushed++;
        if (pushed == 3000 && copied == 0 &&
            publisher.publish_copied(7, fc::bytes_of(pushed), fc::bytes_of(number), 9))
            pushed++;
        CHECK(publisher.flush_tag(7) && publisher.flush());
        for (const fc::event &event : publisher.poll(room).value())
            if (event.kind == FCAST_EVENT_PUBLISHED) {
                CHECK(event.tag == 7);
                confirmed += event.count;
            }
        for (const fc::event &event : subscriber.poll(room).value()) {
            if (event.kind != FCAST_EVENT_PUBLICATION)
                continue;
            if (event.header_len != 0) {
                CHECK(got == 3000 && event.data_len == sizeof pushed);
                copied++;
                continue;
            }
            fc::small_messages all(event.payload_bytes());
            fc::small_message some[16];
            for (auto next = all.next(some).value(); !next.empty(); next = all.next(some).value())
                for (const fc::small_message &message : next) {
                    CHECK(message.tag == 7 && message.len == sizeof got);
                    CHECK(std::memcmp(message.data, &got, sizeof got) == 0);
                    got++;
                }
        }
    }
    CHECK(copied == 1 && publisher.subscribers(7) == 1);
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

/// Windows of a buffer, which comes back, and of a payload; a payload of pieces is written there.
static void windows(const fc::domain &domain)
{
    const fc::region memory = fc::region::allocate(8192).value();
    memory.enroll(domain).value();
    const fc::region slots = fc::region::allocate(4096).value();
    const fc::pool pool = fc::pool::create(slots, 1024).value();
    fc::settings owning;
    owning.windows = 4;
    owning.max_connections = 4;
    const fc::receiver owner = fc::receiver::open(domain, any_port(), owning).value();
    const std::string address = owner.address().value();
    const fc::sender peer = fc::sender::open(domain, address.c_str()).value();
    std::uint64_t connection = 0;
    bool connected = false, written = false;
    fc::buffer given = pool.acquire().value(), taken;
    fc::payload all = fc::payload::of(memory, memory.memory()).value();
    CHECK(all.size() == 8192);
    CHECK(fc::window::expose(owner, 1, given, FCAST_ACCESS_WRITE).code() == FCAST_CLOSED && given);
    fc::window window, of_payload;
    fc::remote_window remote;
    while (!taken) {
        for (const fc::event &event : owner.poll(room).value()) {
            if (event.is(fc::event_kind::connected))
                connection = event.connection;
            if (event.kind == FCAST_EVENT_WINDOW_RELEASED && event.data != nullptr)
                taken = owner.keep_buffer(event).value();
        }
        for (const fc::event &event : peer.poll(room).value()) {
            connected |= event.is(fc::event_kind::connected);
            written |= event.kind == FCAST_EVENT_WRITTEN;
            CHECK(event.kind != FCAST_EVENT_WRITE_FAILED);
        }
        if (connected && connection != 0 && !remote && !written) {
            window = fc::window::expose(owner, connection, given, FCAST_ACCESS_WRITE).value();
            of_payload = fc::window::expose(owner, connection, all, FCAST_ACCESS_READ).value();
            CHECK(!given && !all);
            remote = fc::remote_window::open(peer, 0, window.describe().value()).value();
            const fc::mutable_bytes bytes = memory.memory();
            bytes[0] = 7, bytes[5000] = 8;
            const fc::piece pieces[] = {{&bytes[0], 1, memory.raw()}, {&bytes[5000], 1, memory.raw()}};
            fc::payload two = fc::payload::of(fc::span<const fc::piece>(pieces)).value();
            CHECK(remote.write(peer, 1023, two, 1) == FCAST_INVALID && two);
            CHECK(remote.write(peer, 1000, two, 1) && !two);
        }
        if (written && window)
            CHECK(window.revoke(owner, 60000));
    }
    CHECK(taken.size() == 1024 && taken.data()[1000] == 7 && taken.data()[1001] == 8);
}

static void devices()
{
    const fc::region memory = fc::region::allocate(4096).value();
    const fc::payload payload = fc::payload::of(memory, memory.memory()).value();
    int calls = 0;
    CHECK(fc::after_event(payload, nullptr, [&calls] { calls++; }).code() == FCAST_INVALID);
    CHECK(calls == 1 && fc::after_stream(payload, nullptr, 99).code() == FCAST_DEVICE);
    if (auto region = fc::device_region(1 << 20)) {
        CHECK(region->memory().size() == 1 << 20);
        CHECK(fc::staging::create(2, 65536).value());
        CHECK(fc::device_pool::create(*region, 65536).value());
    } else {
        std::printf("SKIPPED: memory of a GPU: %s\n", region.error().words.c_str());
    }
    bool released = false;
    auto none = fc::external_device_region(16, 16, FCAST_ANY_DEVICE, [&] { released = true; });
    CHECK(!none && released);
    const fc::region host = fc::region::allocate(4096).value();
    CHECK(fc::device_pool::create(host, 1024).code() == FCAST_INVALID);
    CHECK(fc::region_from_dlpack(nullptr).code() == FCAST_INVALID);
    CHECK(fc::region_from_dlpack_versioned(nullptr).code() == FCAST_INVALID);
}

int main()
{
    const fc::domain domain = open_domain();
    small_messages(domain);
    publications(domain);
    packed_publications(domain);
    rings(domain);
    windows(domain);
    devices();
    std::printf("endpoints: ok\n");
}
