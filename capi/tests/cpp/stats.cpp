// Counters after a number of messages that is known, as structs and as text, and the log.
#include "check.hpp"

#include <fabricast_endpoints.hpp>
#include <fabricast_stats.hpp>

#include <algorithm>
#include <mutex>

#include <unistd.h>

namespace fc = fabricast;

namespace {
constexpr std::uint64_t messages = 50;
constexpr std::size_t bytes_each = 100;

/// A sender and a receiver on this machine, connected.
struct pair {
    pair()
    {
        fc::event room[8];
        for (bool connected = false; !connected;) {
            (void)receiver.poll(room).value();
            for (const fc::event &of : sender.poll(room).value())
                connected |= of.is(fc::event_kind::connected);
        }
    }
    static fc::settings with(const fc::region &region)
    {
        fc::settings of;
        of.region = region.raw();
        return of;
    }
    fc::domain domain = open_domain();
    fc::region region = fc::region::allocate(4096).value();
    fc::receiver receiver = fc::receiver::open(domain, any_port()).value();
    fc::sender sender =
        fc::sender::open(domain, receiver.address().value().c_str(), with(region)).value();
};
} // namespace

/// All that was sent is counted once on each side.
static void known_number()
{
    const pair both;
    const std::uint64_t header = 7;
    std::uint64_t sent = 0, completed = 0, received = 0;
    fc::event room[8];
    while (completed < messages || received < messages) {
        const fc::bytes data = both.region.memory().first(bytes_each);
        while (sent < messages && both.sender.send(data, fc::bytes_of(header), sent))
            sent++;
        for (const fc::event &of : both.sender.poll(room).value())
            completed += of.is(fc::event_kind::completed);
        for (const fc::event &of : both.receiver.poll(room).value())
            received += of.is(fc::event_kind::message);
    }
    const auto out = fc::send_stats_of(both.sender).value();
    CHECK(out.posted == messages && out.completed == messages);
    CHECK(out.failed == 0 && out.in_flight == 0 && out.in_flight_max > 0);
    // With what the library puts in front.
    CHECK(out.bytes >= messages * (bytes_each + sizeof header));
    const auto in = fc::receive_stats_of(both.receiver).value();
    CHECK(in.messages == messages && in.connections == 1 && in.closed == 0);
    CHECK(in.bytes == out.bytes);
    CHECK(fc::send_stats_of(both.receiver).code() == FCAST_UNSUPPORTED);
    CHECK(fc::receive_stats_of(both.sender).code() == FCAST_UNSUPPORTED);

    const std::string id = std::to_string(both.sender.raw().id);
    const std::string line = "fabricast_send_completed{endpoint=\"" + id + "\"} 50\n";
    CHECK(fc::stats_text_of(both.sender).value().find(line) != std::string::npos);
    CHECK(fc::stats_text_of(fc::endpoint()).code() == FCAST_STALE);
}

static void other_kinds()
{
    const fc::domain domain = open_domain();
    const fc::region region = fc::region::allocate(4096).value();
    const auto publisher = fc::publisher::open(domain, any_port(), pair::with(region)).value();
    const auto subscriber = fc::subscriber::open(domain).value();
    CHECK(publisher.publish(7, region.memory().first(8), {}, 1) == FCAST_NOT_FOUND);
    CHECK(fc::publish_stats_of(publisher).value().without_subscribers == 1);
    CHECK(fc::publish_stats_of(subscriber).code() == FCAST_UNSUPPORTED);
    CHECK(fc::subscribe_stats_of(subscriber).value().received == 0);
    const auto receiver = fc::receiver::open(domain, any_port()).value();
    const std::string address = receiver.address().value();
    const auto buffered = fc::buffered_sender::open(domain, address.c_str()).value();
    const auto counted = fc::buffered_stats_of(buffered).value();
    CHECK(counted.accepted == counted.confirmed + counted.failed + counted.pending);
    CHECK(fc::send_stats_of(buffered).value().posted == 0);
}

static void loops_files_process()
{
    const fc::event_loop loop = fc::event_loop::create().value();
    CHECK(loop.run_once(0) && loop.run_once(0));
    CHECK(fc::stats_of(loop).value().rounds == 2);

    const char *temporary = std::getenv("TMPDIR");
    std::string path = std::string(temporary ? temporary : "/tmp") + "/fabricast-XXXXXX";
    const int fd = ::mkstemp(&path[0]);
    CHECK(fd >= 0);
    ::unlink(path.c_str());
    const fc::file file = fc::file::from_fd(fd).value();
    ::close(fd);
    std::uint8_t data[1000] = {};
    CHECK(file.write(data, 0).value().bytes == sizeof data);
    CHECK(file.read(fc::mutable_bytes(data).first(400), 0).value().bytes == 400);
    const auto counted = fc::stats_of(file).value();
    CHECK(counted.write.operations == 1 && counted.write.bytes == sizeof data);
    CHECK(counted.read.operations == 1 && counted.read.bytes == 400 && counted.read.errors == 0);

    CHECK(fc::process_stats().value().leaked == 0);
    const std::string text = fc::process_stats_text().value();
    CHECK(text.find("fabricast_process_leaked 0\n") != std::string::npos);
    CHECK(text.find("fabricast_file_write_bytes 1000\n") != std::string::npos);
    const std::string metrics = fc::metrics_text().value();
    const std::string end = "# EOF\n";
    CHECK(metrics.size() > end.size() && metrics.substr(metrics.size() - end.size()) == end);
    CHECK(metrics.find("fabricast_file_operations_total{kind=\"file\",name=\"") != std::string::npos);
}

/// Lines come while the hook lives, and up to its level.
static void log()
{
    std::mutex mutex;
    std::size_t count = 0, refused = 0;
    fc::log_level worst = fc::log_level::trace;
    const auto take = [&](const fc::log_line &line) {
        CHECK(!line.target.empty() && !line.words.empty());
        const fcast_status inside = fcast_region_release({});
        std::lock_guard<std::mutex> lock(mutex);
        if (count++ == 0)
            std::printf("such as %.*s: %.*s\n", static_cast<int>(line.target.size()),
                        line.target.data(), static_cast<int>(line.words.size()),
                        line.words.data());
        refused += inside == FCAST_BUSY;
        worst = std::min(worst, line.level);
    };
    const auto bad = fc::log_hook::set(static_cast<fc::log_level>(6), take);
    CHECK(bad.code() == FCAST_INVALID);
    CHECK(fc::log_hook::set(fc::log_level::trace, nullptr).code() == FCAST_INVALID);
    {
        fc::log_hook hook = fc::log_hook::set(fc::log_level::trace, take).value();
        CHECK(fc::log_hook::set(fc::log_level::trace, take).code() == FCAST_BUSY);
        pair();
        CHECK(count > 0 && refused == count);
        std::printf("%zu lines\n", count);
        hook.set_level(fc::log_level::error).value();
        const std::size_t before = count;
        worst = fc::log_level::trace;
        pair();
        CHECK(count == before || worst == fc::log_level::error);
        hook.set_level(fc::log_level::trace).value();
        fc::log_hook moved = std::move(hook);
        CHECK(!hook && moved && hook.set_level(fc::log_level::info).code() == FCAST_STALE);
        pair();
        CHECK(count > before);
    }
    const std::size_t before = count;
    pair();
    CHECK(count == before);
    // Its place is free again.
    CHECK(fc::log_hook::set(fc::log_level::warn, take));
}

/// A hook that ends itself stays, and the program goes on.
static void log_that_ends_itself()
{
    static std::size_t count = 0;
    static fc::log_hook hook;
    hook = fc::log_hook::set(fc::log_level::trace, [held = std::make_shared<int>(7)](const auto &) {
               hook.reset();
               CHECK(*held == 7);
               count++;
           }).value();
    const pair both;
    CHECK(count > 0 && !hook);
    CHECK(fc::log_hook::set(fc::log_level::trace, [](const auto &) {}).code() == FCAST_BUSY);
}

int main()
{
    known_number();
    other_kinds();
    loops_files_process();
    log();
    log_that_ends_itself();
    std::printf("stats: ok\n");
}
