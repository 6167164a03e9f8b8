// The pager: the physical memory under PyTorch's caching allocator (Gandiva, OSDI'18, 4.1; AntMan, OSDI'20, 4.1).
//
// The stock allocator asks cudaMalloc for segments. The pager takes its place, by rewriting the import slots of the
// allocator's library, and builds a segment of virtual addresses that stay and of physical chunks that come and go:
//
//     segment   = addresses (reserved once) = chunk | chunk | chunk | last chunk, rounded up to the granularity
//     chunk     = physical memory, on the device or on the host, mapped at its place in the segment
//     suspend   = copy the device chunks to host slabs, unmap all, release: no device bytes, the addresses stay
//     limit     = device bytes; what is allocated above it goes to the host at once, and moves at a boundary only
//
// One order rules who has the device: by age of the segment, then by place in it. The oldest chunks have it first. Of
// what is alive between two mini-batches, the oldest are the parameters, read in each pass; the youngest is the state
// of the optimizer, which is read and written once a mini-batch: it is the coldest. Demotion takes the youngest,
// promotion and resume give to the oldest, so that the two never undo each other.
//
// No CUDA headers, no nvcc: the few types of the driver are declared here, its functions are looked up in libcuda.so.1
// or in a library that is named (the fake driver of the tests).

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// -- the driver -------------------------------------------------------------------------------------------------------

using Address = unsigned long long;  // CUdeviceptr
using Handle = unsigned long long;   // CUmemGenericAllocationHandle
using Context = void*;
using Stream = void*;

struct Location {
    int type, id;
};
struct AllocationProp {
    int type, requested_handle_types;
    Location location;
    void* win32;
    struct {
        unsigned char compression, rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
};
struct AccessDesc {
    Location location;
    int flags;
};
static_assert(sizeof(AllocationProp) == 32 && sizeof(AccessDesc) == 12, "as in cuda.h");

enum { kInvalidValue = 1, kOutOfMemory = 2, kNotSupported = 801 };          // CUresult, and cudaError_t alike
enum { kNoDriver = -1, kNotStarted = -2, kNoSlot = -3, kForked = -4, kTwice = -5, kLost = -6 };  // the pager's own
enum { kOnDevice = 1, kOnHost = 2, kOnHostNuma = 3 };                       // CUmemLocationType
enum { kPinned = 1, kReadWrite = 3, kNonBlocking = 1, kPortable = 1, kRelaxed = 2 };

#define DRIVER_CALLS(X)                                                       \
    X(cuInit, (unsigned))                                                     \
    X(cuCtxGetCurrent, (Context*))                                            \
    X(cuCtxSetCurrent, (Context))                                             \
    X(cuCtxGetDevice, (int*))                                                 \
    X(cuCtxSynchronize, ())                                                   \
    X(cuDevicePrimaryCtxRetain, (Context*, int))                              \
    X(cuMemGetAllocationGranularity, (size_t*, const AllocationProp*, int))   \
    X(cuMemAddressReserve, (Address*, size_t, size_t, Address, uint64_t))     \
    X(cuMemAddressFree, (Address, size_t))                                    \
    X(cuMemCreate, (Handle*, size_t, const AllocationProp*, uint64_t))        \
    X(cuMemRelease, (Handle))                                                 \
    X(cuMemMap, (Address, size_t, size_t, Handle, uint64_t))                  \
    X(cuMemUnmap, (Address, size_t))                                          \
    X(cuMemSetAccess, (Address, size_t, const AccessDesc*, size_t))           \
    X(cuMemHostAlloc, (void**, size_t, unsigned))                             \
    X(cuMemcpyAsync, (Address, Address, size_t, Stream))                      \
    X(cuStreamCreate, (Stream*, unsigned))                                    \
    X(cuStreamSynchronize, (Stream))                                          \
    X(cuThreadExchangeStreamCaptureMode, (int*))

struct Driver {
#define DECLARE(name, arguments) int(*name) arguments = nullptr;
    DRIVER_CALLS(DECLARE)
#undef DECLARE
};

// -- the state --------------------------------------------------------------------------------------------------------

struct Device {  // one context, and the two streams on which its memory is copied
    Context context;
    int number;
    Stream streams[2];
};

struct Chunk {
    size_t bytes = 0;
    Handle handle = 0;       // physical memory; 0: none, the contents are in the slab
    bool host = false;       // where it is
    bool mapped = false;     // at its address
    bool open = false;       // and can be accessed there
    bool stale = false;      // mapped, but its contents are still in the slab
    char* slab = nullptr;    // its place there, from suspend to resume
    uint64_t overflow = 0;   // the mini-batch in which it went to the host because there was no room; 0: it did not
};

struct Segment {
    Address base = 0;
    size_t bytes = 0;  // of all chunks
    uint64_t serial = 0;
    Device* device = nullptr;
    std::vector<Chunk> chunks;
};

struct Unreleased {  // physical memory that nothing needs and the driver did not take back
    Handle handle;
    size_t bytes;
    bool host;
};

struct Slab {
    char* base;
    size_t bytes;
};

struct Stats {  // mirrored in pager.py
    uint64_t device_bytes, host_bytes, peak_device_bytes, peak_host_bytes, slab_bytes, limit, segments;
    uint64_t host_bytes_since_boundary, overflows, promotions, demotions;
    int64_t suspended, last_error;
    char last_call[40];
};

struct Moved {  // mirrored in pager.py
    uint64_t demoted_chunks, demoted_bytes, promoted_chunks, promoted_bytes;
    double seconds;
};

struct Pager {
    std::mutex mutex;
    Driver driver;
    bool loaded = false, started = false, retry_first = false;
    std::atomic<bool> forked{false};
    size_t chunk = 0, granularity = 0;
    int host_kind = kOnHostNuma;
    std::vector<std::unique_ptr<Device>> devices;
    std::map<Address, Segment> segments;
    std::vector<Segment> dead;  // freed, but the driver did not take all of it back
    std::vector<Unreleased> unreleased;
    std::vector<Slab> slabs;
    std::atomic<Address> low{~0ull}, high{0};  // all segments ever: a free of anything else needs no lock
    uint64_t serial = 0, mini_batch = 1;
    uint64_t overflowed = 0;  // bytes alive that went to the host in this mini-batch; its peak is in the statistics
    Stats stats{};
    // the first failure of the operation under way: what follows it is only the undoing
    int error = 0;
    const char* call = "";
};

// Never destroyed: the process's last frees come after the destructors of this library.
Pager& p = *new Pager;
thread_local size_t refused = 0;  // the size of this thread's last request, if it was answered out of memory

struct Slots {  // an allocator that is replaced: its functions, and the least size that the pager takes
    void *alloc = nullptr, *free = nullptr;
    std::atomic<size_t> least{0};
};
Slots cuda_slots, posix_slots;

int noted(const char* call, int code) {
    if (code && !p.error) p.error = code, p.call = call;
    return code;
}
#define CALL(name, ...) noted(#name, p.driver.name(__VA_ARGS__))

void forgive() { p.error = 0; }

int finish(int code) {
    if (p.error) {
        p.stats.last_error = p.error;
        std::strncpy(p.stats.last_call, p.call, sizeof p.stats.last_call - 1);
    }
    p.error = 0;
    return code;
}

// Every operation: under the mutex, and without an exception that leaves C.
template <class Operation>
int locked(const char* name, Operation operation) {
    try {
        std::lock_guard<std::mutex> lock(p.mutex);
        p.error = 0;
        if (p.forked) return finish(noted(name, kForked));
        if (!p.loaded) return finish(noted(name, kNotStarted));
        return finish(operation());
    } catch (...) {
        return kOutOfMemory;
    }
}

class Using {  // a context, current while this lives
    Context before = nullptr;
    bool changed = false;

  public:
    explicit Using(const Device& device) {
        if (p.driver.cuCtxGetCurrent(&before) == 0 && before != device.context)
            changed = p.driver.cuCtxSetCurrent(device.context) == 0;  // if not, the next call fails and says so
    }
    ~Using() {
        if (changed) p.driver.cuCtxSetCurrent(before);
    }
    Using(const Using&) = delete;
};

// -- chunks: each change of physical memory or of a mapping is one of these ------------------------------------------

bool fits(size_t bytes) { return !p.stats.limit || p.stats.device_bytes + bytes <= p.stats.limit; }

int create(const Device& device, bool host, Chunk& chunk) {
    AllocationProp prop{};
    prop.type = kPinned;
    prop.location = host ? Location{p.host_kind, 0} : Location{kOnDevice, device.number};
    int code = CALL(cuMemCreate, &chunk.handle, chunk.bytes, &prop, 0);
    if (host && p.host_kind == kOnHostNuma && (code == kInvalidValue || code == kNotSupported)) {
        prop.location.type = kOnHost;
        if (p.driver.cuMemCreate(&chunk.handle, chunk.bytes, &prop, 0) == 0) {
            p.host_kind = kOnHost;
            forgive();
            code = 0;
        }
    }
    if (code) {
        chunk.handle = 0;
        return code;
    }
    chunk.host = host;
    uint64_t& now = host ? p.stats.host_bytes : p.stats.device_bytes;
    uint64_t& peak = host ? p.stats.peak_host_bytes : p.stats.peak_device_bytes;
    now += chunk.bytes;
    peak = std::max(peak, now);
    return 0;
}

int give_back(const Unreleased& memory) {
    int code = CALL(cuMemRelease, memory.handle);
    if (!code) (memory.host ? p.stats.host_bytes : p.stats.device_bytes) -= memory.bytes;
    return code;
}

void forget_overflow(Chunk& chunk) {
    if (chunk.overflow == p.mini_batch) p.overflowed -= chunk.bytes;
    chunk.overflow = 0;
}

void release(Chunk& chunk) {
    Unreleased memory{chunk.handle, chunk.bytes, chunk.host};
    if (give_back(memory)) p.unreleased.push_back(memory);
    chunk.handle = 0;
}

Address address(const Segment& segment, size_t index) { return segment.base + index * p.chunk; }

int map(Segment& segment, size_t index) {
    Chunk& chunk = segment.chunks[index];
    if (chunk.mapped) return 0;
    int code = CALL(cuMemMap, address(segment, index), chunk.bytes, 0, chunk.handle, 0);
    chunk.mapped = !code;
    return code;
}

int unmap(Segment& segment, size_t index) {
    Chunk& chunk = segment.chunks[index];
    if (!chunk.mapped) return 0;
    int code = CALL(cuMemUnmap, address(segment, index), chunk.bytes);
    if (!code) chunk.mapped = chunk.open = false;
    return code;
}

int open(Segment& segment, size_t index) {
    Chunk& chunk = segment.chunks[index];
    AccessDesc access{{kOnDevice, segment.device->number}, kReadWrite};
    int code = CALL(cuMemSetAccess, address(segment, index), chunk.bytes, &access, 1);
    if (!code) chunk.open = true;
    return code;
}

// Access to a whole segment in one call: of all the calls, this one is the dearest by reports.
int open_all(Segment& segment) {
    AccessDesc access{{kOnDevice, segment.device->number}, kReadWrite};
    int code = CALL(cuMemSetAccess, segment.base, segment.bytes, &access, 1);
    if (!code)
        for (Chunk& chunk : segment.chunks) chunk.open = true;
    return code;
}

int reserve(Segment& segment, size_t bytes, size_t chunks) {
    segment.chunks.resize(chunks);
    segment.bytes = bytes;
    return CALL(cuMemAddressReserve, &segment.base, bytes, 0, 0, 0);
}

// Gives all of a segment back. False: the driver refused; what is left can be tried again.
bool destroy(Segment& segment) {
    Using context(*segment.device);
    for (Chunk& chunk : segment.chunks) forget_overflow(chunk);
    for (size_t i = 0; i < segment.chunks.size(); ++i) {
        if (unmap(segment, i)) return false;
        if (segment.chunks[i].handle) release(segment.chunks[i]);
    }
    return CALL(cuMemAddressFree, segment.base, segment.bytes) == 0;
}

void dispose(Segment&& segment) {
    if (!destroy(segment)) p.dead.push_back(std::move(segment));
}

// What could not be given back before is tried again. Failures here are no failure of the operation under way.
void sweep() {
    std::vector<Segment> dead;
    dead.swap(p.dead);
    for (Segment& segment : dead) dispose(std::move(segment));
    std::vector<Unreleased> left;
    left.swap(p.unreleased);
    for (const Unreleased& memory : left)
        if (give_back(memory)) p.unreleased.push_back(memory);
    forgive();
}

std::vector<Segment*> by_age() {
    std::vector<Segment*> all;
    all.reserve(p.segments.size());
    for (auto& entry : p.segments) all.push_back(&entry.second);
    std::sort(all.begin(), all.end(), [](Segment* a, Segment* b) { return a->serial < b->serial; });
    return all;
}

// -- contexts, streams, copies ---------------------------------------------------------------------------------------

// The driver is started at the first allocation, not before: a process that is forked earlier can still use CUDA.
int start() {
    if (p.started) return 0;
    if (int code = CALL(cuInit, 0)) return code;
    AllocationProp prop{};
    prop.type = kPinned;
    prop.location = {kOnDevice, 0};
    size_t device = 0, host = 0;
    if (int code = CALL(cuMemGetAllocationGranularity, &device, &prop, 0)) return code;
    prop.location = {kOnHostNuma, 0};
    if (p.driver.cuMemGetAllocationGranularity(&host, &prop, 0)) host = 0;
    p.granularity = std::max({device, host, size_t(1)});
    p.chunk = (std::max(p.chunk, size_t(1)) + p.granularity - 1) / p.granularity * p.granularity;
    p.started = true;
    return 0;
}

int current_device(Device** device) {
    Context context = nullptr;
    if (int code = CALL(cuCtxGetCurrent, &context)) return code;
    if (!context && cuda_slots.free) {
        // Only the CUDA runtime knows which device this thread has chosen; this makes its context current.
        reinterpret_cast<int (*)(void*)>(cuda_slots.free)(nullptr);
        if (int code = CALL(cuCtxGetCurrent, &context)) return code;
    }
    if (!context) {
        if (int code = CALL(cuDevicePrimaryCtxRetain, &context, 0)) return code;
        if (int code = CALL(cuCtxSetCurrent, context)) return code;
    }
    for (auto& known : p.devices)
        if (known->context == context) return *device = known.get(), 0;
    int number = 0;
    if (int code = CALL(cuCtxGetDevice, &number)) return code;
    p.devices.push_back(std::make_unique<Device>(Device{context, number, {}}));
    *device = p.devices.back().get();
    return 0;
}

// All queued work of all contexts has ended, and the streams for the copies are there.
int quiesce() {
    for (auto& device : p.devices) {
        Using context(*device);
        if (int code = CALL(cuCtxSynchronize)) return code;
        for (Stream& stream : device->streams)
            if (!stream)
                if (int code = CALL(cuStreamCreate, &stream, kNonBlocking)) return code;
    }
    return 0;
}

int copy(Device& device, Address to, Address from, size_t bytes, size_t turn) {
    Using context(device);
    return CALL(cuMemcpyAsync, to, from, bytes, device.streams[turn % 2]);
}

int wait_for_copies() {  // of all streams, whatever fails: memory under a copy must not be unmapped
    int first = 0;
    for (auto& device : p.devices)
        for (Stream stream : device->streams) {
            if (!stream) continue;
            Using context(*device);
            int code = CALL(cuStreamSynchronize, stream);
            if (!first) first = code;
        }
    return first;
}

// -- allocation -------------------------------------------------------------------------------------------------------

// While a CUDA graph is captured PyTorch does not retry (it must not free its cache), and allocates in relaxed mode.
bool capturing() {
    int mode = 0;
    if (p.driver.cuThreadExchangeStreamCaptureMode(&mode)) return false;
    bool relaxed = mode == kRelaxed;
    p.driver.cuThreadExchangeStreamCaptureMode(&mode);
    return relaxed;
}

int allocate(void** out, size_t asked) {
    return locked("alloc", [&]() -> int {
        *out = nullptr;
        if (int code = start()) return code;
        if (p.stats.suspended) return kOutOfMemory;
        if (!p.dead.empty() || !p.unreleased.empty()) sweep();
        size_t bytes = (std::max(asked, size_t(1)) + p.granularity - 1) / p.granularity * p.granularity;
        if (bytes < asked) return kOutOfMemory;
        // First "out of memory", so that PyTorch frees its cache; what it then asks for again does not fail.
        bool last_chance = !p.retry_first || refused == asked || capturing();
        refused = 0;
        if (!last_chance && !fits(bytes)) {
            refused = asked;
            return kOutOfMemory;
        }
        Segment segment;
        if (int code = current_device(&segment.device)) return code;
        if (int code = reserve(segment, bytes, (bytes + p.chunk - 1) / p.chunk)) return code;
        bool full = false;
        int code = 0;
        for (size_t i = 0; i < segment.chunks.size() && !code; ++i) {
            Chunk& chunk = segment.chunks[i];
            chunk.bytes = std::min(p.chunk, bytes - i * p.chunk);
            full = full || !fits(chunk.bytes);
            if (!full && (code = create(*segment.device, false, chunk)) == kOutOfMemory && last_chance) {
                forgive();
                full = true;
            }
            if (full && !(code = create(*segment.device, true, chunk))) {
                chunk.overflow = p.mini_batch;
                p.overflowed += chunk.bytes;
            }
            if (!code) code = map(segment, i);
        }
        if (!code) code = open_all(segment);
        if (code) {
            dispose(std::move(segment));
            if (code == kOutOfMemory && !last_chance) refused = asked;
            return code;
        }
        for (const Chunk& chunk : segment.chunks) p.stats.overflows += chunk.host;
        p.stats.host_bytes_since_boundary = std::max(p.stats.host_bytes_since_boundary, p.overflowed);
        segment.serial = ++p.serial;
        p.low = std::min<Address>(p.low, segment.base);
        p.high = std::max<Address>(p.high, segment.base + bytes);
        *out = reinterpret_cast<void*>(segment.base);
        p.segments.emplace(segment.base, std::move(segment));
        return 0;
    });
}

bool may_own(void* pointer) {
    Address at = reinterpret_cast<Address>(pointer);
    return at >= p.low && at < p.high;
}

// Whether the pager owned it. In a forked child it is forgotten: neither the driver nor the original may have it.
bool deallocate(void* pointer, int* code) {
    *code = 0;
    if (!may_own(pointer)) return false;
    Address base = reinterpret_cast<Address>(pointer);
    try {
        Device* device = nullptr;
        {
            std::lock_guard<std::mutex> lock(p.mutex);
            auto found = p.segments.find(base);
            if (found == p.segments.end()) return false;
            if (p.forked) return p.segments.erase(found), true;
            if (!p.stats.suspended) device = found->second.device;
        }
        // As cudaFree does: queued kernels may still use it. Outside the mutex, other threads allocate meanwhile.
        if (device) {
            Using context(*device);
            *code = p.driver.cuCtxSynchronize();
        }
        int synchronised = *code;
        *code = locked("free", [&]() -> int {
            if (synchronised) return noted("cuCtxSynchronize", synchronised);
            auto found = p.segments.find(base);
            if (found == p.segments.end()) return 0;
            Segment segment = std::move(found->second);
            p.segments.erase(found);
            dispose(std::move(segment));
            return 0;
        });
    } catch (...) {
        *code = kOutOfMemory;
    }
    return true;
}

// -- moving in place --------------------------------------------------------------------------------------------------

struct Place {
    Segment* segment;
    size_t index;
    Chunk& chunk() const { return segment->chunks[index]; }
};

constexpr size_t kBatch = 8;  // chunks that are copied between two synchronisations

// Moves up to kBatch chunks of one device. A scratch segment holds the new memory while the contents are copied to it;
// then old and new change places, and the scratch, with the old memory, is given back. Whatever fails, each chunk has
// its contents at its address, or, if the driver twice refuses to map them there, the pager is suspended.
int move(const std::vector<Place>& places, bool to_host, uint64_t* chunks, uint64_t* bytes) {
    Segment scratch;
    scratch.device = places[0].segment->device;
    Using context(*scratch.device);
    int code = reserve(scratch, places.size() * p.chunk, places.size());
    if (code) return code;
    size_t ready = 0;
    for (; ready < places.size(); ++ready) {
        Chunk& fresh = scratch.chunks[ready];
        fresh.bytes = places[ready].chunk().bytes;
        Address from = address(*places[ready].segment, places[ready].index);
        if ((code = create(*scratch.device, to_host, fresh)) || (code = map(scratch, ready)) ||
            (code = open(scratch, ready)) ||
            (code = copy(*scratch.device, address(scratch, ready), from, fresh.bytes, ready)))
            break;
    }
    if (int waited = wait_for_copies()) code = waited, ready = 0;
    for (size_t i = 0; i < ready; ++i) {
        Segment& segment = *places[i].segment;
        size_t index = places[i].index;
        Chunk &fresh = scratch.chunks[i], &chunk = places[i].chunk();
        int failed = unmap(scratch, i);
        if (failed || (failed = unmap(segment, index))) {
            code = failed;
            break;
        }
        std::swap(chunk.handle, fresh.handle), std::swap(chunk.host, fresh.host);
        if (!chunk.host) forget_overflow(chunk);
        *chunks += 1, *bytes += chunk.bytes;
        if (!(failed = map(segment, index))) failed = open(segment, index);
        if (!failed) continue;
        // This memory was mapped and written a moment ago: once more, then the pager is suspended, with all contents.
        if (map(segment, index) || open(segment, index)) p.stats.suspended = 1;
        code = failed;
        break;
    }
    dispose(std::move(scratch));
    return code;
}

int boundary(Moved* moved) {
    sweep();
    p.stats.host_bytes_since_boundary = p.overflowed = 0;
    ++p.mini_batch;
    if (p.stats.suspended) return 0;
    bool demote = p.stats.limit && p.stats.device_bytes > p.stats.limit;
    std::vector<Place> plan;
    std::vector<Segment*> segments = by_age();
    uint64_t use = p.stats.device_bytes;
    if (demote) {
        for (size_t s = segments.size(); s-- > 0;)
            for (size_t i = segments[s]->chunks.size(); i-- > 0 && use > p.stats.limit;)
                if (!segments[s]->chunks[i].host) plan.push_back({segments[s], i}), use -= plan.back().chunk().bytes;
    } else {
        for (Segment* segment : segments)
            for (size_t i = 0; i < segment->chunks.size(); ++i) {
                const Chunk& chunk = segment->chunks[i];
                if (!chunk.host || (p.stats.limit && use + chunk.bytes > p.stats.limit)) continue;
                plan.push_back({segment, i}), use += chunk.bytes;
            }
    }
    if (plan.empty()) return 0;
    int code = quiesce();
    for (size_t next = 0; next < plan.size() && !code;) {
        std::vector<Place> batch;
        do batch.push_back(plan[next++]);
        while (next < plan.size() && batch.size() < kBatch && plan[next].segment->device == batch[0].segment->device);
        code = demote ? move(batch, true, &moved->demoted_chunks, &moved->demoted_bytes)
                      : move(batch, false, &moved->promoted_chunks, &moved->promoted_bytes);
    }
    p.stats.demotions += moved->demoted_chunks, p.stats.promotions += moved->promoted_chunks;
    if (!demote && code == kOutOfMemory && !std::strcmp(p.call, "cuMemCreate") && !p.stats.suspended) {
        forgive();  // another process has the device's memory; the next boundary tries again
        code = 0;
    }
    return code;
}

// -- suspend and resume -----------------------------------------------------------------------------------------------

// Gives each device chunk a place in the slabs, which are kept for the next time: pinning costs more than copying.
int lay_out(const std::vector<Segment*>& segments) {
    size_t left = 0;
    for (Segment* segment : segments)
        for (const Chunk& chunk : segment->chunks) left += chunk.host ? 0 : chunk.bytes;
    size_t slab = 0, used = 0;
    for (Segment* segment : segments)
        for (Chunk& chunk : segment->chunks) {
            if (chunk.host) continue;
            while (slab < p.slabs.size() && used + chunk.bytes > p.slabs[slab].bytes) ++slab, used = 0;
            if (slab == p.slabs.size()) {
                p.slabs.reserve(slab + 1);
                void* base = nullptr;
                Using context(*segment->device);
                if (int code = CALL(cuMemHostAlloc, &base, left, kPortable)) return code;
                p.slabs.push_back({static_cast<char*>(base), left});
                p.stats.slab_bytes += left;
            }
            chunk.slab = p.slabs[slab].base + used;
            used += chunk.bytes, left -= chunk.bytes;
        }
    return 0;
}

// Nothing is mapped; device memory whose contents are in the slabs is released. Goes on after a failure.
int park() {
    int first = 0;
    for (auto& entry : p.segments) {
        Segment& segment = entry.second;
        Using context(*segment.device);
        for (size_t i = 0; i < segment.chunks.size(); ++i) {
            Chunk& chunk = segment.chunks[i];
            if (int code = unmap(segment, i)) {
                if (!first) first = code;
                continue;
            }
            if (chunk.slab && chunk.handle) release(chunk);
            chunk.stale = false;
        }
    }
    // what the driver did not take back is device memory still
    if (!first && p.stats.device_bytes) first = p.error ? p.error : noted("suspend", kLost);
    return first;
}

// The reverse: all is mapped, the oldest on the device while there is room. The slabs hold until all has gone well.
int unpark() {
    int code = 0;
    bool full = false;
    size_t turn = 0;
    std::vector<Segment*> segments = by_age();
    auto restore = [&](Segment& segment) -> int {
        Using context(*segment.device);
        for (size_t i = 0; i < segment.chunks.size(); ++i) {
            Chunk& chunk = segment.chunks[i];
            if (!chunk.handle) {
                full = full || !fits(chunk.bytes);
                if (!full && (code = create(*segment.device, false, chunk)) == kOutOfMemory) {
                    forgive();
                    full = true;
                }
                if (full && !(code = create(*segment.device, true, chunk))) ++p.stats.overflows;
                if (code) return code;
                chunk.stale = true;
            }
            if ((code = map(segment, i))) return code;
        }
        if ((code = open_all(segment))) return code;
        for (size_t i = 0; i < segment.chunks.size(); ++i) {
            const Chunk& chunk = segment.chunks[i];
            Address to = address(segment, i), from = reinterpret_cast<Address>(chunk.slab);
            if (chunk.stale && (code = copy(*segment.device, to, from, chunk.bytes, turn++))) return code;
        }
        return 0;
    };
    for (Segment* segment : segments)
        if (restore(*segment)) break;
    int waited = wait_for_copies();
    if (!code) code = waited;
    if (code) return code;
    for (Segment* segment : segments)
        for (Chunk& chunk : segment->chunks) chunk.stale = false, chunk.slab = nullptr;
    p.stats.suspended = 0;
    return 0;
}

int suspend(uint64_t* bytes) {
    sweep();
    if (p.stats.suspended) return park();
    if (int code = quiesce()) return code;
    std::vector<Segment*> segments = by_age();
    int code = lay_out(segments);
    size_t turn = 0;
    for (Segment* segment : segments)
        for (size_t i = 0; i < segment->chunks.size() && !code; ++i) {
            const Chunk& chunk = segment->chunks[i];
            if (!chunk.slab) continue;
            Address to = reinterpret_cast<Address>(chunk.slab), from = address(*segment, i);
            code = copy(*segment->device, to, from, chunk.bytes, turn++);
            *bytes += chunk.bytes;
        }
    int waited = wait_for_copies();
    if (!code) code = waited;
    if (code) {
        for (Segment* segment : segments)
            for (Chunk& chunk : segment->chunks) chunk.slab = nullptr;
    } else {
        p.stats.suspended = 1;
        if ((code = park())) unpark();  // training goes on; if even that fails, the pager says that it is suspended
    }
    if (code) *bytes = 0;
    return code;
}

int resume(uint64_t* bytes) {
    sweep();
    if (!p.stats.suspended) return 0;
    for (const auto& entry : p.segments)
        for (const Chunk& chunk : entry.second.chunks) *bytes += chunk.slab ? chunk.bytes : 0;
    int code = quiesce();
    if (!code && (code = unpark())) park();  // as before: nothing on the device, the contents in the slabs
    if (code) *bytes = 0;
    return code;
}

// -- import slots -----------------------------------------------------------------------------------------------------

// In the slots of cudaMalloc and cudaFree, and of posix_memalign and free.
int slot_cuda_malloc(void** out, size_t bytes) {
    auto original = reinterpret_cast<int (*)(void**, size_t)>(cuda_slots.alloc);
    return p.forked || bytes < cuda_slots.least ? original(out, bytes) : allocate(out, bytes);
}

int slot_cuda_free(void* pointer) {
    int code;
    return deallocate(pointer, &code) ? code : reinterpret_cast<int (*)(void*)>(cuda_slots.free)(pointer);
}

int slot_posix_memalign(void** out, size_t alignment, size_t bytes) {
    auto original = reinterpret_cast<int (*)(void**, size_t, size_t)>(posix_slots.alloc);
    // reserved addresses are aligned to a page at least
    if (p.forked || bytes < posix_slots.least || alignment > 4096) return original(out, alignment, bytes);
    return allocate(out, bytes) ? ENOMEM : 0;
}

void slot_free(void* pointer) {
    int code, before = errno;
    if (!deallocate(pointer, &code)) reinterpret_cast<void (*)(void*)>(posix_slots.free)(pointer);
    errno = before;
}

#if defined(__x86_64__)
bool is_slot(unsigned long type) { return type == R_X86_64_JUMP_SLOT || type == R_X86_64_GLOB_DAT; }
#elif defined(__aarch64__)
bool is_slot(unsigned long type) { return type == R_AARCH64_JUMP_SLOT || type == R_AARCH64_GLOB_DAT; }
#else
bool is_slot(unsigned long) { return false; }
#endif

struct Slot {
    void** at;
    bool read_only;     // after relocation
    bool unbound;       // its value is still the stub that looks the function up at the first call
    const char* version;
};

struct Search {
    const char *library, *symbol;
    std::vector<Slot> slots;
    char path[4096];
};

const char* version_of(const ElfW(Verneed) * need, size_t count, const char* strings, ElfW(Half) index) {
    for (; need && count--; need = reinterpret_cast<const ElfW(Verneed)*>((const char*)need + need->vn_next)) {
        auto aux = reinterpret_cast<const ElfW(Vernaux)*>((const char*)need + need->vn_aux);
        for (size_t i = 0; i < need->vn_cnt; ++i) {
            if (aux->vna_other == (index & 0x7fff)) return strings + aux->vna_name;
            aux = reinterpret_cast<const ElfW(Vernaux)*>((const char*)aux + aux->vna_next);
        }
    }
    return nullptr;
}

int search_library(dl_phdr_info* info, size_t, void* data) {
    Search& search = *static_cast<Search*>(data);
    const char* slash = std::strrchr(info->dlpi_name, '/');
    if (std::strcmp(info->dlpi_name, search.library) && std::strcmp(slash ? slash + 1 : "", search.library)) return 0;
    const ElfW(Dyn)* dynamic = nullptr;
    ElfW(Addr) base = info->dlpi_addr, start = ~ElfW(Addr)(0), end = 0, relro_start = 0, relro_end = 0;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const ElfW(Phdr)& header = info->dlpi_phdr[i];
        ElfW(Addr) from = base + header.p_vaddr, to = from + header.p_memsz;
        if (header.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(from);
        if (header.p_type == PT_LOAD) start = std::min(start, from), end = std::max(end, to);
        if (header.p_type == PT_GNU_RELRO) relro_start = from, relro_end = to;
    }
    if (!dynamic) return 0;
    ElfW(Addr) found[DT_NUM] = {}, versions = 0, needed = 0, needed_count = 0;
    for (; dynamic->d_tag != DT_NULL; ++dynamic) {
        // glibc has relocated the addresses already, other loaders have not
        ElfW(Addr) value = dynamic->d_un.d_ptr, where = value < base ? value + base : value;
        if (dynamic->d_tag == DT_VERSYM) versions = where;
        if (dynamic->d_tag == DT_VERNEED) needed = where;
        if (dynamic->d_tag == DT_VERNEEDNUM) needed_count = value;
        if (dynamic->d_tag == DT_JMPREL || dynamic->d_tag == DT_RELA || dynamic->d_tag == DT_SYMTAB ||
            dynamic->d_tag == DT_STRTAB)
            found[dynamic->d_tag] = where;
        if (dynamic->d_tag == DT_PLTRELSZ || dynamic->d_tag == DT_RELASZ) found[dynamic->d_tag] = value;
    }
    auto symbols = reinterpret_cast<const ElfW(Sym)*>(found[DT_SYMTAB]);
    auto strings = reinterpret_cast<const char*>(found[DT_STRTAB]);
    auto scan = [&](ElfW(Addr) table, size_t bytes) {
        auto entry = reinterpret_cast<const ElfW(Rela)*>(table);
        for (size_t i = 0; table && i < bytes / sizeof *entry; ++i, ++entry) {
            size_t symbol = ELF64_R_SYM(entry->r_info);
            if (!is_slot(ELF64_R_TYPE(entry->r_info)) || std::strcmp(strings + symbols[symbol].st_name, search.symbol))
                continue;
            ElfW(Addr) at = base + entry->r_offset;
            auto slot = reinterpret_cast<void**>(at);
            auto value = reinterpret_cast<ElfW(Addr)>(__atomic_load_n(slot, __ATOMIC_RELAXED));
            const char* version = nullptr;
            if (versions)
                version = version_of(reinterpret_cast<const ElfW(Verneed)*>(needed), needed_count, strings,
                                     reinterpret_cast<const ElfW(Half)*>(versions)[symbol]);
            search.slots.push_back({slot, at >= relro_start && at < relro_end, value >= start && value < end, version});
        }
    };
    scan(found[DT_JMPREL], found[DT_PLTRELSZ]);
    scan(found[DT_RELA], found[DT_RELASZ]);
    std::strncpy(search.path, info->dlpi_name, sizeof search.path - 1);
    return 0;
}

Search find_slots(const char* library, const char* symbol) {
    Search search{library, symbol, {}, {}};
    dl_iterate_phdr(search_library, &search);
    return search;
}

// The function that a slot is or would be bound to: first what the process shows to all, then what the library needs.
void* bound_to(const Search& search) {
    for (const Slot& slot : search.slots)
        if (!slot.unbound) return *slot.at;
    void* library = dlopen(search.path, RTLD_LAZY | RTLD_NOLOAD);
    for (void* scope : {static_cast<void*>(RTLD_DEFAULT), library}) {
        const char* version = search.slots[0].version;
        void* found = version ? dlvsym(scope, search.symbol, version) : dlsym(scope, search.symbol);
        if (found) return found;
    }
    return nullptr;
}

bool write_slot(const Slot& slot, void* value) {
    size_t page = sysconf(_SC_PAGESIZE);
    auto from = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(slot.at) / page * page);
    if (slot.read_only && mprotect(from, page, PROT_READ | PROT_WRITE)) return false;
    __atomic_store_n(slot.at, value, __ATOMIC_RELEASE);
    if (slot.read_only) mprotect(from, page, PROT_READ);
    return true;
}

// Not under the mutex: the loader's lock is taken here, and a library that is being loaded may allocate under it.
int install(const char* library, const char* alloc, const char* free_, size_t least) {
    bool cuda = !std::strcmp(alloc, "cudaMalloc");
    Slots& kind = cuda ? cuda_slots : posix_slots;
    void* ours[2] = {cuda ? (void*)slot_cuda_malloc : (void*)slot_posix_memalign,
                     cuda ? (void*)slot_cuda_free : (void*)slot_free};
    Search searches[2] = {find_slots(library, alloc), find_slots(library, free_)};
    void* originals[2];
    for (int i : {0, 1}) {
        if (searches[i].slots.empty()) return kNoSlot;
        originals[i] = bound_to(searches[i]);
        if (!originals[i]) return kNoSlot;
    }
    kind.least = least;
    if (originals[0] == ours[0] && originals[1] == ours[1]) return 0;  // a second time
    kind.alloc = originals[0], kind.free = originals[1];
    for (int i : {1, 0})  // free first: what the pager allocates must never meet the original free
        for (const Slot& slot : searches[i].slots)
            if (!write_slot(slot, ours[i])) {
                for (const Slot& written : searches[1].slots) write_slot(written, originals[1]);
                for (const Slot& written : searches[0].slots) write_slot(written, originals[0]);
                return kNoSlot;
            }
    return 0;
}

}  // namespace

// -- the C interface: 0, a CUresult, or one of the pager's own codes --------------------------------------------------

EXPORT int hived_pager_init(const char* driver, size_t chunk, int retry_first) {
    std::lock_guard<std::mutex> lock(p.mutex);
    p.error = 0;
    if (p.loaded) return finish(noted("init", kTwice));
    void* library = dlopen(driver ? driver : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return finish(noted(driver ? "dlopen of the driver" : "dlopen of libcuda.so.1", kNoDriver));
#define LOOK_UP(name, arguments)                                                               \
    if (!(p.driver.name = reinterpret_cast<decltype(p.driver.name)>(dlsym(library, #name)))) \
        return finish(noted(#name, kNoDriver));
    DRIVER_CALLS(LOOK_UP)
#undef LOOK_UP
    // A child has no GPU. It keeps the addresses, so that no original free gets one of them, and calls no driver.
    pthread_atfork([] { p.mutex.lock(); }, [] { p.mutex.unlock(); },
                   [] {
                       if (p.started) p.forked = true;
                       p.mutex.unlock();
                   });
    p.chunk = chunk, p.retry_first = retry_first, p.loaded = true;
    return 0;
}

EXPORT int hived_pager_install(const char* library, const char* alloc, const char* free_, size_t least) {
    if (!p.loaded) return kNotStarted;
    if (std::strcmp(alloc, "cudaMalloc") && std::strcmp(alloc, "posix_memalign")) return kNoSlot;
    try {
        return install(library, alloc, free_, least);
    } catch (...) {
        return kOutOfMemory;
    }
}

// The values of a symbol's slots in a library, at most `most` of them; their number is returned.
EXPORT size_t hived_pager_slots(const char* library, const char* symbol, void** values, size_t most) {
    try {
        Search search = find_slots(library, symbol);
        for (size_t i = 0; i < std::min(most, search.slots.size()); ++i) values[i] = *search.slots[i].at;
        return search.slots.size();
    } catch (...) {
        return 0;
    }
}

EXPORT int hived_pager_alloc(void** out, size_t bytes) { return allocate(out, bytes); }

EXPORT int hived_pager_free(void* pointer) {
    int code;
    return deallocate(pointer, &code) ? code : kInvalidValue;
}

EXPORT int hived_pager_owns(void* pointer) {
    std::lock_guard<std::mutex> lock(p.mutex);
    auto after = p.segments.upper_bound(reinterpret_cast<Address>(pointer));
    if (after == p.segments.begin()) return 0;
    const Segment& segment = std::prev(after)->second;
    return reinterpret_cast<Address>(pointer) < segment.base + segment.bytes;
}

EXPORT void hived_pager_limit(uint64_t bytes) {
    std::lock_guard<std::mutex> lock(p.mutex);
    p.stats.limit = bytes;
}

EXPORT int hived_pager_boundary(Moved* moved) {
    *moved = {};
    auto begin = std::chrono::steady_clock::now();
    int code = locked("boundary", [&] { return boundary(moved); });
    moved->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return code;
}

EXPORT int hived_pager_suspend(uint64_t* bytes) {
    *bytes = 0;
    return locked("suspend", [&] { return suspend(bytes); });
}

EXPORT int hived_pager_resume(uint64_t* bytes) {
    *bytes = 0;
    return locked("resume", [&] { return resume(bytes); });
}

EXPORT void hived_pager_stats(Stats* out) {
    std::lock_guard<std::mutex> lock(p.mutex);
    *out = p.stats;
    out->segments = p.segments.size();
}

EXPORT void hived_pager_reset_peaks() {
    std::lock_guard<std::mutex> lock(p.mutex);
    p.stats.peak_device_bytes = p.stats.device_bytes, p.stats.peak_host_bytes = p.stats.host_bytes;
}

// Derives every count and state from the segments again. 0, or the line of the invariant that is broken.
EXPORT int hived_pager_check() {
    std::lock_guard<std::mutex> lock(p.mutex);
    uint64_t device = 0, host = 0, slabs = 0, overflowed = 0;
    Address end = 0;
    std::vector<char*> places;
#define HOLDS(condition) \
    if (!(condition)) return __LINE__
    for (const auto& entry : p.segments) {
        const Segment& segment = entry.second;
        uint64_t bytes = 0;
        HOLDS(entry.first == segment.base && segment.base >= end && segment.serial && segment.device);
        HOLDS(segment.base >= p.low && segment.base + segment.bytes <= p.high);
        for (const Chunk& chunk : segment.chunks) {
            HOLDS(chunk.bytes && chunk.bytes % p.granularity == 0);
            HOLDS(chunk.bytes == p.chunk || &chunk == &segment.chunks.back());
            HOLDS(chunk.handle || chunk.slab);
            HOLDS(chunk.handle || !chunk.mapped);
            HOLDS(chunk.mapped || !chunk.open);
            HOLDS(p.stats.suspended || (chunk.open && !chunk.stale && !chunk.slab));
            HOLDS(!chunk.overflow || chunk.host);
            bytes += chunk.bytes;
            if (chunk.handle) (chunk.host ? host : device) += chunk.bytes;
            if (chunk.overflow == p.mini_batch) overflowed += chunk.bytes;
            if (chunk.slab) places.push_back(chunk.slab);
            bool inside = !chunk.slab;
            for (const Slab& slab : p.slabs)
                inside = inside || (chunk.slab >= slab.base && chunk.slab + chunk.bytes <= slab.base + slab.bytes);
            HOLDS(inside);
        }
        HOLDS(bytes == segment.bytes);
        end = segment.base + segment.bytes;
    }
    std::sort(places.begin(), places.end());
    HOLDS(std::adjacent_find(places.begin(), places.end()) == places.end());
    for (const Segment& segment : p.dead)
        for (const Chunk& chunk : segment.chunks)
            if (chunk.handle) (chunk.host ? host : device) += chunk.bytes;
    for (const Unreleased& memory : p.unreleased) (memory.host ? host : device) += memory.bytes;
    for (const Slab& slab : p.slabs) slabs += slab.bytes;
    HOLDS(device == p.stats.device_bytes && host == p.stats.host_bytes && slabs == p.stats.slab_bytes);
    HOLDS(device <= p.stats.peak_device_bytes && host <= p.stats.peak_host_bytes);
    HOLDS(overflowed == p.overflowed && overflowed <= p.stats.host_bytes_since_boundary);
    return 0;
}
