/*
 * Memory of GPUs for C++17: regions of it, pools of it that messages are delivered to, payloads that
 * wait for work there, and the ring that takes it through the host where the provider can't reach
 * it.
 */
#ifndef FABRICAST_DEVICE_HPP
#define FABRICAST_DEVICE_HPP

#include <fabricast.hpp>

namespace fabricast {

/// Allocates memory of a GPU, by its number. FCAST_DEVICE: there is none, or no driver.
inline result<region> device_region(std::size_t len, std::uint32_t device = 0,
                                    bool virtual_memory = false)
{
    fcast_region raw{};
    if (fcast_status code = fcast_region_device(len, device, virtual_memory, &raw))
        return failure::last(code);
    return region(raw);
}

/// A region of memory that the program allocated with CUDA, from a CUdeviceptr on. It stays
/// allocated until `release` is called.
inline result<region> external_device_region(std::uint64_t address, std::size_t len,
                                             std::int32_t device = FCAST_ANY_DEVICE,
                                             std::function<void()> release = {})
{
    const detail::release_call with(std::move(release));
    fcast_region raw{};
    if (fcast_status code =
            fcast_region_external_device(address, len, device, with.call, with.context, &raw))
        return failure::last(code);
    return region(raw);
}

/// A region of a tensor of another library, a DLManagedTensor (DLPack before 1.0), which it owns
/// from now on, also where this fails.
inline result<region> region_from_dlpack(void *tensor)
{
    fcast_region raw{};
    if (fcast_status code = fcast_region_from_dlpack(tensor, &raw))
        return failure::last(code);
    return region(raw);
}

/// The same of a DLManagedTensorVersioned (DLPack 1.0 and later).
inline result<region> region_from_dlpack_versioned(void *tensor)
{
    fcast_region raw{};
    if (fcast_status code = fcast_region_from_dlpack_versioned(tensor, &raw))
        return failure::last(code);
    return region(raw);
}

/// Buffers in a GPU's memory, for `settings::deliver_to` of endpoints that receive into it.
class device_pool : public detail::owner<fcast_device_pool, fcast_device_pool_release> {
public:
    using owner::owner;
    static result<device_pool> create(const region &of, std::size_t slot_size)
    {
        fcast_device_pool raw{};
        if (fcast_status code = fcast_device_pool_create(of.raw(), slot_size, &raw))
            return failure::last(code);
        return device_pool(raw);
    }
};

/// Has a payload wait for all that a stream of CUDA's (a CUstream or cudaStream_t; null: the default
/// one of that GPU) was given up to now: it is sent, published or pushed when that is done. The
/// stream may be destroyed as soon as this returns.
inline result<void> after_stream(const payload &what, void *stream, std::uint32_t device = 0)
{
    return detail::done(fcast_payload_after_stream(what.raw(), stream, device));
}

/// The same for an event of CUDA's (a CUevent or cudaEvent_t), which is neither destroyed nor
/// recorded again until `release` is called.
inline result<void> after_event(const payload &what, void *event,
                                std::function<void()> release = {})
{
    const detail::release_call with(std::move(release));
    return detail::done(fcast_payload_after_event(what.raw(), event, with.call, with.context));
}

/// A ring of pinned memory, for `settings::staging` of endpoints that send memory of a GPU.
class staging : public detail::owner<fcast_staging, fcast_staging_release> {
public:
    using owner::owner;
    /// 0: 32 slots, of 1 MiB.
    static result<staging> create(std::uint32_t slots = 0, std::size_t slot_bytes = 0,
                                  std::int32_t numa_node = -1)
    {
        fcast_staging raw{};
        if (fcast_status code = fcast_staging_create(slots, slot_bytes, 0, numa_node, &raw))
            return failure::last(code);
        return staging(raw);
    }
};

} // namespace fabricast

#endif
