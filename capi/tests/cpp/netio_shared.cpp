// Listen endpoints that share receive buffers: what one of them has too much of is no other's want.
#include "check.hpp"

#include <fabricast_netio.hpp>

namespace netio3 = fabricast::netio;
using netio3::NetioStatus;
using namespace std::chrono_literals;

namespace {
constexpr std::size_t size = 1000, buffers = 64;

struct running {
    std::shared_ptr<netio3::EpollEventLoop> loop = std::make_shared<netio3::EpollEventLoop>();
    void until(const std::function<bool()> &is_done)
    {
        const auto end = std::chrono::steady_clock::now() + 60s;
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

/// A backend that sends messages to one address, as many as it is let, which begin with `mark`.
struct source {
    source(const running &run, netio3::EndPointAddress peer, std::size_t messages,
           std::uint8_t mark)
        : to(std::move(peer)), total(messages)
    {
        memory[0] = mark;
        netio3::NetworkConfig with = config();
        with.send_settings.packing = FCAST_OFF;
        with.on_connection_established_cb = [this](const auto &) { send(); };
        with.on_connection_refused_cb = [](const auto &) { CHECK(!"the connection is refused"); };
        with.on_connection_closed_cb = [](const auto &, const auto &) { CHECK(!"it is closed"); };
        with.on_writable_cb = [this](const auto &) { send(); };
        with.on_send_completed_cb = [this](const auto &, std::uint64_t) {
            completed++;
            send();
        };
        backend =
            netio3::NetworkBackend::create(netio3::BackendType::LIBFABRIC, with, run.loop);
        netio3::ConnectionParametersSendZeroCopy of;
        of.mr_start = memory;
        of.mr_size = sizeof memory;
        backend->open_send_endpoint(to, of);
    }
    void send()
    {
        while (sent < total) {
            const NetioStatus status = backend->send_data(to, {memory, size}, {}, sent);
            if (status == NetioStatus::NO_RESOURCES)
                return;
            CHECK(status == NetioStatus::OK);
            sent++;
        }
    }
    std::uint8_t memory[size] = {};
    netio3::EndPointAddress to;
    std::size_t total, sent = 0, completed = 0;
    std::unique_ptr<netio3::NetworkBackend> backend;
};
} // namespace

/// The program keeps all that comes to one of two; the other connects and receives all the same, and
/// the first one goes on when its messages go.
static void neither_starves()
{
    constexpr std::size_t flood = 1000, few = 200;
    running run;
    std::vector<fabricast::message> kept;
    std::size_t came[2] = {0, 0};
    bool keeps = true;
    netio3::NetworkConfig in = config();
    in.shared_receive_buffers = {true, 4096, buffers};
    in.on_message_cb = [&](const netio3::ReceivedMessage &message) {
        const bool is_second = message.data()[0] == 2;
        came[is_second]++;
        if (!is_second && keeps)
            kept.push_back(message.keep().value());
    };
    auto receiver = netio3::NetworkBackend::create(netio3::BackendType::LIBFABRIC, in, run.loop);
    const netio3::EndPointAddress any{test_node(), 0};
    const auto first = receiver->open_listen_endpoint(any, {});
    const auto second = receiver->open_listen_endpoint(any, {});
    source flooding(run, first, flood, 1);
    // Until nothing comes any more: it has all that it gets.
    std::size_t before = 0;
    for (int idle = 0; idle < 40 || before == 0; idle++) {
        run.loop->run_for(5ms);
        if (came[0] != before)
            idle = 0;
        before = came[0];
    }
    // Several were sent ahead, and most of the buffers are taken.
    CHECK(came[0] < flood && kept.size() == came[0] && came[0] > buffers / 4);

    source modest(run, second, few, 2);
    run.until([&] { return came[1] == few && modest.completed == few; });
    CHECK(kept.size() == before);
    keeps = false;
    kept.clear();
    run.until([&] { return came[0] == flood && flooding.completed == flood; });
    std::printf("netio: %zu of %zu buffers were kept, and another endpoint got %zu\n", before,
                buffers, came[1]);
}

int main()
{
    neither_starves();
}
