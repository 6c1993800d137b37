// Endpoints of several peers in C++, and what they send from and write into: connectionless ones,
// publishers and subscribers, rings, windows, messages by the batch. All bytes are compared.
#include "check.hpp"

#include <fabricast_endpoints.hpp>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <vector>

namespace fc = fabricast;
using kind = fc::event_kind;

static constexpr std::uint32_t minute = 60000;
static const char *const any = any_port();

/// Polls an endpoint once, and tells of each event.
template <class On> static std::size_t poll_once(const fc::endpoint &at, On &&on)
{
    fc::event room[16];
    const auto events = at.poll(room).value();
    for (const fc::event &event : events) {
        CHECK(!event.is(kind::failed) && !event.is(kind::write_failed));
        CHECK(!event.is(kind::read_failed));
        on(event);
    }
    return events.size();
}

/// Polls two endpoints until something is so, for at most a minute.
template <class OnA, class OnB, class Until>
static void drive(const fc::endpoint &a, OnA on_a, const fc::endpoint &b, OnB on_b, Until until)
{
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!until()) {
        CHECK(std::chrono::steady_clock::now() < deadline);
        if (poll_once(a, on_a) + poll_once(b, on_b) == 0)
            CHECK(b.wait(1));
    }
}

static void ignore(const fc::event &) {}

/// A region whose bytes are all of a sequence.
static fc::region filled(std::size_t len, unsigned factor)
{
    fc::region region = fc::region::allocate(len).value();
    for (std::size_t i = 0; i < len; i++)
        region.memory()[i] = static_cast<std::uint8_t>(i / 256 + i * factor);
    return region;
}

static fc::settings from(const fc::region &region)
{
    fc::settings of;
    of.region = region.raw();
    return of;
}

static bool same(fc::bytes one, fc::bytes other)
{
    return one.size() == other.size() && std::equal(one.begin(), one.end(), other.begin());
}

template <class T> static T header_of(const fc::event &event)
{
    T value{};
    CHECK(event.header_len == sizeof value);
    std::memcpy(&value, event.header, sizeof value);
    return value;
}

/// A payload of a pool, of so many bytes that are all this one. The pool's region is registered.
static fc::payload payload_of(const fc::pool &pool, std::size_t len, std::uint8_t byte)
{
    fc::buffer buffer = pool.acquire().value();
    std::memset(buffer.data(), byte, len);
    return std::move(buffer).freeze(len).value();
}

// ---- connectionless -----------------------------------------------------------------------------

/// A domain of reliable datagrams, which libfabric 1.x has by the provider net, and 2.x by tcp.
static fc::result<fc::domain> open_datagrams()
{
    fc::fabric_settings settings;
    settings.kind = FCAST_KIND_RDM;
    settings.node = test_node();
    for (const char *provider : {test_provider(), "net"}) {
        settings.provider = provider;
        if (auto fabric = fc::fabric::open(settings))
            return fabric->open_domain();
    }
    return fc::failure::last(FCAST_UNSUPPORTED);
}

/// One of two connectionless endpoints, and what came to it.
struct side {
    fc::region memory;
    fc::connectionless endpoint;
    std::string address;
    std::uint64_t peer = 0;
    unsigned sent = 0, completed = 0, got = 0, removed = 0;

    side(const fc::domain &domain, unsigned factor) : memory(filled(100 * 512, factor))
    {
        fc::settings settings = from(memory);
        settings.max_peers = 4;
        endpoint = fc::connectionless::open(domain, any, settings).value();
        address = endpoint.address().value();
    }
    fc::bytes piece(unsigned number) const { return memory.memory().subspan(number * 512, 512); }
};

static auto hears(side &to, const side &other)
{
    return [&to, &other](const fc::event &event) {
        if (event.is(kind::connected))
            to.peer = event.connection;
        if (event.is(kind::completed))
            CHECK(event.connection == to.peer && event.key == to.completed++);
        to.removed += event.is(kind::peer_removed);
        if (!event.is(kind::message))
            return;
        CHECK(event.connection == to.peer && header_of<unsigned>(event) == to.got);
        CHECK(same(event.payload_bytes(), other.piece(to.got)));
        to.got++;
    };
}

static void send_all(side &by)
{
    for (; by.sent < 100; by.sent++) {
        const fc::status sent =
            by.endpoint.send(by.peer, by.piece(by.sent), fc::bytes_of(by.sent), by.sent);
        if (sent.again())
            break;
        CHECK(sent);
    }
    CHECK(by.endpoint.flush());
}

static void datagrams(const fc::domain &connected)
{
    CHECK(fc::connectionless::open(connected, any).code() == FCAST_UNSUPPORTED);
    const auto domain = open_datagrams();
    if (!domain) {
        std::printf("SKIPPED: connectionless endpoints: %s\n", domain.error().words.c_str());
        return;
    }
    side one(*domain.operator->(), 3), two(*domain.operator->(), 5);
    CHECK(one.endpoint.find(two.address.c_str()).code() == FCAST_NOT_FOUND);
    CHECK(one.endpoint.add("nowhere").code() == FCAST_INVALID);
    CHECK(one.endpoint.send(99, one.piece(0), {}, 0) == FCAST_NOT_FOUND);
    CHECK(one.endpoint.send_to(two.address.c_str(), one.piece(0), {}, 0).again());
    drive(one.endpoint, hears(one, two), two.endpoint, hears(two, one),
          [&] { return one.peer && two.peer; });
    CHECK(one.endpoint.find(two.address.c_str()).value() == one.peer);
    CHECK(one.endpoint.add(two.address.c_str()).value() == one.peer);
    const fc::peer_info info = one.endpoint.info(one.peer).value();
    CHECK(info.is_up && info.address == two.address && one.endpoint.connected() == 1);
    CHECK(one.endpoint.info(99).code() == FCAST_NOT_FOUND);

    drive(one.endpoint, hears(one, two), two.endpoint, hears(two, one), [&] {
        send_all(one);
        send_all(two);
        return one.completed == 100 && two.completed == 100 && one.got == 100 && two.got == 100;
    });
    CHECK(one.endpoint.pending().value().empty());

    // By address and as a payload, from where it lies in a pool.
    const fc::region slots = fc::region::allocate(8192).value();
    slots.enroll(*domain.operator->()).value();
    const fc::pool pool = fc::pool::create(slots, 4096).value();
    fc::payload payload = payload_of(pool, 700, 0x5a);
    CHECK(one.endpoint.send(99, payload, {}, 0) == FCAST_NOT_FOUND && payload);
    CHECK(one.endpoint.send(one.peer, payload, {}, 100) && !payload);
    CHECK(one.endpoint.send_to(two.address.c_str(), one.piece(7), {}, 101));
    CHECK(one.endpoint.pending().value().size() == 2);
    unsigned came = 0;
    drive(
        one.endpoint, hears(one, two), two.endpoint,
        [&](const fc::event &event) {
            if (!event.is(kind::message))
                return;
            const std::vector<std::uint8_t> all(700, 0x5a);
            CHECK(same(event.payload_bytes(), came == 0 ? fc::bytes(all) : one.piece(7)));
            came++;
        },
        [&] { return came == 2 && one.completed == 102; });

    CHECK(one.endpoint.remove(one.peer, minute));
    CHECK(one.endpoint.send(one.peer, one.piece(0), {}, 0) == FCAST_CLOSED);
    drive(one.endpoint, hears(one, two), two.endpoint, hears(two, one),
          [&] { return one.removed == 1 && two.removed == 1; });
    CHECK(one.endpoint.remove(one.peer, 0) == FCAST_NOT_FOUND);
    one.endpoint.close(minute).value();
    two.endpoint.close(minute).value();
}

// ---- publish and subscribe ----------------------------------------------------------------------

/// What a publisher and its subscriber have been told.
struct told {
    std::uint64_t request = 0, subscriber = 0, publisher = 0;
    unsigned subscribed = 0, granted = 0, unsubscribed = 0, published = 0, got = 0, ended = 0;
    fc::message kept;
};

static auto on_publisher(told &of)
{
    return [&of](const fc::event &event) {
        if (event.is(kind::request))
            of.request = event.connection;
        if (event.is(kind::connected))
            of.subscriber = event.connection;
        of.subscribed += event.is(kind::subscribed);
        of.unsubscribed += event.is(kind::unsubscribed);
        if (event.is(kind::published)) {
            CHECK(event.key == of.published && event.value == 1 && event.dropped == 0);
            of.published++;
        }
        of.ended += event.is(kind::disconnected);
    };
}

static auto on_subscriber(told &of, const fc::subscriber &at, const fc::region &memory)
{
    return [&of, &at, &memory](const fc::event &event) {
        of.granted += event.is(kind::subscribed);
        of.ended += event.is(kind::disconnected);
        if (!event.is(kind::publication))
            return;
        CHECK(event.connection == of.publisher && event.key == 7 + of.got / 100);
        CHECK(event.value == 0 && header_of<unsigned>(event) == of.got);
        const unsigned piece = of.got == 100 ? 5 : of.got;
        CHECK(same(event.payload_bytes(), memory.memory().subspan(piece * 256, 256)));
        if (of.got == 5)
            of.kept = at.keep(event).value();
        of.got++;
    };
}

static void publications(const fc::domain &domain)
{
    const fc::region memory = filled(100 * 256, 3);
    fc::settings settings = from(memory);
    settings.ask = 1;
    settings.slow = FCAST_SLOW_WAIT;
    settings.slow_queue = 100;
    settings.slow_ms = minute;
    const fc::publisher publisher = fc::publisher::open(domain, any, settings).value();
    const std::string address = publisher.address().value();
    const fc::subscriber subscriber = fc::subscriber::open(domain).value();
    told of;
    of.publisher = subscriber.connect(address.c_str()).value();
    CHECK(subscriber.subscribe(of.publisher, 7));
    CHECK(subscriber.subscribe(of.publisher, 7) == FCAST_INVALID);
    CHECK(subscriber.subscribe(4711, 7) == FCAST_NOT_FOUND);
    const auto hears = on_publisher(of);
    const auto gets = on_subscriber(of, subscriber, memory);
    drive(publisher, hears, subscriber, gets, [&] { return of.request; });
    CHECK(publisher.accept(of.request) && publisher.accept(of.request) == FCAST_NOT_FOUND);
    CHECK(publisher.publish(7, memory.memory(), {}, 0) == FCAST_NOT_FOUND);
    drive(publisher, hears, subscriber, gets, [&] { return of.subscribed && of.granted; });
    CHECK(publisher.subscribers(7) == 1 && publisher.subscribers(8) == 0);
    CHECK(publisher.set_slow(of.subscriber, FCAST_SLOW_DISCONNECT, 1000, minute));
    CHECK(publisher.set_slow(of.subscriber, 9) == FCAST_INVALID);
    CHECK(publisher.set_slow(1, FCAST_SLOW_DROP) == FCAST_NOT_FOUND);

    unsigned sent = 0;
    drive(publisher, hears, subscriber, gets, [&] {
        for (; sent < 100; sent++) {
            fcast_publication now{};
            const fc::status published = publisher.publish(
                7, memory.memory().subspan(sent * 256, 256), fc::bytes_of(sent), sent, {}, &now);
            if (published.again())
                break;
            CHECK(published && now.posted + now.waiting == 1 && now.dropped == 0);
        }
        return of.published == 100 && of.got == 100;
    });

    // What was kept is published on under another tag, from where it came.
    const fc::region came = subscriber.buffers().value().lies_in().value();
    came.enroll(domain).value();
    CHECK(publisher.buffers().code() == FCAST_UNSUPPORTED);
    CHECK(same(of.kept.data(), memory.memory().subspan(5 * 256, 256)));
    fc::payload again = std::move(of.kept).forward().value();
    CHECK(!of.kept && of.kept.data().empty() && again.size() == 256);
    CHECK(publisher.publish(8, again, {}, 0) == FCAST_NOT_FOUND && again);
    CHECK(subscriber.subscribe(of.publisher, 8));
    drive(publisher, hears, subscriber, gets, [&] { return of.subscribed == 2; });
    CHECK(publisher.publish(8, again, fc::bytes_of(sent), sent) && !again);
    drive(publisher, hears, subscriber, gets, [&] { return of.got == 101 && of.published == 101; });

    CHECK(subscriber.unsubscribe(of.publisher, 7));
    CHECK(subscriber.unsubscribe(of.publisher, 9) == FCAST_NOT_FOUND);
    drive(publisher, hears, subscriber, gets, [&] { return of.unsubscribed == 1; });
    CHECK(publisher.publish(7, memory.memory(), {}, 0) == FCAST_NOT_FOUND);
    CHECK(publisher.close_connection(of.subscriber, minute));
    drive(publisher, hears, subscriber, gets, [&] { return of.ended == 2; });
    CHECK(publisher.close_connection(of.subscriber, 0) == FCAST_NOT_FOUND);
}

// A subscriber that is refused is told the numbers.
static void refusals(const fc::domain &domain)
{
    fc::settings settings;
    settings.ask = 1;
    const fc::publisher publisher = fc::publisher::open(domain, any, settings).value();
    const std::string address = publisher.address().value();
    const fc::subscriber subscriber = fc::subscriber::open(domain).value();
    (void)subscriber.connect(address.c_str()).value();
    bool ended = false;
    drive(
        publisher,
        [&](const fc::event &event) {
            if (event.is(kind::request))
                CHECK(publisher.refuse(event.connection, 4711, 12));
        },
        subscriber,
        [&](const fc::event &event) {
            if (!event.is(kind::disconnected))
                return;
            CHECK(event.status == FCAST_REFUSED);
            CHECK(event.words().find("4711") != std::string_view::npos);
            ended = true;
        },
        [&] { return ended; });
    CHECK(subscriber.accept(1) == FCAST_UNSUPPORTED);
}

// ---- one sender, one receiver -------------------------------------------------------------------

/// A connection that stands.
struct pair {
    fc::receiver receiver;
    fc::sender sender;
    /// As the receiver has it.
    std::uint64_t connection = 0;

    pair(const fc::domain &domain, const fc::settings &receiving, const fc::settings &sending)
        : receiver(fc::receiver::open(domain, any, receiving).value())
    {
        const std::string address = receiver.address().value();
        sender = fc::sender::open(domain, address.c_str(), sending).value();
        drive(
            receiver,
            [this](const fc::event &event) {
                if (event.is(kind::connected))
                    connection = event.connection;
            },
            sender, ignore, [this] { return connection && sender.connected() == 1; });
        CHECK(receiver.connected() == 1);
    }
};

static std::uint8_t byte_of(unsigned number, std::size_t at)
{
    return static_cast<std::uint8_t>(number * 5 + at);
}

/// Fills the parts of a reservation, one behind the other; whether there are two.
static bool fill(const fc::reservation &place, unsigned number)
{
    std::size_t at = 0;
    for (const fc::mutable_bytes &part : {place.first(), place.second()})
        for (std::uint8_t &byte : part)
            byte = byte_of(number, at++);
    CHECK(at == 350);
    return !place.second().empty();
}

// Messages out of a ring go over its end, in two parts.
static void rings(const fc::domain &domain)
{
    const fc::region card = fc::region::allocate(4096).value();
    card.enroll(domain).value();
    const fc::ring ring = fc::ring::create(card).value();
    const pair on(domain, {}, {});
    {
        const fc::reservation all = ring.reserve(4096).value();
        CHECK(all.first().data() == card.memory().data() && all.second().empty());
        CHECK(ring.state().free == 0 && ring.state().outstanding == 1);
        CHECK(ring.reserve(1).code().again());
    }
    CHECK(ring.reserve(4097).code() == FCAST_TOO_LONG);
    CHECK(ring.commit(ring.reserve(10).value(), 11).code() == FCAST_INVALID);
    CHECK(ring.state().free == 4096);

    unsigned sent = 0, done = 0, got = 0, in_two = 0;
    fc::payload next;
    const auto send_more = [&] {
        for (; sent < 200; sent++) {
            if (!next) {
                auto place = ring.reserve(350);
                if (place.code().again())
                    return;
                in_two += fill(place.value(), sent);
                next = ring.commit(*std::move(place), 300).value();
            }
            const fc::status taken = on.sender.send(next, fc::bytes_of(sent), sent);
            if (taken.again())
                return;
            CHECK(taken && !next);
        }
    };
    drive(
        on.sender, [&](const fc::event &event) { done += event.is(kind::completed); }, on.receiver,
        [&](const fc::event &event) {
            if (!event.is(kind::message))
                return;
            CHECK(header_of<unsigned>(event) == got && event.data_len == 300);
            for (std::size_t at = 0; at < 300; at++)
                CHECK(event.payload_bytes()[at] == byte_of(got, at));
            got++;
        },
        [&] {
            send_more();
            return done == 200 && got == 200;
        });
    const fc::ring_status now = ring.state();
    CHECK(in_two > 0 && now.head == now.tail && now.free == 4096 && now.outstanding == 0);
}

/// A window of the receiver's, as the sender knows it.
static fc::remote_window opened(const pair &on, const fc::window &window)
{
    const fc::window::descriptor descriptor = window.describe().value();
    CHECK(fc::remote_window::open(on.sender, 0, fc::bytes(descriptor).first(10)).code() ==
          FCAST_INVALID);
    return fc::remote_window::open(on.sender, 0, descriptor).value();
}

// The memory behind a window holds what was written, and nothing else.
static void check_written(const fc::region &owned, std::size_t from, fc::bytes what)
{
    const fc::mutable_bytes all = owned.memory();
    CHECK(same(all.subspan(from, what.size()), what));
    CHECK(from == 0 || all[from - 1] == 0);
    CHECK(all[from + what.size()] == 0);
}

/// What has been told of the windows of a pair.
struct window_events {
    unsigned written = 0, reads = 0, released = 0;
    std::uint64_t wrote_to = 0, wrote = 0, released_id = 0;
};

template <class Until> static void drive_windows(const pair &on, window_events &of, Until until)
{
    drive(
        on.receiver,
        [&](const fc::event &event) {
            if (event.is(kind::peer_wrote)) {
                of.wrote_to = event.key;
                of.wrote = event.value;
            }
            if (event.is(kind::window_released)) {
                of.released_id = event.key;
                of.released++;
            }
        },
        on.sender,
        [&](const fc::event &event) {
            if (event.is(kind::written))
                CHECK(event.key == 10 + of.written++);
            if (event.is(kind::read))
                CHECK(event.key == 20 + of.reads++);
        },
        until);
}

/// The receiver exposes `owned` and `shown` to the sender, which writes out of `mine`.
struct window_pair {
    fc::region owned = fc::region::allocate(4096).value(), shown = filled(4096, 3);
    fc::region mine = filled(4096, 7);
    pair on;

    explicit window_pair(const fc::domain &domain) : on(domain, receiving(), from(mine))
    {
        std::memset(owned.memory().data(), 0, 4096);
    }
    static fc::settings receiving()
    {
        fc::settings of;
        of.windows = 8;
        of.max_connections = 4;
        return of;
    }
    fc::result<fc::window> expose(std::uint64_t connection, const fc::region &of,
                                  std::uint32_t access) const
    {
        return fc::window::expose(on.receiver, connection, of.memory(), access, of.raw());
    }
};

static void window_writes(const fc::domain &domain, const window_pair &of,
                          const fc::remote_window &remote, std::uint64_t id, window_events &events)
{
    const fc::sender &sender = of.on.sender;
    const fc::bytes source = of.mine.memory();
    CHECK(remote.write(sender, 4090, source.first(7), 0) == FCAST_INVALID);
    CHECK(remote.write(sender, 100, source.first(1000), 10));
    drive_windows(of.on, events, [&] { return events.written == 1; });
    check_written(of.owned, 100, source.first(1000));
    CHECK(remote.write_unconfirmed(sender, 1500, source.subspan(50, 60), 11));
    drive_windows(of.on, events, [&] { return events.written == 2; });

    const fc::region slots = fc::region::allocate(8192).value();
    slots.enroll(domain).value();
    const fc::pool pool = fc::pool::create(slots, 4096).value();
    fc::payload payload = payload_of(pool, 256, 0xaa);
    CHECK(remote.write(sender, 4000, payload, 0) == FCAST_INVALID && payload);
    CHECK(remote.write(sender, 3000, payload, 12) && !payload);
    drive_windows(of.on, events, [&] { return events.written == 3; });
    check_written(of.owned, 3000, std::vector<std::uint8_t>(256, 0xaa));
    // Behind one that was confirmed, on the same connection.
    check_written(of.owned, 1500, source.subspan(50, 60));

    const fc::status told = remote.write_and_tell(sender, 2000, source.first(64), 0xfeed, 13);
    if (!told) {
        CHECK(told == FCAST_UNSUPPORTED);
        return;
    }
    drive_windows(of.on, events, [&] { return events.written == 4 && events.wrote == 0xfeed; });
    CHECK(events.wrote_to == id);
    check_written(of.owned, 2000, source.first(64));
}

static void windows(const fc::domain &domain)
{
    const window_pair of(domain);
    const pair &on = of.on;
    const std::uint32_t both = FCAST_ACCESS_READ | FCAST_ACCESS_WRITE;
    CHECK(of.expose(on.connection + 1, of.owned, both).code() == FCAST_CLOSED);
    CHECK(of.expose(on.connection, of.owned, 0).code() == FCAST_INVALID);
    fc::window window = of.expose(on.connection, of.owned, both).value();
    const fc::window readable = of.expose(on.connection, of.shown, FCAST_ACCESS_READ).value();
    const fc::remote_window remote = opened(on, window), only_read = opened(on, readable);
    const fc::remote_window_info info = remote.info();
    const std::uint64_t id = window.id();
    CHECK(info.id == id && info.len == 4096 && info.access == both);
    CHECK(only_read.info().access == FCAST_ACCESS_READ && readable.id() != id);
    const fc::bytes source = of.mine.memory();
    CHECK(only_read.write(on.sender, 0, source.first(7), 0) == FCAST_INVALID);

    window_events events;
    window_writes(domain, of, remote, id, events);
    const fc::mutable_bytes into = of.mine.memory().subspan(2048, 500);
    CHECK(only_read.read(on.sender, 10, into, 20));
    drive_windows(on, events, [&] { return events.reads == 1; });
    CHECK(same(into, of.shown.memory().subspan(10, 500)));
    CHECK(remote.read(on.sender, 100, into, 21));
    drive_windows(on, events, [&] { return events.reads == 2; });
    CHECK(same(into, source.first(500)));

    CHECK(window.revoke(on.sender, minute) == FCAST_INVALID && window);
    CHECK(window.revoke(on.receiver, minute) && !window);
    CHECK(window.revoke(on.receiver, minute) == FCAST_STALE);
    drive_windows(on, events, [&] { return events.released == 1; });
    CHECK(events.released_id == id && window.id() == 0);
    CHECK(remote.write(on.sender, 0, source.first(1), 0) == FCAST_CLOSED);
    CHECK(remote.read(on.sender, 0, into, 0) == FCAST_CLOSED);
}

// Sent by the batch, and received by the batch, without events.
static void batches(const fc::domain &domain)
{
    const fc::region memory = filled(64 * 100, 11);
    const pair on(domain, {}, from(memory));
    std::vector<unsigned> numbers(64);
    std::iota(numbers.begin(), numbers.end(), 0);
    std::vector<fc::outgoing> messages;
    for (unsigned i = 0; i < 64; i++)
        messages.emplace_back(memory.memory().subspan(i * 100, 100), fc::bytes_of(numbers[i]), i);
    const fc::span<const fc::outgoing> all = messages;
    std::size_t sent = 0, got = 0, done = 0, taken = 0;
    const auto receive = [&] {
        fc::received room[16];
        for (const fc::received &message : on.receiver.receive(room).value()) {
            CHECK(message.connection == on.connection && message.sequence == got + 1);
            CHECK(same(message.header_bytes(), fc::bytes_of(numbers[got])));
            CHECK(same(message.payload_bytes(), memory.memory().subspan(got * 100, 100)));
            got++;
        }
    };
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (done < 64 || got < 64) {
        CHECK(std::chrono::steady_clock::now() < deadline);
        if (sent < 64) {
            const fc::status status = on.sender.send(all.subspan(sent), taken);
            CHECK(status ? taken > 0 : status.again() && taken == 0);
            sent += taken;
        }
        poll_once(on.sender, [&](const fc::event &event) { done += event.is(kind::completed); });
        receive();
    }
    const std::uint8_t outside = 0;
    const fc::outgoing wrong[] = {{{&outside, 1}, {}, 1}};
    CHECK(on.sender.send(wrong, taken) == FCAST_NOT_FOUND && taken == 0);
    fc::received room[1];
    bool has_events = true;
    CHECK(on.receiver.receive(room, &has_events).value().empty() && !has_events);
    CHECK(on.receiver.close_connection(on.connection, minute));
    bool ended = false;
    drive(
        on.sender, [&](const fc::event &event) { ended |= event.is(kind::disconnected); },
        on.receiver, ignore, [&] { return ended; });
}

// Small messages in pieces and by the batch.
static void small_batches(const fc::domain &domain)
{
    const fc::receiver receiver = fc::receiver::open(domain, any).value();
    const std::string address = receiver.address().value();
    const fc::buffered_sender sender = fc::buffered_sender::open(domain, address.c_str()).value();
    const auto until = [&](auto &&so) { drive(sender, ignore, receiver, ignore, so); };
    until([&] { return sender.connected() == 1; });
    const std::uint8_t word[] = {1, 2, 3, 4, 5, 6};
    const fcast_bytes pieces[] = {{word, 2}, {word + 3, 3}};
    std::uint64_t number = 9;
    CHECK(sender.push_pieces(4, pieces, 7, &number) && number == 0);
    fcast_small_message some[3]{};
    for (std::size_t i = 0; i < 3; i++) {
        some[i].tag = 4;
        some[i].data = word + i;
        some[i].len = i + 1;
    }
    std::size_t pushed = 0;
    CHECK(sender.push(some, pushed) && pushed == 3);
    CHECK(sender.flush());
    bool came = false;
    const auto look = [&](const fc::event &event) {
        if (!event.is(kind::message))
            return;
        fc::small_messages all(event.payload_bytes());
        fc::small_message room[8];
        const auto found = all.next(room).value();
        const std::uint8_t joined[] = {1, 2, 4, 5, 6};
        CHECK(found.size() == 4 && found[0].status == 7 && same(found[0].data_bytes(), joined));
        for (std::size_t i = 0; i < 3; i++)
            CHECK(found[i + 1].tag == 4 && same(found[i + 1].data_bytes(), {word + i, i + 1}));
        came = true;
    };
    drive(sender, ignore, receiver, look, [&] { return came; });
}

int main()
{
    const fc::domain domain = open_domain();
    datagrams(domain);
    publications(domain);
    refusals(domain);
    rings(domain);
    windows(domain);
    batches(domain);
    small_batches(domain);
    std::printf("peers: ok\n");
}
