// The driver's checkpoints without a device: what it would know of each process, its state and the GPU that it is on.
#pragma GCC visibility push(default)
#include <map>
#include <string.h>
struct Uuid { unsigned char of[16]; };
struct Lock { unsigned timeout_ms, zero; unsigned long long rest[7]; };
struct Pair { Uuid old_, new_; };
struct Restore { Pair *pairs; unsigned count; char rest[52 - sizeof(Pair *)]; unsigned long long more; };
static std::map<int, int> state, gpu;
static int refused;
extern "C" {
int cuInit(unsigned) { return 0; }
int cuDeviceGetCount(int *count) { *count = 3; return 0; }
int cuDeviceGetUuid(Uuid *uuid, int device) { memset(uuid->of, 10 + device, 16); return 0; }
void fake_uses(int pid, int device) { state[pid] = 0; gpu[pid] = device; }
void fake_refuse(int pid) { refused = pid; }
int fake_gpu(int pid) { return gpu[pid]; }
int fake_state(int pid) { return state[pid]; }
int cuCheckpointProcessGetState(int pid, int *out) {
  auto found = state.find(pid);
  if (found == state.end()) return 3;
  *out = found->second;
  return 0;
}
int cuCheckpointProcessLock(int pid, Lock *lock) {
  if (state[pid] != 0 || lock->timeout_ms == 0) return 1;
  state[pid] = 1;
  return 0;
}
int cuCheckpointProcessCheckpoint(int pid, void *) {
  if (state[pid] != 1 || pid == refused) return 801;
  state[pid] = 2;
  return 0;
}
int cuCheckpointProcessRestore(int pid, Restore *how) {
  if (state[pid] != 2) return 1;
  if (how) for (unsigned i = 0; i < how->count; ++i)
    if (how->pairs[i].old_.of[0] == 10 + gpu[pid]) { gpu[pid] = how->pairs[i].new_.of[0] - 10; break; }
  state[pid] = 1;
  return 0;
}
int cuCheckpointProcessUnlock(int pid, void *) {
  if (state[pid] != 1) return 1;
  state[pid] = 0;
  return 0;
}
}
