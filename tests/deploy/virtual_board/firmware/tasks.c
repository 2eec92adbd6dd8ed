/* Two tasks on process stacks, switched by SVC and PendSV as a small RTOS does it; the main stack is for handlers. */
#include <stdint.h>

#define REG(address) (*(volatile uint32_t *)(address))

void Reset_Handler(void);
void svc_handler(void);
void pendsv_handler(void);
static void hang(void) { for (;;) { } }

__attribute__((section(".vectors"), used, aligned(512))) void *const vectors[16 + 96] = {
    (void *)0x30008000, (void *)Reset_Handler, (void *)hang, (void *)hang, [11] = (void *)svc_handler, [14] = (void *)pendsv_handler,
};

static uint32_t stacks[2][256] __attribute__((aligned(8)));
uint32_t *saved[2], current, svc_calls;
volatile uint32_t counts[2];
volatile float sums[2];

static void put(const char *text)
{
    register uint32_t r0 __asm__("r0") = 4;
    register const void *r1 __asm__("r1") = text;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}

static void finish(uint32_t code)
{
    const uint32_t block[2] = {0x20026, code};
    register uint32_t r0 __asm__("r0") = 0x20;
    register const void *r1 __asm__("r1") = block;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    hang();
}

uint32_t *next_task(uint32_t *stack)
{
    saved[current] = stack;
    current ^= 1;
    return saved[current];
}

/* Saves R4-R11, S16-S31 and EXC_RETURN on the task's own stack, and takes the other task's. */
__attribute__((naked)) void pendsv_handler(void)
{
    __asm__ volatile(
        "mrs r0, psp\n\t"
        "tst lr, #0x10\n\t"
        "it eq\n\t"
        "vstmdbeq r0!, {s16-s31}\n\t"
        "stmdb r0!, {r4-r11, lr}\n\t"
        "bl next_task\n\t"
        "ldmia r0!, {r4-r11, lr}\n\t"
        "tst lr, #0x10\n\t"
        "it eq\n\t"
        "vldmiaeq r0!, {s16-s31}\n\t"
        "msr psp, r0\n\t"
        "bx lr");
}

/* Asks for PendSV, which is taken when the handler is left. */
void svc_handler(void)
{
    svc_calls++;
    REG(0xE000ED04) = 1u << 28;
}

static void yield(void) { __asm__ volatile("svc 0" ::: "memory"); }

static void task(uint32_t number)
{
    for (uint32_t i = 0; i < 50; i++) {
        counts[number]++;
        sums[number] = sums[number] + 0.5f + (float)number;
        yield();
    }
    if (number) {
        put(counts[0] == 50 && counts[1] == 50 && svc_calls == 101 && sums[0] == 25.0f && sums[1] == 75.0f ? "PASS\n" : "FAIL\n");
        finish(0);
    }
    for (;;) yield();
}

static void first(void) { task(0); }
static void second(void) { task(1); }

void Reset_Handler(void)
{
    REG(0xE000ED88) |= 0xFu << 20;
    REG(0xE000ED08) = (uint32_t)vectors;
    REG(0xE000ED20) = 0xFFu << 16; /* PendSV last of all */
    __asm__ volatile("dsb\n\tisb");
    for (uint32_t i = 0; i < 256; i++) stacks[0][i] = stacks[1][i] = 0;
    current = svc_calls = 0;
    for (uint32_t n = 0; n < 2; n++) {
        counts[n] = 0;
        sums[n] = 0.0f;
    }
    uint32_t *top = &stacks[1][256];
    *--top = 1u << 24;           /* the second task as if PendSV had interrupted it at its beginning, without floats */
    *--top = (uint32_t)second & ~1u;
    for (int i = 0; i < 6; i++) *--top = 0;
    *--top = 0xFFFFFFFDu;        /* EXC_RETURN: thread mode, process stack, short frame */
    for (int i = 0; i < 8; i++) *--top = 0;
    saved[1] = top;
    __asm__ volatile("msr psp, %0\n\tmovs r0, #2\n\tmsr control, r0\n\tisb\n\tbx %1" ::"r"(&stacks[0][256]), "r"(first) : "r0", "memory");
}

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
