// Hooks that the emulator calls at every block of instructions, and at every load and store while the data cache is enabled. The hooks
// count instructions, stop the emulator at a limit, and record for each cache line whether memory and cache differ.
#include <stdint.h>

namespace {

constexpr uint64_t KNOWN = 1 << 14;  // size of the cache of instruction counts, in blocks
enum : uint8_t { DIRTY = 1, STALE = 2 };

struct Memory {
    uint64_t base, size;
    const uint8_t* bytes;
    uint8_t* lines;  // flags of each cache line, or nullptr for uncached memory
};

struct Hooks {
    uint64_t instructions, stop_at;
    int32_t (*stop)(void*);
    uint64_t memories;
    Memory memory[64];
    uint64_t line_shift;
    uint64_t caching;
    uint64_t stale_reads, stale_address, stale_at;  // number of stale reads; address and block of the first one
    uint64_t last_block;
    uint64_t blocks[KNOWN];
    uint32_t counts[KNOWN];
};

const Memory* find(const Hooks& hooks, uint64_t address, uint64_t size) {
    for (uint64_t i = 0; i < hooks.memories; ++i) {
        const Memory& memory = hooks.memory[i];
        if (address - memory.base < memory.size && address - memory.base + size <= memory.size) return &memory;
    }
    return nullptr;
}

// A Thumb instruction has 4 bytes if its first halfword starts with 0b11101, 0b11110 or 0b11111.
uint32_t count(const Hooks& hooks, uint64_t address, uint32_t size) {
    const Memory* memory = find(hooks, address, size);
    if (!memory) return size / 2;
    const uint8_t* code = memory->bytes + (address - memory->base);
    uint32_t found = 0;
    for (uint32_t at = 0; at + 1 < size; ++found) at += code[at + 1] >> 3 >= 29 ? 4 : 2;
    return found;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT uint64_t ethorch_hooks_size() { return sizeof(Hooks); }

EXPORT void ethorch_block(void* engine, uint64_t address, uint32_t size, void* user) {
    Hooks& hooks = *static_cast<Hooks*>(user);
    if (hooks.instructions >= hooks.stop_at) {
        hooks.stop(engine);
        return;
    }
    const uint64_t slot = address >> 1 & (KNOWN - 1), key = address << 16 | (size & 0xFFFF) | 1ull << 63;
    if (hooks.blocks[slot] != key) {
        hooks.counts[slot] = count(hooks, address, size);
        hooks.blocks[slot] = key;
    }
    hooks.instructions += hooks.counts[slot];
    hooks.last_block = address;
}

EXPORT void ethorch_store(void*, int, uint64_t address, int size, int64_t, void* user) {
    Hooks& hooks = *static_cast<Hooks*>(user);
    if (!hooks.caching) return;
    const Memory* memory = find(hooks, address, size);
    if (!memory || !memory->lines) return;
    const uint64_t first = (address - memory->base) >> hooks.line_shift, last = (address - memory->base + size - 1) >> hooks.line_shift;
    for (uint64_t line = first; line <= last; ++line) memory->lines[line] |= DIRTY;
}

EXPORT void ethorch_load(void*, int, uint64_t address, int size, int64_t, void* user) {
    Hooks& hooks = *static_cast<Hooks*>(user);
    if (!hooks.caching) return;
    const Memory* memory = find(hooks, address, size);
    if (!memory || !memory->lines) return;
    const uint64_t first = (address - memory->base) >> hooks.line_shift, last = (address - memory->base + size - 1) >> hooks.line_shift;
    for (uint64_t line = first; line <= last; ++line) {
        if (!(memory->lines[line] & STALE)) continue;
        memory->lines[line] &= ~STALE;  // report each stale line once
        if (!hooks.stale_reads++) {
            hooks.stale_address = address;
            hooks.stale_at = hooks.last_block;
        }
    }
}
