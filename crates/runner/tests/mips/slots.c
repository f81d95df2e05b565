// Faults and traps in delay slots and after multiplications: the signal, its address, and the state after the handler returns.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

// The last signal: its number, its code, the index of the instruction after `here`, and a register.
static int told, signals[8], codes[8];
static long places[8], seen[8], here;
// What the handler does: it skips this many instructions, or makes the page accessible.
static int further;
static long *page;

static void handle(int signal, siginfo_t *info, void *context) {
    ucontext_t *registers = context;
    if (told < 8) {
        signals[told] = signal;
        codes[told] = info->si_code;
        places[told] = ((long)registers->uc_mcontext.pc - here) / 4;
        seen[told] = registers->uc_mcontext.gregs[2];
    }
    if (++told > 8) _exit(1);
    if (further == 0) mprotect(page, 65536, PROT_READ | PROT_WRITE);
    registers->uc_mcontext.pc += 4 * further;
}

static void tell(const char *name) {
    printf("%s:", name);
    for (int i = 0; i < told && i < 8; i++) printf(" signal %d code %d at %ld", signals[i], codes[i], places[i]);
    puts(told ? "" : " nothing");
}

// Executes code with `here` as label 8. $24 is the protected page, $25 null, $15 the largest integer; $2 starts as 1 and is the result.
// Repeated until it is translated as a unit; the page is protected only the last time.
#define RUN(code)                                                                                                          \
    ({                                                                                                                     \
        long last = 0;                                                                                                     \
        for (int times = 0; times < 40; times++) {                                                                         \
            told = 0;                                                                                                      \
            mprotect(page, 65536, times < 39 ? PROT_READ | PROT_WRITE : PROT_NONE);                                        \
            register long result __asm__("$2") = 1;                                                                        \
            register long *at __asm__("$24") = page;                                                                       \
            register long null __asm__("$25") = 0;                                                                         \
            register long greatest __asm__("$15") = 0x7fffffffffffffff;                                                    \
            __asm__ volatile(".set push\n.set noreorder\n.set noat\ndla $3, 8f\nsd $3, %1\n" code "\n.set pop"             \
                             : "+r"(result), "=m"(here)                                                                    \
                             : "r"(at), "r"(null), "r"(greatest)                                                           \
                             : "$1", "$3", "$4", "$5", "$6", "$7", "$8", "$9", "$12", "$13", "$14", "$31", "$f0", "hi", "lo",\
                               "memory");                                                                                  \
            last = result;                                                                                                 \
        }                                                                                                                  \
        last;                                                                                                              \
    })

// An instruction that signals in the delay slot of each kind of branch. The handler continues after the slot, the target of all
// branches except the last.
#define IN_SLOTS(what)                                                                                                     \
    do {                                                                                                                   \
        further = 2;                                                                                                       \
        printf("%s\n", what);                                                                                              \
        RUN("8: b 1f\n" what "\n1:"), tell(" b");                                                                          \
        RUN("li $5, 3\n8: beq $5, $2, 1f\n" what "\n1:"), tell(" beq, not taken");                                         \
        RUN("li $5, 1\n8: beq $5, $2, 1f\n" what "\n1:"), tell(" beq, taken");                                             \
        RUN("slt $4, $2, $24\n8: bnez $4, 1f\n" what "\n1:"), tell(" slt and bnez");                                       \
        RUN("8: bgtz $2, 1f\n" what "\n1:"), tell(" bgtz");                                                                \
        RUN("8: bltz $2, 1f\n" what "\n1:"), tell(" bltz, not taken");                                                     \
        RUN("8: bgtzl $2, 1f\n" what "\n1:"), tell(" bgtzl");                                                              \
        RUN("8: bltzl $2, 1f\n" what "\n1:"), tell(" bltzl, not taken");                                                   \
        RUN("8: bgezal $2, 1f\n" what "\n1:"), tell(" bgezal");                                                            \
        RUN("c.eq.d $f0, $f0\n8: bc1t 1f\n" what "\n1:"), tell(" bc1t");                                                   \
        RUN("dla $4, 1f\n8: jr $4\n" what "\n1:"), tell(" jr");                                                            \
        RUN("dla $4, 1f\n8: jalr $4\n" what "\n1:"), tell(" jalr");                                                        \
        RUN("dla $31, 1f\n8: jr $31\n" what "\n1:"), tell(" a return");                                                    \
        RUN(".option pic0\n8: jal 1f\n" what "\n1:\n.option pic2"), tell(" jal");                                          \
    } while (0)

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    page = mmap(NULL, 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGTRAP, &action, NULL);
    sigaction(SIGFPE, &action, NULL);
    sigaction(SIGSEGV, &action, NULL);

    IN_SLOTS("break 5");
    IN_SLOTS("break 0, 3");
    IN_SLOTS("teq $0, $0, 3");
    IN_SLOTS("tnei $2, 7");
    IN_SLOTS("ld $2, 8($24)");
    IN_SLOTS("sw $2, 0x1234($25)");
    IN_SLOTS("ldl $2, 15($24)");
    // lld $2, 8($24); assemblers insert a sync before it.
    IN_SLOTS(".word 0xd3020008");
    IN_SLOTS("dadd $6, $15, $15");
    IN_SLOTS("daddi $6, $15, 5");

    puts("behind products");
    further = 1;
#define PRODUCTS(what, reads)                                                                                              \
    do {                                                                                                                   \
        long result = RUN("li $4, 50\nli $5, -7\nmtlo $5\n8: " what " $4, $5\nlw $6, 8($24)\nsd $6, 8($24)\n" reads);      \
        tell(what), printf(" %ld\n", result);                                                                              \
    } while (0)
    PRODUCTS("mult", "mflo $2");
    PRODUCTS("multu", "mfhi $2");
    PRODUCTS("dmult", "mflo $2\nmfhi $6\ndaddu $2, $2, $6");
    PRODUCTS("dmultu", "li $4, 9\nmflo $2");
    PRODUCTS("div $0,", "mfhi $2");
    PRODUCTS("ddivu $0,", "mflo $2");
    PRODUCTS("mult", "dmult $4, $4\nmflo $2");
    long product = RUN("li $4, 50\nli $5, -7\n8: dmult $4, $5\nbreak 5\nmflo $2");
    tell("a break"), printf(" %ld\n", product);
    further = 2;
    product = RUN("li $4, 50\nli $5, -7\ndla $31, 1f\n8: dmult $4, $5\njr $31\nbreak 5\n1: mflo $2");
    tell("a break in the slot of a return"), printf(" %ld\n", product);

    puts("made good");
    further = 0;
    // A deferred comparison that is dead afterwards, with more deferred values than registers.
    long sum = RUN("li $4, 1\nb 3f\nnop\n3: daddu $2, $2, $4\ndaddiu $5, $24, 8\ndaddiu $6, $24, 16\ndaddiu $7, $24, 24\n"
                   "slt $4, $24, $25\n8: bnez $4, 1f\nld $8, 0($24)\ndaddu $2, $2, $5\ndaddu $2, $2, $6\ndaddu $2, $2, $7\n"
                   "daddu $2, $2, $8\nb 2f\nnop\n1: li $2, -1\n2: li $4, 0");
    tell(" a comparison"), printf(" %ld\n", sum - 3 * (long)page);

    puts("computed in slots");
#define COMPUTED(what, reads)                                                                                              \
    printf(" %s: %ld\n", what, RUN("li $4, 50\nli $5, -7\nmult $5, $5\n8: bgtz $4, 1f\n" what "\n1: " reads))
    COMPUTED("mult $4, $5", "mflo $2");
    COMPUTED("ddiv $0, $4, $5", "mfhi $2\nmflo $6\ndaddu $2, $2, $6");
    COMPUTED("madd $4, $4", "mflo $2");
    COMPUTED("mflo $4", "daddu $2, $4, $4");
    COMPUTED("mtlo $4", "mflo $2");
    COMPUTED("movn $4, $5, $5", "move $2, $4");
    COMPUTED("rdhwr $4, $29", "rdhwr $5, $29\ndsubu $2, $4, $5");
    COMPUTED("rdhwr $5, $1", "sltu $2, $25, $5");
    COMPUTED("sync", "move $2, $4");

    puts("stepped over");
    // The instruction in the slot would have written the register that the handler leaves unchanged.
    further = 2;
    RUN("dla $4, 1f\nli $2, 7\n8: jr $4\nld $2, 0($24)\n1:");
    tell(" jr"), printf(" %ld\n", seen[0]);
    RUN("dla $31, 1f\ndaddiu $2, $25, 8\n8: jr $31\nld $2, 0($24)\n1:");
    tell(" a return"), printf(" %ld\n", seen[0]);
    RUN("move $2, $25\n.option pic0\n8: jal 1f\nld $2, 0($24)\n1:\n.option pic2");
    tell(" jal"), printf(" %ld\n", seen[0]);
    RUN("daddiu $2, $25, 9\n8: b 1f\nld $2, 0($24)\n1:");
    tell(" b"), printf(" %ld\n", seen[0]);
    return 0;
}
