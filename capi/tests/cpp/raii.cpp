// Handles that release themselves, results, spans, and a talk between a sender and a receiver.
#include "check.hpp"

#include <array>
#include <vector>

namespace fc = fabricast;

static void spans()
{
    std::vector<std::uint8_t> vector{1, 2, 3};
    fc::bytes read = vector;
    fc::mutable_bytes write = vector;
    write[0] = 7;
    CHECK(read.size() == 3 && read[0] == 7 && read.subspan(1).size() == 2);
    std::array<std::uint8_t, 4> array{};
    CHECK(fc::bytes(array).size() == 4);
    const std::uint32_t word = 1;
    CHECK(fc::bytes_of(word).size() == 4);
}

static void moves()
{
    fc::region one = fc::region::allocate(8192).value();
    const fcast_region raw = one.raw();
    fc::region two = std::move(one);
    CHECK(!one && two && two.raw().id == raw.id && two.memory().size() == 8192);
    two = fc::region::allocate(4096).value();
    CHECK(fcast_region_memory(raw, nullptr, nullptr) == FCAST_STALE);
    fc::region *self = &two;
    two = std::move(*self);
    CHECK(two);
    const fcast_region detached = two.detach();
    CHECK(!two);
    CHECK(fcast_region_release(detached) == FCAST_OK);
    CHECK(fcast_region_release(detached) == FCAST_STALE);

    int released = 0;
    static std::uint8_t memory[4096];
    {
        fc::region mine =
            fc::region::external(memory, sizeof memory, [&released] { released++; }).value();
        CHECK(mine.offset_of(memory + 100, 8).value() == 100);
        CHECK(mine.offset_of(memory + 4090, 8).code() == FCAST_NOT_FOUND);
    }
    CHECK(released == 1);
    auto refused = fc::region::external(nullptr, 1, [&released] { released++; });
    CHECK(!refused && released == 2);
}

static void errors()
{
    fc::fabric_settings settings;
    settings.provider = "no such provider";
    auto fabric = fc::fabric::open(settings);
    CHECK(!fabric && fabric.code() == FCAST_UNSUPPORTED && !fabric.error().words.empty());
    bool thrown = false;
    try {
        (void)std::move(fabric).value();
    } catch (const fc::error &error) {
        thrown = error.code() == FCAST_UNSUPPORTED && std::strlen(error.what()) > 20;
    }
    CHECK(thrown);
    // printf's %.*s takes no null, also where there are no words.
    const fc::event silent{};
    CHECK(silent.words().data() && silent.words().empty());
    CHECK(silent.peer().data() && silent.peer().empty());
    fc::domain none;
    CHECK(fc::sender::open(none, "127.0.0.1:1").code() == FCAST_STALE);
    auto moved = fc::region::allocate(4096);
    auto other = std::move(moved);
    CHECK(other && other->memory().size() == 4096);
    other = fc::region::external(nullptr, 1);
    CHECK(!other);
}

static void pools(const fc::domain &domain)
{
    fc::region region = fc::region::allocate(4 * 4096).value();
    CHECK(region.way(domain).code() == FCAST_NOT_REGISTERED);
    region.enroll(domain).value();
    const fc::region_way way = region.way(domain).value();
    CHECK(way.path == FCAST_PATH_HOST && !way.why.empty());
    fc::pool pool = fc::pool::create(region, 4096).value();
    CHECK(pool.lies_in().value().memory().data() == region.memory().data());
    {
        std::vector<fc::buffer> all;
        for (int i = 0; i < 4; i++)
            all.push_back(pool.acquire().value());
        CHECK(pool.acquire().code().again());
        CHECK(pool.state().free == 0);
        fc::payload payload = std::move(all.back()).freeze(100).value();
        CHECK(payload.size() == 100 && !all.back());
    }
    CHECK(pool.state().free == 4 && pool.state().low_water == 0);
}

static void talk(const fc::domain &domain)
{
    static std::uint8_t memory[64 * 1024];
    for (std::size_t i = 0; i < sizeof memory; i++)
        memory[i] = static_cast<std::uint8_t>(i * 7);
    fc::region region = fc::region::external(memory, sizeof memory).value();
    fc::receiver receiver = fc::receiver::open(domain, any_port()).value();
    fc::settings settings;
    settings.region = region.raw();
    settings.depth = 8;
    const std::string address = receiver.address().value();
    fc::sender sender = fc::sender::open(domain, address.c_str(), settings).value();
    CHECK(!sender.fds().value().empty());

    std::uint64_t sent = 0, done = 0, got = 0;
    bool connected = false;
    fc::event room[16];
    fc::message kept;
    while (done < 64 || got < 64) {
        for (fc::event &event : sender.poll(room).value()) {
            if (event.is(fc::event_kind::connected)) {
                CHECK(event.peer() == address);
                connected = true;
            }
            CHECK(!event.is(fc::event_kind::failed) && !event.is(fc::event_kind::disconnected));
            if (event.is(fc::event_kind::completed))
                done++;
        }
        while (connected && sent < 64) {
            const std::uint8_t *at = memory + sent * 1024;
            const fc::piece pieces[] = {{at, 512}, {at + 512, 512}};
            const fc::status status =
                sent % 2 ? sender.send({at, 1024}, fc::bytes_of(sent), sent)
                         : sender.send(fc::span<const fc::piece>(pieces), fc::bytes_of(sent), sent);
            if (status.again())
                break;
            CHECK(status);
            sent++;
        }
        for (fc::event &event : receiver.poll(room).value()) {
            if (!event.is(fc::event_kind::message))
                continue;
            CHECK(event.header_bytes().size() == 8 && event.payload_bytes().size() == 1024);
            CHECK(std::memcmp(event.data, memory + got * 1024, 1024) == 0);
            if (got++ == 3)
                kept = receiver.keep(event).value();
        }
    }
    CHECK(std::memcmp(kept.data().data(), memory + 3 * 1024, 1024) == 0);
    CHECK(sender.begin_close(60000));
    for (bool over = false; !over;) {
        (void)receiver.poll(room).value();
        for (fc::event &event : sender.poll(room).value())
            over |= event.is(fc::event_kind::disconnected) && event.status == FCAST_OK;
    }
    CHECK(sender.send({memory, 1}, {}, 0) == FCAST_CLOSED);
}

int main()
{
    CHECK(fc::version() == FCAST_VERSION);
    spans();
    moves();
    errors();
    const fc::domain domain = open_domain();
    pools(domain);
    talk(domain);
    std::printf("raii: ok\n");
}
