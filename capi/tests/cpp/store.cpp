// A store of the program's in C++: objects in a map, and functions of it that throw, that answer
// from another thread, and that answer nothing.
#include "check.hpp"

#include <fabricast_object_store.hpp>

#include <atomic>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace fc = fabricast;

namespace {
constexpr std::size_t size = 1 << 16, piece_bytes = 1 << 14;
constexpr std::uint32_t patience = 60000;

std::uint8_t content[size];
/// Of what the store has given: how many readers and writers there are.
std::atomic<int> alive{0};

struct counted {
    counted() { alive++; }
    ~counted() { alive--; }
};

struct object {
    fc::object_info info;
    std::vector<std::uint8_t> bytes;
};

struct reader final : fc::object_reader, counted {
    reader(std::string_view of, std::shared_ptr<const object> what) : name(of), it(std::move(what))
    {
    }
    void read(std::uint64_t at, fc::mutable_bytes into, fc::object_piece piece) override
    {
        CHECK(at + into.size() <= it->bytes.size() && into.size() <= piece_bytes);
        if (name == "dropped")
            return;
        if (name == "fails")
            CHECK(piece.fail(FCAST_DATA) && piece.done(0) == FCAST_STALE);
        if (name == "long")
            CHECK(piece.done(into.size() + 1) == FCAST_INVALID);
        if (name == "throws in read")
            throw std::runtime_error("as a test");
        if (!piece)
            return;
        const auto answer = [it = it, at, into](fc::object_piece taken) {
            std::memcpy(into.data(), it->bytes.data() + at, into.size());
            CHECK(taken.done(into.size()) && !taken);
        };
        if (name != "late" && name != "late, and throws")
            return answer(std::move(piece));
        std::thread(answer, std::move(piece)).detach();
        // The piece is not here any more: it is answered all the same.
        if (name == "late, and throws")
            throw 7;
    }
    const std::string name;
    const std::shared_ptr<const object> it;
};

class map_store final : public fc::object_store {
public:
    fc::status open(std::string_view name, fc::object_info &info,
                    std::unique_ptr<fc::object_reader> &out) override
    {
        if (name == "throws")
            throw std::runtime_error("as a test");
        if (name == "throws an error")
            throw fc::thrown_error({FCAST_BUSY, "as a test"});
        if (name == "gives nothing")
            return {};
        const std::lock_guard<std::mutex> lock(mutex);
        const auto found = objects.find(name);
        if (found == objects.end())
            return FCAST_NOT_FOUND;
        info = found->second->info;
        out = std::make_unique<reader>(name, found->second);
        return {};
    }
    fc::status begin(std::string_view name, std::uint64_t len, const fc::put_condition &only,
                     std::unique_ptr<fc::object_writer> &out) override;
    fc::status list(std::string_view, std::string_view, std::size_t, fc::object_list &into) override
    {
        const std::lock_guard<std::mutex> lock(mutex);
        for (const auto &[name, it] : objects)
            if (const fc::status code = into.add(name, it->info); !code)
                return code;
        CHECK(into.add("", {}) == FCAST_INVALID);
        return {};
    }
    fc::status remove(std::string_view name, std::string_view etag) override
    {
        const std::lock_guard<std::mutex> lock(mutex);
        const auto found = objects.find(name);
        if (found == objects.end())
            return FCAST_NOT_FOUND;
        if (!etag.empty() && found->second->info.version() != etag)
            return FCAST_REFUSED;
        objects.erase(found);
        return {};
    }

    std::mutex mutex;
    std::map<std::string, std::shared_ptr<const object>, std::less<>> objects;
};

struct writer final : fc::object_writer, counted {
    writer(map_store &store, std::string_view of, std::uint64_t len, fc::put_condition when)
        : in(store), name(of), only(std::move(when)), it(std::make_shared<object>())
    {
        it->bytes.resize(len);
    }
    void write(std::uint64_t at, fc::bytes from, fc::object_piece piece) override
    {
        if (name == "unwritable")
            throw std::bad_alloc();
        std::memcpy(it->bytes.data() + at, from.data(), from.size());
        CHECK(piece.done(from.size()));
    }
    fc::status commit(std::uint64_t crc64, fc::object_info &info) override
    {
        if (name == "throws in commit")
            throw std::bad_alloc();
        CHECK(info.size == it->bytes.size() && info.checksum == crc64);
        CHECK(info.set_version(std::string(FCAST_OBJECT_ETAG_LEN, 'x')) == FCAST_INVALID);
        for (const char *wrong : {"", "a b", "\"a\"", "a\x7f", "\xc3\xa4"})
            CHECK(info.set_version(wrong) == FCAST_INVALID && !info.version().empty());
        const std::lock_guard<std::mutex> lock(in.mutex);
        auto &found = in.objects[name];
        const bool holds = only.kind() == FCAST_PUT_ANY ||
                           (only.kind() == FCAST_PUT_ABSENT && !found) ||
                           (found && only.etag() && found->info.version() == only.etag());
        if (holds) {
            CHECK(info.set_version("version-" + std::to_string(++versions)));
            it->info = info;
            found = it;
        } else if (!found) {
            in.objects.erase(name);
        }
        return holds ? FCAST_OK : FCAST_REFUSED;
    }
    map_store &in;
    const std::string name;
    const fc::put_condition only;
    const std::shared_ptr<object> it;
    inline static int versions = 0;
};

fc::status map_store::begin(std::string_view name, std::uint64_t len, const fc::put_condition &only,
                            std::unique_ptr<fc::object_writer> &out)
{
    out = std::make_unique<writer>(*this, name, len, only);
    return {};
}

/// A store of which nothing can be changed or listed, and whose functions never wait.
struct empty_store final : fc::object_store {
    fc::status open(std::string_view, fc::object_info &,
                    std::unique_ptr<fc::object_reader> &) override
    {
        return FCAST_NOT_FOUND;
    }
    bool never_waits() const noexcept override { return true; }
};

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

/// What asks: a client, and memory that it lends.
struct asker {
    fc::fabric fabric = open_fabric();
    fc::object_client client = fc::object_client::open(fabric).value();
    fc::region region = fc::region::allocate(size).value();
    fc::mutable_bytes bytes = region.memory().first(size);
    fc::object_memory memory =
        client.enroll(region, bytes, FCAST_OBJECT_GET | FCAST_OBJECT_PUT).value();

    fc::result<fc::object_service> start(std::shared_ptr<fc::object_store> store,
                                         const char *at = "127.0.0.1:0") const
    {
        fc::object_service_settings settings;
        settings.piece_bytes = piece_bytes;
        return fc::object_service::start(std::move(store), fabric, at, fabric, settings);
    }
    fc::object_remote connect(const fc::object_service &to) const
    {
        const std::string address = to.address().value();
        return fc::object_remote::connect(client, fabric, address.c_str()).value();
    }
    fc::status put(const fc::object_remote &to, const char *name,
                   const fc::put_condition &only = {}) const
    {
        std::memcpy(bytes.data(), content, size);
        return to.put(name, memory, patience, only).code();
    }
    fc::status get(const fc::object_remote &from, const char *name) const
    {
        std::memset(bytes.data(), 0, size);
        const auto got = from.get(name, memory, patience);
        CHECK(!got || std::memcmp(bytes.data(), content, size) == 0);
        return got.code();
    }
};
} // namespace

static void by_name(const asker &it, const fc::object_remote &remote)
{
    CHECK(remote.head("a", patience).code() == FCAST_NOT_FOUND);
    CHECK(it.put(remote, "a", fc::put_condition::absent()));
    CHECK(it.put(remote, "a", fc::put_condition::absent()) == FCAST_REFUSED);
    const fc::object_info first = remote.head("a", patience).value();
    CHECK(first.size == size && first.version() == "version-1" && first.modified_ns > 0);
    CHECK(it.put(remote, "a", fc::put_condition::matches("other")) == FCAST_REFUSED);
    CHECK(it.put(remote, "a", fc::put_condition::matches(std::string(first.version()))));
    CHECK(it.get(remote, "a") && it.get(remote, "absent") == FCAST_NOT_FOUND);

    CHECK(it.put(remote, "b") && it.put(remote, "c"));
    const fc::object_page page = remote.list("", 1, patience, "a").value();
    CHECK(page.more && page.entries.size() == 1 && page.entries[0].name == "b");
    CHECK(page.entries[0].size == size && page.entries[0].etag == "version-3");
    CHECK(remote.list("c", 9, patience).value().entries.size() == 1);
    CHECK(remote.remove("b", patience, "version-1").code() == FCAST_REFUSED);
    for (const char *name : {"a", "b", "c"})
        remote.remove(name, patience).value();
    CHECK(remote.remove("a", patience).code() == FCAST_NOT_FOUND);
    CHECK(remote.list("", 9, patience).value().entries.empty());
}

/// What a store does wrong is one request that fails; a late answer is as good as any.
static void wrong(const asker &it, const fc::object_remote &remote)
{
    const struct {
        const char *name;
        fcast_status code;
    } reads[] = {
        {"late", FCAST_OK},          {"dropped", FCAST_SYSTEM}, {"late, and throws", FCAST_OK},
        {"fails", FCAST_DATA},       {"long", FCAST_SYSTEM},    {"throws in read", FCAST_SYSTEM},
        {"throws", FCAST_SYSTEM},    {"plain", FCAST_OK},       {"gives nothing", FCAST_SYSTEM},
        {"throws an error", FCAST_AGAIN},
    };
    for (const auto &of : reads) {
        CHECK(it.put(remote, of.name));
        const fc::status code = it.get(remote, of.name);
        if (code != of.code)
            std::fprintf(stderr, "%s: %s\n", of.name, code.name());
        CHECK(code == of.code);
    }
    CHECK(it.put(remote, "throws in commit") == FCAST_NO_RESOURCES);
    CHECK(!it.put(remote, "unwritable"));
    CHECK(remote.head("unwritable", patience).code() == FCAST_NOT_FOUND);
}

/// What starts no service lets go of the store.
static void refused(const asker &it)
{
    CHECK(it.start(std::shared_ptr<fc::object_store>()).code() == FCAST_INVALID);
    auto store = std::make_shared<map_store>();
    const std::weak_ptr<map_store> held = store;
    CHECK(it.start(std::move(store), "?").code() == FCAST_INVALID && held.expired());

    fc::object_service service = it.start(std::make_unique<empty_store>()).value();
    fc::object_remote remote = it.connect(service);
    CHECK(it.put(remote, "a") == FCAST_REFUSED && it.get(remote, "a") == FCAST_NOT_FOUND);
    CHECK(remote.list("", 9, patience).code() == FCAST_REFUSED);
    CHECK(remote.remove("a", patience).code() == FCAST_REFUSED);
    remote.reset();
    service.close(patience).value();
}

int main()
{
    for (std::size_t at = 0; at < size; at++)
        content[at] = static_cast<std::uint8_t>(at * 31 + at / 253 + 1);
    const asker it;
    auto store = std::make_shared<map_store>();
    const std::weak_ptr<map_store> held = store;
    fc::object_service service = it.start(std::move(store)).value();
    {
        const fc::object_remote remote = it.connect(service);
        by_name(it, remote);
        wrong(it, remote);
    }
    service.close(patience).value();
    // A thread that answered late may still be on its way out.
    for (int i = 0; i < 60000 && !held.expired(); i++)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(held.expired() && alive == 0);
    refused(it);
    std::printf("store: ok\n");
}
