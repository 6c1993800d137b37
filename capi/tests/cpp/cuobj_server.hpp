// What programs for cuObjClient need around them in tests: a server of one object, in a thread of
// its own; the control path to it; and CUDA's two functions, over the tests' fake driver.
#ifndef CUOBJ_SERVER_HPP
#define CUOBJ_SERVER_HPP

#include "check.hpp"

#include <fabricast_cuobj.hpp>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include <dlfcn.h>
#include <unistd.h>

/// A server of one object. ask() is the control path: any thread calls it, one after the other.
class object_thread {
public:
    static constexpr std::size_t size = 1 << 20;
    static constexpr std::uint32_t patience = 60000;

    explicit object_thread(const fabricast::fabric &on)
        : own_(fabricast::object_server::open(on).value()),
          channel_(own_.open_channel().value()), thread_([this] { serve(); })
    {
        region_.enroll(own_.own_domain().value()).value();
        for (std::size_t at = 0; at < size; at++)
            object()[at] = static_cast<std::uint8_t>(at * 31 + at / 253 + 1);
    }
    ~object_thread()
    {
        {
            const std::lock_guard<std::mutex> locked(lock_);
            is_over_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }

    std::uint8_t *object() { return region_.memory().data(); }
    /// What it was asked for up to now.
    int asked() const { return asked_; }
    /// The bytes that it moved; -1: none.
    ssize_t ask(bool is_get, std::size_t len, loff_t offset, const char *token,
                std::uint32_t timeout_ms = patience)
    {
        std::unique_lock<std::mutex> locked(lock_);
        changed_.wait(locked, [this] { return !is_asked_; });
        is_asked_ = true;
        is_get_ = is_get;
        len_ = len;
        offset_ = static_cast<std::size_t>(offset);
        token_ = token;
        timeout_ms_ = timeout_ms;
        const int number = ++asked_;
        changed_.notify_all();
        changed_.wait(locked, [&] { return answered_ == number; });
        const ssize_t answer = answer_;
        is_asked_ = false;
        changed_.notify_all();
        return answer;
    }

private:
    void serve()
    {
        std::unique_lock<std::mutex> locked(lock_);
        for (;;) {
            changed_.wait(locked, [this] { return is_over_ || (is_asked_ && answered_ < asked_); });
            if (is_over_)
                return;
            answer_ = move();
            answered_ = asked_;
            changed_.notify_all();
        }
    }
    ssize_t move()
    {
        if (offset_ > size || len_ > size - offset_)
            return -1;
        const auto part = region_.memory().subspan(offset_, len_);
        const auto begun = is_get_
                               ? channel_.write(token_.c_str(), 0, part, region_, 1, timeout_ms_)
                               : channel_.read(token_.c_str(), 0, part, region_, 1, timeout_ms_);
        if (!begun)
            return -1;
        for (;;) {
            fabricast::event room[4];
            for (const fabricast::event &of : channel_.poll(room).value())
                if (!of.is(fabricast::event_kind::object_returned))
                    return of.is(fabricast::event_kind::object_failed) ? -1 : ssize_t(len_);
            (void)channel_.wait(50);
        }
    }

    fabricast::object_server own_;
    fabricast::object_channel channel_;
    fabricast::region region_ = fabricast::region::allocate(size).value();
    std::mutex lock_;
    std::condition_variable changed_;
    bool is_over_ = false, is_asked_ = false, is_get_ = false;
    int asked_ = 0, answered_ = 0;
    std::size_t len_ = 0, offset_ = 0;
    std::uint32_t timeout_ms_ = 0;
    std::string token_;
    ssize_t answer_ = 0;
    /// Uses all of the above.
    std::thread thread_;
};

/// The first fabric without connections that opens here; clients are made on the same.
inline fabricast::fabric open_cuobj_fabric(std::uint64_t callback_bytes)
{
    for (const char *provider : {test_provider(), "net"}) {
        fabricast::fabric_settings settings;
        settings.kind = FCAST_KIND_RDM;
        settings.provider = provider;
        settings.node = "127.0.0.1";
        auto opened = fabricast::fabric::open(settings);
        if (!opened)
            continue;
        fabricast::cuobj::set_network({provider, "127.0.0.1", callback_bytes});
        return *std::move(opened);
    }
    std::printf("SKIPPED: no provider with endpoints without connections: %s\n",
                fcast_last_error());
    std::exit(0);
}

// ---- CUDA ---------------------------------------------------------------------------------------

/// The fake keeps what it is asked for the life of the process.
extern "C" const char *__lsan_default_suppressions();
extern "C" const char *__lsan_default_suppressions() { return "leak:libcuda.so\n"; }

/// The tests' fake driver; it stays loaded when its file is gone.
class fake_cuda {
public:
    /// Builds it, and has the library load it, which must not have looked for one yet.
    static bool load()
    {
        char folder[] = "/tmp/fabricast-fake-XXXXXX";
        if (mkdtemp(folder) == nullptr)
            return false;
        const std::string path = std::string(folder) + "/libcuda.so", here = __FILE__;
        const std::string source =
            here.substr(0, here.rfind('/')) + "/../../../tests/common/fake_cuda.c";
        const std::string build =
            "cc -shared -fPIC -O1 '" + source + "' -o " + path + " -lpthread -ldl";
        const bool loaded = std::system(build.c_str()) == 0 &&
                            setenv("FABRICAST_CUDA", path.c_str(), 1) == 0 &&
                            setenv("FAKE_CUDA_THREADS", "1", 1) == 0 &&
                            setenv("FAKE_CUDA_PROTECTED", "1", 1) == 0 && enter(path.c_str()) &&
                            fabricast::device_region(1);
        unlink(path.c_str());
        rmdir(folder);
        return loaded;
    }
    static void *alloc(std::size_t len, bool is_managed = false)
    {
        unsigned long long at = 0;
        const int code = is_managed
                             ? function<int(unsigned long long *, std::size_t, unsigned)>(
                                   "cuMemAllocManaged")(&at, len, 1)
                             : function<int(unsigned long long *, std::size_t)>("cuMemAlloc_v2")(
                                   &at, len);
        CHECK(code == 0);
        return reinterpret_cast<void *>(static_cast<std::uintptr_t>(at));
    }
    static int free(void *at)
    {
        return function<int(unsigned long long)>("cuMemFree_v2")(
            reinterpret_cast<std::uintptr_t>(at));
    }
    static void to_host(void *into, const void *from, std::size_t len)
    {
        CHECK(function<int(void *, unsigned long long, std::size_t)>("cuMemcpyDtoH_v2")(
                  into, reinterpret_cast<std::uintptr_t>(from), len) == 0);
    }

private:
    static inline void *library = nullptr;

    template <class F> static F *function(const char *name)
    {
        void *const found = dlsym(library, name);
        CHECK(found != nullptr);
        return reinterpret_cast<F *>(found);
    }
    static bool enter(const char *path)
    {
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr)
            return false;
        int device = 0;
        void *context = nullptr;
        return function<int(unsigned)>("cuInit")(0) == 0 &&
               function<int(int *, int)>("cuDeviceGet")(&device, 0) == 0 &&
               function<int(void **, int)>("cuDevicePrimaryCtxRetain")(&context, device) == 0 &&
               function<int(void *)>("cuCtxPushCurrent_v2")(context) == 0;
    }
};

inline int cudaMalloc(void **at, std::size_t len)
{
    *at = fake_cuda::alloc(len);
    return 0;
}
inline int cudaFree(void *at) { return fake_cuda::free(at); }

#endif
