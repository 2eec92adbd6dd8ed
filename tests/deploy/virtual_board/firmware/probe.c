/* One program for all tests of the virtual board: what it does is in a block of words that the test puts into memory. */
#include <stdint.h>

#define PARAMETERS ((const volatile struct parameters *)0x70000000)
#define REG(address) (*(volatile uint32_t *)(address))

enum {
    BY_INTERRUPT = 1 << 0, CACHE_ON = 1 << 1, CLEAN = 1 << 2, INVALIDATE = 1 << 3, NO_RESET = 1 << 4, NO_ACKNOWLEDGE = 1 << 5,
    WRITE_WHILE_RUNNING = 1 << 6, UNKNOWN_REGISTER = 1 << 7, RUN_TWICE = 1 << 8, BYTE_ACCESS = 1 << 9, WRITE_ID = 1 << 10,
    END_BY_UART = 1 << 11, WILD_READ = 1 << 12, WRITE_CODE = 1 << 13, UNDEFINED = 1 << 14, BREAKPOINT = 1 << 15,
    NO_ENABLE = 1 << 16, SLEEP_FOR_EVER = 1 << 17, SPIN_FOR_EVER = 1 << 18, NO_HANDLER = 1 << 19, HANDLER_IDLES = 1 << 20,
    SPIN_ON_FLAG = 1 << 21, CLEAN_BY_SET = 1 << 22, EVENTS = 1 << 23, ABSENT_PERIPHERAL = 1 << 24, SYSTICK = 1 << 25,
    SEMIHOSTING = 1 << 26, FLOATS = 1 << 27, PEEK_EARLY = 1 << 28, RESET_SYSTEM = 1 << 29, ARM_STATE = 1 << 30, UART_OFF = 1u << 31,
};

struct parameters {
    uint32_t npu, uart, interrupt, flags, stream, stream_bytes, region_config, queue_config, base[8];
    uint32_t attributes[4], is_u85, input, input_bytes, input_at, output_at, output_bytes, runs;
};

void Reset_Handler(void);
void npu_handler(void);
void tick_handler(void);
static void hang(void) { for (;;) { } }

#define EIGHT(x) x, x, x, x, x, x, x, x
__attribute__((section(".vectors"), used, aligned(512))) void *const vectors[16 + 96] = {
    (void *)0x30008000, (void *)Reset_Handler, (void *)hang, (void *)hang, [15] = (void *)tick_handler, [16 + 16] = (void *)npu_handler,
    [16 + 56] = (void *)npu_handler,
};

static uint32_t no_vectors[16 + 96] __attribute__((aligned(512)));
static volatile uint32_t done, status, ticks;
static volatile float kept = 1.0f;

void *memcpy(void *to, const void *from, unsigned n)
{
    for (unsigned i = 0; i < n; i++) ((uint8_t *)to)[i] = ((const uint8_t *)from)[i];
    return to;
}

void *memset(void *to, int value, unsigned n)
{
    for (unsigned i = 0; i < n; i++) ((volatile uint8_t *)to)[i] = (uint8_t)value;
    return to;
}

static uint32_t semihost(uint32_t operation, const void *argument)
{
    register uint32_t r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

static void put(const char *text)
{
    const uint32_t uart = PARAMETERS->uart;
    if (!uart || (PARAMETERS->flags & SEMIHOSTING)) {
        semihost(4, text);
        return;
    }
    for (; *text; text++) {
        while (REG(uart + 4) & 1) { }
        REG(uart) = (uint8_t)*text;
    }
}

static void say(const char *name, uint32_t value)
{
    char text[10];
    for (int i = 0; i < 8; i++) text[i] = "0123456789abcdef"[value >> (28 - 4 * i) & 15];
    text[8] = '\n';
    text[9] = 0;
    put(name);
    put(" ");
    put(text);
}

static void finish(uint32_t code)
{
    if (PARAMETERS->flags & RESET_SYSTEM) REG(0xE000ED0C) = 0x05FA0004;
    if (PARAMETERS->flags & END_BY_UART) REG(PARAMETERS->uart) = 4;
    const uint32_t block[2] = {0x20026, code};
    semihost(0x20, block);
    hang();
}

static void maintain(uint32_t at, uint32_t from, uint32_t bytes)
{
    for (uint32_t line = from & ~31u; line < from + bytes; line += 32) REG(at) = line;
}

void npu_handler(void)
{
    const uint32_t npu = PARAMETERS->npu;
    status = REG(npu + 4);
    done = 1;
    if (!(PARAMETERS->flags & HANDLER_IDLES)) REG(npu + 8) = 2;
}

void tick_handler(void) { ticks++; }

__attribute__((noinline)) static uint32_t adler(uint32_t at, uint32_t bytes)
{
    uint32_t a = 1, b = 0;
    for (uint32_t i = 0; i < bytes; i++) {
        a = (a + ((const uint8_t *)at)[i]) % 65521;
        b = (b + a) % 65521;
    }
    return b << 16 | a;
}

static void trouble(uint32_t flags, uint32_t npu)
{
    if (flags & UNKNOWN_REGISTER) (void)REG(npu + 0x1FF8);
    if (flags & BYTE_ACCESS) (void)*(volatile uint8_t *)(npu + 0x10);
    if (flags & WRITE_ID) REG(npu) = 1;
    if (flags & ABSENT_PERIPHERAL) REG(0x40F00000) = REG(0x40F00004) + 1;
    if (flags & WILD_READ) (void)REG(0x90000000);
    if (flags & WRITE_CODE) REG(0x08000400) = 0;
    if (flags & UNDEFINED) __asm__ volatile("udf #1");
    if (flags & ARM_STATE) ((void (*)(void))((uint32_t)&hang & ~1u))();
    if (flags & BREAKPOINT) __asm__ volatile("bkpt 1");
    if (flags & SLEEP_FOR_EVER) for (;;) __asm__ volatile("wfi");
    if (flags & SPIN_FOR_EVER) hang();
    if (flags & SYSTICK) {
        REG(0xE000E014) = 99999;
        REG(0xE000E018) = 0;
        REG(0xE000E010) = 7;
        while (ticks < 3) __asm__ volatile("wfi");
        REG(0xE000E010) = 0;
        say("TICKS", ticks);
    }
    if (flags & FLOATS) {
        for (int i = 0; i < 20; i++) kept = kept * 1.5f + 0.25f;
        union { float f; uint32_t u; } bits = {kept};
        say("FLOAT", bits.u);
    }
}

void Reset_Handler(void)
{
    const volatile struct parameters *p = PARAMETERS;
    const uint32_t npu = p->npu, flags = p->flags, pmu = npu + (p->is_u85 ? 0x1180 : 0x180);
    REG(0xE000ED88) |= 0xFu << 20;
    REG(0xE000ED08) = (uint32_t)(flags & NO_HANDLER ? (const void *)no_vectors : (const void *)vectors);
    __asm__ volatile("dsb\n\tisb");
    done = status = ticks = 0;
    if (p->uart && !(flags & UART_OFF)) {
        REG(p->uart + 16) = 16;
        REG(p->uart + 8) = 1;
    }
    kept = 1.0f;
    if (flags & CACHE_ON) REG(0xE000ED14) |= 1u << 16;
    if (flags & SEMIHOSTING) {
        static char line[64];
        const uint32_t block[2] = {(uint32_t)line, sizeof line};
        semihost(0x15, block);
        put(line);
        put("\n");
    }
    trouble(flags, npu);
    if (!(flags & NO_RESET)) {
        REG(npu + 0x0C) = 0;
        while (REG(npu + 4) & 8) { }
    }
    say("CONFIG", REG(npu + 0x28));
    if (p->is_u85) for (uint32_t i = 0; i < 4; i++) REG(npu + 0x40 + 4 * i) = p->attributes[i];
    REG(pmu) = 7;
    REG(pmu + 4) = 1u << 31 | 1;
    if (flags & EVENTS) REG(pmu + 0x200) = 48;
    for (uint32_t run = 0; run < p->runs; run++) {
        memset((void *)p->output_at, 0, p->output_bytes);
        memcpy((void *)p->input_at, (const void *)p->input, p->input_bytes);
        if (flags & CLEAN) {
            maintain(0xE000EF68, p->output_at, p->output_bytes);
            maintain(0xE000EF68, p->input_at, p->input_bytes);
        }
        if (flags & CLEAN_BY_SET)
            for (uint32_t set = 0; set < 256; set++)
                for (uint32_t way = 0; way < 4; way++) REG(0xE000EF74) = way << 30 | set << 5;
        REG(npu + 0x10) = p->stream;
        REG(npu + 0x14) = 0;
        REG(npu + 0x20) = p->stream_bytes;
        REG(npu + 0x1C) = p->queue_config;
        for (uint32_t i = 0; i < 8; i++) {
            REG(npu + 0x80 + 8 * i) = p->base[i];
            REG(npu + 0x84 + 8 * i) = 0;
        }
        REG(npu + 0x3C) = p->region_config;
        done = 0;
        if (flags & BY_INTERRUPT) {
            if (!(flags & NO_ENABLE)) REG(0xE000E100 + 4 * (p->interrupt / 32)) = 1u << p->interrupt % 32;
            __asm__ volatile("cpsie i" ::: "memory");
        }
        REG(npu + 8) = 0xD;
        if (flags & WRITE_WHILE_RUNNING) REG(npu + 0x3C) = 0;
        if (flags & RUN_TWICE) REG(npu + 8) = 0xD;
        if (flags & PEEK_EARLY) say("EARLY", REG(p->output_at));
        if (flags & BY_INTERRUPT) {
            while (!done)
                if (!(flags & SPIN_ON_FLAG)) __asm__ volatile("wfe");
        } else {
            while (!(REG(npu + 4) & 2)) { }
            status = REG(npu + 4);
            if (!(flags & NO_ACKNOWLEDGE)) REG(npu + 8) = 0xE;
        }
        say("STATUS", status & 0xFFFF);
        if (flags & INVALIDATE) maintain(0xE000EF5C, p->output_at, p->output_bytes);
        say("SUM", adler(p->output_at, p->output_bytes));
    }
    say("CYCLES", REG(pmu + 0x20));
    if (flags & EVENTS) say("EVENT", REG(pmu + 0x180));
    finish(status & 0x3D4 || !(status & 0x20));
}
