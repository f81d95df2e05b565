// Integer work of small embedded programs: a linked list, a matrix, a state machine, a CRC.
// The mix of branches, loads and small multiplies is typical of most code.
// Arguments: ITERATIONS (default 16000).
#include "../include/longma.h"
#include "guest.h"

enum { NODES = 128, SIDE = 16, TEXT = 384 };

struct node {
    struct node *next;
    int16_t key, order;
};

// CRC-16/CCITT, a bit at a time: shifts and unpredictable branches on purpose.
static uint16_t crc16(uint16_t crc, uint16_t value) {
    crc ^= value;
    for (int bit = 0; bit < 16; bit++) crc = crc & 0x8000 ? (uint16_t)(crc << 1 ^ 0x1021) : (uint16_t)(crc << 1);
    return crc;
}

static int by_key(const struct node *a, const struct node *b) { return a->key - b->key; }
static int by_order(const struct node *a, const struct node *b) { return a->order - b->order; }

// Bottom-up merge sort of a list; the comparison is an indirect call.
static struct node *sort_list(struct node *list, int (*compare)(const struct node *, const struct node *)) {
    for (int run = 1;; run *= 2) {
        struct node *rest = list, *head = NULL, **tail = &head;
        int merges = 0;
        while (rest) {
            struct node *left = rest, *right = rest;
            int left_size = 0, right_size = run;
            merges++;
            while (right && left_size < run) right = right->next, left_size++;
            while (left_size > 0 || (right_size > 0 && right)) {
                int take_left = left_size > 0 && (right_size == 0 || !right || compare(left, right) <= 0);
                struct node **from = take_left ? &left : &right;
                *(take_left ? &left_size : &right_size) -= 1;
                *tail = *from;
                tail = &(*from)->next;
                *from = *tail;
            }
            rest = right;
        }
        *tail = NULL;
        list = head;
        if (merges <= 1) return list;
    }
}

static struct node *reverse(struct node *list) {
    struct node *done = NULL;
    while (list) {
        struct node *next = list->next;
        list->next = done;
        done = list;
        list = next;
    }
    return done;
}

static uint16_t list_work(struct node *pool, uint64_t *seed) {
    uint16_t crc = 0xffff;
    for (int i = 0; i < NODES; i++) {
        pool[i].next = i + 1 < NODES ? &pool[i + 1] : NULL;
        pool[i].key = (int16_t)(random_next(seed) >> 40);
        pool[i].order = (int16_t)i;
    }
    struct node *list = reverse(sort_list(pool, by_key));
    for (int wanted = 0; wanted < 32; wanted++) {
        struct node *found = list;
        while (found && (found->key & 31) != wanted) found = found->next;
        crc = crc16(crc, found ? (uint16_t)found->order : 0xdead);
    }
    list = sort_list(list, by_order);
    for (; list; list = list->next) crc = crc16(crc, (uint16_t)list->key);
    return crc;
}

static uint16_t matrix_work(int16_t a[SIDE][SIDE], int16_t b[SIDE][SIDE], int16_t add) {
    int32_t product[SIDE][SIDE];
    uint16_t crc = 0;
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++) a[i][j] = (int16_t)(a[i][j] + add);
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++) {
            int32_t sum = 0;
            for (int k = 0; k < SIDE; k++) sum += (a[i][k] >> 4) * (b[k][j] & 0xff);
            product[i][j] = sum;
        }
    for (int i = 0; i < SIDE; i++) crc = crc16(crc, (uint16_t)(product[i][i] >> 3));
    return crc;
}

enum state { START, SIGN, WHOLE, POINT, FRACTION, EXPONENT, BAD, STATES };

static enum state step(enum state state, char c) {
    int digit = c >= '0' && c <= '9';
    switch (state) {
    case START: return digit ? WHOLE : c == '+' || c == '-' ? SIGN : c == '.' ? POINT : BAD;
    case SIGN: return digit ? WHOLE : c == '.' ? POINT : BAD;
    case WHOLE: return digit ? WHOLE : c == '.' ? POINT : c == 'e' ? EXPONENT : BAD;
    case POINT:
    case FRACTION: return digit ? FRACTION : c == 'e' ? EXPONENT : BAD;
    case EXPONENT: return digit || c == '-' ? EXPONENT : BAD;
    default: return BAD;
    }
}

// Classifies comma-separated number-like words and counts how each ended.
static uint16_t state_work(uint64_t *seed) {
    static const char alphabet[] = "0123456789,,..+-ee7x";
    char text[TEXT];
    uint16_t ended[STATES] = {0}, crc = 0;
    for (int i = 0; i < TEXT; i++) text[i] = alphabet[(random_next(seed) >> 33) % (sizeof alphabet - 1)];
    enum state state = START;
    for (int i = 0; i < TEXT; i++) {
        if (text[i] == ',') {
            ended[state]++;
            state = START;
        } else
            state = step(state, text[i]);
    }
    for (int i = 0; i < STATES; i++) crc = crc16(crc, ended[i]);
    return crc;
}

int main(int argc, char **argv) {
    uint64_t iterations = argument(argc, argv, 1, 16000, 1, 100000000);
    uint64_t seed = 0x106a7, sum = CHECKSUM_START;
    static struct node pool[NODES];
    static int16_t a[SIDE][SIDE], b[SIDE][SIDE];
    for (int i = 0; i < SIDE * SIDE; i++) {
        a[i / SIDE][i % SIDE] = (int16_t)(random_next(&seed) >> 48);
        b[i / SIDE][i % SIDE] = (int16_t)(random_next(&seed) >> 48);
    }
    longma_roi_begin();
    for (uint64_t i = 0; i < iterations; i++) {
        sum = checksum(sum, list_work(pool, &seed));
        sum = checksum(sum, matrix_work(a, b, (int16_t)i));
        sum = checksum(sum, state_work(&seed));
    }
    longma_roi_end();
    print_checksum("integer_mix", sum);
    return 0;
}
