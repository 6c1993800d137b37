// cuObjClient by its names: requests, several at once, memory of each kind, tokens, telemetry, and
// what is refused. capi/tests/cuobj_page.sh runs the examples of cuObjClient's own page.
#include "cuobj_server.hpp"

#include <sstream>
#include <vector>

#include <fcntl.h>
#include <sys/resource.h>

using namespace fabricast::cuobj;

namespace {
constexpr std::size_t size = 64 * 1024, part = size / 4;

/// What a callback is told of.
struct caller {
    object_thread *server;
    int calls = 0;
    /// The call that answers -1.
    int failing = 0;
    bool throws = false;
    char *expected = nullptr;
    loff_t next = 0;
};

ssize_t ask(bool is_get, const void *handle, const char *ptr, std::size_t len, loff_t offset,
            const cufileRDMAInfo_t *info)
{
    auto &of = *static_cast<caller *>(cuObjClient::getCtx(handle));
    CHECK(of.expected == nullptr || ptr == of.expected + of.next);
    CHECK(std::strcmp(reinterpret_cast<const char *>(info), info->desc_str) == 0);
    CHECK(std::strlen(info->desc_str) == std::size_t(info->desc_len));
    CHECK(std::strstr(info->desc_str, ":ofi1:") != nullptr);
    of.next += loff_t(len);
    if (++of.calls == of.failing && of.throws)
        throw std::runtime_error("as a test");
    return of.calls == of.failing ? -1 : of.server->ask(is_get, len, offset, info->desc_str);
}
ssize_t get(const void *handle, char *ptr, std::size_t len, loff_t offset,
            const cufileRDMAInfo_t *info)
{
    return ask(true, handle, ptr, len, offset, info);
}
ssize_t put(const void *handle, const char *ptr, std::size_t len, loff_t offset,
            const cufileRDMAInfo_t *info)
{
    return ask(false, handle, ptr, len, offset, info);
}
} // namespace

static_assert(CU_OBJ_SUCCESS == 0 && CU_OBJ_FAIL == 1 && CUOBJ_PROTO_RDMA_DC_V1 == 1001);
static_assert(CUOBJ_GET == 0 && CUOBJ_PUT == 1 && CUOBJ_INVALID == 9999);
static_assert(CUOBJ_MEMORY_SYSTEM == 0 && CUOBJ_MEMORY_CUDA_MANAGED == 1);
static_assert(CUOBJ_MEMORY_CUDA_DEVICE == 2 && CUOBJ_MEMORY_UNKNOWN == 3);
static_assert(CUOBJ_MEMORY_INVALID == 4 && CUOBJ_MAX_MEMORY_REG_SIZE == 1ULL << 32);

/// GET and PUT move what they say, in parts; a callback's -1 and what it throws come out.
static void requests(cuObjClient &client, object_thread &server)
{
    std::vector<char> room(size + 100);
    CHECK(client.cuMemObjGetDescriptor(room.data(), room.size()) == CU_OBJ_SUCCESS);
    CHECK(client.cuMemObjGetMaxRequestCallbackSize(room.data()) == ssize_t(part));
    caller of{&server};
    of.expected = room.data() + 100;
    CHECK(client.cuObjGet(&of, room.data(), size, 1000, 100) == ssize_t(size));
    CHECK(of.calls == 4 && room[99] == 0);
    CHECK(std::memcmp(room.data() + 100, server.object() + 1000, size) == 0);
    // An address within the memory is one, too.
    std::memcpy(room.data() + 7, "put me", 6);
    of = {&server};
    CHECK(client.cuObjPut(&of, room.data() + 7, 6, 30) == 6 && of.calls == 1);
    CHECK(std::memcmp(server.object() + 30, "put me", 6) == 0);

    of = {&server, 0, 2};
    CHECK(client.cuObjGet(&of, room.data(), size) == -1 && of.calls == 2);
    of = {&server, 0, 1, true};
    bool is_thrown = false;
    try {
        (void)client.cuObjPut(&of, room.data(), size);
    } catch (const std::runtime_error &error) {
        is_thrown = std::strcmp(error.what(), "as a test") == 0;
    }
    CHECK(is_thrown);
    of = {&server};
    CHECK(client.cuObjGet(&of, room.data(), room.size() + 1) == -EINVAL);
    CHECK(client.cuObjGet(&of, room.data(), 10, -1) == -EINVAL);
    CHECK(client.cuObjGet(&of, room.data(), 10, 0, -1) == -EINVAL);
    CHECK(client.cuObjGet(&of, &of, 10) == -EINVAL);
    CHECK(client.cuObjGet(&of, nullptr, 10) == -EINVAL && of.calls == 0);
    CHECK(client.cuObjGet(&of, room.data(), 100) == 100);

    // Neither the same memory twice, nor a part of it.
    CHECK(client.cuMemObjGetDescriptor(room.data(), 8) == CU_OBJ_FAIL);
    CHECK(client.cuMemObjGetDescriptor(room.data() + 8, 8) == CU_OBJ_FAIL);
    CHECK(client.cuMemObjGetDescriptor(nullptr, 8) == CU_OBJ_FAIL);
    CHECK(client.cuMemObjGetDescriptor(room.data(), 0) == CU_OBJ_FAIL);
    CHECK(client.cuMemObjPutDescriptor(room.data() + 8) == CU_OBJ_FAIL);
    CHECK(client.cuMemObjPutDescriptor(room.data()) == CU_OBJ_SUCCESS);
    CHECK(client.cuMemObjPutDescriptor(room.data()) == CU_OBJ_FAIL);
    CHECK(client.cuMemObjGetMaxRequestCallbackSize(room.data()) == -EINVAL);
    CHECK(client.cuObjGet(&of, room.data(), 10) == -EINVAL);
}

/// Several threads, each with memory of its own.
static void at_once(cuObjClient &client, object_thread &server)
{
    std::vector<std::thread> threads;
    for (int number = 0; number < 4; number++)
        threads.emplace_back([&client, &server, number] {
            std::vector<char> room(size);
            CHECK(client.cuMemObjGetDescriptor(room.data(), size) == CU_OBJ_SUCCESS);
            for (int round = 0; round < 5; round++) {
                caller of{&server};
                const loff_t offset = 1000 * number + round;
                CHECK(client.cuObjGet(&of, room.data(), size, offset) == ssize_t(size));
                CHECK(std::memcmp(room.data(), server.object() + offset, size) == 0);
            }
            CHECK(client.cuMemObjPutDescriptor(room.data()) == CU_OBJ_SUCCESS);
        });
    for (std::thread &thread : threads)
        thread.join();
}

/// A token reaches its range until it is put; the memory is not given back before.
static void tokens(cuObjClient &client, object_thread &server)
{
    std::vector<char> room(size);
    char *token = nullptr, *other = nullptr;
    CHECK(client.cuMemObjGetRDMAToken(room.data(), 10, 0, CUOBJ_GET, &token) == CU_OBJ_FAIL);
    CHECK(client.cuMemObjGetDescriptor(room.data(), size) == CU_OBJ_SUCCESS);
    CHECK(client.cuMemObjGetRDMAToken(room.data(), size, 1, CUOBJ_GET, &token) == CU_OBJ_FAIL);
    CHECK(client.cuMemObjGetRDMAToken(room.data(), 10, 0, CUOBJ_INVALID, &token) == CU_OBJ_FAIL);
    CHECK(client.cuMemObjGetRDMAToken(room.data(), 10, 0, CUOBJ_GET, nullptr) == CU_OBJ_FAIL);
    CHECK(token == nullptr);
    CHECK(client.cuMemObjGetRDMAToken(room.data(), 500, 100, CUOBJ_GET, &token) == CU_OBJ_SUCCESS);
    CHECK(client.cuMemObjGetRDMAToken(room.data(), 6, 700, CUOBJ_PUT, &other) == CU_OBJ_SUCCESS);
    std::memcpy(&room[700], "by now", 6);
    CHECK(server.ask(true, 500, 0, token) == 500 && server.ask(false, 6, 0, other) == 6);
    CHECK(std::memcmp(&room[106], server.object() + 6, 494) == 0);
    CHECK(std::memcmp(server.object(), "by now", 6) == 0);
    // What is to be read may not be written.
    CHECK(server.ask(true, 6, 0, other, 2000) == -1);
    CHECK(client.cuMemObjPutDescriptor(room.data()) == CU_OBJ_FAIL);
    const std::string gone = token;
    CHECK(client.cuMemObjPutRDMAToken(token) == CU_OBJ_SUCCESS);
    CHECK(client.cuMemObjPutRDMAToken(token) == CU_OBJ_FAIL);
    CHECK(client.cuMemObjPutRDMAToken(nullptr) == CU_OBJ_FAIL);
    CHECK(client.cuMemObjPutRDMAToken(other) == CU_OBJ_SUCCESS);
    CHECK(server.ask(true, 500, 0, gone.c_str(), 2000) == -1);
    CHECK(client.cuMemObjPutDescriptor(room.data()) == CU_OBJ_SUCCESS);
}

/// A client is not connected where its network or its protocol is none, and from when its endpoint
/// can't be opened anew until it can.
static void connections(CUObjOps_t &ops, object_thread &server)
{
    {
        cuObjClient other(ops, CUOBJ_PROTO_MAX);
        caller of{&server};
        CHECK(!other.isConnected());
        CHECK(other.cuMemObjGetDescriptor(&of, sizeof of) == CU_OBJ_FAIL);
        CHECK(other.cuObjGet(&of, &of, 1) == -ENOTCONN);
    }
    std::vector<char> room(size);
    char *token = nullptr;
    cuObjClient client(ops);
    CHECK(client.isConnected());
    CHECK(client.cuMemObjGetDescriptor(room.data(), size) == CU_OBJ_SUCCESS);
    CHECK(client.cuMemObjGetRDMAToken(room.data(), 10, 0, CUOBJ_GET, &token) == CU_OBJ_SUCCESS);
    // Nobody knows whether it is still used: over tcp, the endpoint has to go.
    CHECK(client.cuMemObjPutRDMAToken(token) == CU_OBJ_SUCCESS);
    CHECK(client.isConnected());
    rlimit before{};
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    const rlimit none{0, before.rlim_max};
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    const auto code = client.cuMemObjGetRDMAToken(room.data(), 10, 0, CUOBJ_GET, &token);
    const bool was_connected = client.isConnected();
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    CHECK(code == CU_OBJ_FAIL && !was_connected);
    CHECK(client.cuMemObjGetRDMAToken(room.data(), 10, 0, CUOBJ_GET, &token) == CU_OBJ_SUCCESS);
    CHECK(client.isConnected());
    // What stands when the client goes is revoked by that.
}

/// The stream gets the numbers that flags name, in either format, and is left alone afterwards.
static void telemetry(CUObjOps_t &ops, object_thread &server)
{
    const auto said = [&](bool use_otel, unsigned flags) {
        std::ostringstream out;
        cuObjClient::setupTelemetry(use_otel, &out);
        cuObjClient::setTelemFlags(flags);
        {
            cuObjClient client(ops);
            char room[64];
            caller of{&server};
            CHECK(client.cuMemObjGetDescriptor(room, sizeof room) == CU_OBJ_SUCCESS);
            CHECK(client.cuObjGet(&of, room, sizeof room) == 64);
        }
        cuObjClient::shutdownTelemetry();
        return out.str();
    };
    const auto has = [](const std::string &text, const char *what) {
        return text.find(what) != std::string::npos;
    };
    const std::string all = said(false, 0xFFFF);
    CHECK(has(all, "objects, closed clients") && has(all, "callbacks:") && has(all, "lent:"));
    const std::string some = said(false, FCAST_TELEMETRY_CALLBACKS);
    CHECK(has(some, "callbacks:") && !has(some, "lent:") && !has(some, "get:"));
    CHECK(said(false, 0).empty());
    CHECK(has(said(true, 0xFFFF), "# TYPE fabricast_object_transfers_total counter\n"));
    // A stream that fails ends it, and nobody is hurt.
    std::ostringstream broken;
    broken.setstate(std::ios::badbit);
    cuObjClient::setupTelemetry(false, &broken);
    cuObjClient::shutdownTelemetry();
    cuObjClient::shutdownTelemetry();
    CHECK(broken.str().empty());
}

/// Memory of each kind is known, and a GPU's goes the way that the provider has.
static void kinds(cuObjClient &client, object_thread &server)
{
    int local = 0;
    CHECK(cuObjClient::getMemoryType(&local) == CUOBJ_MEMORY_SYSTEM);
    CHECK(cuObjClient::getMemoryType(nullptr) == CUOBJ_MEMORY_INVALID);
    CHECK(cuObjClient::getMemoryType(reinterpret_cast<void *>(1UL << 62)) == CUOBJ_MEMORY_INVALID);
    CHECK(client.cuMemObjGetDescriptor(reinterpret_cast<void *>(8), 8) == CU_OBJ_FAIL);
    if (!fake_cuda::load()) {
        std::printf("SKIPPED: memory of GPUs: the fake driver can't be built\n");
        return;
    }
    for (const bool is_managed : {false, true}) {
        void *const memory = fake_cuda::alloc(size, is_managed);
        CHECK(cuObjClient::getMemoryType(memory) ==
              (is_managed ? CUOBJ_MEMORY_CUDA_MANAGED : CUOBJ_MEMORY_CUDA_DEVICE));
        CHECK(client.cuMemObjGetDescriptor(memory, size) == CU_OBJ_SUCCESS);
        caller of{&server};
        CHECK(client.cuObjGet(&of, memory, size, 500) == ssize_t(size));
        std::vector<char> room(size);
        fake_cuda::to_host(room.data(), memory, size);
        CHECK(std::memcmp(room.data(), server.object() + 500, size) == 0);
        CHECK(client.cuObjPut(&of, memory, size, 501) == ssize_t(size));
        CHECK(std::memcmp(room.data(), server.object() + 501, size) == 0);
        CHECK(client.cuMemObjPutDescriptor(memory) == CU_OBJ_SUCCESS);
        CHECK(fake_cuda::free(memory) == 0);
    }
    CHECK(cuObjClient::getMemoryType(&local) == CUOBJ_MEMORY_SYSTEM);
    CHECK(cuObjClient::getMemoryType(nullptr) == CUOBJ_MEMORY_INVALID);
}

int main()
{
    const fabricast::fabric fabric = open_cuobj_fabric(part);
    object_thread server(fabric);
    CUObjOps_t ops = {get, put};
    {
        cuObjClient client(ops, CUOBJ_PROTO_RDMA_DC_V1);
        CHECK(client.isConnected());
        requests(client, server);
        at_once(client, server);
        tokens(client, server);
    }
    connections(ops, server);
    telemetry(ops, server);
    {
        // Which driver there is is found out once: what asks for it comes last.
        cuObjClient client(ops);
        kinds(client, server);
    }
    set_network({"nobody", "", 0});
    CHECK(!cuObjClient(ops).isConnected());
    std::printf("cuobj: ok\n");
}
