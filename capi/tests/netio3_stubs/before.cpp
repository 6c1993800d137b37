// A link of a card: its fragments go out from the DMA buffer, each behind a header.
#include <Netio3Backend.hpp>
#include <EpollEventLoop.hpp>

#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

struct FragmentHeader {
    std::uint64_t fid;
    std::uint64_t event;
};

class CardLink {
public:
    CardLink(std::shared_ptr<netio3::EpollEventLoop> loop, std::span<std::uint8_t> dma,
             std::uint64_t events)
        : m_loop(loop), m_dma(dma), m_events(events),
          m_retry(loop->create_timer([this] { send(); }))
    {
        netio3::NetworkConfig config;
        config.mode = netio3::NetworkMode::TCP;
        config.thread_safety = netio3::ThreadSafetyModel::UNSAFE;
        config.on_data_cb = [this](std::span<const std::uint8_t> data) { on_data(data); };
        config.on_connection_established_cb = [this](const netio3::EndPointAddress &) { send(); };
        config.on_connection_closed_cb = [this](const netio3::EndPointAddress &,
                                                const std::vector<std::uint64_t> &keys) {
            std::printf("closed, %zu sends have no other outcome\n", keys.size());
            m_loop->stop();
        };
        config.on_connection_refused_cb = [this](const netio3::EndPointAddress &peer) {
            std::printf("refused: %s\n", peer.address().c_str());
            m_loop->stop();
        };
        config.on_send_completed_cb = [this](const netio3::EndPointAddress &, std::uint64_t key) {
            on_completed(key);
        };
        m_backend = netio3::NetworkBackend::create(netio3::BackendType::LIBFABRIC, config, m_loop);

        netio3::ConnectionParametersRecv recv;
        recv.buf_size = 16 * 1024;
        recv.num_buf = 256;
        m_peer = m_backend->open_listen_endpoint(netio3::EndPointAddress("127.0.0.1", 0), recv);
        netio3::ConnectionParametersSendZeroCopy send;
        send.mr_start = m_dma.data();
        send.mr_size = m_dma.size();
        m_backend->open_send_endpoint(m_peer, send);
    }

    bool is_complete() const { return m_completed == m_events && m_received == m_events; }

private:
    static constexpr std::size_t fragment_size = 4096;

    void send()
    {
        while (m_sent < m_events) {
            const FragmentHeader header{0x1000, m_sent};
            const std::span<const std::uint8_t> bytes(
                reinterpret_cast<const std::uint8_t *>(&header), sizeof header);
            const std::size_t place = m_sent % (m_dma.size() / fragment_size);
            const auto data = m_dma.subspan(place * fragment_size, fragment_size);
            const auto status = m_backend->send_data(m_peer, data, bytes, m_sent);
            if (status == netio3::NetioStatus::NO_RESOURCES)
                return m_retry.start(std::chrono::milliseconds(1));
            if (status == netio3::NetioStatus::FAILED)
                return m_loop->stop();
            m_sent++;
        }
        m_retry.stop();
    }

    void on_completed(std::uint64_t)
    {
        if (++m_completed == m_events)
            std::printf("%zu header slots were free at the least\n",
                        m_backend->get_num_available_buffers(m_peer));
        end();
    }

    void on_data(std::span<const std::uint8_t> data)
    {
        FragmentHeader header;
        if (data.size() != sizeof header + fragment_size)
            return m_loop->stop();
        std::memcpy(&header, data.data(), sizeof header);
        m_received += header.fid == 0x1000 && header.event == m_received;
        end();
    }

    void end()
    {
        if (is_complete())
            m_backend->close_send_endpoint(m_peer);
    }

    std::shared_ptr<netio3::EpollEventLoop> m_loop;
    std::span<std::uint8_t> m_dma;
    std::uint64_t m_events, m_sent = 0, m_completed = 0, m_received = 0;
    netio3::EventTimer m_retry;
    netio3::EndPointAddress m_peer;
    std::unique_ptr<netio3::NetworkBackend> m_backend;
};

int main()
{
    std::vector<std::uint8_t> dma(1 << 20);
    auto loop = std::make_shared<netio3::EpollEventLoop>();
    CardLink link(loop, dma, 10000);
    loop->run_for(60);
    std::printf("%s\n", link.is_complete() ? "complete" : "incomplete");
    return link.is_complete() ? 0 : 1;
}
