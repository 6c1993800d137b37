// Objects in C++: by name from a service, with a control path of the program's whose callbacks
// throw and fail, and by token.
#include "check.hpp"

#include <fabricast_loop.hpp>
#include <fabricast_object.hpp>

#include <array>
#include <stdexcept>
#include <vector>

#include <unistd.h>

namespace fc = fabricast;

namespace {
constexpr std::size_t size = 1 << 16;
constexpr std::uint32_t patience = 60000;
constexpr std::uint32_t both = FCAST_OBJECT_GET | FCAST_OBJECT_PUT;

std::array<std::uint8_t, size> content;

bool is_content(fc::bytes what, std::size_t from)
{
    return std::memcmp(what.data(), content.data() + from, what.size()) == 0;
}

/// A fabric of endpoints without connections; libfabric up to 1.17 has them of tcp as "net".
fc::fabric open_fabric()
{
    for (const char *provider : {test_provider(), "net"}) {
        fc::fabric_settings settings;
        settings.kind = FCAST_KIND_RDM;
        settings.provider = provider;
        settings.node = "127.0.0.1";
        if (auto opened = fc::fabric::open(settings))
            return *std::move(opened);
    }
    std::printf("SKIPPED: no provider with endpoints without connections: %s\n",
                fcast_last_error());
    std::exit(0);
}

/// A client, and memory that it lends.
struct lender {
    explicit lender(const fc::fabric &on)
    {
        fc::object_client_settings settings;
        settings.callback_bytes = size / 4;
        settings.name = "client of C++";
        client = fc::object_client::open(on, settings).value();
        memory = client.enroll(pool.acquire().value(), both).value();
    }
    fc::region region = fc::region::allocate(2 * size).value();
    fc::pool pool = fc::pool::create(region, size).value();
    fc::object_client client;
    fc::object_memory memory;
};

/// A server, a channel of it, and the object that it has.
struct server {
    explicit server(const fc::fabric &on)
        : own(fc::object_server::open(on).value()), channel(own.open_channel().value())
    {
        region.enroll(own.own_domain().value()).value();
        std::memcpy(object.data(), content.data(), size);
    }
    fc::object_server own;
    fc::object_channel channel;
    fc::region region = fc::region::allocate(size).value();
    fc::mutable_bytes object = region.memory();

    /// Waits for the outcome of the one transfer under way.
    fc::event_kind outcome(std::uint64_t key)
    {
        for (;;) {
            fc::event room[4];
            for (const fc::event &of : channel.poll(room).value())
                if (!of.is(fc::event_kind::object_returned)) {
                    CHECK(of.key == key);
                    CHECK(!of.is(fc::event_kind::object_failed) || !of.words().empty());
                    return of.what();
                }
            CHECK(channel.wait(100));
        }
    }
    std::uint64_t write(const fc::object_part &part)
    {
        CHECK(channel.write(part.token, 0, object.subspan(part.offset, part.len), region, 1,
                            patience));
        CHECK(outcome(1) == fc::event_kind::object_written);
        return part.len;
    }
    std::uint64_t read(const fc::object_part &part)
    {
        CHECK(channel.read(part.token, 0, object.subspan(part.offset, part.len), region, 2,
                           patience));
        CHECK(outcome(2) == fc::event_kind::object_read);
        return part.len;
    }
};

/// A folder that goes with what is in it.
struct folder {
    folder()
    {
        const char *temporary = std::getenv("TMPDIR");
        path = std::string(temporary ? temporary : "/tmp") + "/fabricast-XXXXXX";
        CHECK(::mkdtemp(&path[0]));
    }
    ~folder() { CHECK(std::system(("rm -r " + path).c_str()) == 0); }
    std::string path;
};
} // namespace

/// Puts, gets, lists and removes.
static void by_name(const fc::fabric &fabric, lender &mine)
{
    const folder dir;
    fc::object_server_settings channels;
    channels.depth = 64;
    fc::object_service_settings settings;
    settings.piece_bytes = 1;
    const char *any = "127.0.0.1:0";
    const auto start = [&](const char *path) {
        return fc::object_service::start(path, fabric, any, fabric, settings);
    };
    CHECK(start(dir.path.c_str()).code() == FCAST_INVALID);
    settings.piece_bytes = 1 << 14;
    settings.server = &channels;
    CHECK(start("/nowhere").code() == FCAST_NOT_FOUND);
    fc::object_service service = start(dir.path.c_str()).value();
    const std::string address = service.address().value();
    fc::object_remote_settings checked;
    checked.checksum = FCAST_CHECKSUM_CRC32C;
    const auto remote =
        fc::object_remote::connect(mine.client, fabric, address.c_str(), checked).value();

    std::memcpy(mine.memory.memory().data(), content.data(), size);
    CHECK(remote.head("runs/7", patience).code() == FCAST_NOT_FOUND);
    const auto absent = fc::put_condition::absent();
    const fc::object_info put = remote.put("runs/7", mine.memory, patience, absent).value();
    CHECK(put.size == size && put.moved == size && put.checked());
    CHECK(remote.put("runs/7", mine.memory, patience, absent).code() == FCAST_REFUSED);
    const auto other = fc::put_condition::matches("other");
    CHECK(remote.put("runs/7", mine.memory, patience, other).code() == FCAST_REFUSED);
    const fc::object_info head = remote.head("runs/7", patience).value();
    CHECK(head.size == size && head.version() == put.version() && !head.version().empty());
    CHECK(remote.put("runs/8", mine.memory.slice(5, 10), patience).value().moved == 10);

    remote.reconnect().value();
    std::memset(mine.memory.memory().data(), 0, size);
    const fc::object_info got = remote.get("runs/7", mine.memory, patience, 10).value();
    CHECK(got.moved == size - 10 && got.checked());
    CHECK(is_content(mine.memory.memory().first(size - 10), 10));
    CHECK(remote.get("runs/8", mine.memory.slice(100, 10), patience).value().moved == 10);
    CHECK(is_content(mine.memory.memory().subspan(100, 10), 5));

    const fc::object_page first = remote.list("runs/", 1, patience).value();
    CHECK(first.more && first.entries.size() == 1);
    CHECK(first.entries[0].name == "runs/7" && first.entries[0].etag == put.version());
    const fc::object_page rest = remote.list("runs/", 9, patience, "runs/7").value();
    CHECK(!rest.more && rest.entries.size() == 1 && rest.entries[0].size == 10);
    CHECK(remote.remove("runs/7", patience, "other").code() == FCAST_REFUSED);
    const std::string etag(put.version());
    remote.remove("runs/7", patience, etag.c_str()).value();
    CHECK(remote.remove("runs/7", patience).code() == FCAST_NOT_FOUND);

    service.close(1000).value();
    CHECK(!service);
    CHECK(!remote.head("runs/8", patience));
}

/// Callbacks that a server answers in the same thread.
static void control_path(const lender &mine, server &its)
{
    constexpr std::uint64_t len = size - 100;
    int calls = 0;
    const auto get = [&](const fc::object_part &part) {
        calls++;
        CHECK(part.offset == part.memory_offset + 100);
        return its.write(part);
    };
    const fc::object_slice part = mine.memory.slice(0, len);
    CHECK(mine.client.get(part, 100, get).value() == len && calls == 4);
    CHECK(is_content(mine.memory.memory().first(len), 100));
    std::memset(its.object.data(), 0, size);
    const auto put = [&](const fc::object_part &of) { return its.read(of); };
    CHECK(mine.client.put(part, 0, put).value() == len);
    CHECK(is_content(its.object.first(len), 100));
    std::memcpy(its.object.data(), content.data(), size);
}

/// What a callback throws ends its request, after what was moved before, and comes out of the call;
/// what it fails with is what comes of it. The client and the memory are as good as before.
static void callbacks_that_fail(const lender &mine, server &its)
{
    int calls = 0;
    const auto throwing = [&](const fc::object_part &part) -> std::uint64_t {
        if (++calls == 3)
            throw std::runtime_error("as a test");
        return its.write(part);
    };
    std::memset(mine.memory.memory().data(), 0, size);
    bool thrown = false;
    try {
        (void)mine.client.get(mine.memory, 0, throwing);
    } catch (const std::runtime_error &error) {
        thrown = std::strcmp(error.what(), "as a test") == 0;
    }
    CHECK(thrown && calls == 3);
    CHECK(is_content(mine.memory.memory().first(size / 2), 0));

    const auto failing = [&](const fc::object_part &) -> fc::result<std::uint64_t> {
        return fc::failure{FCAST_REFUSED, "the server says no", 7};
    };
    const auto failed = mine.client.put(mine.memory, 0, failing);
    CHECK(failed.code() == FCAST_REFUSED && failed.error().words == "the server says no");
    CHECK(failed.error().number == 7);
    const auto fewer = [](const fc::object_part &part) { return part.len - 1; };
    CHECK(mine.client.put(mine.memory, 0, fewer).value() == size / 4 - 1);
    const auto more = [](const fc::object_part &part) { return part.len + 1; };
    CHECK(!mine.client.put(mine.memory, 0, more));
    CHECK(mine.client.put(mine.memory, 0, nullptr).code() == FCAST_INVALID);
    const auto get = [&](const fc::object_part &part) { return its.write(part); };
    CHECK(mine.client.get(mine.memory, 0, get).value() == size);
    CHECK(is_content(mine.memory.memory(), 0));
}

/// Memory that is lent by hand, and taken back.
static void tokens(const lender &mine, server &its)
{
    const fc::region region = fc::region::allocate(size).value();
    const fc::mutable_bytes bytes = region.memory().first(size);
    CHECK(mine.client.enroll(region, bytes, 4).code() == FCAST_INVALID);
    auto memory = mine.client.enroll(region, bytes, FCAST_OBJECT_GET).value();
    CHECK(memory.size() == size);
    CHECK(fc::object_token::lend(memory, FCAST_OBJECT_PUT).code() == FCAST_INVALID);
    auto token = fc::object_token::lend(memory.slice(1000, 2000), FCAST_OBJECT_GET).value();
    CHECK(memory.reclaim(0).code() == FCAST_BUSY && memory);
    const std::string text = token.text().value();
    CHECK(its.channel.write("nonsense", 0, its.object, its.region, 1, 1000) == FCAST_INVALID);
    CHECK(its.channel.write(text.c_str(), 500, its.object.first(1500), its.region, 7, patience));
    CHECK(its.outcome(7) == fc::event_kind::object_written);
    CHECK(is_content(bytes.subspan(1500, 1500), 0));
    CHECK(token.done() && !token);
    CHECK(token.done() == FCAST_STALE);

    // One that goes is revoked: it reaches nothing.
    std::string gone;
    {
        const auto short_lived = fc::object_token::lend(memory, FCAST_OBJECT_GET).value();
        gone = short_lived.text().value();
    }
    std::memset(bytes.data(), 0, size);
    CHECK(its.channel.write(gone.c_str(), 0, its.object, its.region, 8, 2000));
    CHECK(its.outcome(8) == fc::event_kind::object_failed);
    CHECK(!is_content(bytes, 0));
    CHECK(!memory.reclaim(patience).value() && !memory);
}

/// A payload is used up when it is taken, and a buffer comes back as it was.
static void payloads_and_buffers(const fc::fabric &fabric, server &its)
{
    lender mine(fabric);
    auto token = fc::object_token::lend(mine.memory, FCAST_OBJECT_GET).value();
    const std::string text = token.text().value();
    const fc::region region = fc::region::allocate(4096).value();
    region.enroll(its.own.own_domain().value()).value();
    const fc::pool pool = fc::pool::create(region, 4096).value();
    fc::buffer filled = pool.acquire().value();
    std::memcpy(filled.data(), content.data(), 1000);
    fc::payload payload = std::move(filled).freeze(1000).value();
    CHECK(its.channel.write("nonsense", 0, payload, 3, patience) == FCAST_INVALID && payload);
    CHECK(its.channel.write(text.c_str(), 10, payload, 3, patience) && !payload);
    CHECK(its.outcome(3) == fc::event_kind::object_written);
    CHECK(token.done());
    const fc::buffer back = mine.memory.reclaim(patience).value();
    CHECK(back && !mine.memory && back.size() == size);
    CHECK(is_content(back.memory().subspan(10, 1000), 0));
    CHECK(mine.client.progress());
}

/// A loop says when a channel is to be polled, and a loop of the program's has its descriptors.
static void waiting(const lender &mine, server &its)
{
    // Providers without descriptors have none.
    CHECK(its.channel.fds());
    const fc::sleep_advice advice = its.channel.prepare_wait().value();
    CHECK(advice.timeout_ms >= -1);

    const auto loop = fc::event_loop::create().value();
    CHECK(loop.on_channel(its.channel, nullptr).code() == FCAST_INVALID);
    CHECK(loop.on_channel(fc::object_channel(), [] {}).code() == FCAST_STALE);
    bool is_written = false;
    const auto watch = loop.on_channel(its.channel, [&] {
                               fc::event room[4];
                               for (const fc::event &of : its.channel.poll(room).value())
                                   is_written |= of.is(fc::event_kind::object_written);
                           }).value();
    std::memset(mine.memory.memory().data(), 0, size);
    auto token = fc::object_token::lend(mine.memory, FCAST_OBJECT_GET).value();
    CHECK(its.channel.write(token.text().value().c_str(), 0, its.object, its.region, 9, patience));
    for (int i = 0; i < 60 && !is_written; i++)
        CHECK(loop.run_once(1000).value() == fc::loop_round::done);
    CHECK(is_written && is_content(mine.memory.memory(), 0));
    CHECK(token.done());
}

int main()
{
    for (std::size_t at = 0; at < size; at++)
        content[at] = static_cast<std::uint8_t>(at * 31 + at / 253 + 1);
    const fc::fabric fabric = open_fabric();
    lender mine(fabric);
    by_name(fabric, mine);
    server its(fabric);
    control_path(mine, its);
    callbacks_that_fail(mine, its);
    tokens(mine, its);
    payloads_and_buffers(fabric, its);
    waiting(mine, its);
    its.channel.close(1000).value();
    CHECK(its.channel.fds().code() == FCAST_CLOSED);
    CHECK(its.channel.prepare_wait().code() == FCAST_CLOSED);
    CHECK(its.channel.close(1000).code() == FCAST_CLOSED);
    std::printf("object: ok\n");
}
