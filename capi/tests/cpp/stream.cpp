// Streams in C++: files, bytes and a buffer, from one directory into another; peers that are not
// there, and streams that are cut.
#include "check.hpp"

#include <fabricast_stream.hpp>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

namespace fc = fabricast;
namespace fs = std::filesystem;

using content = std::vector<std::uint8_t>;

static constexpr std::uint32_t minute = 60000;
static const char secret[] = "sixteen bytes, and more";

static content some_bytes(std::size_t len, unsigned seed)
{
    content all(len);
    for (std::size_t i = 0; i < len; i++)
        all[i] = static_cast<std::uint8_t>((i + seed) % 253);
    return all;
}

static void write_file(const fs::path &path, const content &all)
{
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char *>(all.data()), std::streamsize(all.size()));
    file.close();
    CHECK(file.good());
}

static content read_file(const fs::path &path)
{
    std::ifstream file(path, std::ios::binary);
    CHECK(file.good());
    return {std::istreambuf_iterator<char>(file), {}};
}

/// A folder of the test's own, which goes with it.
struct folder {
    fs::path path;
    folder()
    {
        std::string name = (fs::temp_directory_path() / "fabricast-cpp-XXXXXX").string();
        CHECK(mkdtemp(&name[0]) != nullptr);
        path = name;
    }
    folder(const folder &) = delete;
    folder &operator=(const folder &) = delete;
    ~folder() { fs::remove_all(path); }
};

static fc::stream_settings with_secret()
{
    fc::stream_settings of;
    of.with_key({reinterpret_cast<const std::uint8_t *>(secret), sizeof secret});
    return of;
}

/// Both sides, over tcp on this machine.
struct sides {
    folder from, into;
    fc::domain domain = open_domain();
    fc::stream_receiver receiver = fc::stream_receiver::open(domain, any_port(),
                                                             into.path.c_str(), with_secret())
                                       .value();
    fc::stream_sender sender = fc::stream_sender::open(domain, with_secret()).value();
    std::string peer = receiver.address().value();
};

/// The next event of this kind; a stream that begins may come before.
static fc::stream_event next(const fc::stream_receiver &receiver, fc::stream_event_kind wanted)
{
    fc::stream_event room[1];
    for (;;) {
        const auto came = receiver.poll(room, minute).value();
        CHECK(came.size() == 1);
        if (came[0].is(wanted))
            return came[0];
        CHECK(came[0].what() == fc::stream_event_kind::began);
    }
}

// A file and a directory, while another thread takes the events.
static void files(sides &on)
{
    const content one = some_bytes((3 << 20) + 17, 1), two = some_bytes(1000, 2);
    write_file(on.from.path / "one.dat", one);
    fs::create_directory(on.from.path / "more");
    write_file(on.from.path / "more" / "two.dat", two);

    std::thread taker([&on] {
        const fc::stream_event event = next(on.receiver, fc::stream_event_kind::complete);
        CHECK(event.bytes == (3 << 20) + 17 + 1000 && event.entries == 3);
        CHECK(event.words().empty() && std::strstr(event.report, "\"bytes\"") != nullptr);
    });
    fc::stream_options options;
    options.flags = FCAST_STREAM_BLAKE3 | FCAST_STREAM_READ_BACK;
    const std::vector<std::string> paths{(on.from.path / "one.dat").string(),
                                         (on.from.path / "more").string()};
    const fc::stream_transfer transfer = on.sender.send_files(paths, on.peer, options).value();
    transfer.wait(minute).value();
    taker.join();
    CHECK(transfer.poll());

    const auto progress = transfer.progress().value();
    CHECK(progress.size() == 1 && progress[0].over == 1);
    CHECK(progress[0].written == one.size() + two.size());
    const fc::stream_outcome outcome = transfer.outcome().value();
    CHECK(outcome.code && outcome.words.empty());
    CHECK(outcome.report.bytes == one.size() + two.size() && outcome.report.blake3_compared == 1);
    CHECK(transfer.outcome(1).code() == FCAST_NOT_FOUND);
    CHECK(transfer.report_text().value().front() == '{');
    CHECK(transfer.report_text(1).code() == FCAST_NOT_FOUND);
    CHECK(read_file(on.into.path / "one.dat") == one);
    CHECK(read_file(on.into.path / "more" / "two.dat") == two);
}

// Bytes that are slow at first, and are given back once.
static void bytes(sides &on)
{
    content data = some_bytes(2 << 20, 3);
    std::atomic<int> given_back{0};
    const auto give_back = [&given_back] { given_back++; };
    CHECK(on.sender.send_bytes("../out", data, on.peer, {}, give_back).code() == FCAST_INVALID);
    CHECK(given_back == 1);
    fc::stream_options slowly;
    slowly.rate = 1;
    slowly.stamp[0] = 7;
    fc::stream_transfer transfer =
        on.sender.send_bytes("event", data, on.peer, slowly, give_back).value();
    CHECK(transfer.poll().again() && transfer.wait(1).code() == FCAST_TIMED_OUT);
    CHECK(transfer.outcome().code() == FCAST_AGAIN && transfer.report_text().code().again());
    CHECK(transfer.pause() && transfer.set_rate(0) && transfer.resume());
    transfer.wait(minute).value();
    const fc::stream_event event = next(on.receiver, fc::stream_event_kind::complete);
    CHECK(event.name == std::string("event") && event.bytes == data.size());
    CHECK(read_file(on.into.path / "event") == data);
    transfer.reset();
    CHECK(transfer.wait(0).code() == FCAST_STALE && transfer.progress().code() == FCAST_STALE);

    // A transfer goes on without its handle.
    CHECK(on.sender.send_bytes("alone", data, on.peer).value());
    (void)next(on.receiver, fc::stream_event_kind::complete);
    CHECK(read_file(on.into.path / "alone") == data);
    on.sender.close(minute).value();
    CHECK(given_back == 2);
    CHECK(!on.sender && on.sender.close(0).code() == FCAST_STALE);
    CHECK(on.sender.send_bytes("late", data, on.peer).code() == FCAST_STALE);
    on.sender = fc::stream_sender::open(on.domain, with_secret()).value();
}

static void payloads(sides &on)
{
    const fc::region region = fc::region::allocate(1 << 20).value();
    region.enroll(on.domain).value();
    const fc::pool pool = fc::pool::create(region, 1 << 19).value();
    fc::buffer buffer = pool.acquire().value();
    const content data = some_bytes(5000, 4);
    std::memcpy(buffer.data(), data.data(), data.size());
    fc::payload payload = std::move(buffer).freeze(data.size()).value();
    const fc::stream_transfer transfer =
        on.sender.send_payload("slot", std::move(payload), on.peer).value();
    transfer.wait(minute).value();
    CHECK(!payload);
    (void)next(on.receiver, fc::stream_event_kind::complete);
    CHECK(read_file(on.into.path / "slot") == data);
    CHECK(on.sender.send_payload("none", {}, on.peer).code() == FCAST_STALE);
}

// One peer of two is not there: the other one has all, and the words say which one has not.
static void nobody(sides &on)
{
    const content data = some_bytes(1000, 5);
    fc::stream_options once;
    once.reconnects = FCAST_OFF;
    const fc::stream_transfer transfer =
        on.sender.send_owned("half", data, {on.peer.c_str(), "127.0.0.1:1"}, once).value();
    const auto waited = transfer.wait(minute);
    CHECK(!waited && waited.code() != FCAST_TIMED_OUT);
    CHECK(waited.error().words.find("127.0.0.1:1") != std::string::npos);
    CHECK(transfer.outcome(0).value().code);
    const fc::stream_outcome lost = transfer.outcome(1).value();
    CHECK(lost.code == waited.code() && lost.words == waited.error().words);
    CHECK(lost.report.bytes == 0 && transfer.progress().value().size() == 2);
    (void)next(on.receiver, fc::stream_event_kind::complete);
    CHECK(read_file(on.into.path / "half") == data);
}

static void cut(sides &on)
{
    const content data = some_bytes(3 << 20, 6);
    fc::stream_options slowly;
    slowly.rate = 1;
    const fc::stream_transfer transfer = on.sender.send_bytes("cut", data, on.peer, slowly).value();
    const fc::stream_event began = next(on.receiver, fc::stream_event_kind::began);
    CHECK(began.bytes == data.size() && began.entries == 1);
    CHECK(transfer.cancel());
    CHECK(transfer.wait(minute).code() == FCAST_CLOSED);
    const fc::stream_event event = next(on.receiver, fc::stream_event_kind::cut);
    CHECK(event.status == FCAST_CLOSED && !event.words().empty());
    CHECK(event.session == began.session && !fs::exists(on.into.path / "cut"));

    // When a sender is gone, so is what it used.
    bool given_back = false;
    const fc::stream_transfer left =
        on.sender.send_bytes("left", data, on.peer, slowly, [&] { given_back = true; }).value();
    on.sender.reset();
    CHECK(given_back && left.wait(0).code() == FCAST_CLOSED);
}

static void refused(sides &on)
{
    const char *missing = "/no/such/file";
    CHECK(on.sender.send_files(missing, on.peer).code() == FCAST_NOT_FOUND);
    CHECK(on.sender.send_files(fc::texts({}), on.peer).code() == FCAST_INVALID);
    CHECK(on.sender.send_bytes("x", {}, "nowhere").code() == FCAST_INVALID);
    fc::stream_options flags;
    flags.flags = 32;
    CHECK(on.sender.send_bytes("x", {}, on.peer, flags).code() == FCAST_INVALID);
    fc::stream_settings depth;
    depth.depth = 4;
    const char *into = on.into.path.c_str();
    CHECK(fc::stream_receiver::open(on.domain, any_port(), into, depth).code() == FCAST_INVALID);
    CHECK(fc::stream_receiver::open(on.domain, any_port(), missing).code() == FCAST_SYSTEM);
    CHECK(fc::stream_receiver::open({}, into).code() == FCAST_INVALID);
    CHECK(fc::stream_sender::open(fc::span<const fcast_domain>()).code() == FCAST_INVALID);

    // Without the key nothing is taken.
    const content data = some_bytes(10, 7);
    const fc::stream_sender stranger = fc::stream_sender::open(on.domain).value();
    fc::stream_options once;
    once.reconnects = FCAST_OFF;
    const fc::stream_transfer transfer = stranger.send_bytes("x", data, on.peer, once).value();
    CHECK(!transfer.wait(minute));
    const fc::stream_event event = next(on.receiver, fc::stream_event_kind::refused);
    CHECK(event.status == FCAST_REFUSED && !event.words().empty());
}

// Two domains, an address of each, are one peer.
static void two_ways(const fc::domain &first)
{
    const folder into;
    const fc::domain second = open_domain();
    const fc::stream_place places[] = {{first.raw(), any_port()}, {second.raw(), any_port()}};
    const auto receiver = fc::stream_receiver::open(places, into.path.c_str()).value();
    const fcast_domain both[] = {first.raw(), second.raw()};
    fc::stream_sender sender = fc::stream_sender::open(both).value();
    const std::string peer = receiver.address().value();
    CHECK(peer.find(',') != std::string::npos);
    const content data = some_bytes(4 << 20, 8);
    const auto transfer = sender.send_bytes("wide", data, peer).value();
    transfer.wait(minute).value();
    CHECK(read_file(into.path / "wide") == data);
    sender.close(minute).value();
    receiver.close(minute).value();
    CHECK(receiver.close(0).code() == FCAST_CLOSED && receiver.address().code() == FCAST_CLOSED);
    // What happened before the end is told behind it.
    (void)next(receiver, fc::stream_event_kind::complete);
    fc::stream_event room[1];
    CHECK(receiver.poll(room, 0).value().empty());
}

int main()
{
    sides on;
    files(on);
    bytes(on);
    payloads(on);
    nobody(on);
    refused(on);
    cut(on);
    on.receiver.close(minute).value();
    two_ways(on.domain);
    std::printf("stream: ok\n");
}
