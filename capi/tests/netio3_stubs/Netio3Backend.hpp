// Declarations in the place of netio3-backend's headers, written from its public documentation, so
// that a program for it compiles where it is not installed. There is nothing behind them.
//
// What the documentation shows in full is marked "seen"; the rest is inferred from what it says.
#ifndef NETIO3_STUBS_NETIO3BACKEND_HPP
#define NETIO3_STUBS_NETIO3BACKEND_HPP

#include "EpollEventLoop.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <sys/uio.h>

namespace netio3 {

enum class BackendType { LIBFABRIC, ASYNCMSG };       // seen
enum class NetworkMode { RDMA, TCP };                 // seen
enum class ThreadSafetyModel { SAFE, UNSAFE };        // seen
enum class NetioStatus { OK, NO_RESOURCES, FAILED };  // seen, of header buffers

class EndPointAddress {  // inferred
public:
    EndPointAddress() = default;
    EndPointAddress(std::string ip, unsigned short port);
    const std::string &address() const;
    unsigned short port() const;
};

// Names seen; members inferred.
struct ConnectionParametersSendBuffered {
    std::size_t buf_size;
    std::size_t num_buf;
};
struct ConnectionParametersSendZeroCopy {
    std::uint8_t *mr_start;
    std::size_t mr_size;
};
struct ConnectionParameters {
    ConnectionParameters(const ConnectionParametersSendBuffered &);
    ConnectionParameters(const ConnectionParametersSendZeroCopy &);
};
struct ConnectionParametersRecv {
    std::size_t buf_size;
    std::size_t num_buf;
};

// Names seen; arguments as the documentation describes them.
using OnDataCb = std::function<void(std::span<const std::uint8_t>)>;
using OnConnectionEstablishedCb = std::function<void(const EndPointAddress &)>;
using OnConnectionClosedKeysCb =
    std::function<void(const EndPointAddress &, const std::vector<std::uint64_t> &)>;
using OnConnectionRefusedCb = std::function<void(const EndPointAddress &)>;
using OnSendCompleted = std::function<void(const EndPointAddress &, std::uint64_t)>;

struct NetworkConfig {  // seen, less its shared buffers
    NetworkMode mode;
    ThreadSafetyModel thread_safety;
    OnDataCb on_data_cb;
    OnConnectionEstablishedCb on_connection_established_cb;
    OnConnectionClosedKeysCb on_connection_closed_cb;
    OnConnectionRefusedCb on_connection_refused_cb;
    OnSendCompleted on_send_completed_cb;
};

class NetworkBackend {
public:
    virtual ~NetworkBackend() = default;
    // Seen; what it returns is inferred.
    static std::unique_ptr<NetworkBackend> create(BackendType, NetworkConfig,
                                                  std::shared_ptr<BaseEventLoop>);
    // Seen.
    virtual void open_send_endpoint(const EndPointAddress &, const ConnectionParameters &) = 0;
    virtual EndPointAddress open_listen_endpoint(const EndPointAddress &,
                                                 const ConnectionParametersRecv &) = 0;
    // Inferred.
    virtual void close_send_endpoint(const EndPointAddress &) = 0;
    virtual void close_listen_endpoint(const EndPointAddress &) = 0;
    // Seen of SendEndpointZeroCopy; here with an address in front.
    virtual NetioStatus send_data(const EndPointAddress &, std::span<std::uint8_t> data,
                                  std::span<const std::uint8_t> header_data, std::uint64_t key) = 0;
    virtual NetioStatus send_data(const EndPointAddress &, std::span<const iovec> iov,
                                  std::span<const std::uint8_t> header_data, std::uint64_t key) = 0;
    virtual std::size_t get_num_available_buffers(const EndPointAddress &) = 0;
};

} // namespace netio3

#endif
