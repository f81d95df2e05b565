//! Snapshots of AArch64 sequences that are common in programs: loops, calls, flags that are live across blocks,
//! exclusive accesses, vectors.

use longma_translate_arm::Aarch64;
use longma_translate_conformance::{bytes, emitted};

/// Title and words of each sequence.
const SEQUENCES: &[(&str, &[u32])] = &[
    (
        "A counted loop",
        // 1: add x0, x0, x1; subs x2, x2, #1; b.ne 1b; ret
        &[0x8b01_0000, 0xf100_0442, 0x54ff_ffc1, 0xd65f_03c0],
    ),
    (
        "A loop over memory: the sum of words",
        // 1: ldr w3, [x0], #4; add w2, w2, w3; cmp x0, x1; b.ne 1b; ret
        &[0xb840_4403, 0x0b03_0042, 0xeb01_001f, 0x54ff_ffa1, 0xd65f_03c0],
    ),
    (
        "A call of a function, and its return",
        // bl 1f; add w0, w0, #1; ret; 1: add w0, w1, w2, lsl #1; ret
        &[0x9400_0003, 0x1100_0400, 0xd65f_03c0, 0x0b02_0420, 0xd65f_03c0],
    ),
    (
        "A function that keeps registers on the stack",
        // stp x29, x30, [sp, #-32]!; mov x29, sp; str x19, [sp, #16]; mov x19, x0; blr x1; mov x0, x19; ldr x19, [sp,
        // #16]; ldp x29, x30, [sp], #32; ret
        &[
            0xa9be_7bfd,
            0x9100_03fd,
            0xf900_0bf3,
            0xaa00_03f3,
            0xd63f_0020,
            0xaa13_03e0,
            0xf940_0bf3,
            0xa8c2_7bfd,
            0xd65f_03c0,
        ],
    ),
    (
        "A jump to an address from a table",
        // ldrsw x1, [x0, w1, uxtw #2]; add x0, x0, x1; br x0
        &[0xb8a1_5801, 0x8b01_0000, 0xd61f_0000],
    ),
    (
        "Ways to write an address",
        // ldr x1, [x0, x2, lsl #3]; ldrb w3, [x0, w4, sxtw]; ldur w8, [x0, #-3]; str x8, [x0, #8]!; ldp x10, x11, [x0,
        // #16]; ldr x12, [x0, #32760]; ret
        &[0xf862_7801, 0x3864_c803, 0xb85f_d008, 0xf800_8c08, 0xa941_2c0a, 0xf97f_fc0c, 0xd65f_03c0],
    ),
    (
        "Constants of more than one instruction",
        // movz x0, #0x1234; movk x0, #0x5678, lsl #16; movk x0, #0x9abc, lsl #32; adrp x1, 0x2000; add x1, x1, #0x10;
        // ret
        &[0xd282_4680, 0xf2aa_cf00, 0xf2d3_5780, 0xb000_0001, 0x9100_4021, 0xd65f_03c0],
    ),
    (
        "Registers without a LoongArch register",
        // add x5, x6, x7; ldr x16, [x25]; add x26, x16, x5; str x26, [x27, x28]; ret
        &[0x8b07_00c5, 0xf940_0330, 0x8b05_021a, 0xf83c_6b7a, 0xd65f_03c0],
    ),
    (
        "Words whose upper halves are never read",
        // add w0, w1, w2; eor w0, w0, w3; lsr w0, w0, #3; str w0, [x4]; ret
        &[0x0b02_0020, 0x4a03_0000, 0x5303_7c00, 0xb900_0080, 0xd65f_03c0],
    ),
    (
        "Branches on a register and on one of its bits",
        // cbz x0, 1f; tbnz w1, #3, 1f; sub x0, x0, #1; cbnz w0, 1f; mov x0, #0; 1: ret
        &[0xb400_00a0, 0x3718_0081, 0xd100_0400, 0x3500_0040, 0xd280_0000, 0xd65f_03c0],
    ),
    (
        "Comparisons that branches, selects and sets read",
        // cmp w0, w1; b.lo 1f; tst w2, w2; csel w3, w4, w3, eq; cmp x0, #100; cset w0, gt; 1: ret
        &[0x6b01_001f, 0x5400_00a3, 0x6a02_005f, 0x1a83_0083, 0xf101_901f, 0x1a9f_d7e0, 0xd65f_03c0],
    ),
    (
        "One comparison, and several branches on it",
        // cmp x0, x1; b.eq 1f; b.gt 2f; mov x0, #-1; ret; 1: mov x0, #0; ret; 2: mov x0, #1; ret
        &[
            0xeb01_001f,
            0x5400_0080,
            0x5400_00ac,
            0x9280_0000,
            0xd65f_03c0,
            0xd280_0000,
            0xd65f_03c0,
            0xd280_0020,
            0xd65f_03c0,
        ],
    ),
    (
        "Flags that are read in another block",
        // subs x0, x0, x1; cbz x2, 1f; mov x3, #5; 1: csel x0, x3, x4, vs; ret
        &[0xeb01_0000, 0xb400_0042, 0xd280_00a3, 0x9a84_6060, 0xd65f_03c0],
    ),
    (
        "Flags that two paths set differently",
        // cbz x2, 1f; cmp x0, x1; b 2f; 1: cmn w0, #1; 2: csel x0, x3, x4, hi; ret
        &[0xb400_0062, 0xeb01_001f, 0x1400_0002, 0x3100_041f, 0x9a84_8060, 0xd65f_03c0],
    ),
    (
        "A chain of comparisons",
        // cmp w0, #5; ccmp w1, #7, #4, ne; b.hi 1f; mov w0, #0; 1: ret
        &[0x7100_141f, 0x7a47_1824, 0x5400_0048, 0x5280_0000, 0xd65f_03c0],
    ),
    (
        "A sum of 128 bits: one instruction's carry is the next one's",
        // adds x0, x0, x2; adc x1, x1, x3; ret
        &[0xab02_0000, 0x9a03_0021, 0xd65f_03c0],
    ),
    (
        "Exclusive accesses in a loop: an addition",
        // 1: ldaxr w1, [x0]; add w1, w1, #1; stlxr w2, w1, [x0]; cbnz w2, 1b; ret
        &[0x885f_fc01, 0x1100_0421, 0x8802_fc01, 0x35ff_ffa2, 0xd65f_03c0],
    ),
    (
        "Exclusive accesses in a loop: compare and exchange",
        // 1: ldxr x3, [x0]; cmp x3, x1; b.ne 2f; stxr w4, x2, [x0]; cbnz w4, 1b; 2: cset w0, eq; ret
        &[0xc85f_7c03, 0xeb01_007f, 0x5400_0061, 0xc804_7c02, 0x35ff_ff84, 0x1a9f_17e0, 0xd65f_03c0],
    ),
    (
        "Atomic accesses of ARMv8.1",
        // ldaddal w1, w2, [x0]; casa x3, x4, [x0]; swp w8, w8, [x0]; ret
        &[0xb8e1_0002, 0xc8e3_7c04, 0xb828_8008, 0xd65f_03c0],
    ),
    (
        "A comparison of numbers, and what reads it",
        // fcmp d0, d1; b.mi 1f; fcsel d0, d2, d3, gt; fadd d0, d0, d1; 1: ret
        &[0x1e61_2000, 0x5400_0064, 0x1e63_cc40, 0x1e61_2800, 0xd65f_03c0],
    ),
    (
        "A loop of scalar numbers",
        // 1: ldr d1, [x0], #8; fmadd d0, d1, d2, d0; cmp x0, x1; b.ne 1b; ret
        &[0xfc40_8401, 0x1f42_0020, 0xeb01_001f, 0x54ff_ffa1, 0xd65f_03c0],
    ),
    (
        "A loop of vectors",
        // 1: ldr q1, [x0]; add v0.4s, v0.4s, v1.4s; str q0, [x0], #16; cmp x0, x1; b.ne 1b; ret
        &[0x3dc0_0001, 0x4ea1_8400, 0x3c81_0400, 0xeb01_001f, 0x54ff_ff81, 0xd65f_03c0],
    ),
    (
        "A sum over the lanes of a vector",
        // ld1 {v0.16b, v1.16b}, [x0]; uaddl v2.8h, v0.8b, v1.8b; addv h3, v2.8h; umov w0, v3.h[0]; ret
        &[0x4c40_a000, 0x2e21_0002, 0x4e71_b843, 0x0e02_3c60, 0xd65f_03c0],
    ),
    (
        "A search for a byte, sixteen at a time",
        // dup v0.16b, w1; 1: ldr q1, [x0], #16; cmeq v1.16b, v1.16b, v0.16b; shrn v1.8b, v1.8h, #4; fmov x2, d1; cbz
        // x2, 1b; rbit x2, x2; clz x2, x2; ret
        &[
            0x4e01_0c20,
            0x3cc1_0401,
            0x6e20_8c21,
            0x0f0c_8421,
            0x9e66_0022,
            0xb4ff_ff82,
            0xdac0_0042,
            0xdac0_1042,
            0xd65f_03c0,
        ],
    ),
    (
        "A system call",
        // mov x8, #64; svc #0; ret
        &[0xd280_0808, 0xd400_0001, 0xd65f_03c0],
    ),
    (
        "The lesser of two words",
        // cmp w0, w1; csel w0, w2, w3, le; ret
        &[0x6b01_001f, 0x1a83_d040, 0xd65f_03c0],
    ),
];

/// The text of all sequences.
pub fn text() -> String {
    emitted::sequences::<Aarch64>(all())
}

/// The number of instructions with other sets of optimizations, and the names of the optimizations that change no
/// sequence.
pub fn by_optimizations() -> (String, Vec<&'static str>) {
    emitted::by_optimizations::<Aarch64>(all())
}

fn all() -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    SEQUENCES.iter().map(|(what, code)| (*what, bytes(code)))
}
