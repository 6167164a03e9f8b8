// A driver without a device, for the tests of the pager: the same symbols, on ordinary memory.
//
//     physical memory = a range of a memory file, one file for the device and one for the host, each with a capacity
//     map             = mmap of that range at the address;  unmapped, or without access = PROT_NONE
//     copy            = queued; carried out when its stream or the context is synchronised, not before
//
// Stricter than it has to be: memory is not zeroed but filled with junk, a range is unmapped only as it was mapped,
// access is given to mapped ranges only, and addresses are freed only when nothing is mapped there.
// Each call is counted, and the n-th can be made to fail.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

using Address = unsigned long long;
using Handle = unsigned long long;

struct Location {
    int type, id;
};
struct Prop {
    int type, handle_types;
    Location location;
    void* win32;
    unsigned char flags[8];
};
struct Access {
    Location location;
    int flags;
};

enum { kInvalidValue = 1, kOutOfMemory = 2, kDevice = 1, kHost = 2, kHostNuma = 3 };

namespace {

struct Pool {
    int file = -1;
    size_t used = 0, capacity = ~size_t(0);
    std::map<size_t, size_t> ranges;  // offset -> bytes
};

struct Physical {
    Pool* pool;
    size_t offset, bytes;
    int maps = 0;
    bool released = false;
};

struct Mapping {
    size_t bytes;
    Handle handle;
    bool access;
};

struct Copy {
    uintptr_t stream;
    Address to, from;
    size_t bytes;
};

struct Fake {
    std::mutex mutex;
    Pool device, host;
    size_t granularity = 65536, pinned = 0, pinned_capacity = ~size_t(0);
    int numa = 1, relaxed = 0;
    std::vector<uintptr_t> streams;  // the context of each
    std::map<Handle, Physical> physical;
    Handle next = 1;
    std::map<Address, size_t> reserved;
    std::map<Address, Mapping> mappings;
    std::vector<Copy> queue;
    std::map<std::string, uint64_t> calls;
    std::string fail_name;  // empty: any call
    int64_t fail_after = 0, fail_times = 0, fail_code = 0, fired = 0;
};

Fake& f = *new Fake;
thread_local uintptr_t current = 0x1000;

// Counts a call. Its failure, if this is one that shall fail.
int enter(const char* name) {
    ++f.calls[name];
    if (!f.fail_times || (!f.fail_name.empty() && f.fail_name != name)) return 0;
    if (f.fail_after > 1) return --f.fail_after, 0;
    if (f.fail_times > 0) --f.fail_times;
    ++f.fired;
    return f.fail_code;
}

#define ENTER(name)                           \
    std::lock_guard<std::mutex> lock(f.mutex); \
    if (int code = enter(name)) return code

void drop(std::map<Handle, Physical>::iterator it) {
    Physical& memory = it->second;
    if (!memory.released || memory.maps) return;
    constexpr int kHole = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    if (fallocate(memory.pool->file, kHole, memory.offset, memory.bytes)) return;
    memory.pool->ranges.erase(memory.offset);
    memory.pool->used -= memory.bytes;
    f.physical.erase(it);
}

// The copies of a stream, 0: of all, end: as they should, or, if the synchronisation fails, without having been made.
int run(uintptr_t stream, int failure) {
    std::vector<Copy> left;
    for (const Copy& copy : f.queue)
        if (stream && copy.stream != stream) left.push_back(copy);
        else if (!failure) std::memcpy((void*)copy.to, (const void*)copy.from, copy.bytes);
    f.queue.swap(left);
    return failure;
}

bool blank(Address at, size_t bytes) {
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    return mmap((void*)at, bytes, PROT_NONE, kFlags, -1, 0) != MAP_FAILED;
}

}  // namespace

// -- the driver -------------------------------------------------------------------------------------------------------

EXPORT int cuInit(unsigned) {
    ENTER("cuInit");
    return 0;
}
EXPORT int cuCtxGetCurrent(void** context) {
    ENTER("cuCtxGetCurrent");
    *context = (void*)current;
    return 0;
}
EXPORT int cuCtxSetCurrent(void* context) {
    ENTER("cuCtxSetCurrent");
    current = (uintptr_t)context;
    return 0;
}
EXPORT int cuCtxGetDevice(int* device) {
    ENTER("cuCtxGetDevice");
    if (!current) return 201;  // no context
    *device = int(current / 0x1000) - 1;
    return 0;
}
EXPORT int cuCtxSynchronize() {
    std::lock_guard<std::mutex> lock(f.mutex);
    return run(0, enter("cuCtxSynchronize"));
}
EXPORT int cuDevicePrimaryCtxRetain(void** context, int device) {
    ENTER("cuDevicePrimaryCtxRetain");
    *context = (void*)(uintptr_t(device + 1) * 0x1000);
    return 0;
}
EXPORT int cuMemGetAllocationGranularity(size_t* bytes, const Prop* prop, int) {
    ENTER("cuMemGetAllocationGranularity");
    if (prop->location.type == kHostNuma && !f.numa) return kInvalidValue;
    *bytes = f.granularity;
    return 0;
}
EXPORT int cuMemAddressReserve(Address* at, size_t bytes, size_t, Address, uint64_t) {
    ENTER("cuMemAddressReserve");
    if (!bytes || bytes % f.granularity) return kInvalidValue;
    // aligned to the granularity, as the driver's addresses are
    size_t more = bytes + f.granularity;
    void* got = mmap(nullptr, more, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (got == MAP_FAILED) return kOutOfMemory;
    Address start = (Address)got, aligned = (start + f.granularity - 1) / f.granularity * f.granularity;
    if (aligned > start) munmap(got, aligned - start);
    if (start + more > aligned + bytes) munmap((void*)(aligned + bytes), start + more - aligned - bytes);
    f.reserved[*at = aligned] = bytes;
    return 0;
}
EXPORT int cuMemAddressFree(Address at, size_t bytes) {
    ENTER("cuMemAddressFree");
    auto found = f.reserved.find(at);
    if (found == f.reserved.end() || found->second != bytes) return kInvalidValue;
    auto inside = f.mappings.lower_bound(at);
    if (inside != f.mappings.end() && inside->first < at + bytes) return kInvalidValue;
    munmap((void*)at, bytes);
    f.reserved.erase(found);
    return 0;
}
EXPORT int cuMemCreate(Handle* handle, size_t bytes, const Prop* prop, uint64_t) {
    ENTER("cuMemCreate");
    if (!bytes || bytes % f.granularity || prop->type != 1 || prop->handle_types) return kInvalidValue;
    if (prop->location.type == kHostNuma && !f.numa) return kInvalidValue;
    if (prop->location.type < kDevice || prop->location.type > kHostNuma) return kInvalidValue;
    Pool& pool = prop->location.type == kDevice ? f.device : f.host;
    if (pool.used + bytes > pool.capacity) return kOutOfMemory;
    if (pool.file < 0) pool.file = memfd_create(&pool == &f.device ? "fake_device" : "fake_host", MFD_CLOEXEC);
    size_t offset = 0;
    for (const auto& range : pool.ranges) {
        if (range.first - offset >= bytes) break;
        offset = range.first + range.second;
    }
    struct Junk {
        char bytes[65536];
        Junk() { std::memset(bytes, 0xdb, sizeof bytes); }
    };
    static const Junk junk;
    for (size_t done = 0; done < bytes; done += 65536)
        if (pwrite(pool.file, junk.bytes, bytes - done < 65536 ? bytes - done : 65536, offset + done) < 0)
            return kOutOfMemory;
    pool.ranges[offset] = bytes;
    pool.used += bytes;
    f.physical[*handle = f.next++] = Physical{&pool, offset, bytes};
    return 0;
}
EXPORT int cuMemRelease(Handle handle) {
    ENTER("cuMemRelease");
    auto found = f.physical.find(handle);
    if (found == f.physical.end() || found->second.released) return kInvalidValue;
    found->second.released = true;
    drop(found);
    return 0;
}
EXPORT int cuMemMap(Address at, size_t bytes, size_t offset, Handle handle, uint64_t) {
    ENTER("cuMemMap");
    auto memory = f.physical.find(handle);
    if (memory == f.physical.end() || memory->second.released) return kInvalidValue;
    if (memory->second.bytes != bytes || offset) return kInvalidValue;
    auto range = f.reserved.upper_bound(at);
    if (range == f.reserved.begin() || (--range, at + bytes > range->first + range->second)) return kInvalidValue;
    auto next = f.mappings.lower_bound(at);
    if (next != f.mappings.end() && next->first < at + bytes) return kInvalidValue;
    if (next != f.mappings.begin() && (--next, next->first + next->second.bytes > at)) return kInvalidValue;
    const Physical& from = memory->second;
    void* got = mmap((void*)at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, from.pool->file, from.offset);
    if (got == MAP_FAILED) return kOutOfMemory;
    ++memory->second.maps;
    f.mappings[at] = Mapping{bytes, handle, false};
    return 0;
}
EXPORT int cuMemUnmap(Address at, size_t bytes) {
    ENTER("cuMemUnmap");
    auto found = f.mappings.find(at);
    if (found == f.mappings.end() || found->second.bytes != bytes || !blank(at, bytes)) return kInvalidValue;
    auto memory = f.physical.find(found->second.handle);
    f.mappings.erase(found);
    --memory->second.maps;
    drop(memory);
    return 0;
}
EXPORT int cuMemSetAccess(Address at, size_t bytes, const Access* access, size_t count) {
    ENTER("cuMemSetAccess");
    if (count != 1 || access->location.type != kDevice || access->flags != 3) return kInvalidValue;
    std::vector<Mapping*> covered;
    Address end = at;
    for (auto it = f.mappings.find(at); end < at + bytes; ++it) {
        if (it == f.mappings.end() || it->first != end) return kInvalidValue;
        covered.push_back(&it->second);
        end += it->second.bytes;
    }
    if (end != at + bytes) return kInvalidValue;
    if (mprotect((void*)at, bytes, PROT_READ | PROT_WRITE)) return kOutOfMemory;
    for (Mapping* mapping : covered) mapping->access = true;
    return 0;
}
EXPORT int cuMemHostAlloc(void** out, size_t bytes, unsigned) {
    ENTER("cuMemHostAlloc");
    if (f.pinned + bytes > f.pinned_capacity) return kOutOfMemory;
    void* got = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (got == MAP_FAILED) return kOutOfMemory;
    f.pinned += bytes;
    *out = got;
    return 0;
}
EXPORT int cuMemcpyAsync(Address to, Address from, size_t bytes, void* stream) {
    ENTER("cuMemcpyAsync");
    if (!stream || f.streams[(uintptr_t)stream - 1] != current) return kInvalidValue;
    f.queue.push_back({(uintptr_t)stream, to, from, bytes});
    return 0;
}
EXPORT int cuStreamCreate(void** stream, unsigned) {
    ENTER("cuStreamCreate");
    f.streams.push_back(current);
    *stream = (void*)f.streams.size();
    return 0;
}
EXPORT int cuStreamSynchronize(void* stream) {
    std::lock_guard<std::mutex> lock(f.mutex);
    return run((uintptr_t)stream, enter("cuStreamSynchronize"));
}
EXPORT int cuThreadExchangeStreamCaptureMode(int* mode) {
    ENTER("cuThreadExchangeStreamCaptureMode");
    std::swap(*mode, f.relaxed);
    return 0;
}

// -- what the tests set and read --------------------------------------------------------------------------------------

EXPORT void fake_capacity(size_t device, size_t host, size_t pinned) {
    f.device.capacity = device, f.host.capacity = host, f.pinned_capacity = pinned;
}
EXPORT void fake_granularity(size_t bytes) { f.granularity = bytes; }
EXPORT void fake_numa(int supported) { f.numa = supported; }
EXPORT void fake_capture_mode(int mode) { f.relaxed = mode; }
EXPORT void fake_context(uintptr_t context) { current = context; }
// The n-th call from now of this name (null: of any) fails with this code, and so do the following, `times` in all;
// -1: all. Times 0 ends it.
EXPORT void fake_fail(const char* name, int64_t n, int64_t times, int code) {
    f.fail_name = name ? name : "", f.fail_after = n, f.fail_times = times, f.fail_code = code, f.fired = 0;
}
EXPORT int64_t fake_fired() { return f.fired; }
EXPORT size_t fake_device_bytes() { return f.device.used; }
EXPORT size_t fake_host_bytes() { return f.host.used; }
EXPORT size_t fake_pinned_bytes() { return f.pinned; }
EXPORT size_t fake_reserved() { return f.reserved.size(); }
EXPORT uint64_t fake_calls(const char* name) {
    std::lock_guard<std::mutex> lock(f.mutex);
    return f.calls[name];
}
EXPORT size_t fake_queued() { return f.queue.size(); }
EXPORT int fake_accessible(Address at) {
    auto found = f.mappings.upper_bound(at);
    if (found == f.mappings.begin()) return 0;
    --found;
    return at < found->first + found->second.bytes && found->second.access;
}
