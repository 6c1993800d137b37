// Streams in C++ that go where the program says: into memory of a region, or to a function; and
// sinks that refuse and throw.
#include "check.hpp"

#include <fabricast_stream_sink.hpp>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

namespace fc = fabricast;

namespace {
constexpr std::size_t size = 1 << 20, block = 1 << 16, blocks = size / block;
constexpr std::uint32_t patience = 60000;

std::uint8_t data[size];
/// Where streams go.
std::uint8_t memory[size];
std::atomic<std::size_t> written{0}, begun{0}, ended{0}, complete{0};

struct to_memory final : fc::incoming_stream {
    explicit to_memory(const char *of) : name(of) { begun++; }
    ~to_memory() override { ended++; }
    fc::status resume(fc::stream_kept &kept) override
    {
        if (name != "resumed")
            return {};
        CHECK(kept.add(blocks, {data, block}) == FCAST_NOT_FOUND);
        CHECK(kept.add(1, {data, block - 1}) == FCAST_INVALID);
        std::memcpy(memory + block, data + block, block);
        return kept.add(1, {data + block, block});
    }
    fc::status write(const fcast_stream_block &of, fc::bytes from) override
    {
        CHECK(from.size() == of.len && of.start == of.index * block);
        if (name == "throws in write" && of.index == 3)
            throw std::runtime_error("as a test");
        std::memcpy(memory + of.start, from.data(), from.size());
        written++;
        return {};
    }
    fc::status finish() override
    {
        if (name == "throws in finish")
            throw fc::thrown_error({FCAST_TIMED_OUT, "as a test"});
        return {};
    }
    void close(bool is_complete) override
    {
        complete += is_complete;
        if (name == "throws in close")
            throw std::runtime_error("as a test");
    }
    const std::string name;
};

/// One that has memory of its own needs no function.
struct placed final : fc::incoming_stream {
    placed() { begun++; }
    ~placed() override { ended++; }
    void close(bool is_complete) override { complete += is_complete; }
};

struct sink final : fc::stream_sink {
    fc::status begin(const fc::stream_offer &offer, std::unique_ptr<fc::incoming_stream> &stream,
                     fc::stream_memory &into) override
    {
        const fcast_stream_entry entry = offer.entry(0).value();
        CHECK(offer.entries == 1 && offer.bytes == entry.size && offer.block_bytes == block);
        CHECK(offer.entry(1).code() == FCAST_NOT_FOUND);
        const std::string name = entry.name;
        if (name == "full")
            return FCAST_NO_RESOURCES;
        if (name == "throws in begin")
            throw std::runtime_error("as a test");
        if (name == "gives nothing")
            return {};
        if (name != "memory" && name != "small" && name != "no function") {
            stream = std::make_unique<to_memory>(entry.name);
            return {};
        }
        if (name != "no function")
            into = {region.raw(), {memory, name == "memory" ? size : size - 1}};
        stream = std::make_unique<placed>();
        return {};
    }
    fc::region region = fc::region::external(memory, size).value();
};

struct sides {
    fc::domain domain = open_domain();
    fc::stream_settings settings;
    std::weak_ptr<sink> held;
    fc::stream_receiver receiver;
    fc::stream_sender sender;
    std::string peer;

    sides()
    {
        settings.block_bytes = block;
        auto into = std::make_shared<sink>();
        held = into;
        receiver = fc::stream_receiver::open(domain, any_port(), std::move(into), settings).value();
        sender = fc::stream_sender::open(domain, settings).value();
        peer = receiver.address().value();
    }
    /// Sends it all, and says what became of it at both sides.
    fc::stream_event send(const char *name, fc::status wanted) const
    {
        std::memset(memory, 0, size);
        written = 0;
        fc::stream_options options;
        options.reconnects = FCAST_OFF;
        options.stamp[0] = 7;
        const auto transfer = sender.send_bytes(name, data, peer, options).value();
        const auto over = transfer.wait(patience);
        if (over.code() != wanted)
            std::fprintf(stderr, "%s: %s\n", name, over.code().name());
        CHECK(over.code() == wanted);
        fc::stream_event event[1];
        do
            CHECK(receiver.poll(event, patience).value().size() == 1);
        while (event[0].is(fc::stream_event_kind::began));
        CHECK(event[0].is(fc::stream_event_kind::complete) == wanted.ok());
        CHECK(!wanted || std::memcmp(memory, data, size) == 0);
        return event[0];
    }
};

template <class Done> void wait_until(Done &&is_done)
{
    for (int i = 0; i < 60000 && !is_done(); i++)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(is_done());
}
} // namespace

static void whole(const sides &on)
{
    on.send("function", FCAST_OK);
    CHECK(written == blocks);
    on.send("memory", FCAST_OK);
    CHECK(written == 0);
    CHECK(on.send("resumed", FCAST_OK).resumed_bytes == block && written == blocks - 1);
    on.send("throws in close", FCAST_OK);
    wait_until([] { return ended == 4; });
    CHECK(begun == 4 && complete == 4);
}

/// What a sink does wrong is one stream that fails, and the peer hears which function it was.
static void wrong(const sides &on)
{
    const struct {
        const char *name, *words;
        fcast_status code;
    } cases[] = {
        {"full", "begin", FCAST_REFUSED},
        {"throws in begin", "begin of the sink answered 13", FCAST_REFUSED},
        {"gives nothing", "begin", FCAST_REFUSED},
        {"small", "room", FCAST_REFUSED},
        {"no function", "FCAST_UNSUPPORTED", FCAST_SYSTEM},
        {"throws in write", "write", FCAST_SYSTEM},
        {"throws in finish", "FCAST_TIMED_OUT", FCAST_SYSTEM},
    };
    for (const auto &of : cases) {
        const std::string words(on.send(of.name, of.code).words());
        if (words.find(of.words) == words.npos)
            std::fprintf(stderr, "%s: %s\n", of.name, words.c_str());
        CHECK(words.find(of.words) != words.npos);
    }
    on.send("function", FCAST_OK);
    wait_until([] { return ended == begun; });
    CHECK(complete == 5);
}

/// What opens no receiver lets go of the sink.
static void refused(const sides &on)
{
    const auto open = [&](const char *address, std::shared_ptr<fc::stream_sink> into) {
        return fc::stream_receiver::open(on.domain, address, std::move(into), on.settings).code();
    };
    CHECK(open(any_port(), std::shared_ptr<fc::stream_sink>()) == FCAST_INVALID);
    auto into = std::make_shared<sink>();
    const std::weak_ptr<sink> held = into;
    CHECK(open("?", std::move(into)) == FCAST_INVALID && held.expired());
}

int main()
{
    for (std::size_t at = 0; at < size; at++)
        data[at] = static_cast<std::uint8_t>(at % 253 + 1);
    sides on;
    whole(on);
    wrong(on);
    refused(on);
    on.sender.close(1000).value();
    on.receiver.close(1000).value();
    on.receiver.reset();
    wait_until([&] { return on.held.expired(); });
    std::printf("sink: ok\n");
}
