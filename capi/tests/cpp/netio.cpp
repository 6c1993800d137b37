// The interface of netio3: callbacks, keys at the end of a connection, refusals, back-pressure,
// callbacks that throw and that call back, buffered endpoints, shared buffers, signals and timers.
#include "check.hpp"

#include <fabricast_netio.hpp>

#include <numeric>
#include <set>
#include <stdexcept>

namespace netio3 = fabricast::netio;
using netio3::NetioStatus;
using namespace std::chrono_literals;

namespace {
std::uint8_t memory[1 << 20];
constexpr auto patience = 60000ms;

/// A loop that ends when something has come true, and a test that fails when it does not.
struct running {
    std::shared_ptr<netio3::EpollEventLoop> loop = std::make_shared<netio3::EpollEventLoop>();
    void until(const std::function<bool()> &is_done)
    {
        const auto end = std::chrono::steady_clock::now() + patience;
        while (!is_done()) {
            CHECK(std::chrono::steady_clock::now() < end);
            loop->run_for(5ms);
        }
    }
};

netio3::NetworkConfig config()
{
    netio3::NetworkConfig of;
    of.mode = netio3::NetworkMode::TCP;
    of.provider = test_provider();
    return of;
}

netio3::ConnectionParametersSendZeroCopy whole(std::uint32_t slots)
{
    netio3::ConnectionParametersSendZeroCopy of;
    of.mr_start = memory;
    of.mr_size = sizeof memory;
    of.num_header_slots = slots;
    return of;
}

const netio3::EndPointAddress any{test_node(), 0};
} // namespace

/// Messages arrive with their headers in front, keys come back, and NO_RESOURCES passes.
static void talk()
{
    running run;
    std::uint64_t got = 0;
    netio3::NetworkConfig in = config();
    in.on_data_cb = [&got](fabricast::span<const std::uint8_t> data) {
        std::uint64_t header = 0;
        CHECK(data.size() == sizeof header + 1000);
        std::memcpy(&header, data.data(), sizeof header);
        CHECK(header == got);
        CHECK(std::memcmp(data.data() + sizeof header, memory + got % 200 * 1000, 1000) == 0);
        got++;
    };
    auto receiver =
        netio3::NetworkBackend::create(netio3::BackendType::LIBFABRIC, in, run.loop);
    const auto address = receiver->open_listen_endpoint(any, {});
    CHECK(address.port() != 0);

    constexpr std::uint64_t total = 2000;
    std::uint64_t sent = 0, completed = 0, refused = 0, writable = 0, established = 0, closed = 0;
    std::unique_ptr<netio3::NetworkBackend> sender;
    // From within callbacks: they call back.
    const auto pump = [&] {
        while (sent < total) {
            const std::uint8_t *at = memory + sent % 200 * 1000;
            const iovec pieces[] = {{const_cast<std::uint8_t *>(at), 400},
                                    {const_cast<std::uint8_t *>(at) + 400, 600}};
            const fabricast::bytes header = fabricast::bytes_of(sent);
            const fabricast::span<const iovec> both(pieces);
            const NetioStatus status =
                sent % 2 ? sender->send_data(address, {at, 1000}, header, sent + 7)
                         : sender->send_data(address, both, header, sent + 7);
            if (status == NetioStatus::NO_RESOURCES) {
                refused++;
                return;
            }
            CHECK(status == NetioStatus::OK);
            sent++;
        }
    };
    netio3::NetworkConfig out = config();
    out.on_connection_established_cb = [&](const netio3::EndPointAddress &to) {
        CHECK(to == address);
        established++;
        pump();
        CHECK(sender->get_pending_sends(address).size() == sent);
    };
    out.on_writable_cb = [&](const netio3::EndPointAddress &) {
        writable++;
        pump();
    };
    out.on_send_completed_cb = [&](const netio3::EndPointAddress &to, std::uint64_t key) {
        CHECK(to == address && key == completed + 7);
        completed++;
    };
    out.on_connection_closed_cb = [&](const netio3::EndPointAddress &,
                                      const std::vector<std::uint64_t> &keys) {
        CHECK(keys.empty());
        closed++;
    };
    sender = netio3::NetworkBackend::create(netio3::BackendType::LIBFABRIC, out, run.loop);
    sender->open_send_endpoint(address, whole(16));
    bool twice = false;
    try {
        sender->open_send_endpoint(address, whole(16));
    } catch (const netio3::SendEndpointAlreadyExists &) {
        twice = true;
    }
    CHECK(twice);
    CHECK(sender->send_data(address, {memory, 1}, {}, 0) == NetioStatus::NO_RESOURCES);
    CHECK(sender->send_data({test_node(), 1}, {memory, 1}, {}, 0) == NetioStatus::FAILED);
    run.until([&] { return got == total && completed == total; });
    CHECK(established == 1 && refused > 0 && writable > 0);
    CHECK(sender->get_num_available_buffers(address) == 0);
    CHECK(sender->get_num_available_buffers(address) == 16);
    const std::vector<std::uint8_t> long_header(4096), elsewhere(16);
    CHECK(sender->send_data(address, {memory, 1}, long_header, 0) == NetioStatus::FAILED);
    CHECK(sender->send_data(address, elsewhere, {}, 0) == NetioStatus::FAILED);
    sender->close_send_endpoint(address);
    CHECK(sender->send_data(address, {memory, 1}, {}, 0) == NetioStatus::FAILED);
    run.until([&] { return closed == 1; });
    receiver->close_listen_endpoint(address);
    run.until([&] { return receiver->fds().empty(); });
    std::printf("talk: %llu refused, %llu writable\n", (unsigned long long)refused,
                (unsigned long long)writable);
}

/// A receiver that goes takes the keys along that have no outcome; each key has exactly one.
static void keys_on_close()
{
    running run, other;
    netio3::NetworkConfig in = config();
    in.listen_settings.max_connections = 1;
    in.listen_settings.credits = 60;
    auto receiver = netio3::NetworkBackend::create(netio3::BackendType::LIBFABRIC, in, other.loop);
    const auto address = receiver->open_listen_endpoint(any, {sizeof memory, 64});
    std::multiset<std::uint64_t> accepted, told;
    bool established = false, closed = false;
    netio3::NetworkConfig out = config();
    out.on_connection_established_cb = [&](const netio3::EndPointAddress &) {
        established = true;
    };
    out.on_send_completed_cb = [&](const netio3::EndPointAddress &, std::uint64_t key) {
        told.insert(key);
    };
    out.on_connection_closed_cb = [&](const netio3::EndPointAddress &to,
                                      const std::vector<std::uint64_t> &keys) {
        CHECK(to == address && !closed);
        CHECK(!keys.empty());
        told.insert(keys.begin(), keys.end());
        closed = true;
    };
    auto sender = netio3::NetworkBackend::create(netio3::BackendType::LIBFABRIC, out, run.loop);
    sender->open_send_endpoint(address, whole(128));
    run.until([&] {
        other.loop->run_for(1ms);
        return established;
    });
    // The receiver stands still from here on: what sockets hold is all that goes.
    std::uint64_t key = 0;
    for (int round = 0; round < 20; round++) {
        while (sender->send_data(address, {memory, 1000000}, {}, key / 2) == NetioStatus::OK)
            accepted.insert(key++ / 2);
        run.loop->run_for(2ms);
    }
    CHECK(sender->get_pending_sends(address).size() + told.size() == accepted.size());
    receiver.reset();
    run.until([&] { return closed; });
    CHECK(told == accepted);
    CHECK(sender->send_data(address, {memory, 1}, {}, 0) == NetioStatus::FAILED);
    CHECK(sender->get_pending_sends(address).empty());
}

/// Nobody listens, or it is no address.
static void refused()
{
    running run;
    std::size_t count = 0;
    netio3::NetworkConfig out = config();
    netio3::EndPointAddress address;
    {
        auto gone =
            netio3::NetworkBackend::create(netio3::BackendType::LIBFABRIC, config(), run.loop);
        address = gone->open_listen_endpoint(any, {});
    }
    out.on_connection_refused_cb = [&](const netio3::EndPointAddress &to) {
        CHECK(to == address);
        count++;
    };
    out.on_connection_closed_cb = [](const auto &, const auto &) { CHECK(false); };
    auto sender = netio3::NetworkBackend::create(netio3::BackendType::LIBFABRIC, out, run.loop);
    sender->open_send_endpoint(address, whole(16));
    run.until([&] { return count == 1; });
    // The address is free again.
    sender->open_send_endpoint(address, whole(16));
    run.until([&] { return count == 2; });
    int thrown = 0;
    try {
        sender->open_send_endpoint({"no address", 1}, whole(16));
    } catch (const netio3::InvalidEndpointAddress &) {
        thrown++;
    }
    try {
        sender->open_listen_endpoint({"192.0.2.1", 0}, {});
    } catch (const fabricast::error &) {
        thrown++;
    }
    try {
        sender->open_send_endpoint(address, netio3::ConnectionParameters());
    } catch (const netio3::NoBuffersAllocated &) {
        thrown++;
    }
    CHECK(thrown == 3);
}

/// An exception of a callback comes out of run(), and nothing is lost but what that callback did.
static void throwing()
{
    running run;
    std::uint64_t got = 0, thrown = 0, completed = 0;
    netio3::NetworkConfig in = config();
    in.on_data_cb = [&](fabricast::span<const std::uint8_t>) {
        if (++got % 3 == 0)
            throw std::runtime_error("as a test");
    };
    auto receiver =
        netio3::NetworkBackend::create(netio3::BackendType::LIBFABRIC, in, run.loop);
    const auto address = receiver->open_listen_endpoint(any, {});
    netio3::NetworkConfig out = config();
    std::unique_ptr<netio3::NetworkBackend> sender;
    out.on_connection_established_cb = [&](const netio3::EndPointAddress &to) {
        for (std::uint64_t key = 0; key < 60; key++)
            while (sender->send_data(to, {memory, 100}, {}, key) != NetioStatus::OK)
                // A loop that is run in a callback goes on with the others.
                run.loop->run_for(1ms);
    };
    out.on_send_completed_cb = [&](const netio3::EndPointAddress &, std::uint64_t) {
        if (++completed % 5 == 0)
            throw std::runtime_error("as a test");
    };
    sender = netio3::NetworkBackend::create(netio3::BackendType::LIBFABRIC, out, run.loop);
    sender->open_send_endpoint(address, whole(64));
    const auto end = std::chrono::steady_clock::now() + patience;
    while (got < 60 || completed < 60) {
        CHECK(std::chrono::steady_clock::now() < end);
        try {
            run.loop->run_for(5ms);
        } catch (const std::runtime_error &) {
            thrown++;
        }
    }
    CHECK(thrown == 60 / 3 + 60 / 5);
}

/// Buffered sends, buffers that all endpoints share, and messages that are kept.
static void buffered()
{
    running run;
    std::vector<fabricast::message> kept;
    netio3::NetworkConfig in = config();
    in.shared_receive_buffers = {true, 8192, 256};
    in.on_message_cb = [&](const netio3::ReceivedMessage &message) {
        kept.push_back(message.keep().value());
    };
    auto receiver =
        netio3::NetworkBackend::create(netio3::BackendType::LIBFABRIC, in, run.loop);
    const netio3::EndPointAddress addresses[] = {receiver->open_listen_endpoint(any, {}),
                                                 receiver->open_listen_endpoint(any, {})};
    netio3::NetworkConfig out = config();
    std::size_t established = 0, completed = 0;
    out.shared_send_buffers = {true, 4096, 4};
    out.on_connection_established_cb = [&](const auto &) { established++; };
    out.on_send_completed_cb = [&](const auto &, std::uint64_t id) {
        CHECK(id < 4);
        completed++;
    };
    auto sender = netio3::NetworkBackend::create(netio3::BackendType::LIBFABRIC, out, run.loop);
    for (const auto &address : addresses)
        sender->open_send_endpoint(address, netio3::ConnectionParametersSendBuffered{});
    run.until([&] { return established == 2; });
    std::vector<netio3::NetworkBuffer *> all;
    while (netio3::NetworkBuffer *buffer = sender->get_buffer(addresses[all.size() % 2]))
        all.push_back(buffer);
    CHECK(all.size() == 4);
    CHECK(sender->get_num_available_buffers(addresses[0]) == 0);
    for (std::size_t at = 0; at < 4; at++) {
        CHECK(all[at]->append({memory + at, 1000}) && !all[at]->append({memory, 4000}));
        CHECK(sender->send_buffer(addresses[at % 2], all[at]) == NetioStatus::OK);
    }
    run.until([&] { return completed == 4 && kept.size() == 4; });
    for (const fabricast::message &message : kept)
        CHECK(message.data().size() == 1000);
    netio3::NetworkBuffer *again = sender->get_buffer(addresses[0]);
    CHECK(again && again->size() == 0);
    sender->release_buffer(addresses[0], again);
}

/// A send of another thread that turns out to be too long has its one outcome, too: told at once
/// where the program wants that, else with the connection's end.
static void late_failure(bool at_once)
{
    running run;
    auto receiver =
        netio3::NetworkBackend::create(netio3::BackendType::LIBFABRIC, config(), run.loop);
    const auto address = receiver->open_listen_endpoint(any, {4096, 64});
    bool established = false, closed = false;
    std::vector<std::uint64_t> failed, keys;
    netio3::NetworkConfig out = config();
    out.thread_safety = netio3::ThreadSafetyModel::SAFE;
    out.on_connection_established_cb = [&](const auto &) { established = true; };
    out.on_send_completed_cb = [](const auto &, std::uint64_t key) { CHECK(key == 2); };
    out.on_connection_closed_cb = [&](const auto &, const std::vector<std::uint64_t> &told) {
        keys = told;
        closed = true;
    };
    if (at_once)
        out.on_send_failed_cb = [&](const auto &, std::uint64_t key, std::string_view words) {
            CHECK(!words.empty());
            failed.push_back(key);
        };
    auto sender = netio3::NetworkBackend::create(netio3::BackendType::LIBFABRIC, out, run.loop);
    sender->open_send_endpoint(address, whole(16));
    run.until([&] { return established; });
    std::thread other([&] {
        CHECK(sender->send_data(address, {memory, 8000}, {}, 1) == NetioStatus::OK);
        CHECK(sender->send_data(address, {memory, 1000}, {}, 2) == NetioStatus::OK);
        const std::vector<std::uint8_t> elsewhere(16), header(4096);
        CHECK(sender->send_data(address, elsewhere, {}, 3) == NetioStatus::FAILED);
        CHECK(sender->send_data(address, {memory, 1}, header, 3) == NetioStatus::FAILED);
        sender->close_send_endpoint(address);
        CHECK(sender->send_data(address, {memory, 1}, {}, 3) == NetioStatus::FAILED);
    });
    other.join();
    run.until([&] { return closed; });
    const std::vector<std::uint64_t> one{1};
    CHECK(at_once ? failed == one && keys.empty() : failed.empty() && keys == one);
}

/// Signals, timers, descriptors, and the end of a run.
static void loop()
{
    int begun = 0, fired = 0, ticks = 0, readable = 0;
    auto loop = std::make_shared<netio3::EpollEventLoop>([&] { begun++; });
    auto signal = loop->create_signal([&] { fired++; });
    auto timer = loop->create_timer([&] {
        if (++ticks == 3)
            loop->stop();
    });
    int pipe[2];
    CHECK(::pipe(pipe) == 0);
    loop->register_fd({pipe[0], [&](int fd) {
                           char byte;
                           CHECK(::read(fd, &byte, 1) == 1);
                           readable++;
                       }});
    signal.fire();
    CHECK(::write(pipe[1], "x", 1) == 1);
    timer.start(1ms);
    loop->run();
    CHECK(begun == 1 && fired == 1 && ticks >= 3 && readable == 1);
    timer.stop();
    loop->remove_fd(pipe[0], true);
    ::close(pipe[1]);
    loop->stop();
    loop->run();
    std::thread stopper([&] { loop->stop(); });
    loop->run();
    stopper.join();
    loop->run_for(1ms);
    CHECK(begun == 4);
}

int main()
{
    std::iota(memory, memory + sizeof memory, 0);
    loop();
    talk();
    keys_on_close();
    refused();
    throwing();
    buffered();
    late_failure(true);
    late_failure(false);
    std::printf("netio: ok\n");
}
