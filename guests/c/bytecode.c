// An interpreter for a small stack machine, running a sieve and Fibonacci by recursion.
// Exercises indirect jumps: each instruction ends in one whose target is hard to predict.
// Arguments: REPEATS (default 600).
#include "../include/longma.h"
#include "guest.h"

enum code { PUSH, LOAD, STORE, FETCH, PUT, ADD, SUB, MUL, LESS, SWAP, DUP, JUMP, JUMP_IF, CALL, RETURN, HALT };

enum { MEMORY = 4096 };

// A program under construction: words of code, and labels as word numbers.
struct program {
    int64_t word[256];
    int length;
};

static void emit(struct program *p, enum code code) { p->word[p->length++] = code; }
static void emit_with(struct program *p, enum code code, int64_t operand) {
    emit(p, code);
    p->word[p->length++] = operand;
}
static void emit_push_load(struct program *p, int variable, int64_t constant) {
    emit_with(p, LOAD, variable);
    emit_with(p, PUSH, constant);
}

static int64_t run(const int64_t *code, int64_t *memory, uint64_t *steps) {
    static const void *const target[] = {&&push, &&load, &&store, &&fetch, &&put, &&add, &&sub, &&mul, &&less,
                                         &&swap, &&dup, &&jump, &&jump_if, &&call, &&ret, &&halt};
    int64_t stack[512], *top = stack, variable[16] = {0}, t;
    const int64_t *pc = code;
    uint64_t count = 0;
#define NEXT do { count++; goto *target[*pc++]; } while (0)
    NEXT;
push: *++top = *pc++; NEXT;
load: *++top = variable[*pc++]; NEXT;
store: variable[*pc++] = *top--; NEXT;
fetch: *top = memory[*top & (MEMORY - 1)]; NEXT;
put: memory[*top & (MEMORY - 1)] = top[-1], top -= 2; NEXT;
add: top--, *top = (int64_t)((uint64_t)*top + (uint64_t)top[1]); NEXT;
sub: top--, *top = (int64_t)((uint64_t)*top - (uint64_t)top[1]); NEXT;
mul: top--, *top = (int64_t)((uint64_t)*top * (uint64_t)top[1]); NEXT;
less: top--, *top = *top < top[1]; NEXT;
swap: t = *top, *top = top[-1], top[-1] = t; NEXT;
dup: top++, *top = top[-1]; NEXT;
jump: pc = code + *pc; NEXT;
jump_if: t = *top--, pc = t ? code + *pc : pc + 1; NEXT;
call: t = *pc++, *++top = pc - code, pc = code + t; NEXT;
ret: t = *top, top--, pc = code + *top, *top = t; NEXT;
halt: *steps += count; return *top;
#undef NEXT
}

// for (v0 = from; v0 < until; v0 += v1) memory[v0] = 1, with v1 set before.
static void emit_strike(struct program *p, int64_t until) {
    int start = p->length;
    emit_with(p, PUSH, 1), emit_with(p, LOAD, 0), emit(p, PUT);
    emit_with(p, LOAD, 0), emit_with(p, LOAD, 1), emit(p, ADD), emit(p, DUP), emit_with(p, STORE, 0);
    emit_with(p, PUSH, until), emit(p, LESS), emit_with(p, JUMP_IF, start);
}

// Counts primes below MEMORY: v2 is the candidate, v3 the count.
static struct program sieve(void) {
    struct program p = {.length = 0};
    emit_with(&p, PUSH, 2), emit_with(&p, STORE, 2);
    int loop = p.length;
    emit_with(&p, LOAD, 2), emit(&p, FETCH), emit_with(&p, JUMP_IF, 0);
    int skip = p.length - 1;
    emit_push_load(&p, 3, 1), emit(&p, ADD), emit_with(&p, STORE, 3);
    emit_with(&p, LOAD, 2), emit(&p, DUP), emit_with(&p, STORE, 0), emit_with(&p, STORE, 1);
    emit_strike(&p, MEMORY);
    p.word[skip] = p.length;
    emit_push_load(&p, 2, 1), emit(&p, ADD), emit(&p, DUP), emit_with(&p, STORE, 2);
    emit_with(&p, PUSH, MEMORY), emit(&p, LESS), emit_with(&p, JUMP_IF, loop);
    emit_with(&p, LOAD, 3), emit(&p, HALT);
    return p;
}

// fib(n) by calls: the argument is on the stack under the return address.
static struct program fibonacci(int64_t n) {
    struct program p = {.length = 0};
    emit_with(&p, PUSH, n), emit_with(&p, CALL, 5), emit(&p, HALT);
    // n return-address -> result
    emit(&p, SWAP), emit(&p, DUP), emit_with(&p, PUSH, 2), emit(&p, LESS), emit_with(&p, JUMP_IF, 0);
    int small = p.length - 1;
    emit(&p, DUP), emit_with(&p, PUSH, 1), emit(&p, SUB), emit_with(&p, CALL, 5);
    emit(&p, SWAP), emit_with(&p, PUSH, 2), emit(&p, SUB), emit_with(&p, CALL, 5), emit(&p, ADD);
    p.word[small] = p.length;
    emit(&p, RETURN);
    return p;
}

int main(int argc, char **argv) {
    uint64_t repeats = argument(argc, argv, 1, 600, 1, 1000000), steps = 0, sum = CHECKSUM_START;
    static int64_t memory[MEMORY];
    struct program primes = sieve(), fib = fibonacci(18);
    longma_roi_begin();
    for (uint64_t r = 0; r < repeats; r++) {
        memset(memory, 0, sizeof memory);
        sum = checksum(sum, (uint64_t)run(primes.word, memory, &steps));
        sum = checksum(sum, (uint64_t)run(fib.word, memory, &steps));
    }
    longma_roi_end();
    memset(memory, 0, sizeof memory);
    printf("bytecode %lld primes, fib(18) = %lld, %llu steps, ", (long long)run(primes.word, memory, &steps),
           (long long)run(fib.word, memory, &steps), (unsigned long long)steps);
    print_checksum("checksum", sum);
    return 0;
}
