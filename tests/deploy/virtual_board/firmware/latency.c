/* Prints the number of instructions between the cause of an exception and its handler, for several causes. */
#include <stdint.h>

#define REG(address) (*(volatile uint32_t *)(address))
#define CYCLES REG(0xE0001004)
#define ICSR REG(0xE000ED04)
#define LINE 40u

void Reset_Handler(void);
void handler(void);
static void hang(void) { for (;;) { } }

__attribute__((section(".vectors"), used, aligned(512))) void *const vectors[16 + 96] = {
    (void *)0x30008000, (void *)Reset_Handler, (void *)hang, (void *)hang, [14] = (void *)handler, [15] = (void *)handler,
    [16 + LINE] = (void *)handler,
};

volatile uint32_t handled_at;

void handler(void)
{
    handled_at = CYCLES;
    REG(0xE000E010) = 0;
}

static void put(const char *text)
{
    register uint32_t r0 __asm__("r0") = 4;
    register const void *r1 __asm__("r1") = text;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}

static void report(const char *name, uint32_t from)
{
    char digits[12];
    uint32_t at = sizeof digits - 1, value;

    for (uint32_t count = 0; !handled_at && count < 10000000u; count++) { }
    value = handled_at ? handled_at - from : 0xFFFFFFFFu;
    handled_at = 0;
    digits[at] = 0;
    do digits[--at] = (char)('0' + value % 10u); while (value /= 10u);
    put(name);
    put(&digits[at]);
    put("\n");
}

/* Counts down in a loop whose IT block crosses the end of a page. The emulator then starts a block inside the IT block. */
__attribute__((naked, noinline, aligned(4096))) void count_down(uint32_t count)
{
    __asm__ volatile(
        ".rept 2045\n\tnop\n\t.endr\n\t"
        "1: subs r0, #1\n\t"
        "itt ne\n\t"
        "movne r1, r1\n\t"
        "movne r1, r1\n\t"
        "bne 1b\n\t"
        "bx lr");
}

void Reset_Handler(void)
{
    uint32_t from;

    REG(0xE000E100 + 4 * (LINE / 32)) = 1u << LINE % 32;
    from = CYCLES;
    ICSR = 1u << 28;
    report("pendsv ", from);
    from = CYCLES;
    REG(0xE000E200 + 4 * (LINE / 32)) = 1u << LINE % 32;
    report("line ", from);
    __asm__ volatile("cpsid i" ::: "memory");
    ICSR = 1u << 28;
    count_down(20123);
    from = CYCLES;
    __asm__ volatile("cpsie i" ::: "memory");
    report("unmask ", from);
    for (uint32_t reload = 3000; reload < 3005; reload++) {
        REG(0xE000E014) = reload;
        from = CYCLES;
        REG(0xE000E010) = 7;
        count_down(20123);
        report("it ", from);
    }
    put("\x04");
    hang();
}
